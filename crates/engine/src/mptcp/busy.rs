//! Two durations of a connection: with data to deliver, and blocked by the peer's window.

use core::time::Duration;

use braid_wire::Instant;

/// Time by what a connection was doing, counted up to the last packet or call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy {
    since: Instant,
    delivering: bool,
    waiting: bool,
    /// Time with bytes written and not acknowledged at the data level.
    pub total: Duration,
    /// Part of `total` during which new bytes waited for the peer's window.
    pub for_window: Duration,
}

impl Busy {
    /// Books the time since the last call under the old state, and sets the state that holds from `now` on.
    pub fn note(&mut self, now: Instant, delivering: bool, waiting: bool) {
        let time = now.saturating_since(self.since);
        self.since = now;
        if self.delivering {
            self.total += time;
        }
        if self.waiting {
            self.for_window += time;
        }
        self.delivering = delivering;
        self.waiting = waiting;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_for_what_was_so_until_now() {
        let mut busy = Busy::default();
        for (ms, delivering, waiting) in [
            (100, true, false),
            (110, true, true),
            (130, true, true),
            (170, true, false),
            (250, false, false),
            (999, false, false),
        ] {
            busy.note(Instant::from_millis(ms), delivering, waiting);
        }
        assert_eq!(busy.total, Duration::from_millis(150));
        assert_eq!(busy.for_window, Duration::from_millis(60));
    }
}
