//! Two durations of a connection: the time with data to deliver, and the part of it in which the peer's window
//! held data back.

use core::time::Duration;

use braid_wire::Instant;

/// The two durations of a connection, counted up to the last call of [`note`](Self::note).
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy {
    /// The time of the last call of [`note`](Self::note).
    noted_at: Instant,
    /// Set if there has been data to deliver since `noted_at`.
    is_delivering: bool,
    /// Set if new bytes have waited for the peer's window since `noted_at`.
    is_waiting: bool,
    /// The time in which written bytes were not acknowledged at the data level.
    pub total: Duration,
    /// The part of `total` during which new bytes waited for the peer's window.
    pub for_window: Duration,
}

impl Busy {
    /// Adds the time since the last call to the durations, according to the state noted in that call. Notes the
    /// state that holds from `now` on.
    pub fn note(&mut self, now: Instant, is_delivering: bool, is_waiting: bool) {
        // The second of two calls at the same time only replaces the state.
        if now > self.noted_at {
            let elapsed = now.saturating_since(self.noted_at);
            if self.is_delivering {
                self.total += elapsed;
            }
            if self.is_waiting {
                self.for_window += elapsed;
            }
        }
        self.noted_at = now;
        self.is_delivering = is_delivering;
        self.is_waiting = is_waiting;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_for_the_state_before_the_note() {
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
        // Delivering from 100 to 250 ms, waiting from 110 to 170 ms.
        assert_eq!(busy.total, Duration::from_millis(150));
        assert_eq!(busy.for_window, Duration::from_millis(60));
    }
}
