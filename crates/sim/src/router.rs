//! A router, which lets several hosts share a link.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use braid_wire::icmp::{self, Kind};
use braid_wire::{Error, ip};

use crate::node::{Node, Packet, Turn};

/// A range of addresses that begin alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

impl Prefix {
    /// Makes the range of addresses that agree with `addr` in the first `len` bits. A length beyond the
    /// address counts as all its bits.
    pub fn new(addr: IpAddr, len: u8) -> Self {
        let most = if addr.is_ipv4() { 32 } else { 128 };
        Prefix {
            addr,
            len: len.min(most),
        }
    }

    /// Returns the range of all addresses of the family of `addr`.
    pub fn all_like(addr: IpAddr) -> Self {
        Prefix::new(addr, 0)
    }

    /// Returns whether `addr` is in the range.
    pub fn contains(&self, addr: IpAddr) -> bool {
        let differ = match (self.addr, addr) {
            (IpAddr::V4(a), IpAddr::V4(b)) => u128::from(a.to_bits() ^ b.to_bits()) << 96,
            (IpAddr::V6(a), IpAddr::V6(b)) => a.to_bits() ^ b.to_bits(),
            _ => return false,
        };
        differ.leading_zeros() >= u32::from(self.len)
    }
}

impl From<IpAddr> for Prefix {
    /// Returns the range of one address.
    fn from(addr: IpAddr) -> Self {
        Prefix::new(addr, u8::MAX)
    }
}

/// Counters of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouterCounters {
    /// Packets sent on.
    pub forwarded: u64,
    /// Packets dropped because they are no IP packets, or have a wrong header checksum.
    pub malformed: u64,
    /// Packets dropped because their time to live was over.
    pub expired: u64,
    /// Packets dropped because there was no route to their destination.
    pub unreachable: u64,
    /// Packets dropped because they were larger than the link that they had to take.
    pub too_big: u64,
}

/// A router that forwards packets by the longest prefix of their destination (RFC 1812). It has no queue
/// of its own: the link's queue is the router's.
#[derive(Debug, Default)]
pub struct Router {
    /// Longest prefix first.
    routes: Vec<(Prefix, u32)>,
    /// Largest packet of each limited interface.
    mtus: Vec<(u32, u32)>,
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
    counters: RouterCounters,
}

impl Router {
    /// Makes a router without routes, which silently drops what it cannot forward.
    pub fn new() -> Self {
        Router::default()
    }

    /// Adds a route: packets to `prefix` leave by interface `iface`. Of equal prefixes the first one
    /// counts.
    #[must_use]
    pub fn route(mut self, prefix: impl Into<Prefix>, iface: u32) -> Self {
        let prefix = prefix.into();
        let at = self.routes.partition_point(|(p, _)| p.len >= prefix.len);
        self.routes.insert(at, (prefix, iface));
        self
    }

    /// Limits packets out of interface `iface` to `mtu` bytes. Larger ones are dropped and not
    /// fragmented, as if all had DF set.
    #[must_use]
    pub fn mtu(mut self, iface: u32, mtu: u32) -> Self {
        self.mtus.push((iface, mtu));
        self
    }

    /// Lets the router send ICMP errors, from `addr` for packets of its family.
    #[must_use]
    pub fn reports_from(mut self, addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(addr) => self.v4 = Some(addr),
            IpAddr::V6(addr) => self.v6 = Some(addr),
        }
        self
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> RouterCounters {
        self.counters
    }

    fn route_to(&self, dst: IpAddr) -> Option<u32> {
        let (_, iface) = self.routes.iter().find(|(p, _)| p.contains(dst))?;
        Some(*iface)
    }

    /// Returns the interface for a packet, and takes a hop from its time to live.
    fn forward(&mut self, packet: &mut [u8]) -> Result<u32, Refusal> {
        let mut packet = ip::Packet::new(packet)?;
        if !packet.checksum_ok() {
            return Err(Error::BadChecksum.into());
        }
        if packet.hop_limit() <= 1 {
            return Err(Refusal::Reported(Kind::TimeExceeded));
        }
        let Some(iface) = self.route_to(packet.dst()) else {
            return Err(Refusal::Reported(Kind::Unreachable(0)));
        };
        let limit = self.mtus.iter().find(|(limited, _)| *limited == iface);
        if let Some(&(_, mtu)) = limit
            && packet.total_len() > mtu as usize
        {
            return Err(Refusal::Reported(Kind::PacketTooBig { mtu }));
        }
        packet.set_hop_limit(packet.hop_limit() - 1);
        packet.fill_checksum();
        Ok(iface)
    }

    /// Sends an ICMP error to the sender, if there is an address to send from and a route back.
    fn report(&self, turn: &mut Turn<'_>, kind: Kind, packet: &[u8]) {
        let Ok(about) = ip::Packet::new(packet) else {
            return;
        };
        let from = match about.src() {
            IpAddr::V4(_) => self.v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.v6.map(IpAddr::V6),
        };
        let (Some(from), Some(iface)) = (from, self.route_to(about.src())) else {
            return;
        };
        let mut error = [0; icmp::MAX_LEN];
        if let Ok(len) = icmp::emit(kind, from, packet, &mut error) {
            let mut buffer = turn.buffer();
            buffer.extend_from_slice(&error[..len]);
            turn.send(iface, Packet::new(buffer));
        }
    }
}

/// The reason for which a packet goes no further.
enum Refusal {
    Malformed,
    Reported(Kind),
}

impl From<Error> for Refusal {
    fn from(_: Error) -> Self {
        Refusal::Malformed
    }
}

impl Node for Router {
    fn receive(&mut self, turn: &mut Turn<'_>, _iface: u32, mut packet: Packet) {
        let refusal = match self.forward(&mut packet.bytes) {
            Ok(iface) => {
                self.counters.forwarded += 1;
                turn.send(iface, packet);
                return;
            }
            Err(refusal) => refusal,
        };
        match refusal {
            Refusal::Malformed => self.counters.malformed += 1,
            Refusal::Reported(kind) => {
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
