//! TCP segments and options (RFC 9293, 7323, 2018, 7413).

mod options;
mod packet;

use core::net::IpAddr;

use crate::bytes::Writer;
use crate::checksum::{self, Sum};
use crate::{Error, Result, Seq32, ip};

pub use options::{
    FastOpenCookie, MAX_WINDOW_SCALE, MptcpOptions, Options, RawOption, SackBlocks, Timestamps,
    kind, raw_options,
};
pub use packet::Packet;

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Maximum number of bytes of options in a header. The data offset has 4 bits, so a header has at most 15 words of
/// 4 bytes; 20 of these 60 bytes are no options.
pub const MAX_OPTIONS_LEN: usize = 40;

/// Control bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// No bit set.
    pub const EMPTY: Flags = Flags(0);
    /// The sender has no more data.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push: the receiver should pass the data to the application at once.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgement field is significant.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer is significant.
    pub const URG: Flags = Flags(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Flags = Flags(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Flags = Flags(0x80);

    /// Returns whether every bit of `other` is set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any bit of `other` is set.
    pub const fn intersects(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns these bits without the bits of `other`.
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

impl core::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl core::ops::BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        *self = *self | other;
    }
}

/// Writes the names of the set bits, lowest bit first, separated by `|`: `SYN|ACK`. Writes `-` if no bit is set.
impl core::fmt::Display for Flags {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        if *self == Flags::EMPTY {
            return f.write_str("-");
        }
        let set = NAMES
            .iter()
            .enumerate()
            .filter(|(bit, _)| self.0 >> bit & 1 != 0);
        for (position, (_, name)) in set.enumerate() {
            f.write_str(if position == 0 { "" } else { "|" })?;
            f.write_str(name)?;
        }
        Ok(())
    }
}

/// A validated TCP header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repr {
    /// Source port, not 0.
    pub src_port: u16,
    /// Destination port, not 0.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: Seq32,
    /// Acknowledgement number, meaningful only if `flags` contains ACK.
    pub ack: Seq32,
    /// Control bits.
    pub flags: Flags,
    /// Window field, not scaled.
    pub window: u16,
    /// Options.
    pub options: Options,
}

impl Repr {
    /// Creates a header with these ports and flags. Numbers and window are 0, and there are no options.
    pub const fn new(src_port: u16, dst_port: u16, flags: Flags) -> Repr {
        Repr {
            src_port,
            dst_port,
            seq: Seq32(0),
            ack: Seq32(0),
            flags,
            window: 0,
            options: Options::new(),
        }
    }

    /// Parses a segment and returns its header and payload.
    ///
    /// Skips unknown options. Skips a malformed MPTCP option too: RFC 8684 has no rule for it, and Linux ignores
    /// it. Refuses a segment with an invalid option length, because the next option cannot be found. Returns
    /// `Unsupported` for a port of 0. The checksum is not verified: see [`verify_checksum`].
    pub fn parse(segment: &[u8]) -> Result<(Repr, &[u8])> {
        let mut repr = Repr::new(0, 0, Flags::EMPTY);
        let payload = repr.parse_into(segment)?;
        Ok((repr, payload))
    }

    /// Parses a segment as [`parse`](Self::parse) does, into this header. Returns the payload. After an error, the fields
    /// are unspecified. A header is large, and to move it would take as long as to parse it.
    pub fn parse_into<'a>(&mut self, segment: &'a [u8]) -> Result<&'a [u8]> {
        let view = Packet::new(segment)?;
        self.src_port = view.src_port();
        self.dst_port = view.dst_port();
        self.seq = view.seq();
        self.ack = view.ack();
        self.flags = view.flags();
        self.window = view.window();
        self.options = Options::new();
        let syn = self.flags.contains(Flags::SYN);
        self.options.take_all(view.options(), syn)?;
        if self.src_port == 0 || self.dst_port == 0 {
            return Err(Error::Unsupported);
        }
        Ok(&segment[view.header_len()..])
    }

    /// Returns the number of sequence numbers that the segment occupies with `payload_len` bytes of payload. SYN
    /// and FIN occupy one each (RFC 9293 section 3.4).
    pub fn seq_len(&self, payload_len: usize) -> u32 {
        let syn = u32::from(self.flags.contains(Flags::SYN));
        let fin = u32::from(self.flags.contains(Flags::FIN));
        payload_len as u32 + syn + fin
    }

    /// Returns the length of the header with options and padding, bytes.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.len()
    }

    /// Writes the header to the start of `buf`, with a zero in the checksum field: see [`fill_checksum`].
    ///
    /// # Panics
    /// Panics if `buf` is shorter than [`Self::header_len`] or the options exceed [`MAX_OPTIONS_LEN`].
    // Conforms: 8684-3.3.1-14
    pub fn emit(&self, buf: &mut [u8]) {
        let options = self.options.emit(&mut buf[HEADER_LEN..]);
        assert!(options <= MAX_OPTIONS_LEN, "options exceed 40 bytes");
        let mut w = Writer::new(buf);
        w.u16(self.src_port);
        w.u16(self.dst_port);
        w.u32(self.seq.0);
        w.u32(self.ack.0);
        w.u8(((HEADER_LEN + options) as u8 / 4) << 4);
        w.u8(self.flags.0);
        w.u16(self.window);
        // Checksum and urgent pointer; urgent data is not supported.
        w.u32(0);
    }
}

