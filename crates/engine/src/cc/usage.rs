//! How much of its window a sender has used: RFC 7661 in small.

use super::AckSample;

/// What was in flight over this round trip and the one before.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    peak: [u64; 2],
    limited: [bool; 2],
}

impl Usage {
    /// Takes note of an acknowledgement, before the window changes.
    pub(super) fn on_ack(&mut self, ack: &AckSample<'_>) {
        if ack.round_start {
            self.peak = [0, self.peak[0]];
            self.limited = [false, self.limited[0]];
        }
        self.peak[0] = self.peak[0].max(ack.prior_in_flight);
        self.limited[0] |= ack.cwnd_limited;
    }

    /// Whether the window may grow: it is what held the sender back or, in slow start, at least
    /// half of it was in use (RFC 7661 section 4.2), since pacing spreads a doubled window.
    pub(super) fn validated(&self, ack: &AckSample<'_>, cwnd: u64, slow_start: bool) -> bool {
        let peak = self.peak[0].max(self.peak[1]);
        ack.cwnd_limited || (slow_start && peak.saturating_mul(2) > cwnd)
    }

    /// The window a reduction starts from: `cwnd` where the sender filled it, else what was in
    /// use (RFC 7661 section 4.4.1).
    ///
    /// The bytes in flight alone would not do: an acknowledgement of 64 kB that also tells of a
    /// loss leaves little in flight at that moment.
    pub(super) fn reduction_base(&self, cwnd: u64, in_flight: u64) -> u64 {
        if self.limited[0] || self.limited[1] {
            return cwnd;
        }
        in_flight.max(self.peak[0]).max(self.peak[1]).min(cwnd)
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
