//! A sink that measures loss, delay and jitter of UDP flows.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use braid_sim::udp::UdpTally;
use braid_sim::{Node, Packet, Turn};
use braid_wire::{Instant, ip, udp};

/// The sequence number and the time of sending at the start of a packet's payload.
#[derive(Debug, Clone, Copy)]
struct Stamp {
    number: u64,
    sent_at: Instant,
}

impl Stamp {
    fn parse(payload: &[u8]) -> Option<Stamp> {
        let (number, rest) = payload.split_first_chunk()?;
        Some(Stamp {
            number: u64::from_be_bytes(*number),
            sent_at: Instant::from_nanos(u64::from_be_bytes(*rest.first_chunk()?)),
        })
    }
}

/// The measurements of a [`UdpSink`] for one flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UdpReport {
    /// Packets received, including duplicates.
    pub received: UdpTally,
    /// Packets that were received more than once, without the first copy of each. A packet whose number is more
    /// than 127 below the highest one counts as reordered instead, because the sink remembers 128 numbers only.
    pub duplicates: u64,
    /// Packets that arrived after a packet with a higher number (RFC 4737 section 3).
    pub reordered: u64,
    /// The number of packets that the source has sent, as far as the sink can know: the highest received number
    /// plus one.
    pub expected: u64,
    /// The one-way delay of the fastest packet.
    pub delay_min: Duration,
    /// The one-way delay of the slowest packet.
    pub delay_max: Duration,
    /// The sum of all one-way delays.
    pub delay_sum: Duration,
    /// The smoothed mean of the change of delay from packet to packet (RFC 3550 section 6.4.1).
    pub jitter: Duration,
    last_delay: Duration,
    /// The received packets among the last 128 before `expected`: bit 0 stands for number `expected - 1`.
    seen: u128,
}

impl UdpReport {
    /// Returns the number of packets that have a number below the highest received one and have not arrived.
    pub fn lost(&self) -> u64 {
        let unique = self.received.packets - self.duplicates;
        self.expected.saturating_sub(unique)
    }

