//! The address translation around the packet device of a tunnel.

use core::net::Ipv4Addr;

use braid_links::middlebox::{Direction, Middlebox, Nat, NatConfig, Output};
use braid_wire::Instant;

use crate::node::Packet;

/// A translation of all packets to one address: at a box to its address in the tunnel, at a server to its own.
#[derive(Debug)]
pub(super) struct Masquerade {
    external: Ipv4Addr,
    nat: Nat,
    out: Output,
}

impl Masquerade {
    pub(super) fn new(external: Ipv4Addr) -> Self {
        Masquerade {
            external,
            nat: Nat::new(NatConfig::new(external)),
            out: Output::new(),
        }
    }

    /// Changes the address. The mappings go with the old one.
    pub(super) fn rebind(&mut self, external: Ipv4Addr) {
        if external != self.external {
            self.external = external;
            self.nat.rebind(external);
        }
    }

    /// Translates a packet; returns `None` if it has to be dropped.
    pub(super) fn translate(
        &mut self,
        now: Instant,
        direction: Direction,
        packet: Packet,
    ) -> Option<Packet> {
        self.nat.process(now, direction, packet, &mut self.out);
        self.out.pop_front().map(|(_, packet)| packet)
    }
}
