//! The comparison of another strategy with the candidate: speed, and cost in copies.

use crate::case::RunResult;
use crate::stats;

/// Share by which a rival's mean must be shorter to count as a loss.
pub const MEAN_MARGIN: f64 = 0.02;
/// The same for the 95th and the 99th percentile.
pub const TAIL_MARGIN: f64 = 0.05;
/// Probability of calling any case lost that is not (family-wise error rate).
pub const ALPHA: f64 = 0.01;
/// Completion time assumed for a flow that never arrives, ms: the least time after which a run is given
/// up.
const UNFINISHED_FCT_MS: f64 = 120_000.0;
/// Runs from which one percentile is computed, enough for some to lie beyond it.
const TAIL_BATCH_RUNS: usize = 100;
/// Fewest batches that are compared.
const MIN_TAIL_BATCHES: usize = 10;
/// Fewest runs whose percentiles are compared.
pub const TAIL_RUNS: u64 = (TAIL_BATCH_RUNS * MIN_TAIL_BATCHES) as u64;

/// The kept figures of a strategy's runs in a case.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Completion times, ms, in order of the runs; [`UNFINISHED_FCT_MS`] for a flow that did not arrive.
    pub ms: Vec<f64>,
    /// Bytes sent as copies.
    pub copied: u64,
    /// Runs whose flow did not arrive.
    pub missing: u64,
}

impl Sample {
    /// Takes the figures from these runs.
    pub fn new(results: &[RunResult]) -> Sample {
        Sample {
            ms: results
                .iter()
                .map(|r| match r.completed {
                    true => r.fct.as_nanos() as f64 / 1e6,
                    false => UNFINISHED_FCT_MS,
                })
                .collect(),
            copied: results.iter().flat_map(|r| &r.copy_bytes_by_path).sum(),
            missing: results.iter().filter(|r| !r.completed).count() as u64,
        }
    }

    /// Returns the mean, ms.
    pub fn mean(&self) -> f64 {
        stats::mean(&self.ms).unwrap_or(f64::NAN)
    }

    /// Returns the 95th percentile, ms.
    pub fn p95(&self) -> f64 {
        quantile(&self.ms, 0.95)
    }

    /// Returns the 99th percentile, ms.
    pub fn p99(&self) -> f64 {
        quantile(&self.ms, 0.99)
    }
}

/// A comparison of another strategy with the candidate over the same runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// The rival's mean as a share of the candidate's.
    pub mean: f64,
    /// The rival's 95th percentile as a share of the candidate's.
    pub p95: f64,
    /// P-value of the hypothesis that the rival's mean is shorter by at most the margin.
    pub p_mean: f64,
    /// The same for the 95th percentile; 1 with too few runs.
    pub p_p95: f64,
    /// The rival's 99th percentile as a share of the candidate's.
    pub p99: f64,
    /// The same p-value for the 99th percentile; 1 with too few runs.
    pub p_p99: f64,
}

impl Comparison {
    /// Compares `other` with the `candidate`, run by run.
    pub fn new(candidate: &Sample, other: &Sample) -> Comparison {
        let beyond = |ours: &[f64], theirs: &[f64], margin: f64| -> f64 {
            let pairs = ours.iter().zip(theirs);
            let gaps: Vec<f64> = pairs.map(|(a, b)| (1.0 - margin) * a - b).collect();
            stats::p_above_zero(&gaps)
        };
        let tails = |q: f64| {
            let (ours, theirs) = (batches(&candidate.ms, q), batches(&other.ms, q));
            match ours.len() >= MIN_TAIL_BATCHES {
                true => beyond(&ours, &theirs, TAIL_MARGIN),
                false => 1.0,
            }
        };
        Comparison {
            mean: other.mean() / candidate.mean(),
            p95: other.p95() / candidate.p95(),
            p_mean: beyond(&candidate.ms, &other.ms, MEAN_MARGIN),
            p_p95: tails(0.95),
            p99: other.p99() / candidate.p99(),
            p_p99: tails(0.99),
        }
    }

    /// Returns whether more runs could show that the case is lost: a statistic is shorter by more than
    /// `share` of its margin. The 99th percentile counts if `with_p99`.
    pub fn is_suspect(&self, share: f64, with_p99: bool) -> bool {
        let tail = 1.0 - share * TAIL_MARGIN;
        let mean = 1.0 - share * MEAN_MARGIN;
        self.mean < mean || self.p95 < tail || with_p99 && self.p99 < tail
    }
}

/// Returns the quantile `q` of each batch of runs.
fn batches(ms: &[f64], q: f64) -> Vec<f64> {
    let batches = ms.chunks_exact(TAIL_BATCH_RUNS);
    batches.map(|batch| quantile(batch, q)).collect()
}

fn quantile(ms: &[f64], q: f64) -> f64 {
    let mut sorted = ms.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    stats::quantile(&sorted, q).unwrap_or(f64::NAN)
}

/// Returns the largest share of copies that a flow of `size` bytes may have, on paths with loss or
/// without.
pub fn copies_allowed(size: u64, lossy: bool) -> f64 {
    match size {
        0..0x4_0000 => f64::INFINITY,
        0x10_0000.. if !lossy => 0.0,
        _ => 0.1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ms: impl Iterator<Item = f64>) -> Sample {
        Sample {
            ms: ms.collect(),
            ..Sample::default()
        }
    }

    /// Runs differ by far more than strategies do, so only pairs of runs show a difference.
    #[test]
    fn pairs_of_runs_are_compared() {
        let ours = || (0..2000).map(|n| 100.0 + f64::from(n % 37) * 10.0);
        let noise = |n: usize| if n.is_multiple_of(2) { 0.5 } else { -0.5 };
        let shorter = |by: f64| sample(ours().enumerate().map(move |(n, x)| x * by + noise(n)));
        let against = |by| Comparison::new(&sample(ours()), &shorter(by));
        let lost = against(0.97);
        assert!(
            (lost.mean - 0.97).abs() < 1e-3 && lost.p_mean < 1e-6,
            "{lost:?}"
        );
        // Shorter by less than the margin of 2 %; both are within the margin of 5 %.
        let kept = against(0.99);
        assert!(kept.p_mean > 0.99, "{kept:?}");
        assert!(lost.p_p95 > 0.99 && kept.p_p95 > 0.99);
        assert!(lost.is_suspect(1.0, true) && !kept.is_suspect(1.0, true));
        let far = against(0.93);
        assert!(far.p_p95 < 1e-6 && far.p_p99 < 1e-6 && lost.p_p99 > 0.99);
        // One run of fifty takes twice as long, which is within the margin of the mean and beyond the
        // 95th percentile.
        let rare = |n: usize, x: f64| if n.is_multiple_of(50) { 2.0 * x } else { x };
        let seldom = sample(ours().enumerate().map(|(n, x)| rare(n, 100.0 + x / 100.0)));
        let never = sample(ours().map(|x| 100.0 + x / 100.0));
        let tail = Comparison::new(&seldom, &never);
        assert!(
            tail.is_suspect(1.0, true) && !tail.is_suspect(1.0, false),
            "{tail:?}"
        );
    }

    #[test]
    fn copies_cost_from_256_k_on() {
        assert_eq!(copies_allowed(64 << 10, false), f64::INFINITY);
        assert_eq!(copies_allowed(256 << 10, false), 0.1);
        assert_eq!(copies_allowed(1 << 20, true), 0.1);
        assert_eq!(copies_allowed(1 << 20, false), 0.0);
    }
}
