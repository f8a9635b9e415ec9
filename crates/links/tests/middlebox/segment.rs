//! Builders of packets for middleboxes and for comparison with their output.

use core::net::SocketAddr;

use braid_links::middlebox::{Direction, Middlebox, Output, Packet};
use braid_wire::tcp::{self, Flags};
use braid_wire::{Instant, Rng, Seq32, checksum, ip};

/// A TCP segment by its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seg {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub seq: u32,
    pub ack: u32,
    pub flags: Flags,
    /// The bytes of the options in the header.
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

pub fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Returns option bytes from hexadecimal; spaces are ignored.
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

impl Seg {
    /// Returns a data segment from the inside to the outside.
    pub fn data(seq: u32, payload: &str) -> Seg {
        Seg {
            src: addr("10.0.0.2:4000"),
            dst: addr("192.0.2.1:80"),
            seq,
            ack: 900,
            flags: Flags::ACK,
            options: Vec::new(),
            payload: payload.as_bytes().to_vec(),
        }
    }

    /// Returns a SYN from the inside to the outside.
    pub fn syn(options: &str) -> Seg {
        Seg {
            flags: Flags::SYN,
            ack: 0,
            ..Seg::data(100, "")
        }
        .options(options)
    }

    /// Returns the segment with source and destination exchanged.
    pub fn back(self) -> Seg {
        Seg {
            src: self.dst,
            dst: self.src,
            ..self
        }
    }

    /// Returns the segment with this source and destination.
    pub fn ends(self, src: &str, dst: &str) -> Seg {
        Seg {
            src: addr(src),
            dst: addr(dst),
            ..self
        }
    }

    pub fn flags(self, flags: Flags) -> Seg {
        Seg { flags, ..self }
    }

    pub fn options(self, text: &str) -> Seg {
        Seg {
            options: hex(text),
            ..self
        }
    }

    /// Returns the IP packet of the segment.
    pub fn packet(&self) -> Packet {
        let header_len = tcp::HEADER_LEN + self.options.len();
        let repr = ip::Repr {
            src: self.src.ip(),
            dst: self.dst.ip(),
            protocol: ip::PROTO_TCP,
            payload_len: header_len + self.payload.len(),
            hop_limit: 64,
            traffic_class: 0,
        };
        let mut bytes = vec![0; repr.header_len() + header_len];
        repr.emit(&mut bytes);
        let mut tcp = tcp::Repr::new(self.src.port(), self.dst.port(), self.flags);
        tcp.seq = Seq32(self.seq);
        tcp.ack = Seq32(self.ack);
        tcp.window = 1000;
        let header = &mut bytes[repr.header_len()..];
        tcp.emit(&mut header[..tcp::HEADER_LEN]);
        header[12] = (header_len as u8 / 4) << 4;
        header[tcp::HEADER_LEN..].copy_from_slice(&self.options);
        bytes.extend_from_slice(&self.payload);
        tcp::complete_checksum(&mut bytes).unwrap();
        Packet { bytes, id: 7 }
    }

    /// Parses the segment in `packet`, and checks lengths and checksums.
    pub fn read(packet: &Packet) -> Seg {
        assert_eq!(packet.id, 7);
        let (ip, segment) = ip::Repr::parse(&packet.bytes).unwrap();
        assert_eq!(packet.bytes.len(), ip.header_len() + ip.payload_len);
        assert!(tcp::verify_checksum(ip.src, ip.dst, segment), "checksum");
        let view = tcp::Packet::new(segment).unwrap();
        assert_eq!(view.window(), 1000);
        Seg {
            src: SocketAddr::new(ip.src, view.src_port()),
            dst: SocketAddr::new(ip.dst, view.dst_port()),
            seq: view.seq().0,
            ack: view.ack().0,
            flags: view.flags(),
            options: view.options().to_vec(),
            payload: view.payload().to_vec(),
        }
    }
}

pub const T0: Instant = Instant::from_millis(1_000);

/// Returns the output for `packet` at `now`.
pub fn process(
    middlebox: &mut dyn Middlebox,
    now: Instant,
    direction: Direction,
    packet: Packet,
) -> Vec<(Direction, Packet)> {
    let mut out = Output::new();
    middlebox.process(now, direction, packet, &mut out);
    out.into()
}

/// Returns the segments that leave the middlebox for `seg`. All must leave in the direction of `seg`.
pub fn through(middlebox: &mut dyn Middlebox, direction: Direction, seg: &Seg) -> Vec<Seg> {
    let out = process(middlebox, T0, direction, seg.packet());
    let read = |(left_in, packet): &(Direction, Packet)| {
        assert_eq!(*left_in, direction);
        Seg::read(packet)
    };
    out.iter().map(read).collect()
}

/// Passes `seg` outbound, and returns the one segment that leaves.
pub fn outbound(middlebox: &mut dyn Middlebox, seg: &Seg) -> Seg {
    let mut out = through(middlebox, Direction::Outbound, seg);
    assert_eq!(out.len(), 1, "{out:?}");
    out.remove(0)
}

/// Passes `seg` inbound, and returns the one segment that leaves.
pub fn inbound(middlebox: &mut dyn Middlebox, seg: &Seg) -> Seg {
    let mut out = through(middlebox, Direction::Inbound, seg);
    assert_eq!(out.len(), 1, "{out:?}");
    out.remove(0)
}

/// Passes packets with a flipped bit, some of them cut short. The middlebox must not panic, and must not turn a
/// wrong TCP checksum into a right one.
pub fn abuse(middlebox: &mut dyn Middlebox, seg: &Seg) {
    let mut rng = Rng::for_component(5, 5);
    for round in 0..4000u64 {
        let mut packet = seg.packet();
        packet.id = round;
        let bit = rng.below(8 * packet.bytes.len() as u64) as usize;
        packet.bytes[bit / 8] ^= 1 << (bit % 8);
        repair_ip_checksum(&mut packet.bytes);
        if round % 3 == 0 {
            packet
                .bytes
                .truncate(rng.below(packet.bytes.len() as u64) as usize);
        }
        let direction = match round % 2 {
            0 => Direction::Outbound,
            _ => Direction::Inbound,
        };
        let was_corrupt = !is_intact(&packet.bytes);
        let mut out = Output::new();
        middlebox.process(T0, direction, packet, &mut out);
        for (_, packet) in out.into_iter().filter(|(_, packet)| packet.id == round) {
            assert!(
                !(was_corrupt && is_intact(&packet.bytes)),
                "bit {bit} was repaired"
            );
        }
    }
}

/// Computes the checksum of the IP header, so that middleboxes read the damaged segment after it.
fn repair_ip_checksum(bytes: &mut [u8]) {
    if bytes[0] == 0x45 {
        bytes[10..12].fill(0);
        let sum = checksum::finish(checksum::sum(checksum::Sum::default(), &bytes[..20]));
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Returns whether `bytes` are a TCP segment with right checksums.
fn is_intact(bytes: &[u8]) -> bool {
    ip::Repr::parse(bytes).is_ok_and(|(ip, segment)| {
        ip.protocol == ip::PROTO_TCP && tcp::verify_checksum(ip.src, ip.dst, segment)
    })
}
