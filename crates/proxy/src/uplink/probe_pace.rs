//! The pace of probes. Servers are probed more often while users send, and while they do not answer.

use core::time::Duration;

use braid_wire::Instant;

use super::health::{Reach, ServerHealth};
use super::links::Link;
use crate::config::Probing;

/// Determines the intervals of probes.
#[derive(Debug)]
pub(super) struct ProbePace {
    pub(super) settings: Probing,
    /// The time at which a user's bytes last moved.
    last_traffic: Option<Instant>,
}

impl ProbePace {
    pub(super) fn new(settings: Probing) -> Self {
        ProbePace {
            settings,
            last_traffic: None,
        }
    }

    /// Records that a user's bytes moved.
    pub(super) fn note_traffic(&mut self, now: Instant) {
        self.last_traffic = Some(now);
    }

    /// Returns whether a user's bytes moved within `time`.
    pub(super) fn had_traffic(&self, now: Instant, time: Duration) -> bool {
        let last = self.last_traffic;
        last.is_some_and(|at| now.saturating_since(at) < time)
    }

    /// Returns whether probes use the short interval because users send.
    pub(super) fn is_busy(&self, now: Instant) -> bool {
        // Two intervals, so that at least one more probe comes at the short interval after the last bytes.
        self.had_traffic(now, self.settings.busy * 2)
    }

    /// Returns the time between two probes of a server over a link. `current` is true if new connections go to the
    /// server.
    pub(super) fn interval(
        &self,
        now: Instant,
        (link, health): (&Link, &ServerHealth),
        current: bool,
    ) -> Duration {
        if health.reach == Reach::Down {
            // Probes over a metered link cost money, so the interval doubles with each failure. It never exceeds the
            // interval without traffic, which 32-fold reaches with the defaults (1 s and 30 s).
            let shift = if link.metered {
                health.failures.min(5)
            } else {
                0
            };
            let slow = self.settings.failing * (1 << shift);
            return slow.min(self.settings.idle.max(self.settings.failing));
        }
        if current && self.is_busy(now) {
            self.settings.busy
        } else {
            self.settings.idle
        }
    }
}
