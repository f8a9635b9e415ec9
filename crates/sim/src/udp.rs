//! UDP cross traffic: sources with a constant or varying rate, and sinks that measure loss, delay and jitter.

use core::net::SocketAddr;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::{Instant, Rng, ip, udp};

use crate::node::{Node, Packet, Turn};

/// Bytes of the stamp at the start of a payload: a sequence number and a time of 8 bytes each.
const STAMP_LEN: usize = 16;
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The flow of a [`UdpSource`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpFlow {
    /// The source's own address.
    pub src: SocketAddr,
    /// The sink's address, of the same family.
    pub dst: SocketAddr,
    /// The rate while the source sends, in bit/s of IP packets. A source with rate 0 sends nothing.
    pub rate: u64,
    /// The range of the sizes of IP packets in bytes. Sizes are drawn uniformly; the minimum is the size of the
    /// headers and the stamp (16 bytes), and smaller sizes are raised to it. A range of one size makes packets at
    /// equal intervals.
    pub sizes: RangeInclusive<u16>,
    /// The pauses of the flow. With `None` the flow sends from start to end.
    pub pauses: Option<Pauses>,
    /// The start of the flow.
    pub start: Instant,
    /// The end of the flow, if it ends.
    pub end: Option<Instant>,
}

/// The pauses of an on/off flow. The lengths of pauses, and of the phases between them, are exponentially
/// distributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pauses {
    /// Mean length of a phase in which the flow sends.
    pub on: Duration,
    /// Mean length of a pause.
    pub off: Duration,
}

impl UdpFlow {
    /// Makes a flow of constant rate in packets of `size` bytes. It begins with the world.
    pub fn constant(src: SocketAddr, dst: SocketAddr, rate: u64, size: u16) -> Self {
        UdpFlow {
            src,
            dst,
            rate,
            sizes: size..=size,
            pauses: None,
            start: crate::world::START,
            end: None,
        }
    }

    /// Returns the minimum size of a packet: headers and stamp.
    fn min_size(&self) -> usize {
        let ip = if self.src.is_ipv4() { 20 } else { 40 };
        ip + udp::HEADER_LEN + STAMP_LEN
    }

    fn draw_size(&self, rng: &mut Rng) -> usize {
        let (low, high) = (u64::from(*self.sizes.start()), u64::from(*self.sizes.end()));
        let mut size = low;
        if low < high {
            size += rng.below(high - low + 1);
        }
        (size as usize).max(self.min_size())
    }
}

/// Draws an exponentially distributed number with mean 1.
fn exponential(rng: &mut Rng) -> f64 {
    // `unit` is less than 1, so `1 - unit` is never 0 and the logarithm is finite.
    -(1.0 - rng.unit()).ln()
}

/// A number of packets and of their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UdpTally {
    /// Packets.
    pub packets: u64,
    /// Bytes of IP packets.
    pub bytes: u64,
}

impl UdpTally {
    fn add(&mut self, len: usize) {
        self.packets += 1;
        self.bytes += len as u64;
    }
}

/// A host that sends one UDP flow out of its interface 0, and ignores packets that it receives.
///
/// The rate is exact: the interval after a packet is the packet's size divided by the rate.
#[derive(Debug)]
pub struct UdpSource {
    flow: UdpFlow,
    /// The time of the next packet, rounded down to nanoseconds.
    next_at: Instant,
    /// The fraction of a nanosecond that rounding has removed from `next_at`, in units of (1 / rate) ns. If
    /// fractions were lost, the rate would be too high.
    fraction: u64,
    /// The time of the next pause.
    pause_at: Option<Instant>,
    sent: UdpTally,
}

impl UdpSource {
    /// Makes a source that waits for its start. The length of the first phase is drawn from `rng`.
    pub fn new(flow: UdpFlow, mut rng: Rng) -> Self {
        let first_phase = flow.pauses.map(|p| p.on.mul_f64(exponential(&mut rng)));
        UdpSource {
            next_at: flow.start,
            fraction: 0,
            pause_at: first_phase.map(|on| flow.start + on),
            sent: UdpTally::default(),
            flow,
        }
    }

    /// Returns the packets sent so far.
    pub fn sent(&self) -> UdpTally {
        self.sent
    }

    fn send(&mut self, turn: &mut Turn<'_>) {
        let size = self.flow.draw_size(turn.rng);
        let stamp = Stamp {
            number: self.sent.packets,
            sent_at: self.next_at,
        };
        let header = UdpHeader::new(self.flow.src, self.flow.dst);
        let payload_len = size + STAMP_LEN - self.flow.min_size();
        let packet = header.packet(turn, payload_len, |payload| stamp.emit(payload));
        turn.send(0, packet);
        self.sent.add(size);
        self.schedule_next(size);
    }

    /// Sets the time of the next packet, after a packet of `size` bytes.
    fn schedule_next(&mut self, size: usize) {
        let rate = u128::from(self.flow.rate);
        // In units of (1 / rate) ns the interval is an integer, so rounding loses nothing.
        let units = size as u128 * 8 * NANOS_PER_SECOND + u128::from(self.fraction);
        self.fraction = (units % rate) as u64;
        let nanos = u64::try_from(units / rate).unwrap_or(u64::MAX).max(1);
        self.next_at = Instant::from_nanos(self.next_at.as_nanos().saturating_add(nanos));
    }

