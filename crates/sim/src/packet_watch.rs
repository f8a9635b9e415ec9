//! An observer of packets between two links, from the one on which they are sent to the one over which they arrive.
//! In between they may cross a tunnel, so the world's packet numbers do not lead from one link to the other.

use core::hash::{Hash, Hasher};
use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::hash::DefaultHasher;

use braid_wire::{Instant, ip};

use crate::node::{LinkId, Packet};
use crate::oracle::{Rule, Violation};
use crate::tap::{PacketEvent, Tap};

/// The maximum number of violations kept. 16 is a guess: later violations are usually consequences of the first.
const MAX_VIOLATIONS: usize = 16;

/// Addresses, protocol and ports of a flow. The ports are 0 for protocols without ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FlowKey {
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    ports: [u8; 4],
}

impl FlowKey {
    fn of(packet: &[u8]) -> Option<FlowKey> {
        let packet = ip::Packet::new(packet).ok()?;
        let (protocol, payload) = packet.transport().ok()?;
        let has_ports = [ip::PROTO_TCP, ip::PROTO_UDP].contains(&protocol);
        let ports = payload.first_chunk().filter(|_| has_ports);
        Some(FlowKey {
            src: packet.src(),
            dst: packet.dst(),
            protocol,
            ports: ports.copied().unwrap_or_default(),
        })
    }
}

/// The sent packets that have the same bytes. Time and place are those of the last one.
#[derive(Debug, Clone, Copy)]
struct SentPacket {
    at: Instant,
    /// The place of the packet in its flow.
    place: u64,
    /// The packets with these bytes that were sent and have not arrived.
    missing: u32,
}

/// The places of a flow's packets.
#[derive(Debug, Clone, Copy, Default)]
struct Places {
    sent: u64,
    /// The highest place that has arrived, plus one.
    next: u64,
}

/// The measurements of a [`PacketWatch`].
#[derive(Debug, Clone, Default)]
pub struct PacketReport {
    /// Packets sent.
    pub sent: u64,
    /// Bytes of the packets sent.
    pub bytes_sent: u64,
    /// Bytes of the packets that arrived.
    pub bytes_arrived: u64,
    /// Packets that arrived after a packet of their flow that was sent later (RFC 4737 section 3).
    pub reordered: u64,
    /// The time that each packet took, in the order of arrival.
    pub delays: Vec<Duration>,
    /// The first violations of [`Rule::Bytes`]: a packet arrived twice, or arrived and was not sent.
    pub violations: Vec<Violation>,
}

impl PacketReport {
    /// Returns the number of packets that have not arrived.
    pub fn lost(&self) -> u64 {
        self.sent - self.delays.len() as u64
    }
}

/// An observer of packets from `first`, on which they are sent, to `last`, over which they arrive. Both may be the
/// same link. It is the oracle of a tunnel between the two: each packet arrives at most once, and no packet arrives
/// that was not sent. The world calls it as a tap of both links.
#[derive(Debug)]
pub struct PacketWatch {
    first: LinkId,
    last: LinkId,
    sent: BTreeMap<u64, SentPacket>,
    flows: BTreeMap<FlowKey, Places>,
    report: PacketReport,
}

impl PacketWatch {
    /// Makes an observer of packets between these two links.
    pub fn new(first: LinkId, last: LinkId) -> Self {
        PacketWatch {
            first,
            last,
            sent: BTreeMap::new(),
            flows: BTreeMap::new(),
            report: PacketReport::default(),
        }
    }

    /// Returns the measurements so far.
    pub fn report(&self) -> &PacketReport {
        &self.report
    }

    fn on_sent(&mut self, at: Instant, packet: &[u8]) {
        self.report.sent += 1;
        self.report.bytes_sent += packet.len() as u64;
        let places = FlowKey::of(packet).map(|flow| self.flows.entry(flow).or_default());
        let place = places.map_or(0, |places| {
            places.sent += 1;
            places.sent - 1
        });
        let missing = self
            .sent
            .get(&digest(packet))
            .map_or(0, |sent| sent.missing);
        let missing = missing + 1;
        self.sent
            .insert(digest(packet), SentPacket { at, place, missing });
    }

    fn on_arrived(&mut self, at: Instant, packet: &[u8]) {
        let Some(sent) = self.sent.get_mut(&digest(packet)) else {
            return self.violated(at, "a packet arrived that was not sent, or was altered");
        };
        if sent.missing == 0 {
            return self.violated(at, "a packet arrived twice");
        }
        sent.missing -= 1;
        let sent = *sent;
        self.report.bytes_arrived += packet.len() as u64;
        self.report.delays.push(at.saturating_since(sent.at));
        let Some(places) = FlowKey::of(packet).and_then(|flow| self.flows.get_mut(&flow)) else {
            return;
        };
        self.report.reordered += u64::from(sent.place < places.next);
        places.next = places.next.max(sent.place + 1);
    }

