//! Congestion window validation, which measures how much of the window a sender uses: a small version of RFC 7661.

use core::time::Duration;

use braid_wire::Instant;

use super::AckSample;

/// The minimum length of a period in which use of the window is recorded: the pipeACK sampling period (RFC 7661
/// section 4.1).
const PIPE_ACK_PERIOD: Duration = Duration::from_secs(1);

/// The use of the window. Only acknowledgements update it, so that pauses do not count as periods of low use.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    /// The maximum number of bytes in flight in the current sampling period and the previous one.
    period_max: [u64; 2],
    /// The start of the current sampling period.
    period_start: Instant,
    /// The maximum number of bytes in flight in the current round trip and the previous one.
    round_max: [u64; 2],
    /// True if the window limited the sender in the current round trip, and in the previous one.
    round_limited: [bool; 2],
    /// True once a loss has reduced the window.
    is_reduced: bool,
}

impl Usage {
    /// Notes an acknowledgement, before the window changes.
    pub(super) fn on_ack(&mut self, ack: &AckSample<'_>) {
        if ack.round_start {
            self.round_max = [0, self.round_max[0]];
            self.round_limited = [false, self.round_limited[0]];
        }
        if ack.now >= self.period_start + PIPE_ACK_PERIOD.max(3 * ack.srtt) {
            self.period_max = [0, self.period_max[0]];
            self.period_start = ack.now;
        }
        self.period_max[0] = self.period_max[0].max(ack.prior_in_flight);
        self.round_max[0] = self.round_max[0].max(ack.prior_in_flight);
        self.round_limited[0] |= ack.cwnd_limited;
    }

    /// Returns the bound of the window's growth in bytes. There is no bound if the window limited the sender;
    /// otherwise it is twice the bytes in flight (RFC 7661 section 4.2). At this bound, a sender of constant rate
    /// has twice the window that it needs. So a loss, which halves the window, does not slow the sender down.
    pub(super) fn limit(&self, ack: &AckSample<'_>, slow_start: bool) -> u64 {
        if ack.cwnd_limited {
            return u64::MAX;
        }
        let used = match (slow_start, self.is_reduced) {
            // In slow start only the last two round trips count. A sender that has begun to use less of its window
            // limits itself, so the window need not grow for its earlier use.
            (true, _) => self.round_max,
            (false, true) => self.period_max,
            // Slow start has ended without a loss: the window is large enough and does not grow.
            (false, false) => return 0,
        };
        used[0].max(used[1]).saturating_mul(2)
    }

    /// Returns the window from which a reduction starts: `cwnd` if the sender filled the window or used at least
    /// half of it, otherwise the bytes in use (RFC 7661 section 4.4.1).
    ///
    /// The present bytes in flight alone would be too low a base: an acknowledgement of 64 kB that also reports a
    /// loss leaves little in flight at that moment.
    pub(super) fn reduction_base(&mut self, cwnd: u64, in_flight: u64) -> u64 {
        self.is_reduced = true;
        let used = in_flight.max(self.period_max[0]).max(self.period_max[1]);
        let is_validated =
            self.round_limited[0] || self.round_limited[1] || used.saturating_mul(2) >= cwnd;
        if is_validated { cwnd } else { used }
    }
}

/// The kind of loss recovery that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Recovery {
    #[default]
    None,
    /// Fast recovery: the window does not grow until the recovery ends.
    Fast,
    /// Recovery from a retransmission timeout: slow start from one segment, so the window grows.
    Timeout,
}

impl Recovery {
    /// Returns whether the window may grow on the acknowledgement `ack`.
    pub(super) fn may_grow(&mut self, ack: &AckSample<'_>) -> bool {
        if !ack.in_recovery {
            *self = Recovery::None;
        }
        !ack.in_recovery || *self == Recovery::Timeout
    }
}
