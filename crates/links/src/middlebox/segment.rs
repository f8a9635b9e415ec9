//! Access to TCP segments for middleboxes: finding, editing in place, and rebuilding.

use core::net::SocketAddr;

use braid_wire::checksum::{self, Sum};
use braid_wire::tcp::{self, Flags, kind};
use braid_wire::{Seq32, ip};

/// Offset of the checksum in a TCP header.
const CHECKSUM_OFFSET: usize = 16;

/// The position of a TCP segment within an IP packet, and its header fields.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    /// Length of the IP header, bytes.
    pub ip_len: usize,
    /// Length of the TCP header, bytes.
    pub tcp_len: usize,
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub seq: Seq32,
    pub flags: Flags,
    pub payload_len: usize,
    /// DSCP and ECN bits.
    pub class: u8,
}

impl Segment {
    /// Finds the segment in `packet`, and cuts off bytes after the IP packet. Returns `None` unless `packet` has
    /// an IP header with a right checksum and, directly after it, a complete TCP segment.
    pub fn find(packet: &mut Vec<u8>) -> Option<Segment> {
        let view = ip::Packet::new(&packet[..]).ok()?;
        let is_whole = view.checksum_ok() && !view.is_v4_fragment();
        if !is_whole || view.next_header() != ip::PROTO_TCP {
            return None;
        }
        let tcp = tcp::Packet::new(view.payload()).ok()?;
        let segment = Segment {
            ip_len: view.header_len(),
            tcp_len: tcp.header_len(),
            src: SocketAddr::new(view.src(), tcp.src_port()),
            dst: SocketAddr::new(view.dst(), tcp.dst_port()),
            seq: tcp.seq(),
            flags: tcp.flags(),
            payload_len: tcp.payload().len(),
            class: view.traffic_class(),
        };
        let total = view.total_len();
        packet.truncate(total);
        Some(segment)
    }

    /// Returns the offset at which the payload starts.
    pub fn header_end(&self) -> usize {
        self.ip_len + self.tcp_len
    }

    /// Returns whether the TCP checksum is right.
    pub fn is_intact(&self, packet: &[u8]) -> bool {
        tcp::verify_checksum(self.src.ip(), self.dst.ip(), &packet[self.ip_len..])
    }

    /// Returns the sequence number after the payload.
    pub fn end(&self) -> Seq32 {
        self.seq.add(self.payload_len as u32)
    }

    /// Returns the bytes of the options.
    pub fn options<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        &packet[self.ip_len + tcp::HEADER_LEN..self.header_end()]
    }

    /// Returns whether the segment is only data of an established connection: it has payload, and no special flag.
    pub fn is_plain_data(&self) -> bool {
        let special = Flags::SYN | Flags::RST | Flags::URG;
        self.payload_len > 0 && !self.flags.intersects(special)
    }
}

/// Edits `bytes`, and adjusts the checksum that covers them. The checksum is within `bytes`, at offset `field`.
pub(crate) fn edit(bytes: &mut [u8], field: usize, edit: impl FnOnce(&mut [u8])) {
    let before = checksum::sum(Sum::default(), bytes);
    edit(bytes);
    let after = checksum::sum(Sum::default(), bytes);
    adjust(bytes, field, before, after);
}

/// Adjusts the checksum at offset `field` of `bytes`, after the sum of a part that it covers has changed from
/// `before` to `after`.
pub(crate) fn adjust(bytes: &mut [u8], field: usize, before: Sum, after: Sum) {
    if let Some(field) = bytes[field..].first_chunk_mut() {
        *field = checksum::adjust(u16::from_be_bytes(*field), before, after).to_be_bytes();
    }
}

/// Edits the TCP header of `segment` in `packet`, and adjusts the TCP checksum.
pub(crate) fn edit_header(packet: &mut [u8], segment: &Segment, f: impl FnOnce(&mut [u8])) {
    let header = &mut packet[segment.ip_len..segment.header_end()];
    edit(header, CHECKSUM_OFFSET, f);
}

/// Replaces the options of `segment` in `packet` by `options`, padded with NOPs to a multiple of 4 bytes. The new
/// options must not be longer than the old ones, or the header could exceed 60 bytes.
pub(crate) fn replace_options(packet: &mut Vec<u8>, segment: &Segment, options: &[u8]) {
    let sums = |packet: &[u8], tcp_len: usize| {
        let header = &packet[segment.ip_len..segment.ip_len + tcp_len];
        // The checksum also covers the pseudo-header, and this contains the segment's length.
        let len = (tcp_len + segment.payload_len) as u64;
        Sum(checksum::sum(Sum::default(), header).0 + len)
    };
    let before = sums(packet, segment.tcp_len);
    let start = segment.ip_len + tcp::HEADER_LEN;
    let padded = options.len().next_multiple_of(4);
    let padding = core::iter::repeat_n(kind::NOP, padded - options.len());
    let bytes = options.iter().copied().chain(padding);
    packet.splice(start..segment.header_end(), bytes);
    let tcp_len = tcp::HEADER_LEN + padded;
    packet[segment.ip_len + 12] = (tcp_len as u8 / 4) << 4 | packet[segment.ip_len + 12] & 0x0f;
    let after = sums(packet, tcp_len);
    let tcp = &mut packet[segment.ip_len..];
    adjust(tcp, CHECKSUM_OFFSET, before, after);
    set_length(packet, segment.ip_len);
}

/// Writes the length of `packet` into its IP header, which has `ip_len` bytes, and computes the IPv4 header
/// checksum.
pub(crate) fn set_length(packet: &mut [u8], ip_len: usize) {
    let (at, len) = match packet[0] >> 4 {
        6 => (4, packet.len() - ip_len),
        _ => (2, packet.len()),
    };
    packet[at..at + 2].copy_from_slice(&(len as u16).to_be_bytes());
    if let Ok(mut view) = ip::Packet::new(packet) {
        view.fill_checksum();
    }
}

/// Returns the options in `bytes` for changes in place, NOPs excluded. Ends at the end of the list or at the first
/// malformed option.
pub(crate) fn options_mut(mut bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    core::iter::from_fn(move || {
        let rest = core::mem::take(&mut bytes);
        let start = rest.iter().position(|byte| *byte != kind::NOP)?;
        let len = match rest[start..] {
            [option, len, ..] if option != kind::END && len >= 2 => len,
            _ => return None,
        };
        let (option, tail) = rest[start..].split_at_mut_checked(len.into())?;
        bytes = tail;
        Some(option)
    })
}