    fn violated(&mut self, at: Instant, seen: &str) {
        if self.report.violations.len() < MAX_VIOLATIONS {
            self.report.violations.push(Violation {
                at,
                rule: Rule::Bytes,
                conn: None,
                seen: seen.to_owned(),
            });
        }
    }
}

/// Returns a hash of a packet, without the ECN bits, which a queue may change (RFC 3168), and without the checksum of
/// the IPv4 header. With 64 bits, two of a million packets have the same hash with a probability of 3 in 10^8.
fn digest(packet: &[u8]) -> u64 {
    let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
    // The ECN bits are in the second byte of either header.
    let (others, checksum) = if is_v6 { (0xcf, 2..2) } else { (0xfc, 10..12) };
    let mut hasher = DefaultHasher::new();
    packet.first().hash(&mut hasher);
    packet.get(1).map(|byte| byte & others).hash(&mut hasher);
    packet.get(2..checksum.start).hash(&mut hasher);
    packet.get(checksum.end..).hash(&mut hasher);
    hasher.finish()
}

impl Tap for PacketWatch {
    fn on_packet(&mut self, at: Instant, link: LinkId, event: PacketEvent, packet: &Packet) {
        match event {
            PacketEvent::Sent if link == self.first => self.on_sent(at, &packet.bytes),
            PacketEvent::Delivered { .. } if link == self.last => {
                self.on_arrived(at, &packet.bytes);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::UdpHeader;
    use crate::{Node, Turn, World};

    /// Sends, when woken, a packet of one byte for each number of its plan: the byte is the number.
    struct Sender(Vec<u8>);

    impl Node for Sender {
        fn receive(&mut self, _: &mut Turn<'_>, _: u32, _: Packet) {}

        fn wake(&mut self, turn: &mut Turn<'_>) {
            let [src, dst] = [1, 2].map(|n| ([10, 0, 0, n], 9).into());
            for number in self.0.drain(..) {
                let packet = UdpHeader::new(src, dst).packet(turn, 1, |byte| byte[0] = number);
                turn.send(0, packet);
            }
        }
    }

    /// Returns the report of packets `sent`, of which `arrive` arrive.
    fn watched(sent: &[u8], arrive: &[u8]) -> PacketReport {
        let mut world = World::new(1);
        let mut links = Vec::new();
        for _ in 0..2 {
            let from = world.add(|_| Sender(Vec::new()));
            let to = world.add(|_| Sender(Vec::new()));
            let perfect = braid_links::Settings::default();
            links.push((from, world.connect(from, to, perfect.clone(), perfect).0));
        }
        let watch = PacketWatch::new(links[0].1, links[1].1);
        let watch = std::sync::Arc::new(std::sync::Mutex::new(watch));
        for ((from, link), plan) in links.into_iter().zip([sent, arrive]) {
            world.tap(link, Box::new(watch.clone()));
            world.with_node(from, |sender: &mut Sender, _| sender.0 = plan.to_vec());
            world.advance(Duration::from_millis(5));
        }
        watch.lock().unwrap().report().clone()
    }

    #[test]
    fn losses_and_reordering_are_counted() {
        let report = watched(&[0, 1, 2, 3], &[1, 0, 3]);
        assert_eq!((report.sent, report.lost(), report.reordered), (4, 1, 1));
        // An IPv4 header, a UDP header and a byte.
        assert_eq!((report.bytes_sent, report.bytes_arrived), (4 * 29, 3 * 29));
        assert_eq!(report.delays, [Duration::from_millis(5); 3]);
        assert_eq!(report.violations, []);
    }

    #[test]
    fn a_mark_is_no_change() {
        let packet = |traffic_class, payload| {
            let header = ip::Repr {
                src: [10, 0, 0, 1].into(),
                dst: [10, 0, 0, 2].into(),
                protocol: ip::PROTO_UDP,
                payload_len: 8,
                hop_limit: 64,
                traffic_class,
            };
            let mut packet = vec![payload; 28];
            header.emit(&mut packet);
            packet
        };
        let sent = digest(&packet(ip::ECT, 1));
        assert_eq!(digest(&packet(ip::CE, 1)), sent);
        assert_ne!(digest(&packet(ip::ECT | 4, 1)), sent);
        assert_ne!(digest(&packet(ip::ECT, 2)), sent);
    }

    #[test]
    fn equal_packets_arrive_as_often_as_they_were_sent() {
        assert_eq!(watched(&[7, 7], &[7, 7]).violations, []);
        let seen = |sent: &[u8], arrive: &[u8]| {
            let report = watched(sent, arrive);
            report.violations.first().map(|v| v.seen.clone())
        };
        assert_eq!(seen(&[7], &[7, 7]).unwrap(), "a packet arrived twice");
        assert!(seen(&[7], &[8]).unwrap().contains("not sent"));
    }
}
