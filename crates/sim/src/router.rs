//! A router, which lets several hosts share a link.

use core::net::IpAddr;
use std::collections::BTreeMap;

use braid_wire::icmp::{self, Kind};
use braid_wire::ip;
use ipnet::IpNet;

use crate::node::{Node, Packet, Turn};

/// Returns the range of all addresses of the family of `addr`.
pub fn all_like(addr: IpAddr) -> IpNet {
    IpNet::new_assert(addr, 0)
}

/// Counters of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouterCounters {
    /// Packets forwarded.
    pub forwarded: u64,
    /// Packets dropped because they were no IP packets or had a wrong header checksum.
    pub malformed: u64,
    /// Packets dropped because their time to live would have become zero.
    pub expired: u64,
    /// Packets dropped because there was no route to their destination.
    pub unreachable: u64,
    /// Packets dropped because they were larger than the MTU of the outgoing interface.
    pub too_big: u64,
}

/// A router that forwards packets by the longest prefix that contains their destination (RFC 1812). It has no
/// queue of its own; packets wait in the queue of the outgoing link.
#[derive(Debug, Default)]
pub struct Router {
    /// Pairs of a prefix and its interface, the longest prefix first.
    routes: Vec<(IpNet, u32)>,
    /// The MTUs of interfaces. Other interfaces have no limit.
    mtus: BTreeMap<u32, u32>,
    /// Source addresses of ICMP errors. If there are several of a family, the last one counts. The router sends no
    /// errors of a family without an address.
    icmp: Vec<IpAddr>,
    counters: RouterCounters,
}

impl Router {
    /// Makes a router without routes. It sends no ICMP errors for packets that it drops.
    pub fn new() -> Self {
        Router::default()
    }

    /// Adds a route: packets to `prefix` leave by interface `iface`. If two routes have the same prefix, the one
    /// that was added first is used.
    #[must_use]
    pub fn route(mut self, prefix: impl Into<IpNet>, iface: u32) -> Self {
        let prefix = prefix.into();
        let at = self
            .routes
            .partition_point(|(p, _)| p.prefix_len() >= prefix.prefix_len());
        self.routes.insert(at, (prefix, iface));
        self
    }

    /// Limits packets out of interface `iface` to `mtu` bytes. The router drops larger packets instead of
    /// fragmenting them, as if all packets had DF set.
    #[must_use]
    pub fn mtu(mut self, iface: u32, mtu: u32) -> Self {
        self.mtus.insert(iface, mtu);
        self
    }

    /// Makes the router send ICMP errors from `addr`, for packets of the family of `addr`.
    #[must_use]
    pub fn reports_from(mut self, addr: IpAddr) -> Self {
        self.icmp.push(addr);
        self
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> RouterCounters {
        self.counters
    }

    fn route_to(&self, dst: IpAddr) -> Option<u32> {
        let (_, iface) = self.routes.iter().find(|(p, _)| p.contains(&dst))?;
        Some(*iface)
    }

    /// Returns the outgoing interface of a packet, and decrements the packet's time to live. Fails with the kind
    /// of ICMP error for the sender, or with `None` if the packet is malformed.
    fn forward(&mut self, packet: &mut [u8]) -> Result<u32, Option<Kind>> {
        let mut packet = ip::Packet::new(packet).map_err(|_| None)?;
        if !packet.checksum_ok() {
            return Err(None);
        }
        if packet.hop_limit() <= 1 {
            return Err(Some(Kind::TimeExceeded));
        }
        let Some(iface) = self.route_to(packet.dst()) else {
            return Err(Some(Kind::Unreachable(0)));
        };
        if let Some(&mtu) = self.mtus.get(&iface)
            && packet.total_len() > mtu as usize
        {
            return Err(Some(Kind::PacketTooBig { mtu }));
        }
        packet.set_hop_limit(packet.hop_limit() - 1);
        packet.fill_checksum();
        Ok(iface)
    }

    /// Sends an ICMP error to the sender of a dropped packet, if the router has an ICMP address of the packet's
    /// family and a route to the sender.
    fn report(&self, turn: &mut Turn<'_>, kind: Kind, packet: &[u8]) {
        let Ok(dropped) = ip::Packet::new(packet) else {
            return;
        };
        let to = dropped.src();
        let from = self
            .icmp
            .iter()
            .rfind(|from| from.is_ipv4() == to.is_ipv4());
        let (Some(from), Some(iface)) = (from, self.route_to(to)) else {
            return;
        };
        let mut error = [0; icmp::MAX_LEN];
        if let Ok(len) = icmp::emit(kind, *from, packet, &mut error) {
            let mut buffer = turn.buffer();
            buffer.extend_from_slice(&error[..len]);
            turn.send(iface, Packet::new(buffer));
        }
    }
}

impl Node for Router {
    fn receive(&mut self, turn: &mut Turn<'_>, _iface: u32, mut packet: Packet) {
        match self.forward(&mut packet.bytes) {
            Ok(iface) => {
                self.counters.forwarded += 1;
                turn.send(iface, packet);
                return;
            }
            Err(None) => self.counters.malformed += 1,
            Err(Some(kind)) => {
                let counter = match kind {
                    Kind::TimeExceeded => &mut self.counters.expired,
                    Kind::PacketTooBig { .. } => &mut self.counters.too_big,
                    Kind::Unreachable(_) => &mut self.counters.unreachable,
                };
                *counter += 1;
                self.report(turn, kind, &packet.bytes);
            }
        }
        turn.recycle(packet);
    }
}
