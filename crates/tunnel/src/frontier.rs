//! The lowest number of a flow that may still come on a path.

use core::time::Duration;

use arrayvec::ArrayVec;
use braid_wire::Instant;

/// Maximum number of steps that are not final yet, because reordering may still bring lower numbers.
const MAX_STEPS: usize = 16;

/// The frontier rose to `to` by arrivals from `since` on.
#[derive(Debug, Clone, Copy)]
struct Step {
    since: Instant,
    at: Instant,
    to: u64,
}

/// The lowest number of one flow that may still come on one path, unless it is sent again.
///
/// Numbers rise on each path, so an arrival raises the frontier. On a path that reorders, earlier numbers may still
/// come for as long as datagrams were lately seen to come late, and an arrival raises the frontier only after that.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frontier {
    settled: u64,
    steps: ArrayVec<Step, MAX_STEPS>,
}

impl Frontier {
    /// Notes that nothing below `to` was sent on the path after what arrives now.
    pub fn rise(&mut self, now: Instant, to: u64, lateness: Duration) {
        self.settle(now, lateness);
        if lateness.is_zero() {
            self.settled = self.settled.max(to);
            return;
        }
        if to <= self.highest() {
            return;
        }
        let full = self.steps.is_full();
        match self.steps.last_mut() {
            // Steps close together are merged, so that few are kept. The merged step becomes final with its last
            // arrival, so never too early. The eighth is a guess.
            Some(last) if full || now.saturating_since(last.since) < lateness / 8 => {
                (last.at, last.to) = (now, to);
            }
            _ => self.steps.push(Step {
                since: now,
                at: now,
                to,
            }),
        }
    }

    fn highest(&self) -> u64 {
        self.steps.last().map_or(self.settled, |step| step.to)
    }

    /// Applies steps that are `lateness` old.
    fn settle(&mut self, now: Instant, lateness: Duration) {
        // Most paths do not reorder, and every packet asks for the frontiers of all.
        if self.steps.is_empty() {
            return;
        }
        let old = |step: &&Step| step.at + lateness <= now;
        let count = self.steps.iter().take_while(old).count();
        for step in self.steps.drain(..count) {
            self.settled = self.settled.max(step.to);
        }
    }

    /// Returns the frontier at `now`.
    pub fn get(&mut self, now: Instant, lateness: Duration) -> u64 {
        self.settle(now, lateness);
        self.settled
    }

    /// Returns the time at which the frontier rises next by itself.
    pub fn next_step(&self, lateness: Duration) -> Option<Instant> {
        self.steps.first().map(|step| step.at + lateness)
    }
}
