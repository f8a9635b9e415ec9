//! How much of its window a sender has used: RFC 7661 in small.

use core::time::Duration;

use braid_wire::Instant;

use super::AckSample;

/// For how long what was in use counts at least: the pipeACK sampling period (RFC 7661 section 4.1).
const SAMPLING: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    /// What was in flight at most, in this sampling period and the one before.
    used: [u64; 2],
    since: Instant,
    /// The same, and whether the window was filled, in this round trip and the one before.
    used_lately: [u64; 2],
    limited: [bool; 2],
    /// Something was lost.
    reduced: bool,
}

impl Usage {
    /// Takes note of an acknowledgement, before the window changes.
    pub(super) fn on_ack(&mut self, ack: &AckSample<'_>) {
        if ack.round_start {
            self.used_lately = [0, self.used_lately[0]];
            self.limited = [false, self.limited[0]];
        }
        if ack.now >= self.since + SAMPLING.max(3 * ack.srtt) {
            self.used = [0, self.used[0]];
            self.since = ack.now;
        }
        self.used[0] = self.used[0].max(ack.prior_in_flight);
        self.used_lately[0] = self.used_lately[0].max(ack.prior_in_flight);
        self.limited[0] |= ack.cwnd_limited;
    }

    /// Up to where the window may grow: without end where it is what held the sender back, else to
    /// twice what was in use (RFC 7661 section 4.2). So a sender that is steady and not greedy has a
    /// window that it does not fill, and a loss does not at once leave it less than it needs. A window
    /// that slow start left without a loss is large enough, and slow start itself looks at what was in
    /// use lately: who holds it back means it.
    pub(super) fn limit(&self, ack: &AckSample<'_>, slow_start: bool) -> u64 {
        if ack.cwnd_limited {
            return u64::MAX;
        }
        let used = match (slow_start, self.reduced) {
            (true, _) => self.used_lately,
            (false, true) => self.used,
            (false, false) => return 0,
        };
        used[0].max(used[1]).saturating_mul(2)
    }

    /// The window a reduction starts from: `cwnd` where the sender filled it or used at least half of
    /// it, else what was in use (RFC 7661 section 4.4.1).
    ///
    /// The bytes in flight alone would not do: an acknowledgement of 64 kB that also tells of a
    /// loss leaves little in flight at that moment.
    pub(super) fn reduction_base(&mut self, cwnd: u64, in_flight: u64) -> u64 {
        self.reduced = true;
        let used = in_flight.max(self.used[0]).max(self.used[1]);
        let validated = self.limited[0] || self.limited[1] || used.saturating_mul(2) >= cwnd;
        if validated { cwnd } else { used }
    }
}

/// Whether a loss is being recovered from, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Recovery {
    #[default]
    None,
    /// The window stays until recovery ends.
    Fast,
    /// Slow start from one segment; acknowledgements during recovery grow the window.
    Timeout,
}

impl Recovery {
    /// Whether the window may grow by `ack`.
    pub(super) fn may_grow(&mut self, ack: &AckSample<'_>) -> bool {
        if !ack.in_recovery {
            *self = Recovery::None;
        }
        !ack.in_recovery || *self == Recovery::Timeout
    }
}
