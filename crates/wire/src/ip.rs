//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers in one representation.

mod packet;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::Range;

use crate::bytes::Writer;
use crate::checksum::{self, Sum};
use crate::{Error, Result};

pub use packet::Packet;
pub(crate) use packet::skip_extensions;

/// Protocol number of TCP.
pub const PROTO_TCP: u8 = 6;
/// Protocol number of UDP.
pub const PROTO_UDP: u8 = 17;
/// Protocol number of ICMP for IPv4.
pub const PROTO_ICMP: u8 = 1;
/// Protocol number of ICMPv6.
pub const PROTO_ICMPV6: u8 = 58;

// Values of the ECN bits, the two lowest of the traffic class (RFC 3168 section 5).
/// Not-ECT: the transport is not ECN-capable.
pub const NOT_ECT: u8 = 0;
/// ECT(0): the transport is ECN-capable.
pub const ECT: u8 = 2;
/// CE: a queue on the path marked congestion.
pub const CE: u8 = 3;

/// The DF bit in the fragment field of IPv4.
const DONT_FRAGMENT: u16 = 0x4000;
/// Bytes of an IPv4 header without options.
const V4_HEADER_LEN: usize = 20;
/// Bytes of an IPv6 header without extension headers.
const V6_HEADER_LEN: usize = 40;

/// A validated IP header. Parsing skips hop-by-hop options, routing headers and destination options of IPv6. For
/// fragments it returns [`crate::Error::Unsupported`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repr {
    /// Source, of the same address family as `dst`.
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
    /// Parses the header of `packet`. Returns the header and the payload. The header's length field determines the
    /// end of the payload. The IPv4 header checksum is verified.
    pub fn parse(packet: &[u8]) -> Result<(Repr, &[u8])> {
        let (repr, payload) = Repr::parse_head(packet, packet.len())?;
        Ok((repr, &packet[payload]))
    }

    /// Parses as [`parse`](Self::parse) does, from the first bytes of a packet of `len` bytes. These first bytes,
    /// `head`, have to contain all IP headers. Returns the header and the range of the payload in the packet.
    pub fn parse_head(head: &[u8], len: usize) -> Result<(Repr, Range<usize>)> {
        let view = Packet::of_head(head, len)?;
        if !view.checksum_ok() {
            return Err(Error::BadChecksum);
        }
        let (protocol, payload) = view.transport()?;
        let payload = view.end() - payload.len()..view.total_len();
        let repr = Repr {
            src: view.src(),
            dst: view.dst(),
            protocol,
            payload_len: payload.len(),
            hop_limit: view.hop_limit(),
            traffic_class: view.traffic_class(),
        };
        Ok((repr, payload))
    }

    /// Returns the length of the emitted header: 20 or 40 bytes.
    pub fn header_len(&self) -> usize {
        if self.src.is_ipv4() {
            V4_HEADER_LEN
        } else {
            V6_HEADER_LEN
        }
    }

    /// Writes the header to the start of `buf`. An IPv4 header has DF set, a valid checksum, and the
    /// identification 0. RFC 6864 section 4.1 allows this identification for packets that are never fragmented.
    ///
    /// # Panics
    /// Panics if `buf` is shorter than [`Self::header_len`], if the addresses are of different families, or if the
    /// length exceeds the length field's maximum of 65,535 bytes. For IPv4 this length includes the header, for
    /// IPv6 it does not.
    pub fn emit(&self, buf: &mut [u8]) {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.emit_v4(src, dst, buf),
            (IpAddr::V6(src), IpAddr::V6(dst)) => self.emit_v6(src, dst, buf),
            _ => panic!("source and destination are of different families"),
        }
    }

    fn emit_v4(&self, src: Ipv4Addr, dst: Ipv4Addr, buf: &mut [u8]) {
        let header = &mut buf[..V4_HEADER_LEN];
        let mut w = Writer::new(header);
        // Version 4; a header of five 32-bit words.
        w.u8(0x45);
        w.u8(self.traffic_class);
        w.u16(length_field(V4_HEADER_LEN + self.payload_len));
        w.u16(0);
        w.u16(DONT_FRAGMENT);
        w.u8(self.hop_limit);
        w.u8(self.protocol);
        w.u16(0);
        w.put_array(src.octets());
        w.put_array(dst.octets());
        fill_v4_checksum(header);
    }

    fn emit_v6(&self, src: Ipv6Addr, dst: Ipv6Addr, buf: &mut [u8]) {
        let mut w = Writer::new(buf);
        // Version 6, traffic class, and flow label 0.
        w.u32(0x6000_0000 | u32::from(self.traffic_class) << 20);
        w.u16(length_field(self.payload_len));
        w.u8(self.protocol);
        w.u8(self.hop_limit);
        w.put_array(src.octets());
        w.put_array(dst.octets());
    }
}

/// Returns the length field for `len` bytes. Panics if a caller builds a packet that is too long.
fn length_field(len: usize) -> u16 {
    u16::try_from(len).expect("the packet's length fits its length field")
}

/// Computes and writes the checksum of an IPv4 `header`, options included.
fn fill_v4_checksum(header: &mut [u8]) {
    header[10..12].fill(0);
    let value = checksum::finish(checksum::sum(Sum::default(), header));
    [header[10], header[11]] = value.to_be_bytes();
}
