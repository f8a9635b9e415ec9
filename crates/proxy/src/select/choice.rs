//! The choice of the servers for new connections.

use core::time::Duration;

use braid_strategy::parts::flow::Limits;
use braid_wire::Instant;

use crate::protocol::hints::FlowHints;

use super::selection::{self, Candidate, Need, Select};

/// The maximum time for the first measurements. Until these measurements are done, the configuration's order
/// decides. The value is a guess that leaves each of a few servers and links the time of a measurement.
const MAX_SETTLING_TIME: Duration = Duration::from_secs(15);

/// The chosen servers.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) select: Select,
    /// The share by which a server must be better than the chosen server to replace it.
    pub(crate) gain: f64,
    /// The server that the operator has selected by hand, if any. It is used while it answers.
    pub(crate) operator_choice: Option<usize>,
    /// The index of the chosen server for each need, in the order of [`Need::ALL`].
    pub(crate) chosen: [usize; 2],
    /// True once measurements decide instead of the configuration's order.
    pub(crate) settled: bool,
    /// True if measurements made the current choice, so that only a gain changes it. A choice by the
    /// configuration's order is no reason to keep a server.
    pub(crate) measured: bool,
    /// The time at which measurements decide, even if they are incomplete; `None` before the first measurement may
    /// run.
    pub(crate) settles_at: Option<Instant>,
}

impl Choice {
    pub(crate) fn new(select: Select, gain: f64) -> Self {
        Choice {
            select,
            gain,
            operator_choice: None,
            chosen: [0; 2],
            settled: false,
            measured: false,
            settles_at: None,
        }
    }

    /// Chooses among all servers, and returns whether the choice changed. `candidates` has the servers by their
    /// index. `may_measure` is true if measurements may run, `all_tried` if every server that answers was
    /// measured.
    pub(crate) fn choose(
        &mut self,
        now: Instant,
        candidates: &[Candidate<'_>],
        may_measure: bool,
        all_tried: bool,
    ) -> bool {
        let before = self.chosen;
        let is_settling = self.settles_at.is_some();
        self.settled |= is_settling && all_tried;
        self.settled |= self.settles_at.is_some_and(|at| at <= now);
        // Without an answering server the former choice stays.
        let Some(first) = candidates.iter().position(|c| c.usable) else {
            return false;
        };
        if may_measure {
            self.settles_at.get_or_insert(now + MAX_SETTLING_TIME);
        }
        for need in Need::ALL {
            let chosen = match self
                .operator_choice
                .filter(|wanted| candidates[*wanted].usable)
            {
                Some(wanted) => Some(wanted),
                None if self.select == Select::Order || !self.settled => Some(first),
                None => {
                    let current = self.measured.then(|| self.server(need));
                    selection::choose(need, candidates, current, self.gain)
                }
            };
            self.chosen[need as usize] = chosen.unwrap_or(first);
        }
        self.measured = self.settled;
        self.chosen != before
    }

    /// Returns the server chosen for `need`.
    pub(crate) fn server(&self, need: Need) -> usize {
        self.chosen[need as usize]
    }

    /// Returns whether measurements made the choice, and not the operator or the configuration's order.
    pub(crate) fn is_by_measurements(&self) -> bool {
        self.measured && self.operator_choice.is_none() && self.select != Select::Order
    }

    /// Returns the need of flows of unknown size. Most flows are of unknown size.
    pub(crate) fn default_need(&self) -> Need {
        match self.select {
            Select::Delay => Need::Latency,
            _ => Need::Throughput,
        }
    }

    /// Returns the need of a flow with these hints.
    pub(crate) fn need(&self, hints: &FlowHints) -> Need {
        let size = hints.size.bytes();
        match self.select {
            Select::Auto if size.is_some_and(|n| n < Limits::default().elephant) => Need::Latency,
            _ => self.default_need(),
        }
    }

    /// Returns the time at which measurements decide, if they do not yet.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.settles_at.filter(|_| !self.settled)
    }
}
