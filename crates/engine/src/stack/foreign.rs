//! Traffic of the caller's own protocols on the paths of the stack. It shares the bottlenecks with connections, so
//! strategies see it like the traffic of other connections, and each side learns from the measurements of the other.

use core::net::IpAddr;

use braid_wire::Instant;

use super::Stack;
use crate::path::{Load, Part};
use crate::{PathId, PathRecord, Urgency};

/// The data in flight on a path to a peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathLoad {
    /// Bytes in flight.
    pub in_flight: u64,
    /// The rate at which the path delivers these, bytes/s.
    pub delivery_rate: u64,
}

/// The traffic of one sender that is not a connection, on its way to a peer. It belongs to one stack.
///
/// The stack counts its load until the caller sets another one. A `link` is the peer's address and the local path.
#[derive(Debug, Default)]
pub struct ForeignTraffic {
    /// The link and this sender's part of its load, if there is one.
    counted: Option<((IpAddr, PathId), Part)>,
}

impl ForeignTraffic {
    /// Returns true if the stack counts a load.
    pub fn is_counted(&self) -> bool {
        self.counted.is_some()
    }

    /// Replaces the load of this sender by `load` on `link`. Connections place their data as if another connection had
    /// these bytes in flight. The rates that they measure are lower bounds if this sender has a part of the path's.
    pub fn set_load(
        &mut self,
        stack: &mut Stack,
        now: Instant,
        link: (IpAddr, PathId),
        load: PathLoad,
    ) {
        if load.in_flight > 0 {
            let records = &mut stack.shared.records;
            records.note_foreign(now, link, load.delivery_rate);
        }
        let new = Load {
            in_flight: load.in_flight,
            delivery_rate: load.delivery_rate,
            subflows: 1,
            openings: 0,
        };
        let new = Some((link, new)).filter(|(_, new)| new.in_flight > 0);
        self.count(stack, new);
    }

    /// Takes back the load of this sender, which has ended.
    pub fn end(&mut self, stack: &mut Stack) {
        self.count(stack, None);
    }

    fn count(&mut self, stack: &mut Stack, new: Option<((IpAddr, PathId), Load)>) {
        let loads = &mut stack.shared.loads;
        if let Some((counted, part)) = &mut self.counted
            && new.is_none_or(|(link, _)| link != *counted)
        {
            loads.replace(*counted, part, Load::default());
            self.counted = None;
        }
        if let Some((link, load)) = new {
            let (_, part) = self.counted.get_or_insert((link, Part::default()));
            loads.replace(link, part, load);
        }
    }

    /// Notes that this sender sent data of `urgency` on `link` at `sent_at`. Connections with less urgent data give way
    /// there as to each other.
    pub fn note_urgency(
        &self,
        stack: &mut Stack,
        link: (IpAddr, PathId),
        urgency: Urgency,
        sent_at: Instant,
    ) {
        stack.shared.claims.note(sent_at, link, urgency);
    }

    /// Keeps the queue of `link` short for data of `urgency` that may come, as if some passed now; background data keeps
    /// more than two packets in flight even so.
    pub fn hold_urgency(
        &self,
        stack: &mut Stack,
        now: Instant,
        link: (IpAddr, PathId),
        urgency: Urgency,
    ) {
        stack.shared.claims.hold(now, link, urgency);
    }

    /// Returns the load of `link` by connections and all other senders.
    pub fn others(&self, stack: &Stack, link: (IpAddr, PathId)) -> PathLoad {
        let own = self.counted.filter(|(counted, _)| *counted == link);
        let own = own.map_or(Part::default(), |(_, part)| part);
        let load = stack.shared.loads.of_others(link, &own);
        PathLoad {
            in_flight: load.in_flight,
            delivery_rate: load.delivery_rate,
        }
    }

    /// Returns the urgency of the most urgent data that uses `link` at present: of connections, and of all senders that
    /// note or hold an urgency.
    pub fn most_urgent(
        &self,
        stack: &Stack,
        now: Instant,
        link: (IpAddr, PathId),
    ) -> Option<Urgency> {
        stack.shared.claims.of(now, link).most_urgent
    }

    /// Returns the record of `link`.
    pub fn record(&self, stack: &Stack, (peer, path): (IpAddr, PathId)) -> Option<PathRecord> {
        stack.shared.records.get(peer, path)
    }

    /// Adds measurements of this sender to the record of `link`, as those of a connection are added.
    pub fn add_record(
        &self,
        stack: &mut Stack,
        (peer, path): (IpAddr, PathId),
        measured: PathRecord,
    ) {
        stack.shared.records.add(peer, path, measured);
    }
}

#[cfg(test)]
mod tests {
    use braid_wire::Rng;

    use super::*;
    use crate::Config;

    fn stack() -> Stack {
        let strategy = || -> Box<dyn crate::strategy::Strategy> { unreachable!("no connection") };
        Stack::new(
            Config::default(),
            Rng::from_seed([1; 32]),
            Box::new(strategy),
        )
    }

    #[test]
    fn each_sender_sees_the_others() {
        let mut stack = stack();
        let link = |n| (IpAddr::from([192, 0, 2, n]), PathId(0));
        let load = |in_flight| PathLoad {
            in_flight,
            delivery_rate: 10 * in_flight,
        };
        let [mut a, mut b] = [ForeignTraffic::default(), ForeignTraffic::default()];
        a.set_load(&mut stack, Instant::ZERO, link(1), load(100));
        assert_eq!(a.others(&stack, link(1)), load(0));
        assert_eq!(b.others(&stack, link(1)), load(100));
        b.set_load(&mut stack, Instant::ZERO, link(1), load(30));
        assert_eq!(a.others(&stack, link(1)), load(30));
        // A sender moves to another peer, and ends.
        a.set_load(&mut stack, Instant::ZERO, link(2), load(100));
        assert_eq!(b.others(&stack, link(1)), load(0));
        assert_eq!(b.others(&stack, link(2)), load(100));
        a.set_load(&mut stack, Instant::ZERO, link(2), load(0));
        b.set_load(&mut stack, Instant::ZERO, link(1), load(0));
        assert!(!a.is_counted() && !b.is_counted());
        assert_eq!(b.others(&stack, link(2)), load(0));
    }
}
