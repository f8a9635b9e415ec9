//! The choice of the server for new connections.

use core::time::Duration;

use braid_strategy::parts::flow::Limits;
use braid_wire::Instant;

use crate::protocol::hints::FlowHints;

use super::selection::{self, Candidate, Need, Select};

/// Longest time for the first measurements; until they are done the configuration's order decides.
const MAX_SETTLING_TIME: Duration = Duration::from_secs(15);

/// The chosen servers.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) select: Select,
    pub(crate) gain: f64,
    /// The server that the operator has selected by hand.
    pub(crate) operator_choice: Option<usize>,
    /// The chosen server for each of [`Need::ALL`].
    pub(crate) chosen: [usize; 2],
    /// Measurements decide, no longer the configuration's order.
    pub(crate) settled: bool,
    /// The current choice was made by measurements, so only a gain changes it.
    pub(crate) measured: bool,
    /// The time at which measurements decide, even if incomplete.
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

    /// Chooses among the servers, all of which are candidates; returns whether the choice changed. `may` says
    /// whether servers may be measured, `all_tried` whether every server that answers was measured.
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

    /// Returns the need of a flow about which nothing is known.
    pub(crate) fn default_need(&self) -> Need {
        match self.select {
            Select::Delay => Need::Latency,
            _ => Need::Throughput,
        }
    }

    /// Returns the need of a flow.
    pub(crate) fn need(&self, flow: &FlowHints) -> Need {
        let size = flow.size.bytes();
        match self.select {
            Select::Auto if size.is_some_and(|n| n < Limits::default().elephant) => Need::Latency,
            _ => self.default_need(),
        }
    }

    /// Returns the time at which measurements decide at the latest.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.settles_at.filter(|_| !self.settled)
    }
}
