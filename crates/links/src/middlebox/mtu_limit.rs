//! Links that carry smaller packets than the links before them.

use core::net::IpAddr;

use braid_wire::Instant;
use braid_wire::icmp::{self, Kind};

use super::{Direction, Middlebox, Output, Packet};

/// A router before a link of a small MTU. Longer IP packets are dropped, as if "don't fragment" were set
/// in each (RFC 1191, RFC 8201).
#[derive(Debug, Clone, Default)]
pub struct MtuLimit {
    mtu: Option<usize>,
    /// The addresses in whose name senders are told.
    routers: Vec<IpAddr>,
    dropped: u64,
}

impl MtuLimit {
    /// Makes a link that carries packets of any length until an MTU is set, and drops longer ones
    /// silently: a black hole (RFC 2923 section 2.1).
    pub fn new() -> Self {
        MtuLimit::default()
    }

    /// Tells senders by ICMP in the name of `router`, for packets of that address family.
    #[must_use]
    pub fn reporting(mut self, router: IpAddr) -> Self {
        self.routers.push(router);
        self
    }

    /// Carries IP packets of at most `mtu` bytes from now on; `None` removes the bound.
    pub fn set_mtu(&mut self, mtu: Option<usize>) {
        self.mtu = mtu;
    }

    /// Returns the number of packets dropped so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the ICMP error for the sender of `packet`, if a router of its family reports.
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
        let back = match direction {
            Direction::Outbound => Direction::Inbound,
            Direction::Inbound => Direction::Outbound,
        };
        out.extend(self.report(mtu, &packet).map(|report| (back, report)));
    }
}
