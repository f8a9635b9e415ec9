//! ICMP errors (RFC 792, 1191, 4443): routers and hosts report packets that they could not deliver.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{Reader, be16, be32};
use crate::checksum::{self, Sum};
use crate::{Error, Result, Seq32, ip};

/// Bytes of an ICMP error before the quoted packet: type, code, checksum, and four bytes whose meaning depends on
/// the type.
const HEADER_LEN: usize = 8;
/// The ICMPv4 code of "communication administratively prohibited" (RFC 1812 section 5.2.7.1).
const PROHIBITED: u8 = 13;

/// Maximum length of a packet that [`emit`] writes: the minimum MTU of IPv6 (RFC 4443 section 2.4 (c)).
pub const MAX_LEN: usize = 1280;
/// Maximum length of a packet with an ICMPv4 error (RFC 1812 section 4.3.2.3).
const MAX_V4_LEN: usize = 576;

/// The meaning of an ICMP error for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The destination is unreachable. The value is a code of ICMPv4: 0 network, 1 host, 3 port, 13 prohibited.
    /// Codes of ICMPv6 are translated to these.
    Unreachable(u8),
    /// Fragmentation needed (ICMPv4) or packet too big (ICMPv6).
    PacketTooBig {
        /// Next-hop MTU in bytes, as reported. A router older than RFC 1191 reports none; the value is then 0.
        mtu: u32,
    },
    /// Time exceeded in transit.
    TimeExceeded,
}

/// An ICMP error about a TCP segment that this host sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpError {
    /// The kind of error.
    pub kind: Kind,
    /// Source of the quoted segment: an address of this host. If a NAT on the way did not translate the quotation,
    /// the source is the address that the NAT gave the segment.
    pub src: IpAddr,
    /// Destination of the quoted segment.
    pub dst: IpAddr,
    /// Source port of the quoted segment.
    pub src_port: u16,
    /// Destination port of the quoted segment.
    pub dst_port: u16,
    /// Sequence number of the quoted segment.
    pub seq: Seq32,
}

impl TcpError {
    /// Parses `payload`, the ICMP message of an IP packet. `v6` selects ICMPv6. Returns `Unsupported` for a
    /// message that is not an error about TCP.
    ///
    /// The checksum of an ICMPv4 message is verified. The checksum of an ICMPv6 message is not, because it also
    /// covers the addresses of the packet: see [`verify_v6_checksum`]. Anybody can forge an ICMP error, so the
    /// receiver must also check `seq` against its window (RFC 5927 section 4.1).
    pub fn parse(v6: bool, payload: &[u8]) -> Result<TcpError> {
        let (header, quoted) = payload
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Error::Truncated)?;
        if v6 {
            quoted_v6(kind_v6(header)?, quoted)
        } else if checksum::fold(checksum::sum(Sum::default(), payload)) != 0xffff {
            Err(Error::BadChecksum)
        } else {
            quoted_v4(kind_v4(header)?, quoted)
        }
    }
}

/// Returns whether the checksum of an ICMPv6 message is right (RFC 4443 section 2.3). `payload` is the message.
pub fn verify_v6_checksum(src: IpAddr, dst: IpAddr, payload: &[u8]) -> bool {
    let len = payload.len() as u32;
    let pseudo = checksum::pseudo_header(src, dst, ip::PROTO_ICMPV6, len);
    checksum::fold(checksum::sum(pseudo, payload)) == 0xffff
}

/// Writes an IP packet with the ICMP error `kind` about the IP packet `packet`. The error goes from the router
/// address `from` to the sender of `packet`. Returns the length of the written packet.
///
/// # Errors
/// `Unsupported` if `from` and `packet` are of different address families, or if no error may be sent about
/// `packet` (RFC 1812 section 4.3.2.7, RFC 4443 section 2.4): it is an ICMP error or a fragment, or an address in
/// it is multicast or unspecified.
pub fn emit(kind: Kind, from: IpAddr, packet: &[u8], buf: &mut [u8; MAX_LEN]) -> Result<usize> {
    let view = ip::Packet::new(packet)?;
    if view.is_v6() != from.is_ipv6() || !may_be_reported(&view) {
        return Err(Error::Unsupported);
    }
    let packet = &packet[..view.total_len()];
    let (protocol, max_len) = match from {
        IpAddr::V4(_) => (ip::PROTO_ICMP, MAX_V4_LEN),
        IpAddr::V6(_) => (ip::PROTO_ICMPV6, MAX_LEN),
    };
    let mut header = ip::Repr {
        src: from,
        dst: view.src(),
        protocol,
        payload_len: 0,
        // The default of RFC 1700 and of Linux.
        hop_limit: 64,
        traffic_class: 0,
    };
    let quoted = packet.len().min(max_len - header.header_len() - HEADER_LEN);
    header.payload_len = HEADER_LEN + quoted;
    header.emit(buf);
    let len = header.header_len() + header.payload_len;
    let message = &mut buf[header.header_len()..len];
    message[..HEADER_LEN].copy_from_slice(&fields(kind, from.is_ipv6()));
    message[HEADER_LEN..].copy_from_slice(&packet[..quoted]);
    let pseudo = match from {
        IpAddr::V4(_) => Sum::default(),
        IpAddr::V6(_) => checksum::pseudo_header(from, view.src(), protocol, message.len() as u32),
    };
    let value = checksum::finish(checksum::sum(pseudo, message));
    message[2..4].copy_from_slice(&value.to_be_bytes());
    Ok(len)
}

