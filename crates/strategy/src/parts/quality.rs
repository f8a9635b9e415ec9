//! The quality score of a path, from its round-trip time and its loss (Zeng et al., "Multi-attribute Aware Path
//! Selection Approach for Efficient MPTCP-based Data Delivery", JISIS 7(1), 2017).

use std::time::Duration;

use braid_wire::Instant;

/// The weight of each attribute of a path in its score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// The weight of the round-trip time.
    pub rtt: f64,
    /// The weight of the loss.
    pub loss: f64,
}

/// The attributes of a path that its score combines.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Attributes {
    /// Smoothed round-trip time, seconds.
    pub rtt: f64,
    /// Loss rate, `0.0..=1.0`.
    pub loss: f64,
}

/// Returns the quality score MP of a path. The score is the weighted sum of both attributes, each divided by the
/// `highest` value of any path. Lower is better.
pub fn score(weights: Weights, path: Attributes, highest: Attributes) -> f64 {
    let share = |value: f64, highest: f64| {
        if highest > 0.0 { value / highest } else { 0.0 }
    };
    weights.rtt * share(path.rtt, highest.rtt) + weights.loss * share(path.loss, highest.loss)
}

/// Returns the loss rate at which a flow would have the window `cwnd`, by the Mathis model of TCP solved for the
/// loss (equation 4 of the paper).
///
/// The loss rate is `(1.22 MSS / (RTT * AB))^2`. AB is the Vegas estimate `cwnd / base_rtt` of the available
/// bandwidth, and MSS is 1500 bytes as in the paper. `rtt` is the smoothed round-trip time in seconds, `base_rtt`
/// the round-trip time without queues; `cwnd` is in bytes. Returns 0 before the first sample of the round-trip
/// time.
pub fn modelled_loss(rtt: f64, base_rtt: Duration, cwnd: u64) -> f64 {
    let bytes_per_rtt = rtt * cwnd as f64 / base_rtt.as_secs_f64();
    match bytes_per_rtt.is_finite() && bytes_per_rtt > 0.0 {
        true => (1.22 * 1500.0 / bytes_per_rtt).powi(2).min(1.0),
        false => 0.0,
    }
}

/// The length of the history. The paper names no length. 10 s is a guess: many round trips, but short enough to
/// follow a change of the path.
const HISTORY_SECONDS: usize = 10;

/// A ring of buckets, one for each of the last 10 seconds.
#[derive(Debug, Clone, Default)]
struct Recent<T> {
    buckets: [T; HISTORY_SECONDS],
    /// The second of the latest bucket, since [`Instant::ZERO`].
    second: u64,
}

impl<T: Copy + Default> Recent<T> {
    /// Returns the bucket of the current second. Before that, clears the buckets of the seconds that have begun
    /// since the last call.
    fn current(&mut self, now: Instant) -> &mut T {
        let second = now.as_nanos() / 1_000_000_000;
        let passed = second
            .saturating_sub(self.second)
            .min(HISTORY_SECONDS as u64);
        for n in 0..passed {
            self.buckets[((second - n) % HISTORY_SECONDS as u64) as usize] = T::default();
        }
        self.second = self.second.max(second);
        &mut self.buckets[(self.second % HISTORY_SECONDS as u64) as usize]
    }
}

/// The highest value of each attribute that any path had within the last 10 s.
#[derive(Debug, Clone, Default)]
pub struct Highest(Recent<Attributes>);

impl Highest {
    /// Adds the attributes of `paths` to the history, and returns the highest value of each attribute.
    pub fn with(&mut self, now: Instant, paths: impl Iterator<Item = Attributes>) -> Attributes {
        let higher = |a: Attributes, b: Attributes| Attributes {
            rtt: a.rtt.max(b.rtt),
            loss: a.loss.max(b.loss),
        };
        let current = self.0.current(now);
        *current = paths.fold(*current, higher);
        self.0
            .buckets
            .into_iter()
            .fold(Attributes::default(), higher)
    }
}

/// The share of bytes that a path lost within the last 10 s.
#[derive(Debug, Clone, Default)]
pub struct MeasuredLoss {
    /// Bytes delivered and lost, by second.
    counts: Recent<[u64; 2]>,
    /// Bytes delivered and lost since the last call of [`share`](Self::share). Events have no time, so these bytes
    /// count for the second of the next call.
    uncounted: [u64; 2],
}

impl MeasuredLoss {
    /// Counts `bytes` that the path delivered.
    pub fn on_delivered(&mut self, bytes: u64) {
        self.uncounted[0] = self.uncounted[0].saturating_add(bytes);
    }

    /// Counts `bytes` that the path lost.
    pub fn on_lost(&mut self, bytes: u64) {
        self.uncounted[1] = self.uncounted[1].saturating_add(bytes);
    }

    /// Returns the share of lost bytes in the last 10 s, or 0 if none was lost.
    pub fn share(&mut self, now: Instant) -> f64 {
        let uncounted = std::mem::take(&mut self.uncounted);
        let sum = |a: [u64; 2], b: [u64; 2]| [0, 1].map(|n| a[n].saturating_add(b[n]));
        let current = self.counts.current(now);
        *current = sum(*current, uncounted);
        let [delivered, lost] = self.counts.buckets.into_iter().fold([0; 2], sum);
        match lost {
            0 => 0.0,
            _ => lost as f64 / (delivered as f64 + lost as f64),
        }
    }
}
