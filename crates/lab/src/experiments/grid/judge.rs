//! The comparison of a rival strategy with the candidate: completion times, and the cost in copies.

use crate::case::RunResult;
use crate::stats;

/// The compared statistics: the mean, the 95th and the 99th percentile.
pub const STATISTICS: [&str; 3] = ["mean", "95th percentile", "99th percentile"];
/// The statistics as quantiles; `None` for the mean.
const QUANTILES: [Option<f64>; 3] = [None, Some(0.95), Some(0.99)];
/// Shares by which a rival's statistic must be shorter than the candidate's to count as a loss. The claim of
/// the grid sets the values.
pub const MARGINS: [f64; 3] = [0.02, 0.05, 0.05];
/// Maximum probability that any case is judged lost although it is not (family-wise error rate).
pub const ALPHA: f64 = 0.01;
/// Completion time assumed for a flow that does not arrive, ms. Every run waits at least this time before
/// it gives up.
const UNFINISHED_FCT_MS: f64 = 120_000.0;
/// Number of runs in a batch. Each batch gives one percentile, so that the percentiles of several batches
/// can be tested like means. Of 100 runs, one lies beyond the 99th percentile.
const TAIL_BATCH_RUNS: usize = 100;
/// Minimum number of batches for a test. A guess: with fewer, the t test has little power.
const MIN_TAIL_BATCHES: usize = 10;
/// Minimum number of runs for a test of percentiles.
pub const TAIL_RUNS: u64 = (TAIL_BATCH_RUNS * MIN_TAIL_BATCHES) as u64;

/// The figures of a strategy's runs in a case.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Completion times, ms, in order of the runs; [`UNFINISHED_FCT_MS`] for a flow that did not arrive.
    pub ms: Vec<f64>,
    /// Bytes sent as copies, over all runs.
    pub copied: u64,
    /// Number of runs whose flow did not arrive.
    pub missing: u64,
}

impl Sample {
    /// Takes the figures from these runs.
    pub fn new(results: &[RunResult]) -> Sample {
        Sample {
            ms: results
                .iter()
                .map(|run| run.fct_ms().unwrap_or(UNFINISHED_FCT_MS))
                .collect(),
            copied: results.iter().flat_map(|r| &r.copy_bytes_by_path).sum(),
            missing: results.iter().filter(|r| !r.completed).count() as u64,
        }
    }

    /// Returns the times of the first runs.
    pub fn first(&self, runs: usize) -> Sample {
        Sample {
            ms: self.ms.iter().take(runs).copied().collect(),
            ..Sample::default()
        }
    }

    /// Returns the bytes sent as copies, divided by the bytes of the flows. The flows of a run have `bytes` bytes.
    pub fn copies(&self, bytes: u64) -> f64 {
        let runs = self.ms.len().max(1) as f64;
        self.copied as f64 / (bytes as f64 * runs)
    }

    /// Returns the mean, ms.
    pub fn mean(&self) -> f64 {
        self.statistic(0)
    }

    /// Returns a statistic by its number among [`STATISTICS`], ms.
    pub fn statistic(&self, n: usize) -> f64 {
        match QUANTILES[n] {
            None => stats::mean(&self.ms).unwrap_or(f64::NAN),
            Some(q) => stats::quantile_of(&self.ms, q),
        }
    }
}

/// A comparison of a rival with the candidate over runs with the same seeds, for each of [`STATISTICS`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// The rival's statistic divided by the candidate's.
    pub shares: [f64; 3],
    /// P-value of the hypothesis that the rival's statistic is shorter by at most its margin. A low value
    /// proves a loss. It is 1 for a percentile of fewer than [`TAIL_RUNS`] runs.
    pub p: [f64; 3],
}