/// The bytes of a header that contain the checksum.
const CHECKSUM: core::ops::Range<usize> = 16..18;

/// Returns whether the checksum of `segment` (header and payload) is right.
pub fn verify_checksum(src: IpAddr, dst: IpAddr, segment: &[u8]) -> bool {
    verify_checksum_of(src, dst, &[segment])
}

/// Returns whether the checksum of a segment is right. The caller passes the segment in `parts` of any length, odd
/// or even.
pub fn verify_checksum_of(src: IpAddr, dst: IpAddr, parts: &[&[u8]]) -> bool {
    let (sum, len) = sum_of(Sum::default(), 0, parts);
    checksum::fold(Sum(sum.0 + pseudo_header(src, dst, len).0)) == 0xffff
}

/// Adds consecutive `parts` of a message to `sum`. The first part begins at byte `offset` of the message. Returns
/// the sum, and the offset after the last part.
fn sum_of(mut sum: Sum, mut offset: usize, parts: &[&[u8]]) -> (Sum, usize) {
    for part in parts {
        sum = checksum::sum_at(sum, offset, part);
        offset += part.len();
    }
    (sum, offset)
}

/// Computes and writes the checksum of an emitted `header`. The caller passes the payload in parts of any length,
/// odd or even.
///
/// # Panics
/// Panics if `header` is shorter than [`HEADER_LEN`].
pub fn fill_checksum(src: IpAddr, dst: IpAddr, header: &mut [u8], payload: &[&[u8]]) {
    header[CHECKSUM].fill(0);
    let sum = checksum::sum(Sum::default(), header);
    let (sum, len) = sum_of(sum, header.len(), payload);
    let value = checksum::finish(Sum(sum.0 + pseudo_header(src, dst, len).0));
    header[CHECKSUM].copy_from_slice(&value.to_be_bytes());
}

/// Computes and writes the checksum of the TCP segment in an IP `packet`.
///
/// # Errors
/// Fails if no TCP segment follows the IP header directly: IPv6 extension headers are not supported.
pub fn complete_checksum(packet: &mut [u8]) -> Result<()> {
    let mut packet = ip::Packet::new(packet)?;
    if packet.next_header() != ip::PROTO_TCP {
        return Err(Error::Unsupported);
    }
    let (src, dst) = (packet.src(), packet.dst());
    let mut segment = Packet::new(packet.payload_mut())?;
    let (header, payload) = segment.split_mut();
    fill_checksum(src, dst, header, &[payload]);
    Ok(())
}

/// Writes the folded sum of the pseudo-header to the checksum field, for a device that adds the sum of the segment
/// (checksum offload).
///
/// # Panics
/// Panics if `header` is shorter than [`HEADER_LEN`].
pub fn fill_partial_checksum(src: IpAddr, dst: IpAddr, header: &mut [u8], payload_len: usize) {
    let value = checksum::fold(pseudo_header(src, dst, header.len() + payload_len));
    header[CHECKSUM].copy_from_slice(&value.to_be_bytes());
}

fn pseudo_header(src: IpAddr, dst: IpAddr, len: usize) -> Sum {
    checksum::pseudo_header(src, dst, ip::PROTO_TCP, len as u32)
}