/// Returns the first eight bytes of an error: type, code, a checksum of 0, and the field that contains the MTU.
fn fields(kind: Kind, v6: bool) -> [u8; HEADER_LEN] {
    let (icmp_type, code, mtu) = match (kind, v6) {
        (Kind::Unreachable(code), false) => (3, code, 0),
        // ICMPv6 (RFC 4443 sections 3.1 to 3.3). ICMPv4 codes without a counterpart become "address unreachable"
        // (3).
        (Kind::Unreachable(0), true) => (1, 0, 0),
        (Kind::Unreachable(3), true) => (1, 4, 0),
        (Kind::Unreachable(PROHIBITED), true) => (1, 1, 0),
        (Kind::Unreachable(_), true) => (1, 3, 0),
        (Kind::PacketTooBig { mtu }, false) => (3, 4, mtu.min(0xffff)),
        (Kind::PacketTooBig { mtu }, true) => (2, 0, mtu),
        (Kind::TimeExceeded, false) => (11, 0, 0),
        (Kind::TimeExceeded, true) => (3, 0, 0),
    };
    let [a, b, c, d] = mtu.to_be_bytes();
    [icmp_type, code, 0, 0, a, b, c, d]
}

/// Returns whether an error about this packet may be sent at all.
fn may_be_reported(view: &ip::Packet<&[u8]>) -> bool {
    let is_single_host = |addr: IpAddr| !addr.is_unspecified() && !addr.is_multicast();
    let Ok((protocol, payload)) = view.transport() else {
        return false;
    };
    let is_icmp_error = match (protocol, payload.first()) {
        // Unreachable, source quench, redirect, time exceeded, parameter problem.
        (ip::PROTO_ICMP, Some(icmp_type)) => matches!(icmp_type, 3 | 4 | 5 | 11 | 12),
        // All errors of ICMPv6 have types below 128 (RFC 4443 section 2.1).
        (ip::PROTO_ICMPV6, Some(icmp_type)) => *icmp_type < 128,
        _ => false,
    };
    !is_icmp_error && is_single_host(view.src()) && is_single_host(view.dst())
}

fn kind_v4(header: &[u8; HEADER_LEN]) -> Result<Kind> {
    match (header[0], header[1]) {
        (3, 4) => Ok(Kind::PacketTooBig {
            mtu: u32::from(be16(header, 6)),
        }),
        (3, code) => Ok(Kind::Unreachable(code)),
        (11, 0) => Ok(Kind::TimeExceeded),
        // This includes source quench, which hosts must ignore (RFC 6633).
        _ => Err(Error::Unsupported),
    }
}

fn kind_v6(header: &[u8; HEADER_LEN]) -> Result<Kind> {
    match (header[0], header[1]) {
        // Code 0: no route. Code 2: beyond the scope of the source address.
        (1, 0 | 2) => Ok(Kind::Unreachable(0)),
        // Code 1: prohibited. Code 5: source address failed policy. Code 6: reject route.
        (1, 1 | 5 | 6) => Ok(Kind::Unreachable(PROHIBITED)),
        (1, 4) => Ok(Kind::Unreachable(3)),
        // Code 3 (address unreachable), and codes that later standards may add.
        (1, _) => Ok(Kind::Unreachable(1)),
        (2, _) => Ok(Kind::PacketTooBig {
            mtu: be32(header, 4),
        }),
        (3, 0) => Ok(Kind::TimeExceeded),
        _ => Err(Error::Unsupported),
    }
}

/// Parses the quoted IPv4 packet. Checks neither the packet's length field nor its checksum: the quotation is
/// shorter than the packet, and routers on the way change fields that the checksum covers.
fn quoted_v4(kind: Kind, quoted: &[u8]) -> Result<TcpError> {
    let header = quoted.get(..20).ok_or(Error::Truncated)?;
    if header[0] >> 4 != 4 {
        return Err(Error::BadVersion);
    }
    let header_len = usize::from(header[0] & 0x0f) * 4;
    if header_len < 20 {
        return Err(Error::BadLength);
    }
    let later_fragment = be16(header, 6) & 0x1fff != 0;
    if header[9] != ip::PROTO_TCP || later_fragment {
        return Err(Error::Unsupported);
    }
    let src = Ipv4Addr::from(be32(header, 12)).into();
    let dst = Ipv4Addr::from(be32(header, 16)).into();
    quoted_tcp(
        kind,
        src,
        dst,
        quoted.get(header_len..).ok_or(Error::Truncated)?,
    )
}

/// Parses the quoted IPv6 packet.
fn quoted_v6(kind: Kind, quoted: &[u8]) -> Result<TcpError> {
    let mut header = Reader(quoted);
    let [version, ..] = header.array::<6>()?;
    if version >> 4 != 6 {
        return Err(Error::BadVersion);
    }
    let [next_header, _hop_limit] = header.array()?;
    let src = Ipv6Addr::from(header.array::<16>()?).into();
    let dst = Ipv6Addr::from(header.array::<16>()?).into();
    match ip::skip_extensions(next_header, header.0)? {
        (ip::PROTO_TCP, segment) => quoted_tcp(kind, src, dst, segment),
        _ => Err(Error::Unsupported),
    }
}

/// Parses ports and sequence number. They are the first 8 bytes of the segment, and every error quotes at least 8
/// bytes (RFC 792).
fn quoted_tcp(kind: Kind, src: IpAddr, dst: IpAddr, segment: &[u8]) -> Result<TcpError> {
    let mut fields = Reader(segment);
    let src_port = fields.u16()?;
    let dst_port = fields.u16()?;
    let seq = Seq32(fields.u32()?);
    Ok(TcpError {
        kind,
        src,
        dst,
        src_port,
        dst_port,
        seq,
    })
}
