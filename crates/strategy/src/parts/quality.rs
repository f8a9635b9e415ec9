//! How good a path is by its round-trip time and its loss together. Zeng et al., "Multi-attribute
//! Aware Path Selection Approach for Efficient MPTCP-based Data Delivery" (JISIS 7(1), 2017).

use std::time::Duration;

use braid_wire::Instant;

/// How much each attribute of a path weighs in its score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// Of the round-trip time.
    pub rtt: f64,
    /// Of the loss.
    pub loss: f64,
}

/// What a path is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Attributes {
    /// Smoothed round-trip time, seconds.
    pub rtt: f64,
    /// Loss rate: `0.0..=1.0`.
    pub loss: f64,
}

/// The quality score MP of a path: both attributes as shares of the `highest` there are, weighted.
/// The lower, the better.
pub fn score(weights: Weights, path: Attributes, highest: Attributes) -> f64 {
    let share = |of: f64, highest: f64| if highest > 0.0 { of / highest } else { 0.0 };
    weights.rtt * share(path.rtt, highest.rtt) + weights.loss * share(path.loss, highest.loss)
}

/// The loss rate that explains the window, by the model of Mathis solved for loss (equation 4):
/// `(1.22 MSS / (RTT * AB))^2` with the Vegas estimate `AB = cwnd / base_rtt` of the available
/// bandwidth and MSS = 1500 bytes. `rtt` is the smoothed round-trip time in seconds, `base_rtt` that
/// without queues, `cwnd` in bytes. 0 before the first round trip.
pub fn modelled_loss(rtt: f64, base_rtt: Duration, cwnd: u64) -> f64 {
    let in_round = rtt * cwnd as f64 / base_rtt.as_secs_f64();
    match in_round.is_finite() && in_round > 0.0 {
        true => (1.22 * 1500.0 / in_round).powi(2).min(1.0),
        false => 0.0,
    }
}

/// Parts that the time looked back is divided into.
const BUCKETS: usize = 10;

/// Something of the last 10 s, a second at a time.
#[derive(Debug, Clone, Default)]
struct Recent<T> {
    buckets: [T; BUCKETS],
    second: u64,
}

impl<T: Copy + Default> Recent<T> {
    /// What belongs to now.
    fn current(&mut self, now: Instant) -> &mut T {
        let second = now.as_nanos() / 1_000_000_000;
        let passed = second.saturating_sub(self.second).min(BUCKETS as u64);
        for n in 0..passed {
            self.buckets[((second - n) % BUCKETS as u64) as usize] = T::default();
        }
        self.second = self.second.max(second);
        &mut self.buckets[(self.second % BUCKETS as u64) as usize]
    }
}

/// The highest attributes that any path had within the last 10 s.
#[derive(Debug, Clone, Default)]
pub struct Highest(Recent<Attributes>);

impl Highest {
    /// The highest, once these are seen.
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

/// The share of bytes that were lost on a path within the last 10 s.
#[derive(Debug, Clone, Default)]
pub struct MeasuredLoss {
    /// Delivered and lost, by second.
    counts: Recent<[u64; 2]>,
    /// What was not counted yet.
    fresh: [u64; 2],
}

impl MeasuredLoss {
    /// The path delivered `bytes`.
    pub fn on_delivered(&mut self, bytes: u64) {
        self.fresh[0] = self.fresh[0].saturating_add(bytes);
    }

    /// The path lost `bytes`.
    pub fn on_lost(&mut self, bytes: u64) {
        self.fresh[1] = self.fresh[1].saturating_add(bytes);
    }

    /// The share lost; 0 where nothing was sent.
    pub fn share(&mut self, now: Instant) -> f64 {
        let fresh = std::mem::take(&mut self.fresh);
        let sum = |a: [u64; 2], b: [u64; 2]| [0, 1].map(|n| a[n].saturating_add(b[n]));
        let current = self.counts.current(now);
        *current = sum(*current, fresh);
        let [delivered, lost] = self.counts.buckets.into_iter().fold([0; 2], sum);
        match lost {
            0 => 0.0,
            _ => lost as f64 / (delivered as f64 + lost as f64),
        }
    }
}
