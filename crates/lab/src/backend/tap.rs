//! Observation of packets at the engines' devices.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use braid_engine::buffer::{PacketBuffer, RangeSet};
use braid_engine::{RxMeta, SegmentKind, Transmit};
use braid_linux::driver::Clock;
use braid_linux::tun::{PacketIo, Tun};
use braid_sim::transfer::client_addr;
use braid_wire::{ip, tcp};

use crate::session_trace::{Packet, seconds};

/// The segments with payload to the client that a device sent or received. A segment has its path and the
/// sequence number of its first byte.
#[derive(Debug)]
pub(super) struct Seen {
    clock: Clock,
    /// The client's addresses.
    addresses: Vec<IpAddr>,
    sent: Vec<((usize, u32), Packet)>,
    /// The times of arrival, s.
    arrived: Vec<((usize, u32), f64)>,
}

impl Seen {
    /// Returns the segments of a packet to the client with `len` bytes of payload. A super-segment is cut into
    /// segments of `gso_size` bytes. With each segment comes its range in the payload.
    fn segments(
        &self,
        (to, tcp): (IpAddr, tcp::Packet<&[u8]>),
        len: u64,
        gso_size: u16,
    ) -> Vec<((usize, u32), Range<u64>)> {
        let Some(path) = self.addresses.iter().position(|a| *a == to) else {
            return Vec::new();
        };
        let step = match gso_size {
            0 => len.max(1),
            size => u64::from(size),
        };
        let cut = |offset: u64| {
            let seq = tcp.seq().0.wrapping_add(offset as u32);
            ((path, seq), offset..len.min(offset + step))
        };
        (0..len).step_by(step as usize).map(cut).collect()
    }
}

/// A device that records the segments with payload to the client.
pub(super) struct Tap<'a> {
    device: &'a mut Tun,
    pub seen: Seen,
}

impl<'a> Tap<'a> {
    /// Returns a device of a world with `paths` paths.
    pub fn new(clock: Clock, device: &'a mut Tun, paths: usize) -> Self {
        let seen = Seen {
            clock,
            addresses: (0..paths).map(|n| client_addr(n).into()).collect(),
            sent: Vec::new(),
            arrived: Vec::new(),
        };
        Tap { device, seen }
    }
}

impl PacketIo for Tap<'_> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.device.fd()
    }

    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<()> {
        let payload: usize = transmit.payload.iter().map(|part| part.len()).sum();
        let packet = parse_tcp(transmit.header, transmit.header.len() + payload);
        if let (Some(info), Some(packet)) = (&transmit.info, packet) {
            let sent = seconds(self.seen.clock.now());
            let len = info.data.end - info.data.start;
            for (segment, range) in self.seen.segments(packet, len, transmit.gso_size) {
                let packet = Packet {
                    path: segment.0,
                    new: info.kind == SegmentKind::New,
                    dsn: info.data.start + range.start,
                    len: range.end - range.start,
                    sent,
                    arrived: None,
                    fresh: 0,
                };
                self.seen.sent.push((segment, packet));
            }
        }
        self.device.send(transmit)
    }

    fn recv(&mut self) -> io::Result<Option<(&mut PacketBuffer, RxMeta)>> {
        let received = self.device.recv()?;
        if let Some((packet, meta)) = &received {
            let [head, rest] = packet.parts();
            if let Some(packet) = parse_tcp(head, head.len() + rest.len()) {
                let at = seconds(self.seen.clock.now());
                let len = (packet.1.payload().len() + rest.len()) as u64;
                let segments = self.seen.segments(packet, len, meta.gso_size);
                let arrivals = segments.into_iter().map(|(segment, _)| (segment, at));
                self.seen.arrived.extend(arrivals);
            }
        }
        Ok(received)
    }
}

/// Returns the destination and the TCP segment of a packet of `len` bytes. `head` has the headers of the packet, and
/// may lack payload.
fn parse_tcp(head: &[u8], len: usize) -> Option<(IpAddr, tcp::Packet<&[u8]>)> {
    let (ip, segment) = ip::Repr::parse_head(head, len).ok()?;
    let segment = head
        .get(segment.start..)
        .filter(|_| ip.protocol == ip::PROTO_TCP)?;
    Some((ip.dst, tcp::Packet::new(segment).ok()?))
}

/// Returns the sent segments, each with its arrival if it arrived. A segment and its retransmissions have
/// the same sequence number. An arrival is therefore matched with one of them: the latest that was sent
/// before the arrival and has no arrival yet.
pub(super) fn match_packets(sent: &Seen, arrived: &Seen) -> Vec<Packet> {
    let mut by_segment: BTreeMap<(usize, u32), Vec<usize>> = BTreeMap::new();
    for (n, (segment, _)) in sent.sent.iter().enumerate() {
        by_segment.entry(*segment).or_default().push(n);
    }
    let mut packets: Vec<Packet> = sent.sent.iter().map(|(_, packet)| *packet).collect();
    let mut received = RangeSet::new();
    for (segment, at) in &arrived.arrived {
        let fits = |n: &&usize| packets[**n].sent <= *at && packets[**n].arrived.is_none();
        let candidates = by_segment.get(segment).into_iter().flatten();
        if let Some(n) = candidates.rev().find(fits) {
            let packet = &mut packets[*n];
            packet.arrived = Some(*at);
            packet.fresh = received.insert(packet.dsn..packet.dsn + packet.len);
        }
    }
    packets
}
