//! Copies of what is urgent and small.

use braid_engine::Urgency;

use super::aggregate::Aggregate;
use super::{Decision, Steer, View};
use crate::config::Mode;

/// Packets of urgent flows with a low rate are sent on the two paths with the smallest delays. Other flows are
/// treated as by [`Aggregate`].
#[derive(Debug)]
pub(crate) struct Redundant {
    /// The highest rate of a flow that is copied, in bytes per second.
    rate: u64,
}

impl Redundant {
    pub fn new(rate: u64) -> Self {
        Redundant { rate }
    }
}

impl Steer for Redundant {
    fn decide(&self, view: &View) -> Decision {
        if self.mode(view.urgency, view.rate) != Mode::Redundant {
            return Aggregate.decide(view);
        }
        if view.path != view.best {
            return Decision::Leave;
        }
        let others = view.paths.iter().enumerate();
        let second = others
            .filter(|(i, _)| *i != view.path)
            .filter_map(|(i, p)| Some(((*p)?.delay?, i)))
            .min();
        match second {
            Some((_, other)) => Decision::Copy { other },
            None => Decision::Take { depth: 0 },
        }
    }

    fn mode(&self, urgency: Urgency, rate: u64) -> Mode {
        if urgency > Mode::LEAST_URGENT_COPIED || rate > self.rate {
            Mode::Aggregate
        } else {
            Mode::Redundant
        }
    }
}
