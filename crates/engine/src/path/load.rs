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

/// A sender's part of the load of a link, as counted in [`Loads`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Part {
    load: Load,
    /// The place of the link's load in the table, if `load` counts there.
    place: Option<u32>,
}

impl Part {
    /// Returns the load.
    pub fn load(&self) -> Load {
        self.load
    }
}

/// The loads by the peer's address and the local path. There are at most as many as senders at once: subflows that
/// load a path, and other senders with data in flight.
///
/// Each packet changes a load, so a sender keeps the place of its link's load, and a hash is computed only when it
/// begins and ends to load the link.
#[derive(Debug)]
pub(crate) struct Loads {
    places: HashMap<(IpAddr, PathId), u32, SeedableRandomState>,
    loads: Vec<Load>,
    /// The places in `loads` of no link.
    free: Vec<u32>,
}

impl Loads {
    /// Creates an empty table, whose hashes are seeded by `hasher`, because peers choose addresses.
    pub fn new(hasher: SeedableRandomState) -> Self {
        Loads {
            places: HashMap::with_hasher(hasher),
            loads: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Replaces the load that a sender has as its `part` of `link` by `new`. As long as the part is not empty, it is of
    /// the same link.
    pub fn replace(&mut self, link: (IpAddr, PathId), part: &mut Part, new: Load) {
        if part.load == new {
            return;
        }
        debug_assert!(self.is_on(link, part), "the part is of another link");
        let place = match part.place {
            Some(place) => place,
            None => self.place_of(link),
        };
        let load = &mut self.loads[place as usize];
        *load = load.without(part.load).with(new);
        if load.subflows == 0 {
            self.places.remove(&link);
            self.free.push(place);
        }
        *part = Part {
            load: new,
            place: (new.subflows > 0).then_some(place),
        };
    }

    /// Returns true if `part` is empty or of `link`.
    fn is_on(&self, link: (IpAddr, PathId), part: &Part) -> bool {
        let place = part.place.as_ref();
        place.is_none_or(|place| self.places.get(&link) == Some(place))
    }

    /// Returns the place of the load of `link`, which is made if there is none.
    fn place_of(&mut self, link: (IpAddr, PathId)) -> u32 {
        let (loads, free) = (&mut self.loads, &mut self.free);
        *self.places.entry(link).or_insert_with(|| {
            free.pop().unwrap_or_else(|| {
                loads.push(Load::default());
                loads.len() as u32 - 1
            })
        })
    }

    /// Returns the load of `link` without the `part` of one sender.
    pub fn of_others(&self, link: (IpAddr, PathId), part: &Part) -> Load {
        debug_assert!(self.is_on(link, part), "the part is of another link");
        // A sender without a part may be on the link of another one, whose load is then searched for.
        match part.place {
            Some(place) => self.loads[place as usize].without(part.load),
            None => self.load(link),
        }
    }

    /// Returns the number of subflows on `link` that open a connection.
    pub fn openings(&self, link: (IpAddr, PathId)) -> u32 {
        self.load(link).openings
    }

    fn load(&self, link: (IpAddr, PathId)) -> Load {
        let place = self.places.get(&link);
        place.map_or(Load::default(), |place| self.loads[*place as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: (IpAddr, PathId) = (
        IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1)),
        PathId(0),
    );

    fn load(in_flight: u64) -> Load {
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
        let [mut a, mut b, mut c] = [Part::default(); 3];
        loads.replace(LINK, &mut a, load(100));
        assert_eq!(loads.of_others(LINK, &a), Load::default());
        assert_eq!(loads.of_others(LINK, &b), load(100));
        loads.replace(LINK, &mut b, load(30));
        assert_eq!(loads.of_others(LINK, &a), load(30));
        loads.replace(LINK, &mut b, load(40));
        assert_eq!(loads.of_others(LINK, &a), load(40));
        // A subflow on another link is not among them.
        let other = (LINK.0, PathId(1));
        loads.replace(other, &mut c, load(7));
        assert_eq!(loads.of_others(other, &c), Load::default());
    }

    #[test]
    fn the_place_of_an_unloaded_link_is_used_again() {
        let mut loads = Loads::new(SeedableRandomState::default());
        let [mut a, mut b] = [Part::default(); 2];
        let other = (LINK.0, PathId(1));
        for in_flight in 1..=3 {
            loads.replace(LINK, &mut a, load(in_flight));
            loads.replace(LINK, &mut a, Load::default());
            assert_eq!(loads.of_others(LINK, &b), Load::default());
            loads.replace(other, &mut b, load(in_flight));
            assert_eq!(loads.of_others(other, &a), load(in_flight));
            loads.replace(other, &mut b, Load::default());
        }
        assert!(loads.places.is_empty());
        assert_eq!((loads.loads.len(), loads.free.len()), (1, 1));
    }
}
