//! A view of an IP packet that reads fields on demand.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{V4_HEADER_LEN, V6_HEADER_LEN};
use crate::bytes::{be16, be32};
use crate::checksum::{self, Sum};
use crate::{Error, Result};

/// IPv6 extension header: hop-by-hop options.
const HOP_BY_HOP: u8 = 0;
/// IPv6 extension header: routing.
const ROUTING: u8 = 43;
/// IPv6 extension header: fragment.
const FRAGMENT: u8 = 44;
/// IPv6 extension header: destination options.
const DESTINATION_OPTIONS: u8 = 60;

/// An IPv4 or IPv6 packet in a buffer. [`Packet::new`] checks only that the lengths in the header do not exceed
/// the buffer. The accessors return fields without further checks.
#[derive(Debug, Clone, Copy)]
pub struct Packet<T>(T);

impl<T: AsRef<[u8]>> Packet<T> {
    /// Creates a view of the packet at the start of `buffer`.
    #[inline]
    pub fn new(buffer: T) -> Result<Packet<T>> {
        let len = buffer.as_ref().len();
        Packet::of_head(buffer, len)
    }

    /// Creates a view of a packet from `head`, its first bytes. The buffer for the whole packet has `len` bytes.
    /// The payload of the view ends where `head` ends.
    #[inline]
    pub fn of_head(head: T, len: usize) -> Result<Packet<T>> {
        let bytes = head.as_ref();
        let (header, total) = match bytes.first().ok_or(Error::Truncated)? >> 4 {
            4 if bytes.len() < V4_HEADER_LEN => return Err(Error::Truncated),
            4 => (
                usize::from(bytes[0] & 0x0f) * 4,
                usize::from(be16(bytes, 2)),
            ),
            6 if bytes.len() < V6_HEADER_LEN => return Err(Error::Truncated),
            6 => (V6_HEADER_LEN, V6_HEADER_LEN + usize::from(be16(bytes, 4))),
            _ => return Err(Error::BadVersion),
        };
        // An IPv4 header has at least five words. An IPv6 header passes this check in any case.
        if header < V4_HEADER_LEN || total < header {
            return Err(Error::BadLength);
        }
        if total > len || header > bytes.len() {
            return Err(Error::Truncated);
        }
        Ok(Packet(head))
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    /// Returns true for IPv6, false for IPv4.
    #[inline]
    pub fn is_v6(&self) -> bool {
        self.bytes()[0] >> 4 == 6
    }

    /// Returns the length of the header: with options for IPv4, without extension headers for IPv6.
    #[inline]
    pub fn header_len(&self) -> usize {
        if self.is_v6() {
            V6_HEADER_LEN
        } else {
            usize::from(self.bytes()[0] & 0x0f) * 4
        }
    }

    /// Returns the length of the packet, header included, as the header says.
    #[inline]
    pub fn total_len(&self) -> usize {
        if self.is_v6() {
            V6_HEADER_LEN + usize::from(be16(self.bytes(), 4))
        } else {
            usize::from(be16(self.bytes(), 2))
        }
    }

    /// Returns the source address.
    pub fn src(&self) -> IpAddr {
        if self.is_v6() {
            self.v6_addr(8)
        } else {
            self.v4_addr(12)
        }
    }

    /// Returns the destination address.
    pub fn dst(&self) -> IpAddr {
        if self.is_v6() {
            self.v6_addr(24)
        } else {
            self.v4_addr(16)
        }
    }

    fn v4_addr(&self, at: usize) -> IpAddr {
        Ipv4Addr::from(be32(self.bytes(), at)).into()
    }

    fn v6_addr(&self, at: usize) -> IpAddr {
        let mut octets = [0; 16];
        octets.copy_from_slice(&self.bytes()[at..at + 16]);
        Ipv6Addr::from(octets).into()
    }

    /// Returns the protocol number of the next header, which may be an extension header.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.bytes()[if self.is_v6() { 6 } else { 9 }]
    }

    /// Returns the TTL or hop limit.
    pub fn hop_limit(&self) -> u8 {
        self.bytes()[if self.is_v6() { 7 } else { 8 }]
    }

    /// Returns the DSCP and ECN bits.
    pub fn traffic_class(&self) -> u8 {
        if self.is_v6() {
            (be16(self.bytes(), 0) >> 4) as u8
        } else {
            self.bytes()[1]
        }
    }

    /// Returns whether this is an IPv4 fragment (first, middle or last). Returns false for IPv6: its fragments
    /// have an extension header, see [`Packet::transport`].
    #[inline]
    pub fn is_v4_fragment(&self) -> bool {
        // The MF bit and the 13 bits of the fragment offset.
        !self.is_v6() && be16(self.bytes(), 6) & 0x3fff != 0
    }

    /// Returns whether the header checksum is right. Returns true for IPv6, because its header has no checksum.
    pub fn checksum_ok(&self) -> bool {
        let header = &self.bytes()[..self.header_len()];
        self.is_v6() || checksum::fold(checksum::sum(Sum::default(), header)) == 0xffff
    }

