//! Which server new connections go to.

use core::time::Duration;

use braid_strategy::parts::flow::Limits;
use braid_wire::Instant;

use crate::protocol::hints::FlowHints;

use super::selection::{self, Candidate, Need, Select};

/// How long the first measurements may take: until then the configuration's order counts.
const SETTLING: Duration = Duration::from_secs(15);

/// The servers that were chosen.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) select: Select,
    pub(crate) gain: f64,
    /// Whoever operates the box wants this one.
    pub(crate) wanted: Option<usize>,
    /// For each of [`Need::ALL`].
    pub(crate) chosen: [usize; 2],
    /// The choice is by measurements.
    pub(crate) settled: bool,
    /// What is chosen now was chosen so: it is left for a gain only.
    pub(crate) measured: bool,
    /// It will be at this time, whatever is measured by then.
    pub(crate) settles_at: Option<Instant>,
}

impl Choice {
    pub(crate) fn new(select: Select, gain: f64) -> Self {
        Choice {
            select,
            gain,
            wanted: None,
            chosen: [0; 2],
            settled: false,
            measured: false,
            settles_at: None,
        }
    }

    /// Chooses among the servers, each of which is a candidate; returns whether others are chosen now. `may` says
    /// whether servers may be measured, and `all_tried` whether all that answer were.
    pub(crate) fn choose(
        &mut self,
        now: Instant,
        candidates: &[Candidate<'_>],
        may: bool,
        all_tried: bool,
    ) -> bool {
        let before = self.chosen;
        let begun = self.settles_at.is_some();
        self.settled |= begun && all_tried;
        self.settled |= self.settles_at.is_some_and(|at| at <= now);
        let Some(first) = candidates.iter().position(|c| c.usable) else {
            return false;
        };
        if may {
            self.settles_at.get_or_insert(now + SETTLING);
        }
        for need in Need::ALL {
            let chosen = match self.wanted.filter(|wanted| candidates[*wanted].usable) {
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

    /// The server for `need`.
    pub(crate) fn server(&self, need: Need) -> usize {
        self.chosen[need as usize]
    }

    /// What a flow of which nothing is known wants.
    pub(crate) fn usual(&self) -> Need {
        match self.select {
            Select::Delay => Need::Latency,
            _ => Need::Throughput,
        }
    }

    /// What a flow wants.
    pub(crate) fn need(&self, flow: &FlowHints) -> Need {
        let size = flow.size.bytes();
        match self.select {
            Select::Auto if size.is_some_and(|n| n < Limits::default().elephant) => Need::Latency,
            _ => self.usual(),
        }
    }

    /// When it settles at the latest.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.settles_at.filter(|_| !self.settled)
    }
}
