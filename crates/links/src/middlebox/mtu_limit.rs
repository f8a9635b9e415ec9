//! Links whose MTU is smaller than that of the links before them.

use core::net::IpAddr;

use braid_wire::Instant;
use braid_wire::icmp::{self, Kind};

use super::{Direction, Middlebox, Output, Packet};

/// A router before a link with a small MTU. It drops longer IP packets and never fragments them, as if each had DF
/// set (RFC 1191, RFC 8201).
#[derive(Debug, Clone, Default)]
pub struct MtuLimit {
    /// The MTU; `None` for no limit.
    mtu: Option<usize>,
    /// The source addresses of ICMP errors, at most one of each address family.
    routers: Vec<IpAddr>,
    dropped: u64,
}

impl MtuLimit {
    /// Creates a router without a limit. Once [`set_mtu`](Self::set_mtu) has set a limit, the router drops longer
    /// packets without an ICMP error, so the link is a black hole (RFC 2923 section 2.1).
    pub fn new() -> Self {
        MtuLimit::default()
    }

    /// Makes the router send ICMP errors from the address `router`, about dropped packets of the same address
    /// family.
    #[must_use]
    pub fn reporting(mut self, router: IpAddr) -> Self {
        self.routers.push(router);
        self
    }

    /// Limits IP packets to `mtu` bytes from now on; `None` removes the limit.
    pub fn set_mtu(&mut self, mtu: Option<usize>) {
        self.mtu = mtu;
    }

    /// Returns the number of packets dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the ICMP error for the sender of `packet`, if there is a router address of the packet's family, and
    /// if RFC 1812 or RFC 4443 allows an error about the packet.
    fn report(&self, mtu: usize, packet: &Packet) -> Option<Packet> {
        let mtu = u32::try_from(mtu).unwrap_or(u32::MAX);
        let kind = Kind::PacketTooBig { mtu };
        let mut buf = [0; icmp::MAX_LEN];
        let mut routers = self.routers.iter();
        let len = routers.find_map(|from| icmp::emit(kind, *from, &packet.bytes, &mut buf).ok())?;
        Some(Packet::new(buf[..len].to_vec()))
    }
}

impl Middlebox for MtuLimit {
    fn process(&mut self, _now: Instant, direction: Direction, packet: Packet, out: &mut Output) {
        let Some(mtu) = self.mtu.filter(|mtu| packet.bytes.len() > *mtu) else {
            out.push_back((direction, packet));
            return;
        };
        self.dropped += 1;
        let opposite = match direction {
            Direction::Outbound => Direction::Inbound,
            Direction::Inbound => Direction::Outbound,
        };
        out.extend(self.report(mtu, &packet).map(|report| (opposite, report)));
    }
}
