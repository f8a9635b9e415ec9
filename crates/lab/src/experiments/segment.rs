//! TCP segments in captured packets.

use std::net::SocketAddr;

use braid_wire::{ip, tcp};

/// The fields of a TCP segment that experiments look at.
#[derive(Debug)]
pub struct Segment {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub flags: tcp::Flags,
    /// True if the segment has MP_CAPABLE.
    pub capable: bool,
    /// True if the segment has MP_JOIN.
    pub join: bool,
    /// Payload, bytes.
    pub payload: usize,
}

impl Segment {
    /// Reads an IP packet; `None` if it is no TCP segment.
    pub fn parse(bytes: &[u8]) -> Option<Segment> {
        let (header, segment) = ip::Repr::parse(bytes).ok()?;
        if header.protocol != ip::PROTO_TCP {
            return None;
        }
        let packet = tcp::Packet::new(segment).ok()?;
        let flags = packet.flags();
        let options =
            tcp::Options::parse(packet.options(), flags.contains(tcp::Flags::SYN)).ok()?;
        Some(Segment {
            src: (header.src, packet.src_port()).into(),
            dst: (header.dst, packet.dst_port()).into(),
            flags,
            capable: options.capable().is_some(),
            join: options.join().is_some(),
            payload: packet.payload().len(),
        })
    }
}
