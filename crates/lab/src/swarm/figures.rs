//! Counts of connections and traffic, summed over seeds.

use std::ops::AddAssign;

use braid_sim::world::START;
use braid_sim::{LinkId, World};
use serde::Serialize;

/// Figures of one or many seeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Figures {
    /// Connections opened.
    pub connections: u64,
    /// Connections that asked for Multipath TCP and fell back.
    pub fallbacks: u64,
    /// Connections aborted by one end, as drawn.
    pub aborted: u64,
    /// Connections broken by a middlebox, an attacker, loss, an outage of a link, or the stop of a box or
    /// server.
    pub broken: u64,
    /// Connections that losses cut off, in the handshake or by a burst that took every retransmission.
    pub cut_off: u64,
    /// Connections that delivered all data, but left one end unaware that the other end had closed.
    pub late: u64,
    /// Connections whose SYN carried payload that was accepted.
    pub fast_opened: u64,
    /// Inner packets that came through a tunnel.
    pub tunnelled: u64,
    /// Simulated time, ns.
    pub simulated_ns: u64,
    /// Packets handed to links.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Packets that queues marked instead of dropping them.
    pub marked: u64,
}

impl Figures {
    /// Adds the time of a world and its traffic over `links`.
    pub(super) fn record(&mut self, world: &World, links: impl Iterator<Item = LinkId>) {
        for link in links {
            let counters = world.counters(link);
            self.packets += counters.offered.packets;
            self.bytes += counters.offered.bytes;
            self.marked += counters.marked.packets;
        }
        // Not a sum over links, because a world has one clock for all of them. The time saturates only
        // after 584 years.
        let elapsed = world.now().saturating_since(START);
        self.simulated_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    }
}

impl AddAssign for Figures {
    fn add_assign(&mut self, other: Figures) {
        self.connections += other.connections;
        self.fallbacks += other.fallbacks;
        self.aborted += other.aborted;
        self.broken += other.broken;
        self.cut_off += other.cut_off;
        self.late += other.late;
        self.fast_opened += other.fast_opened;
        self.tunnelled += other.tunnelled;
        self.simulated_ns += other.simulated_ns;
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.marked += other.marked;
    }
}
