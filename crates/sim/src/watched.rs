//! An engine whose input, events and packets an oracle checks. The module also cuts the engine's super-segments
//! into the packets that a node sends.

use core::net::IpAddr;
use std::borrow::Cow;

use braid_engine::{Config, ConnId, Event, RxMeta, Stack, StrategyFactory, Transmit};
use braid_wire::{Instant, Rng, ip, tcp};

use crate::node::{Packet, Turn};
use crate::oracle::{Oracle, Violation};
use crate::traffic::Stream;

/// A stack of the engine, and the oracle that watches it.
#[derive(Debug)]
pub(crate) struct WatchedStack {
    pub stack: Stack,
    pub oracle: Oracle,
}

impl WatchedStack {
    /// Makes a stack without paths; `rng` is its random stream.
    ///
    /// Checksum offload is always on, whatever `config` says: the world decides about checksums, not the engine.
    /// If the world uses checksums, the node completes them, as a network card would. Otherwise no node
    /// computes them, and the run takes less time.
    pub fn new(config: Config, rng: Rng, strategy: StrategyFactory) -> Self {
        let config = Config {
            checksum_offload: true,
            ..config
        };
        WatchedStack {
            oracle: Oracle::new(config.clone()),
            stack: Stack::new(config, rng, strategy),
        }
    }

    /// Hands a packet to the stack.
    pub fn receive(&mut self, now: Instant, packet: &[u8], meta: RxMeta) {
        self.stack.receive(now, packet, meta);
        // The oracle comes after the stack, because the stack's counters tell it whether the stack has dropped the
        // packet as damaged.
        self.oracle.on_received(now, packet, &self.stack);
    }

    /// Runs the stack's timers that are due. Does nothing if none is due, so that a node can call this on every
    /// turn.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.stack.next_timeout().is_some_and(|at| at <= now) {
            self.stack.handle_timeout(now);
        }
    }

    /// Returns the stack's next event.
    pub fn poll_event(&mut self, now: Instant) -> Option<Event> {
        let event = self.stack.poll_event()?;
        self.oracle.on_event(now, &event);
        Some(event)
    }

    /// Returns the next packet to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<'_>> {
        // Checks the previous packet: the stack is borrowed as long as the caller has a packet, so its statistics
        // can be compared only now. `end_turn` does the same for the last packet.
        self.oracle.check_sent(now, &self.stack);
        let transmit = self.stack.poll_transmit(now)?;
        self.oracle.on_transmit(now, &transmit);
        Some(transmit)
    }

    /// Sends all packets of the stack, each by the interface that `iface` returns. Returns whether there was a
    /// packet.
    ///
    /// Calls `on_sent` once for each packet or super-segment of the engine, with its number. A super-segment's
    /// number is the one of its first packet.
    pub fn send_all(
        &mut self,
        turn: &mut Turn<'_>,
        iface: impl Fn(&Transmit<'_>) -> u32,
        mut on_sent: impl FnMut(&Transmit<'_>, u64),
    ) -> bool {
        let mut any = false;
        // As `poll_transmit` does, which would move each packet once more.
        loop {
            self.oracle.check_sent(turn.now, &self.stack);
            let Some(transmit) = self.stack.poll_transmit(turn.now) else {
                return any;
            };
            self.oracle.on_transmit(turn.now, &transmit);
            let first = segment(&transmit, turn, iface(&transmit));
            on_sent(&transmit, first);
            any = true;
        }
    }

    /// Makes `stream` write and read on `conn` as much as possible.
    pub fn pump(&mut self, now: Instant, conn: ConnId, stream: &mut Stream) {
        stream.pump(now, conn, &mut self.stack, &mut self.oracle);
    }

    /// Returns the violations that the oracle has seen. Call this when the stack has no more events and packets:
    /// the oracle requires that all timers lie in the future, and that memory and connections are within their
    /// bounds.
    pub fn end_turn(&mut self, now: Instant) -> Vec<Violation> {
        // Checks the turn's last packet, see `poll_transmit`. The oracle checks no packet twice.
        self.oracle.check_sent(now, &self.stack);
        self.oracle.end_turn(now, &self.stack);
        self.oracle.take()
    }
}

/// Returns the properties of a received packet. In a world without checksums no node computes them, so the
/// checksum counts as verified, as if a network card had done so. Nothing merges received packets (GRO).
pub(crate) fn meta(turn: &Turn<'_>) -> RxMeta {
    RxMeta {
        checksum_ok: !turn.checksums,
        gso_size: 0,
    }
}

/// Returns the destination of a packet.
pub(crate) fn destination(transmit: &Transmit<'_>) -> IpAddr {
    let header = ip::Packet::of_head(transmit.header, usize::MAX);
    let header = header.expect("the engine makes valid IP headers");
    // The receiver would find a wrong checksum too. The assertion finds it at the sender, where the fault is.
    debug_assert!(header.checksum_ok(), "the engine makes valid IP headers");
    header.dst()
}

/// Cuts a super-segment into packets as a network card does, and sends them by `iface`. Each packet has the
/// super-segment's header, but its own length and sequence number. Returns the number of the first packet; the
/// others have the following numbers.
///
/// All packets have the super-segment's TCP flags. A network card would clear PSH in all packets but the last, but
/// PSH has no effect here. Other flags that only one packet may have do not occur in super-segments: a SYN has
/// at most one segment of payload, a FIN has none, and the engine sends CWR in single packets only.
fn segment(transmit: &Transmit<'_>, turn: &mut Turn<'_>, iface: u32) -> u64 {
    let payload: Cow<'_, [u8]> = match transmit.payload[..] {
        [whole] => whole.into(),
        ref parts => parts.concat().into(),
    };
    let size = match transmit.gso_size {
        0 => payload.len(),
        size => usize::from(size),
    };
    let mut first = None;
    let mut done = 0;
    // The test is at the end of the loop, so that a packet without payload is sent as well.
    loop {
        let end = payload.len().min(done + size);
        let mut buffer = turn.buffer();
        buffer.extend_from_slice(transmit.header);
        buffer.extend_from_slice(&payload[done..end]);
        // A single packet has the right header already.
        if end - done < payload.len() {
            patch_header(&mut buffer, done as u32);
        }
        if turn.checksums {
            tcp::complete_checksum(&mut buffer).expect("the engine makes valid TCP segments");
        }
        let id = turn.send(iface, Packet::new(buffer));
        first.get_or_insert(id);
        done = end;
        if done == payload.len() {
            // `first` is always set here.
            return first.unwrap_or(id);
        }
    }
}

/// Adapts the headers of `packet`, whose payload starts `offset` bytes into the super-segment.
fn patch_header(packet: &mut [u8], offset: u32) {
    // IPv4: the total length at byte 2 includes the IP header. IPv6: the payload length at byte 4 does not include
    // the header of 40 bytes.
    let (length_at, length) = match packet[0] >> 4 {
        4 => (2, packet.len()),
        _ => (4, packet.len() - 40),
    };
    packet[length_at..length_at + 2].copy_from_slice(&(length as u16).to_be_bytes());
    let mut ip = ip::Packet::new(packet).expect("the engine makes valid IP headers");
    // Routers verify the checksum of the IPv4 header, even in worlds without TCP checksums.
    ip.fill_checksum();
    let mut tcp = tcp::Packet::new(ip.payload_mut()).expect("the engine makes valid TCP segments");
    tcp.set_seq(tcp.seq().add(offset));
}