impl Comparison {
    /// Compares `other` with `candidate`, run by run. Runs of the same index have the same seed, so their
    /// difference varies less than their times.
    pub fn new(candidate: &Sample, other: &Sample) -> Comparison {
        let p_value = |ours: &[f64], theirs: &[f64], margin: f64| {
            let pairs = ours.iter().zip(theirs);
            // Above 0 where the rival is shorter by more than the margin.
            let gaps: Vec<f64> = pairs.map(|(a, b)| (1.0 - margin) * a - b).collect();
            stats::p_above_zero(&gaps)
        };
        let p = |n: usize| match QUANTILES[n] {
            None => p_value(&candidate.ms, &other.ms, MARGINS[n]),
            Some(q) => {
                let [ours, theirs] = [candidate, other].map(|sample| batches(&sample.ms, q));
                match ours.len() >= MIN_TAIL_BATCHES {
                    true => p_value(&ours, &theirs, MARGINS[n]),
                    false => 1.0,
                }
            }
        };
        Comparison {
            shares: [0, 1, 2].map(|n| other.statistic(n) / candidate.statistic(n)),
            p: [0, 1, 2].map(p),
        }
    }

    /// Returns whether the rival's mean or 95th percentile is at most `multiple` of the candidate's.
    pub fn is_near(&self, multiple: f64) -> bool {
        self.shares[..2].iter().any(|share| *share <= multiple)
    }

    /// Returns whether more runs could prove a loss. They could if a statistic of the rival is shorter by
    /// more than `share` of its margin. The 99th percentile counts only if `with_p99` is true.
    pub fn is_suspect(&self, share: f64, with_p99: bool) -> bool {
        let counting = if with_p99 { 3 } else { 2 };
        let mut shares = self.shares.iter().zip(MARGINS).take(counting);
        shares.any(|(own, margin)| *own < 1.0 - share * margin)
    }
}

/// Returns the quantile `q` of each batch of [`TAIL_BATCH_RUNS`] runs. Runs beyond the last full batch do
/// not count.
fn batches(ms: &[f64], q: f64) -> Vec<f64> {
    let batches = ms.chunks_exact(TAIL_BATCH_RUNS);
    batches.map(|batch| stats::quantile_of(batch, q)).collect()
}

/// Returns the maximum share of copies that a flow of `size` bytes may have. `lossy` is true if any path
/// loses packets. The claim of the grid sets the values.
pub fn copies_allowed(size: u64, lossy: bool) -> f64 {
    match size {
        // Below 256 k.
        0..0x4_0000 => f64::INFINITY,
        // At least 1 M.
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

    /// Times differ from run to run by far more than from strategy to strategy, so only a comparison of
    /// pairs finds the difference.
    #[test]
    fn pairs_of_runs_are_compared() {
        let ours = || (0..2000).map(|n| 100.0 + f64::from(n % 37) * 10.0);
        let noise = |n: usize| if n.is_multiple_of(2) { 0.5 } else { -0.5 };
        let shorter = |by: f64| sample(ours().enumerate().map(move |(n, x)| x * by + noise(n)));
        let against = |by| Comparison::new(&sample(ours()), &shorter(by));
        let lost = against(0.97);
        assert!(
            (lost.shares[0] - 0.97).abs() < 1e-3 && lost.p[0] < 1e-6,
            "{lost:?}"
        );
        // Shorter by less than the margin of 2 %; both are within the margin of 5 %.
        let tied = against(0.99);
        assert!(tied.p[0] > 0.99, "{tied:?}");
        assert!(lost.p[1] > 0.99 && tied.p[1] > 0.99);
        assert!(lost.is_suspect(1.0, true) && !tied.is_suspect(1.0, true));
        let far = against(0.93);
        assert!(far.p[1] < 1e-6 && far.p[2] < 1e-6 && lost.p[2] > 0.99);
        // One run of 50 takes twice as long. Its mean is then 1 / 50 = 2 % longer, which is within the
        // margin; its 95th percentile does not change, and its 99th doubles.
        let rare = |n: usize, x: f64| if n.is_multiple_of(50) { 2.0 * x } else { x };
        let sometimes_slow = sample(ours().enumerate().map(|(n, x)| rare(n, 100.0 + x / 100.0)));
        let never_slow = sample(ours().map(|x| 100.0 + x / 100.0));
        let tail = Comparison::new(&sometimes_slow, &never_slow);
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
