//! The load of each path to a peer: the data in flight of all connections together. The connections of a host share
//! the bottlenecks of its links, so data of one connection waits behind data of the others.

use core::net::IpAddr;

use foldhash::fast::SeedableRandomState;
use hashbrown::HashMap;

use crate::PathId;

/// The load of a path to a peer, or the part of one sender: a subflow, or other traffic of the caller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// The bytes in flight.
    pub in_flight: u64,
    /// The sum of the delivery rates of the senders with data in flight, bytes/s.
    pub delivery_rate: u64,
    /// The number of subflows that have data in flight or open a connection, and of other senders with data in flight.
    pub subflows: u32,
    /// The number of subflows that open a connection: their SYN is not answered yet.
    pub openings: u32,
}

impl Load {
    /// Returns this load without the `part` of one sender.
    pub fn without(self, part: Load) -> Load {
        Load {
            in_flight: self.in_flight - part.in_flight,
            delivery_rate: self.delivery_rate - part.delivery_rate,
            subflows: self.subflows - part.subflows,
            openings: self.openings - part.openings,
        }
    }

    fn with(self, part: Load) -> Load {
        Load {
            in_flight: self.in_flight + part.in_flight,
            delivery_rate: self.delivery_rate + part.delivery_rate,
            subflows: self.subflows + part.subflows,
            openings: self.openings + part.openings,
        }
    }
}

/// The loads by the peer's address and the local path. There are at most as many as senders: subflows that load a path,
/// and other senders with data in flight.
#[derive(Debug)]
pub(crate) struct Loads {
    by_link: HashMap<(IpAddr, PathId), Load, SeedableRandomState>,
    /// The sum of all loads' `subflows`.
    subflows: u32,
}

impl Loads {
    /// Creates an empty table, whose hashes are seeded by `hasher`, because peers choose addresses.
    pub fn new(hasher: SeedableRandomState) -> Self {
        Loads {
            by_link: HashMap::with_hasher(hasher),
            subflows: 0,
        }
    }

    /// Replaces a sender's part `old` of the load of `link` by `new`.
    pub fn replace(&mut self, link: (IpAddr, PathId), old: Load, new: Load) {
        let load = self.by_link.entry(link).or_default();
        *load = load.without(old).with(new);
        if load.subflows == 0 {
            self.by_link.remove(&link);
        }
        self.subflows = self.subflows - old.subflows + new.subflows;
    }

    /// Returns the load of `link` without the part of one sender.
    pub fn of_others(&self, link: (IpAddr, PathId), part: Load) -> Load {
        // Usually no two senders share a link, and no search is needed. A sender without a part in the table may be on
        // the link of another one, whose part is then searched for.
        if part.subflows > 0 && self.subflows as usize == self.by_link.len() {
            return Load::default();
        }
        let load = self.by_link.get(&link).copied().unwrap_or_default();
        load.without(part)
    }

    /// Returns the number of subflows on `link` that open a connection.
    pub fn openings(&self, link: (IpAddr, PathId)) -> u32 {
        self.by_link.get(&link).map_or(0, |load| load.openings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: (IpAddr, PathId) = (
        IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1)),
        PathId(0),
    );

    fn part(in_flight: u64) -> Load {
        Load {
            in_flight,
            delivery_rate: 10 * in_flight,
            subflows: 1,
            openings: 0,
        }
    }

    #[test]
    fn a_subflow_sees_what_the_others_have_in_flight() {
        let mut loads = Loads::new(SeedableRandomState::default());
        loads.replace(LINK, Load::default(), part(100));
        assert_eq!(loads.of_others(LINK, part(100)), Load::default());
        assert_eq!(loads.of_others(LINK, Load::default()), part(100));
        loads.replace(LINK, Load::default(), part(30));
        assert_eq!(loads.of_others(LINK, part(100)), part(30));
        loads.replace(LINK, part(30), part(40));
        assert_eq!(loads.of_others(LINK, part(100)), part(40));
        // A subflow on another link is not among them.
        let other = (LINK.0, PathId(1));
        loads.replace(other, Load::default(), part(7));
        assert_eq!(loads.of_others(other, part(7)), Load::default());
        loads.replace(LINK, part(100), Load::default());
        loads.replace(LINK, part(40), Load::default());
        loads.replace(other, part(7), Load::default());
        assert!(loads.by_link.is_empty());
    }
}
