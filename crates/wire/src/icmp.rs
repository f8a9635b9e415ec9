//! ICMP errors (RFC 792, 1191, 4443): reports of the network about a packet.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{Reader, be16, be32};
use crate::checksum::{self, Sum};
use crate::{Error, Result, Seq32, ip};

/// Bytes of an ICMP error before the packet that it quotes.
const HEADER_LEN: usize = 8;
/// Code of "communication administratively prohibited" (RFC 1812 section 5.2.7.1).
const PROHIBITED: u8 = 13;

/// Most bytes of an ICMP error that [`emit`] writes (RFC 4443 section 3.1).
pub const MAX_LEN: usize = 1280;
/// Most bytes of an ICMPv4 error (RFC 1812 section 4.3.2.3).
const MAX_V4_LEN: usize = 576;

/// The meaning of an ICMP error for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Host, network or port unreachable, by code (ICMPv4 numbering: 0 network, 1 host, 3 port,
    /// 13 prohibited; ICMPv6 codes are mapped onto these).
    Unreachable(u8),
    /// Fragmentation needed or packet too big; `mtu` as reported (0 from an old router, which gives
    /// none).
    PacketTooBig {
        /// Next-hop MTU in bytes.
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
    /// Source of the quoted segment: this host, or its address behind an address translator.
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
    /// Parses the ICMP message `payload` of an IP packet; `v6` selects ICMPv6. `Unsupported` for messages
    /// that are not errors about TCP.
    ///
    /// The checksum of an ICMPv4 message is verified. The checksum of ICMPv6 covers addresses that are
    /// not known here: see [`verify_v6_checksum`]. Neither proves that the sender is honest: the receiver
    /// must check `seq` against its window (RFC 5927 section 4.1).
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

/// Returns whether the checksum of the ICMPv6 message `payload` is right (RFC 4443 section 2.3).
pub fn verify_v6_checksum(src: IpAddr, dst: IpAddr, payload: &[u8]) -> bool {
    let len = payload.len() as u32;
    let pseudo = checksum::pseudo_header(src, dst, ip::PROTO_ICMPV6, len);
    checksum::fold(checksum::sum(pseudo, payload)) == 0xffff
}

/// Writes the IP packet that tells the sender of the IP packet `packet` about `kind`, in the name of the
/// router `from`. Returns the length of the written packet.
///
/// # Errors
/// `Unsupported` for packets that must not be answered (RFC 1812 section 4.3.2.7, RFC 4443 section 2.4):
/// ICMP errors, fragments, packets from or to no single host; and for a router address of the other
/// family.
pub fn emit(kind: Kind, from: IpAddr, packet: &[u8], buf: &mut [u8; MAX_LEN]) -> Result<usize> {
    let about = ip::Packet::new(packet)?;
    if about.is_v6() != from.is_ipv6() || !may_be_reported(&about) {
        return Err(Error::Unsupported);
    }
    let packet = &packet[..about.total_len()];
    let (protocol, most) = match from {
        IpAddr::V4(_) => (ip::PROTO_ICMP, MAX_V4_LEN),
        IpAddr::V6(_) => (ip::PROTO_ICMPV6, MAX_LEN),
    };
    let mut header = ip::Repr {
        src: from,
        dst: about.src(),
        protocol,
        payload_len: 0,
        hop_limit: 64,
        traffic_class: 0,
    };
    let quoted = packet.len().min(most - header.header_len() - HEADER_LEN);
    header.payload_len = HEADER_LEN + quoted;
    header.emit(buf);
    let len = header.header_len() + header.payload_len;
    let message = &mut buf[header.header_len()..len];
    message[..HEADER_LEN].copy_from_slice(&fields(kind, from.is_ipv6()));
    message[HEADER_LEN..].copy_from_slice(&packet[..quoted]);
    let pseudo = match from {
        IpAddr::V4(_) => Sum::default(),
        IpAddr::V6(_) => checksum::pseudo_header(from, about.src(), protocol, message.len() as u32),
    };
    let value = checksum::finish(checksum::sum(pseudo, message));
    message[2..4].copy_from_slice(&value.to_be_bytes());
    Ok(len)
}

/// Returns type, code, a checksum of 0 and the four bytes after it.
fn fields(kind: Kind, v6: bool) -> [u8; HEADER_LEN] {
    let (icmp_type, code, mtu) = match (kind, v6) {
        (Kind::Unreachable(code), false) => (3, code, 0),
        // ICMPv6 (RFC 4443 sections 3.1 to 3.3): "address unreachable" stands for the codes of ICMPv4
        // that have no counterpart.
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
fn may_be_reported(about: &ip::Packet<&[u8]>) -> bool {
    let single = |addr: IpAddr| !addr.is_unspecified() && !addr.is_multicast();
    let Ok((protocol, payload)) = about.transport() else {
        return false;
    };
    let error = match (protocol, payload.first()) {
        (ip::PROTO_ICMP, Some(icmp_type)) => matches!(icmp_type, 3 | 4 | 5 | 11 | 12),
        (ip::PROTO_ICMPV6, Some(icmp_type)) => *icmp_type < 128,
        _ => false,
    };
    !error && single(about.src()) && single(about.dst())
}

fn kind_v4(header: &[u8; HEADER_LEN]) -> Result<Kind> {
    match (header[0], header[1]) {
        (3, 4) => Ok(Kind::PacketTooBig {
            mtu: u32::from(be16(header, 6)),
        }),
        (3, code) => Ok(Kind::Unreachable(code)),
        (11, 0) => Ok(Kind::TimeExceeded),
        // Source quench is among the rest: RFC 6633 requires hosts to ignore it.
        _ => Err(Error::Unsupported),
    }
}

fn kind_v6(header: &[u8; HEADER_LEN]) -> Result<Kind> {
    match (header[0], header[1]) {
        // No route; beyond the scope of the source address.
        (1, 0 | 2) => Ok(Kind::Unreachable(0)),
        // Prohibited; source address failed policy; reject route.
        (1, 1 | 5 | 6) => Ok(Kind::Unreachable(PROHIBITED)),
        (1, 4) => Ok(Kind::Unreachable(3)),
        // Address unreachable, and codes that later standards may add.
        (1, _) => Ok(Kind::Unreachable(1)),
        (2, _) => Ok(Kind::PacketTooBig {
            mtu: be32(header, 4),
        }),
        (3, 0) => Ok(Kind::TimeExceeded),
        _ => Err(Error::Unsupported),
    }
}

/// Reads the quoted IPv4 packet. Its length field counts the whole packet, and routers on the way may
/// have changed fields that its checksum covers, so neither is checked.
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

/// Reads the ports and the sequence number: the 8 bytes that every error quotes (RFC 792).
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
