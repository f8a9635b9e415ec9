//! Steering: the choice of the packet that a path takes.

mod aggregate;
mod fastest;
mod redundant;
mod single;

use braid_engine::{PathId, Urgency};

use self::aggregate::Aggregate;
use self::fastest::Fastest;
use self::redundant::Redundant;
use self::single::Single;
use crate::config::{MAX_PATHS, Mode};

/// A path as steering sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathView {
    pub id: PathId,
    /// The one-way delay in microseconds, on a scale that all paths share; `None` if nothing is known of it.
    pub delay: Option<i64>,
    /// The rate in bytes per second.
    pub rate: u64,
    /// The largest packet that the path takes, in bytes.
    pub largest: usize,
}

/// The facts that a decision is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// The paths that may be used, by index.
    pub paths: &'a [Option<PathView>; MAX_PATHS],
    /// The path with the smallest delay.
    pub best: usize,
    /// The path that may send now.
    pub path: usize,
    /// The flows that wait and share the paths with this one, itself included.
    pub sharers: u64,
    /// The bytes of the flow that wait.
    pub waiting: usize,
    /// The rate of the flow in bytes per second.
    pub rate: u64,
    /// The urgency of the flow.
    pub urgency: Urgency,
}

/// The packet that a path takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The first waiting packet of the flow with so many bytes of waiting packets before it.
    Take { depth: usize },
    /// The first waiting packet of the flow, which another path sends too.
    Copy { other: usize },
    /// Nothing of this flow.
    Leave,
}

/// A rule by which paths take packets.
pub(crate) trait Steer: core::fmt::Debug + Send {
    /// Returns what the path takes of the flow.
    fn decide(&self, view: &View) -> Decision;

    /// Returns the path of packets that every path may take: those sent again, and those for which order leaves no
    /// path. `best` is one of `paths`.
    fn home(&self, _paths: &[Option<PathView>; MAX_PATHS], best: usize) -> usize {
        best
    }

    /// Returns the rule that a flow of this urgency and rate in bytes per second has in effect.
    fn mode(&self, urgency: Urgency, rate: u64) -> Mode;
}

/// The rules of all modes.
#[derive(Debug)]
pub(crate) struct Rules {
    redundant: Redundant,
}

impl Rules {
    /// Creates the rules. `redundant_rate` is as in [`crate::Config`].
    pub fn new(redundant_rate: u64) -> Self {
        Rules {
            redundant: Redundant::new(redundant_rate),
        }
    }

    /// Returns the rule of a mode.
    pub fn of(&self, mode: Mode) -> &dyn Steer {
        match mode {
            Mode::Aggregate => &Aggregate,
            Mode::Fastest => &Fastest,
            Mode::Redundant => &self.redundant,
            Mode::Single => &Single,
        }
    }
}

/// Returns the path with the smallest delay, or the first usable path if no delay is known.
pub(crate) fn best(paths: &[Option<PathView>; MAX_PATHS]) -> Option<usize> {
    let usable = || {
        paths
            .iter()
            .enumerate()
            .filter_map(|(i, p)| Some((i, (*p)?)))
    };
    let known = usable().filter_map(|(i, p)| Some((p.delay?, i))).min();
    known.map(|(_, i)| i).or(usable().next().map(|(i, _)| i))
}

#[cfg(test)]
mod tests;
