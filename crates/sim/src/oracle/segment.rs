//! The parts of a TCP segment that oracles check. Each segment is parsed once, by the parsers that the engine
//! uses too. So oracles cannot notice a fault of these parsers, but the tests of `wire` can.

use core::net::SocketAddr;

use braid_wire::mptcp::{Capable, Dss, Join, MptcpOption};
use braid_wire::tcp::{self, Flags};
use braid_wire::{Seq32, ip};

/// The header of a segment.
#[derive(Debug, Clone)]
pub(super) struct Segment<'a> {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub tcp: &'a tcp::Repr,
    /// Payload bytes.
    pub len: u64,
    /// True if the segment has an MPTCP option, unless this is a DSS without a mapping. The peer sends such a
    /// segment for the option's sake, so the segment is no duplicate acknowledgement.
    pub signals: bool,
}

impl Segment<'_> {
    /// Calls `look` with the segment of an IP packet, and returns the result; `None` if there is no TCP segment. `header`
    /// holds at least the headers; `payload` is the length of the payload, or `None` if the payload follows in
    /// `header`. The parsed header is large and every packet has one, so it stays in place.
    pub fn of<T>(
        header: &[u8],
        payload: Option<u64>,
        look: impl FnOnce(&Segment<'_>) -> T,
    ) -> Option<T> {
        let len = header.len() + payload.unwrap_or(0) as usize;
        // The engine verifies the checksum of what it receives, and drops what is damaged.
        let ip = ip::Packet::of_head(header, len).ok()?;
        let (protocol, segment) = ip.transport().ok()?;
        if protocol != ip::PROTO_TCP {
            return None;
        }
        // Receivers ignore a malformed MPTCP option, and so does this parser.
        let mut tcp = tcp::Repr::new(0, 0, Flags::EMPTY);
        let rest = tcp.parse_into(segment).ok()?;
        let is_ack = |o: &MptcpOption| matches!(o, MptcpOption::Dss(dss) if dss.mapping.is_none());
        Some(look(&Segment {
            src: SocketAddr::new(ip.src(), tcp.src_port),
            dst: SocketAddr::new(ip.dst(), tcp.dst_port),
            len: payload.unwrap_or(rest.len() as u64),
            signals: !tcp.options.mptcp.iter().all(is_ack),
            tcp: &tcp,
        }))
    }

    pub fn has(&self, flag: Flags) -> bool {
        self.tcp.flags.contains(flag)
    }

    /// Returns the acknowledgement number, if the ACK bit is set.
    pub fn ack(&self) -> Option<Seq32> {
        self.has(Flags::ACK).then_some(self.tcp.ack)
    }

    pub fn dss(&self) -> Option<Dss> {
        self.tcp.options.dss().copied()
    }

    pub fn capable(&self) -> Option<Capable> {
        self.tcp.options.capable().copied()
    }

    pub fn join(&self) -> Option<Join> {
        self.tcp.options.join().copied()
    }
}
