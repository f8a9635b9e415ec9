//! The quality of a path, by its round-trip time and its loss together (Zeng et al., "Multi-attribute
//! Aware Path Selection Approach for Efficient MPTCP-based Data Delivery", JISIS 7(1), 2017).

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

/// The attributes that a path is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Attributes {
    /// Smoothed round-trip time, seconds.
    pub rtt: f64,
    /// Loss rate: `0.0..=1.0`.
    pub loss: f64,
}

/// Returns the quality score MP of a path: the weighted sum of both attributes, each as a share of the
/// `highest` of all paths. Lower is better.
pub fn score(weights: Weights, path: Attributes, highest: Attributes) -> f64 {
    let share = |of: f64, highest: f64| if highest > 0.0 { of / highest } else { 0.0 };
    weights.rtt * share(path.rtt, highest.rtt) + weights.loss * share(path.loss, highest.loss)
}

/// Returns the loss rate that explains the window, by the model of Mathis solved for loss (equation 4).
///
/// The rate is `(1.22 MSS / (RTT * AB))^2` with the Vegas estimate `AB = cwnd / base_rtt` of the
/// available bandwidth and MSS = 1500 bytes. `rtt` is the smoothed round-trip time in seconds, `base_rtt`
/// the round-trip time without queues, `cwnd` in bytes. The rate is 0 before the first round trip.
pub fn modelled_loss(rtt: f64, base_rtt: Duration, cwnd: u64) -> f64 {
    let in_round = rtt * cwnd as f64 / base_rtt.as_secs_f64();
    match in_round.is_finite() && in_round > 0.0 {
        true => (1.22 * 1500.0 / in_round).powi(2).min(1.0),
        false => 0.0,
    }
}

/// Buckets of one second each: history reaches back 10 s.
const HISTORY_SECONDS: usize = 10;

/// Values of the last 10 s, one for each second.
#[derive(Debug, Clone, Default)]
struct Recent<T> {
    buckets: [T; HISTORY_SECONDS],
    second: u64,
}

impl<T: Copy + Default> Recent<T> {
    /// Returns the value of the current second, after it cleared the seconds since the last call.
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

/// The highest attributes that any path had within the last 10 s.
#[derive(Debug, Clone, Default)]
pub struct Highest(Recent<Attributes>);

impl Highest {
    /// Takes in the attributes of `paths` and returns the highest ones.
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
    /// Bytes delivered and lost that have no second yet: events come without a time.
    fresh: [u64; 2],
}

impl MeasuredLoss {
    /// Notes that the path delivered `bytes`.
    pub fn on_delivered(&mut self, bytes: u64) {
        self.fresh[0] = self.fresh[0].saturating_add(bytes);
    }

    /// Notes that the path lost `bytes`.
    pub fn on_lost(&mut self, bytes: u64) {
        self.fresh[1] = self.fresh[1].saturating_add(bytes);
    }

    /// Returns the share of bytes lost; 0 where nothing was lost.
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
