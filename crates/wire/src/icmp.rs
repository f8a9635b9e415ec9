//! ICMP errors (RFC 792, 1191, 4443): what the network says of a TCP segment.

use core::net::IpAddr;

use crate::{Result, Seq32};

/// What an ICMP error means for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Host, network or port unreachable, by code (ICMPv4 numbering: 0 network, 1 host, 3 port,
    /// 13 prohibited; ICMPv6 codes are mapped onto these).
    Unreachable(u8),
    /// Fragmentation needed or packet too big; `mtu` as reported (0 where an old router gives none).
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
    /// What happened.
    pub kind: Kind,
    /// Source of the quoted segment (this host).
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
    /// Parses the ICMP message `payload` of an IP packet (`v6` says which ICMP). `Unsupported` for
    /// messages that are not errors about TCP.
    pub fn parse(v6: bool, payload: &[u8]) -> Result<TcpError> {
        let _ = (v6, payload);
        todo!()
    }
}
