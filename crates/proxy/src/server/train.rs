//! Packet trains for boxes that measure: their limit, and the departure of each record.

use braid_wire::Instant;

use crate::protocol::probe::Train;

/// Trains that a user may have at once after a pause, in seconds of the rate.
const BURST_SECONDS: f64 = 4.0;

/// A token bucket of a user's trains.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance {
    left: f64,
    at: Instant,
}

impl Allowance {
    pub(super) fn new(rate: usize) -> Self {
        Allowance {
            left: rate as f64 * BURST_SECONDS,
            at: Instant::ZERO,
        }
    }

    /// Takes one train at `rate` per second; returns whether it is allowed.
    pub(super) fn take(&mut self, now: Instant, rate: usize) -> bool {
        let rate = rate as f64;
        let earned = now.saturating_since(self.at).as_secs_f64() * rate;
        self.left = (self.left + earned).min(rate * BURST_SECONDS);
        self.at = now;
        let may = self.left >= 1.0;
        self.left -= f64::from(u8::from(may));
        may
    }
}

/// The records of a train that are still to be sent.
#[derive(Debug)]
pub(super) struct Departures {
    pub(super) train: Train,
    pub(super) sent: u8,
    pub(super) began: Instant,
}

impl Departures {
    /// Returns the departure of the next record.
    pub(super) fn next(&self) -> Instant {
        self.began + self.train.gap * u32::from(self.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_so_many_trains_and_no_more() {
        let mut allowance = Allowance::new(2);
        let count = |allowance: &mut Allowance, ms: u64| {
            (0..100)
                .filter(|_| allowance.take(Instant::from_millis(ms), 2))
                .count()
        };
        assert_eq!(count(&mut allowance, 0), 8);
        assert_eq!(count(&mut allowance, 499), 0);
        assert_eq!(count(&mut allowance, 1_500), 3);
        assert_eq!(count(&mut allowance, 100_000), 8);
    }
}
