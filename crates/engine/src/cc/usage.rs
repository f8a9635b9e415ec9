//! The use that a sender makes of its window: a small version of RFC 7661.

use core::time::Duration;

use braid_wire::Instant;

use super::AckSample;

/// The least time for which use counts: the pipeACK sampling period (RFC 7661 section 4.1).
const PIPE_ACK_PERIOD: Duration = Duration::from_secs(1);

/// The use of the window. Time in which nothing is acknowledged does not count.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    /// The most bytes in flight, in this sampling period and the one before.
    used: [u64; 2],
    since: Instant,
    /// The most bytes in flight, and whether the window was filled, in this round trip and the one before.
    used_lately: [u64; 2],
    limited: [bool; 2],
    /// Set once anything was lost.
    reduced: bool,
}

impl Usage {
    /// Notes an acknowledgement, before the window changes.
    pub(super) fn on_ack(&mut self, ack: &AckSample<'_>) {
        if ack.round_start {
            self.used_lately = [0, self.used_lately[0]];
            self.limited = [false, self.limited[0]];
        }
        if ack.now >= self.since + PIPE_ACK_PERIOD.max(3 * ack.srtt) {
            self.used = [0, self.used[0]];
            self.since = ack.now;
        }
        self.used[0] = self.used[0].max(ack.prior_in_flight);
        self.used_lately[0] = self.used_lately[0].max(ack.prior_in_flight);
        self.limited[0] |= ack.cwnd_limited;
    }

    /// Returns the bound of the window's growth: none if the window limited the sender, otherwise twice the
    /// bytes in use (RFC 7661 section 4.2). So a steady sender has a window that it does not fill, and a
    /// loss does not at once leave less than it needs. A window that slow start left without a loss is
    /// large enough and stays. Slow start itself looks at recent use only, since a sender that holds back
    /// does so on purpose.
    pub(super) fn limit(&self, ack: &AckSample<'_>, slow_start: bool) -> u64 {
        if ack.cwnd_limited {
            return u64::MAX;
        }
        let used = match (slow_start, self.reduced) {
            (true, _) => self.used_lately,
            (false, true) => self.used,
            // It stays as it is.
            (false, false) => return 0,
        };
        used[0].max(used[1]).saturating_mul(2)
    }

    /// Returns the window that a reduction starts from: `cwnd` if the sender filled it or used at least
    /// half of it, otherwise the bytes in use (RFC 7661 section 4.4.1).
    ///
    /// The bytes in flight alone would not do: an acknowledgement of 64 kB that also reports a loss leaves
    /// little in flight at that moment.
    pub(super) fn reduction_base(&mut self, cwnd: u64, in_flight: u64) -> u64 {
        self.reduced = true;
        let used = in_flight.max(self.used[0]).max(self.used[1]);
        let validated = self.limited[0] || self.limited[1] || used.saturating_mul(2) >= cwnd;
        if validated { cwnd } else { used }
    }
}

/// The kind of recovery that is under way.
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
    /// Returns whether the window may grow by `ack`.
    pub(super) fn may_grow(&mut self, ack: &AckSample<'_>) -> bool {
        if !ack.in_recovery {
            *self = Recovery::None;
        }
        !ack.in_recovery || *self == Recovery::Timeout
    }
}
