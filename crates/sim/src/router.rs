//! A router, which lets several hosts share a link.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use braid_wire::icmp::{self, Kind};
use braid_wire::{Error, ip};

use crate::node::{Node, Packet, Turn};

/// A range of addresses with the same first bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    addr: IpAddr,
    len: u8,
}

impl Prefix {
    /// Makes the range of addresses that have the first `len` bits of `addr`. If `len` exceeds the number of bits
    /// of the address, the range has this one address only.
    pub fn new(addr: IpAddr, len: u8) -> Self {
        let max_len = if addr.is_ipv4() { 32 } else { 128 };
        Prefix {
            addr,
            len: len.min(max_len),
        }
    }

    /// Returns the range of all addresses of the family of `addr`.
    pub fn all_like(addr: IpAddr) -> Self {
        Prefix::new(addr, 0)
    }

    /// Returns whether `addr` is in the range.
    pub fn contains(&self, addr: IpAddr) -> bool {
        let difference = match (self.addr, addr) {
            // The 32 bits of IPv4 are moved to the top, because `leading_zeros` counts from there.
            (IpAddr::V4(a), IpAddr::V4(b)) => u128::from(a.to_bits() ^ b.to_bits()) << 96,
            (IpAddr::V6(a), IpAddr::V6(b)) => a.to_bits() ^ b.to_bits(),
            _ => return false,
        };
        difference.leading_zeros() >= u32::from(self.len)
    }
}

impl From<IpAddr> for Prefix {
    /// Returns the range with this single address.
    fn from(addr: IpAddr) -> Self {
        Prefix::new(addr, u8::MAX)
    }
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
    routes: Vec<(Prefix, u32)>,
    /// Pairs of an interface and its MTU. Other interfaces have no limit.
    mtus: Vec<(u32, u32)>,
    /// Source addresses of ICMP errors; `None` if the router sends none of this family.
    icmp_v4: Option<Ipv4Addr>,
    icmp_v6: Option<Ipv6Addr>,
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
    pub fn route(mut self, prefix: impl Into<Prefix>, iface: u32) -> Self {
        let prefix = prefix.into();
        let at = self.routes.partition_point(|(p, _)| p.len >= prefix.len);
        self.routes.insert(at, (prefix, iface));
        self
    }

    /// Limits packets out of interface `iface` to `mtu` bytes. The router drops larger packets instead of
    /// fragmenting them, as if all packets had DF set.
    #[must_use]
    pub fn mtu(mut self, iface: u32, mtu: u32) -> Self {
        self.mtus.push((iface, mtu));
        self
    }

    /// Makes the router send ICMP errors from `addr`, for packets of the family of `addr`.
    #[must_use]
    pub fn reports_from(mut self, addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(addr) => self.icmp_v4 = Some(addr),
            IpAddr::V6(addr) => self.icmp_v6 = Some(addr),
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

    /// Returns the outgoing interface of a packet, and decrements the packet's time to live.
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

    /// Sends an ICMP error to the sender of a dropped packet, if the router has an ICMP address of the packet's
    /// family and a route to the sender.
    fn report(&self, turn: &mut Turn<'_>, kind: Kind, packet: &[u8]) {
        let Ok(dropped) = ip::Packet::new(packet) else {
            return;
        };
        let from = match dropped.src() {
            IpAddr::V4(_) => self.icmp_v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.icmp_v6.map(IpAddr::V6),
        };
        let (Some(from), Some(iface)) = (from, self.route_to(dropped.src())) else {
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

/// The reason for dropping a packet.
enum Refusal {
    Malformed,
    /// A reason that the sender may learn by ICMP.
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
