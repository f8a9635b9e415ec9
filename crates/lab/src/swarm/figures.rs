//! The counts that a run of seeds reports.

use std::ops::AddAssign;

use braid_sim::world::START;
use braid_sim::{LinkId, World};
use serde::Serialize;

/// The counts of one seed, or their sums over several seeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Figures {
    /// Connections opened.
    pub connections: u64,
    /// Connections that asked for MPTCP and fell back to TCP.
    pub fallbacks: u64,
    /// Connections that one end aborted, as the scenario says.
    pub aborted: u64,
    /// Connections that a middlebox, an attacker, losses, or the failure of a link, box or server broke, as
    /// the scenario allows.
    pub broken: u64,
    /// Connections that losses ended: in the handshake, or by a burst that took every retransmission.
    pub cut_off: u64,
    /// Connections whose data arrived, although one end missed the close of the other.
    pub late: u64,
    /// Connections whose SYN carried payload that was accepted.
    pub fast_opened: u64,
    /// Simulated time, ns.
    pub simulated_ns: u64,
    /// Packets handed to links.
    pub packets: u64,
    /// Bytes of these packets.
    pub bytes: u64,
    /// Packets that queues marked (ECN) instead of dropping them.
    pub marked: u64,
}

impl Figures {
    /// Adds the traffic of a world over `links`, and sets the simulated time.
    pub(super) fn record(&mut self, world: &World, links: impl Iterator<Item = LinkId>) {
        for link in links {
            let counters = world.counters(link);
            self.packets += counters.offered.packets;
            self.bytes += counters.offered.bytes;
            self.marked += counters.marked.packets;
        }
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
        self.simulated_ns += other.simulated_ns;
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.marked += other.marked;
    }
}
