//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers, behind one representation.

use core::net::IpAddr;

use crate::Result;

/// Protocol number of TCP.
pub const PROTO_TCP: u8 = 6;
/// Protocol number of UDP.
pub const PROTO_UDP: u8 = 17;
/// Protocol number of ICMP for IPv4.
pub const PROTO_ICMP: u8 = 1;
/// Protocol number of ICMPv6.
pub const PROTO_ICMPV6: u8 = 58;

/// A validated IP header. IPv6 extension headers that can be skipped are skipped; fragments are
/// refused as [`crate::Error::Unsupported`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Source; same family as `dst`.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
    /// Upper-layer protocol.
    pub protocol: u8,
    /// Bytes after the IP header.
    pub payload_len: usize,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
}

impl Repr {
    /// Parses the header of `packet` and returns it with the payload (trimmed to the length the
    /// header gives). The IPv4 header checksum is verified.
    pub fn parse(packet: &[u8]) -> Result<(Repr, &[u8])> {
        let _ = packet;
        todo!()
    }

    /// Bytes of the emitted header: 20 or 40.
    pub fn header_len(&self) -> usize {
        if self.src.is_ipv4() { 20 } else { 40 }
    }

    /// Writes the header to the start of `buf` (at least [`Self::header_len`] long), IPv4 with DF
    /// set, identification 0 and a valid checksum.
    pub fn emit(&self, buf: &mut [u8]) {
        let _ = buf;
        todo!()
    }
}