    /// Starts a pause if its time has come.
    fn pause_if_due(&mut self, rng: &mut Rng) {
        if let (Some(pauses), Some(at)) = (self.flow.pauses, self.pause_at)
            && self.next_at >= at
        {
            self.next_at = at + pauses.off.mul_f64(exponential(rng));
            self.pause_at = Some(self.next_at + pauses.on.mul_f64(exponential(rng)));
        }
    }
}

impl Node for UdpSource {
    fn receive(&mut self, turn: &mut Turn<'_>, _iface: u32, packet: Packet) {
        turn.recycle(packet);
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        while self.next_timeout().is_some_and(|at| at <= turn.now) {
            self.send(turn);
            self.pause_if_due(turn.rng);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let ended = self.flow.end.is_some_and(|end| self.next_at >= end);
        (self.flow.rate > 0 && !ended).then_some(self.next_at)
    }
}

/// The parts of the headers of a UDP packet that its sender chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpHeader {
    /// The source.
    pub src: SocketAddr,
    /// The destination, of the same family.
    pub dst: SocketAddr,
    /// DSCP and ECN (RFC 2474, RFC 3168).
    pub traffic_class: u8,
}

impl UdpHeader {
    /// Makes the header of a packet without DSCP and ECN.
    pub fn new(src: SocketAddr, dst: SocketAddr) -> Self {
        UdpHeader {
            src,
            dst,
            traffic_class: 0,
        }
    }

    /// Makes an IP packet with `payload_len` bytes of payload. `fill` writes the payload, which is zero before. The
    /// packet has a checksum if the world uses them.
    pub fn packet(
        &self,
        turn: &mut Turn<'_>,
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Packet {
        let (src, dst) = (self.src.ip(), self.dst.ip());
        let header = ip::Repr {
            src,
            dst,
            protocol: ip::PROTO_UDP,
            payload_len: udp::HEADER_LEN + payload_len,
            hop_limit: 64,
            traffic_class: self.traffic_class,
        };
        let mut bytes = turn.buffer();
        bytes.resize(header.header_len() + header.payload_len, 0);
        header.emit(&mut bytes);
        let datagram = &mut bytes[header.header_len()..];
        let repr = udp::Repr {
            src_port: self.src.port(),
            dst_port: self.dst.port(),
            payload_len,
        };
        repr.emit(datagram);
        fill(&mut datagram[udp::HEADER_LEN..]);
        if turn.checksums {
            udp::fill_checksum(src, dst, datagram);
        }
        Packet::new(bytes)
    }

    /// Returns the header and the payload of an IP packet. Returns `None` if the packet is no UDP packet, or has a
    /// wrong checksum and the world uses checksums.
    pub fn parse<'a>(turn: &Turn<'_>, packet: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (ip, datagram) = ip::Repr::parse(packet).ok()?;
        let (udp, payload) = udp::Repr::parse(datagram).ok()?;
        let checksum_ok = !turn.checksums || udp::verify_checksum(ip.src, ip.dst, datagram);
        let header = UdpHeader {
            src: SocketAddr::new(ip.src, udp.src_port),
            dst: SocketAddr::new(ip.dst, udp.dst_port),
            traffic_class: ip.traffic_class,
        };
        (checksum_ok && ip.protocol == ip::PROTO_UDP).then_some((header, payload))
    }
}

/// The sequence number and the time of sending in a packet's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    number: u64,
    sent_at: Instant,
}

impl Stamp {
    fn emit(self, payload: &mut [u8]) {
        let (number, rest) = payload.split_at_mut(8);
        number.copy_from_slice(&self.number.to_be_bytes());
        rest[..8].copy_from_slice(&self.sent_at.as_nanos().to_be_bytes());
    }

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
        self.received.add(len);
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

    /// Returns the number of packets that were ignored, because they are not from a [`UdpSource`], have a wrong
    /// checksum, or belong to a flow after the first 1,024.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Measures a packet; returns `None` for a packet to ignore.
    fn take(&mut self, turn: &Turn<'_>, packet: &[u8]) -> Option<()> {
        let (header, payload) = UdpHeader::parse(turn, packet)?;
        let stamp = Stamp::parse(payload)?;
        let src = header.src;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// At 7 Gbit/s, 100 bytes take 114 2/7 ns. 7,000 packets must take exactly 800 us.
    #[test]
    fn the_rate_is_exact_in_the_long_run() {
        let [src, dst] = [1, 2].map(|n| SocketAddr::from(([10, 0, 0, n], 9)));
        let flow = UdpFlow::constant(src, dst, 7_000_000_000, 100);
        let start = flow.start;
        let mut source = UdpSource::new(flow, Rng::for_component(1, 1));
        for _ in 0..7_000 {
            source.schedule_next(100);
        }
        assert_eq!(source.next_at, start + Duration::from_micros(800));
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
}
