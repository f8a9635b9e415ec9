//! The headers that a super-segment and its packets have in common.

use braid_wire::checksum::{self, Sum};
use braid_wire::{ip, tcp};

/// Bytes of an IPv4 header without options.
pub(super) const V4_LEN: usize = 20;
/// Bytes of an IPv6 header without extension headers.
pub(super) const V6_LEN: usize = 40;
/// Bytes of a UDP header.
pub(super) const UDP_LEN: usize = 8;

/// The transport protocols whose packets are cut and joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    pub fn protocol(self) -> u8 {
        match self {
            Transport::Tcp => ip::PROTO_TCP,
            Transport::Udp => ip::PROTO_UDP,
        }
    }

    /// Returns the place of the checksum in the transport header.
    pub fn checksum_offset(self) -> usize {
        match self {
            Transport::Tcp => 16,
            Transport::Udp => 6,
        }
    }

    /// Returns the length of the transport header that is at the start of `header`; `None` if it is malformed.
    pub fn header_len(self, header: &[u8]) -> Option<usize> {
        match self {
            Transport::Tcp => {
                let len = usize::from(header.get(12)? >> 4) * 4;
                (len >= tcp::HEADER_LEN).then_some(len)
            }
            Transport::Udp => Some(UDP_LEN),
        }
    }
}

/// The places of the headers of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub v6: bool,
    pub transport: Transport,
    /// Bytes before the transport header.
    pub l3_len: usize,
    /// Bytes before the payload.
    pub head_len: usize,
}

impl Layout {
    /// Returns the place of the transport's checksum.
    fn checksum_at(&self) -> usize {
        self.l3_len + self.transport.checksum_offset()
    }

    /// Writes the lengths of a packet of `len` bytes, at most 65,535, to its headers, and completes the checksum of an
    /// IPv4 header.
    pub fn set_lengths(&self, head: &mut [u8], len: usize) {
        let field = |len: usize| (len as u16).to_be_bytes();
        if self.v6 {
            head[4..6].copy_from_slice(&field(len - V6_LEN));
        } else {
            head[2..4].copy_from_slice(&field(len));
            head[10..12].fill(0);
            let sum = checksum::sum(Sum::default(), &head[..self.l3_len]);
            head[10..12].copy_from_slice(&checksum::finish(sum).to_be_bytes());
        }
        if self.transport == Transport::Udp {
            let at = self.l3_len + 4;
            head[at..at + 2].copy_from_slice(&field(len - self.l3_len));
        }
    }

    /// Returns the sum over the pseudo-header of a packet of `len` bytes whose destination is the one in its header.
    fn pseudo_header(&self, head: &[u8], len: usize) -> Sum {
        let addresses = if self.v6 {
            &head[8..V6_LEN]
        } else {
            &head[12..V4_LEN]
        };
        let rest = u64::from(self.transport.protocol()) + (len - self.l3_len) as u64;
        checksum::sum(Sum(rest), addresses)
    }

    /// Writes the sum over the pseudo-header of a packet of `len` bytes to the field of the transport's checksum.
    pub fn set_partial_checksum(&self, head: &mut [u8], len: usize) {
        let sum = checksum::fold(self.pseudo_header(head, len));
        let at = self.checksum_at();
        head[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }

    /// Returns whether the checksums of a packet are right. The value 0, by which UDP says that there is no checksum,
    /// is not.
    pub fn checksums_hold(&self, packet: &[u8]) -> bool {
        let at = self.checksum_at();
        if self.transport == Transport::Udp && packet[at..at + 2] == [0, 0] {
            return false;
        }
        let is_right = |sum: Sum| checksum::fold(sum) == 0xffff;
        let header = &packet[..self.l3_len];
        let pseudo_header = self.pseudo_header(packet, packet.len());
        (self.v6 || is_right(checksum::sum(Sum::default(), header)))
            && is_right(checksum::sum(pseudo_header, &packet[self.l3_len..]))
    }
}

/// Completes a checksum over `bytes`, of which the field at `offset` (before its last byte) has the sum over the
/// pseudo-header. A sum of zero is written as all ones, since zero means for UDP that there is none (RFC 768), and both
/// are right for other protocols.
pub(super) fn complete_checksum(bytes: &mut [u8], offset: usize) {
    let value = match checksum::finish(checksum::sum(Sum::default(), bytes)) {
        0 => 0xffff,
        value => value,
    };
    bytes[offset..offset + 2].copy_from_slice(&value.to_be_bytes());
}
