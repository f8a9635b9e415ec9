//! The pace of probes. A probe is a TCP handshake here, which shows that a server answers over a link; the probes of
//! `protocol::probe`, which measure bandwidth, have another pace. A server is probed more often while users have
//! traffic, and while the server does not answer.

use core::time::Duration;

use braid_wire::Instant;

use super::health::{Reach, ServerHealth};
use super::links::Link;
use crate::config::Probing;

/// Determines the intervals of probes.
#[derive(Debug)]
pub(super) struct ProbePace {
    pub(super) settings: Probing,
    /// The time of the last traffic of users: a request for a connection, or bytes in either direction.
    last_traffic: Option<Instant>,
}

impl ProbePace {
    pub(super) fn new(settings: Probing) -> Self {
        ProbePace {
            settings,
            last_traffic: None,
        }
    }

    /// Records traffic of a user.
    pub(super) fn note_traffic(&mut self, now: Instant) {
        self.last_traffic = Some(now);
    }

    /// Returns whether users had traffic within the last `time`.
    pub(super) fn had_traffic(&self, now: Instant, time: Duration) -> bool {
        let last = self.last_traffic;
        last.is_some_and(|at| now.saturating_since(at) < time)
    }

    /// Returns whether probes have the short interval because users had traffic.
    pub(super) fn is_busy(&self, now: Instant) -> bool {
        // When the last bytes move, a probe is already planned, at most one `busy` ahead. When that probe ends,
        // traffic must still count as recent, so that the next one comes soon too: a user may be waiting for an answer
        // over a link that has just failed.
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
            // Users may be waiting for the server's return, and they send nothing meanwhile. So the interval is short
            // even without traffic. Over a metered link this would cost money, so there the interval doubles with
            // each failure: it is 2-fold after one failure and 32-fold from five on. With the defaults (1 s and 30 s),
            // 32-fold exceeds `idle`.
            let shift = if link.metered {
                health.failures.min(5)
            } else {
                0
            };
            let slow = self.settings.failing * (1 << shift);
            // The doubling ends at `idle`, at which even a server that answers is probed. A configuration may set
            // `failing` above `idle`; the interval is `failing` then.
            return slow.min(self.settings.idle.max(self.settings.failing));
        }
        // Users depend only on the servers that new connections go to. The others are probed to be known as a
        // replacement. A metered link makes no difference: it is probed only while it is in use, because no
        // other link suffices, and then users depend on it.
        if current && self.is_busy(now) {
            self.settings.busy
        } else {
            self.settings.idle
        }
    }
}