    /// Returns the bytes after the header. The header's length field determines their end.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[self.header_len()..self.end()]
    }

    /// Returns the end of the packet, or the end of the buffer if the buffer is shorter.
    pub(crate) fn end(&self) -> usize {
        self.total_len().min(self.bytes().len())
    }

    /// Returns the upper-layer protocol and its payload. Skips the IPv6 headers for hop-by-hop options, routing
    /// and destination options. Returns `Unsupported` for fragments.
    pub fn transport(&self) -> Result<(u8, &[u8])> {
        if self.is_v4_fragment() {
            return Err(Error::Unsupported);
        }
        if self.is_v6() {
            skip_extensions(self.next_header(), self.payload())
        } else {
            Ok((self.next_header(), self.payload()))
        }
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Replaces the source address. Checksums stay as they were.
    ///
    /// # Panics
    /// Panics if `addr` is of the other family.
    pub fn set_src(&mut self, addr: IpAddr) {
        let at = if self.is_v6() { 8 } else { 12 };
        self.set_addr(at, addr);
    }

    /// Replaces the destination address. Checksums stay as they were.
    ///
    /// # Panics
    /// Panics if `addr` is of the other family.
    pub fn set_dst(&mut self, addr: IpAddr) {
        let at = if self.is_v6() { 24 } else { 16 };
        self.set_addr(at, addr);
    }

    fn set_addr(&mut self, at: usize, addr: IpAddr) {
        assert_eq!(
            self.is_v6(),
            addr.is_ipv6(),
            "the address has the family of the packet"
        );
        match addr {
            IpAddr::V4(a) => self.0.as_mut()[at..at + 4].copy_from_slice(&a.octets()),
            IpAddr::V6(a) => self.0.as_mut()[at..at + 16].copy_from_slice(&a.octets()),
        }
    }

    /// Sets the TTL or hop limit.
    pub fn set_hop_limit(&mut self, value: u8) {
        let at = if self.is_v6() { 7 } else { 8 };
        self.0.as_mut()[at] = value;
    }

    /// Sets the DSCP and ECN bits.
    pub fn set_traffic_class(&mut self, value: u8) {
        let v6 = self.is_v6();
        let bytes = self.0.as_mut();
        if v6 {
            bytes[0] = 0x60 | value >> 4;
            bytes[1] = value << 4 | bytes[1] & 0x0f;
        } else {
            bytes[1] = value;
        }
    }

    /// Sets CE if the transport is ECN-capable (RFC 3168 section 5). Returns whether the transport is ECN-capable.
    /// The IPv4 header checksum is adjusted (RFC 1624) instead of computed, so that a wrong checksum stays wrong.
    pub fn mark(&mut self) -> bool {
        let class = self.traffic_class();
        // CE has both ECN bits set, so it serves as their mask too.
        if class & super::CE == super::NOT_ECT {
            return false;
        }
        // The first 16-bit word contains the traffic class.
        let first_word = |bytes: &[u8]| checksum::sum(Sum::default(), &bytes[..2]);
        let old = first_word(self.bytes());
        self.set_traffic_class(class | super::CE);
        if !self.is_v6() {
            let new = first_word(self.bytes());
            let field = &mut self.0.as_mut()[10..12];
            let adjusted = checksum::adjust(u16::from_be_bytes([field[0], field[1]]), old, new);
            field.copy_from_slice(&adjusted.to_be_bytes());
        }
        true
    }

    /// Computes the IPv4 header checksum anew; does nothing for IPv6.
    pub fn fill_checksum(&mut self) {
        if self.is_v6() {
            return;
        }
        let len = self.header_len();
        super::fill_v4_checksum(&mut self.0.as_mut()[..len]);
    }

    /// Returns the bytes after the header, for changes in place.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let range = self.header_len()..self.end();
        &mut self.0.as_mut()[range]
    }
}

/// Skips the IPv6 extension headers at the start of `payload` that do not concern the upper layer (RFC 8200
/// section 4). `protocol` is the type of the first header. Each round of the loop consumes at least 8 bytes, so
/// the loop ends.
pub(crate) fn skip_extensions(mut protocol: u8, mut payload: &[u8]) -> Result<(u8, &[u8])> {
    loop {
        match protocol {
            HOP_BY_HOP | DESTINATION_OPTIONS | ROUTING => {}
            FRAGMENT => return Err(Error::Unsupported),
            _ => return Ok((protocol, payload)),
        }
        let [next, units, _, segments_left, ..] = *payload else {
            return Err(Error::Truncated);
        };
        // While segments are left, the destination address is that of an intermediate node. The pseudo-header
        // contains the final destination instead (RFC 8200 section 8.1), so checksums could not be verified.
        if protocol == ROUTING && segments_left != 0 {
            return Err(Error::Unsupported);
        }
        let len = (usize::from(units) + 1) * 8;
        payload = payload.get(len..).ok_or(Error::Truncated)?;
        protocol = next;
    }
}
