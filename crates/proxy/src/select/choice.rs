//! Which server new connections go to.

use braid_strategy::parts::flow::Limits;
use braid_wire::Instant;

use crate::config::Select;
use crate::protocol::hints::FlowHints;
use crate::select::selection::Need;

/// The servers that were chosen.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) select: Select,
    pub(super) gain: f64,
    /// Whoever operates the box wants this one.
    pub(super) wanted: Option<usize>,
    /// For each of [`Need::ALL`].
    pub(super) chosen: [usize; 2],
    /// The choice is by measurements.
    pub(super) settled: bool,
    /// What is chosen now was chosen so: it is left for a gain only.
    pub(super) measured: bool,
    /// It will be at this time, whatever is measured by then.
    pub(super) settles_at: Option<Instant>,
}

impl Choice {
    pub(super) fn new(select: Select, gain: f64) -> Self {
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

    /// The server for `need`.
    pub(super) fn server(&self, need: Need) -> usize {
        self.chosen[need as usize]
    }

    /// What a flow of which nothing is known wants.
    pub(super) fn usual(&self) -> Need {
        match self.select {
            Select::Delay => Need::Latency,
            _ => Need::Throughput,
        }
    }

    /// What a flow wants.
    pub(super) fn need(&self, flow: &FlowHints) -> Need {
        let size = flow.size.bytes();
        match self.select {
            Select::Auto if size.is_some_and(|n| n < Limits::default().elephant) => Need::Latency,
            _ => self.usual(),
        }
    }

    /// When it settles at the latest.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.settles_at.filter(|_| !self.settled)
    }
}
