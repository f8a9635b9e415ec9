//! Packet trains, which boxes request to measure a link: each user's limit, and the departure of each record.

use braid_wire::Instant;

use crate::protocol::probe::Train;

/// Depth of the token bucket: the number of trains that a user may request at once after a pause, in seconds of
/// the permitted rate. A guess: at the default of 4 trains per second these are 16 trains, enough for 8
/// measurements.
const BURST_SECONDS: f64 = 4.0;

/// A token bucket that limits a user's trains; a train costs one token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance {
    tokens: f64,
    /// The time at which `tokens` was computed.
    updated_at: Instant,
}

impl Allowance {
    pub(super) fn new(rate: usize) -> Self {
        Allowance {
            tokens: rate as f64 * BURST_SECONDS,
            updated_at: Instant::ZERO,
        }
    }

    /// Takes the token for one train, if there is one; returns whether there was. Tokens come at `rate` per
    /// second. The rate is a parameter, because a reload may change it.
    pub(super) fn take(&mut self, now: Instant, rate: usize) -> bool {
        let rate = rate as f64;
        let earned = now.saturating_since(self.updated_at).as_secs_f64() * rate;
        self.tokens = (self.tokens + earned).min(rate * BURST_SECONDS);
        self.updated_at = now;
        let is_allowed = self.tokens >= 1.0;
        self.tokens -= f64::from(u8::from(is_allowed));
        is_allowed
    }
}

/// A train that is being sent.
#[derive(Debug)]
pub(super) struct Departures {
    pub(super) train: Train,
    /// Number of records sent so far.
    pub(super) sent: u8,
    pub(super) began: Instant,
}

impl Departures {
    /// Returns the departure time of the next record. Times count from the start of the train, so that a late
    /// timer does not delay all following records.
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
        // A full bucket has 2 trains/s * BURST_SECONDS = 8 tokens.
        assert_eq!(count(&mut allowance, 0), 8);
        // 0.499 s * 2 trains/s is less than one token.
        assert_eq!(count(&mut allowance, 499), 0);
        // 1.5 s * 2 trains/s = 3 tokens since the bucket was empty.
        assert_eq!(count(&mut allowance, 1_500), 3);
        // After a long pause the bucket is full again.
        assert_eq!(count(&mut allowance, 100_000), 8);
    }
}