    /// Returns the mean one-way delay, or zero if no packet has arrived.
    pub fn delay_mean(&self) -> Duration {
        let nanos = self.delay_sum.as_nanos() / u128::from(self.received.packets.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn on_packet(&mut self, now: Instant, stamp: Stamp, len: usize) {
        self.count(stamp.number);
        let delay = now.saturating_since(stamp.sent_at);
        if self.received.packets == 0 {
            self.delay_min = delay;
            self.last_delay = delay;
        }
        self.received.packets += 1;
        self.received.bytes += len as u64;
        self.delay_min = self.delay_min.min(delay);
        self.delay_max = self.delay_max.max(delay);
        self.delay_sum = self.delay_sum.saturating_add(delay);
        let change = delay.abs_diff(self.last_delay);
        self.last_delay = delay;
        // RFC 3550 section 6.4.1: J += (|D| - J) / 16.
        self.jitter = (self.jitter * 15 + change) / 16;
    }

    /// Counts packet `number` as new, reordered or duplicate.
    fn count(&mut self, number: u64) {
        match number.checked_sub(self.expected) {
            Some(ahead) => {
                let shift = u32::try_from(ahead.saturating_add(1)).unwrap_or(u32::MAX);
                self.seen = self.seen.checked_shl(shift).unwrap_or(0) | 1;
                self.expected = number.saturating_add(1);
            }
            None => {
                let age = self.expected - 1 - number;
                let age = u32::try_from(age).unwrap_or(u32::MAX);
                let bit = 1u128.checked_shl(age).unwrap_or(0);
                match self.seen & bit {
                    0 => self.reordered += 1,
                    _ => self.duplicates += 1,
                }
                self.seen |= bit;
            }
        }
    }
}

/// The maximum number of flows that a sink measures. 1,024 is a guess: far more flows than a test has.
const MAX_FLOWS: usize = 1024;

/// A host that takes the packets of [`UdpSource`]s and measures each flow.
#[derive(Debug, Default)]
pub struct UdpSink {
    flows: BTreeMap<SocketAddr, UdpReport>,
    ignored: u64,
}

impl UdpSink {
    /// Makes a sink that has received nothing.
    pub fn new() -> Self {
        UdpSink::default()
    }

    /// Returns the measurements of the flow from `src`.
    pub fn report(&self, src: SocketAddr) -> UdpReport {
        self.flows.get(&src).copied().unwrap_or_default()
    }

    /// Returns the number of packets that were ignored: they are no UDP of a [`UdpSource`], have a wrong checksum,
    /// or belong to a flow after the first 1,024.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Measures a packet; returns `None` for a packet to ignore.
    fn take(&mut self, turn: &Turn<'_>, packet: &[u8]) -> Option<()> {
        let (ip, datagram) = ip::Repr::parse(packet).ok()?;
        let (udp, payload) = udp::Repr::parse(datagram).ok()?;
        let checksum_ok = !turn.checksums || udp::verify_checksum(ip.src, ip.dst, datagram);
        let stamp =
            Stamp::parse(payload).filter(|_| checksum_ok && ip.protocol == ip::PROTO_UDP)?;
        let src = SocketAddr::new(ip.src, udp.src_port);
        if self.flows.len() >= MAX_FLOWS && !self.flows.contains_key(&src) {
            return None;
        }
        let report = self.flows.entry(src).or_default();
        report.on_packet(turn.now, stamp, packet.len());
        Some(())
    }
}

impl Node for UdpSink {
    fn receive(&mut self, turn: &mut Turn<'_>, _iface: u32, packet: Packet) {
        if self.take(turn, &packet.bytes).is_none() {
            self.ignored += 1;
        }
        turn.recycle(packet);
    }
}

#[test]
fn duplicates_and_reordered_packets_are_counted_apart() {
    let counts = |numbers: &[u64]| {
        let mut r = UdpReport::default();
        for number in numbers.iter().copied() {
            let sent_at = Instant::ZERO;
            r.on_packet(sent_at, Stamp { number, sent_at }, 100);
        }
        (r.expected, r.lost(), r.duplicates, r.reordered)
    };
    assert_eq!(counts(&[0, 1, 2]), (3, 0, 0, 0));
    assert_eq!(counts(&[0, 3]), (4, 2, 0, 0));
    assert_eq!(counts(&[0, 3, 1, 1]), (4, 1, 1, 1));
    assert_eq!(counts(&[0, 0, 1, 0]), (2, 0, 2, 0));
    assert_eq!(counts(&[127, 0, 0, 128, 1]), (129, 125, 1, 2));
    // Packet 0 is too old to be known as a copy.
    assert_eq!(counts(&[0, 128, 0]), (129, 126, 0, 1));
    assert_eq!(
        counts(&[u64::MAX - 1, u64::MAX - 2]),
        (u64::MAX, u64::MAX - 2, 0, 1)
    );
}

#[test]
fn delay_and_jitter() {
    let mut report = UdpReport::default();
    assert_eq!(report.delay_mean(), Duration::ZERO);
    for (number, delay) in [(0, 10), (1, 26), (2, 18)] {
        let sent_at = Instant::from_millis(1000);
        let at = Instant::from_millis(1000 + delay);
        report.on_packet(at, Stamp { number, sent_at }, 100);
    }
    let ms = Duration::from_millis;
    assert_eq!((report.delay_min, report.delay_max), (ms(10), ms(26)));
    assert_eq!(report.delay_mean(), ms(18));
    // The changes are 16 and 8 ms: 16/16 = 1 ms, then (15 * 1 + 8) / 16 = 1.4375 ms.
    assert_eq!(report.jitter, Duration::from_nanos(1_437_500));
    let UdpTally { packets, bytes } = report.received;
    assert_eq!((packets, bytes), (3, 300));
}
