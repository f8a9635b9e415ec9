//! UDP cross traffic: sources with a constant or varying rate.

use core::net::SocketAddr;
use core::ops::RangeInclusive;
use core::time::Duration;

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
        let mut bytes = turn.buffer();
        let stamp = Stamp {
            number: self.sent.packets,
            sent_at: self.next_at,
        };
        stamp.emit(&self.flow, size, turn.checksums, &mut bytes);
        turn.send(0, Packet::new(bytes));
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

/// The sequence number and the time of sending at the start of a packet's payload, as two big-endian words.
struct Stamp {
    number: u64,
    sent_at: Instant,
}

impl Stamp {
    /// Writes a packet of `size` bytes into the empty buffer `bytes`.
    fn emit(self, flow: &UdpFlow, size: usize, checksum: bool, bytes: &mut Vec<u8>) {
        bytes.resize(size, 0);
        let mut header = ip::Repr {
            src: flow.src.ip(),
            dst: flow.dst.ip(),
            protocol: ip::PROTO_UDP,
            payload_len: 0,
            hop_limit: 64,
            traffic_class: 0,
        };
        let ip_len = header.header_len();
        header.payload_len = size - ip_len;
        header.emit(bytes);
        let datagram = &mut bytes[ip_len..];
        let repr = udp::Repr {
            src_port: flow.src.port(),
            dst_port: flow.dst.port(),
            payload_len: datagram.len() - udp::HEADER_LEN,
        };
        repr.emit(datagram);
        let (number, rest) = datagram[udp::HEADER_LEN..].split_at_mut(8);
        number.copy_from_slice(&self.number.to_be_bytes());
        rest[..8].copy_from_slice(&self.sent_at.as_nanos().to_be_bytes());
        if checksum {
            udp::fill_checksum(header.src, header.dst, datagram);
        }
    }
}

/// A host that discards all packets, as that of RFC 863.
#[derive(Debug)]
pub struct Discard;

impl Node for Discard {
    fn receive(&mut self, turn: &mut Turn<'_>, _iface: u32, packet: Packet) {
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
}
