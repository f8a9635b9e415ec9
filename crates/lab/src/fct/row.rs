//! The statistics over all runs of a [`Case`].

use std::time::Duration;

use serde::Serialize;

use super::{Case, RunResult};
use crate::backend::Backend;
use crate::case::millis;
use crate::stats::{self, rounded};

/// A case and the statistics of its runs; the object that `braid-lab fct --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the strategy.
    pub strategy: String,
    /// Size of a flow, in the syntax of the command line.
    pub size: String,
    /// Number of flows that start at once.
    pub flows: u32,
    /// Name of the congestion control.
    pub cc: String,
    /// Name of the backend. The JSON key is older than this name, and readers of stored results use it.
    #[serde(rename = "arm")]
    pub backend: &'static str,
    /// Number of runs.
    pub runs: u64,
    /// The paths, in the syntax of the command line.
    pub paths: String,
    /// `down` or `up`.
    pub direction: String,
    /// Seed of all runs.
    pub seed: u64,
    /// Flow completion time.
    pub fct_ms: Summary,
    /// Time from the first to the last byte of the response.
    pub fct_data_ms: Summary,
    /// Payload bytes sent on each path, over all runs. Copies count, retransmissions do not.
    pub bytes_by_path: Vec<u64>,
    /// The part of `bytes_by_path` that consists of copies.
    pub copy_bytes_by_path: Vec<u64>,
    /// Share of copies (0 to 1) among the packets sent on each path while unsent data remained; 0 if no
    /// such packet was sent.
    pub copy_share_by_path: Vec<f64>,
    /// SYNs with MP_JOIN, over all runs.
    pub join_syns: u64,
    /// Retransmitted segments, over all runs.
    pub retransmissions: u64,
    /// Number of runs whose flow arrived completely. The times cover only these runs, all other fields
    /// cover every run.
    pub completed: u64,
    /// The single runs, in their order, if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub each: Option<Vec<Each>>,
}

/// The times of a single run, ms.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Each {
    /// Flow completion time, the mean over the run's flows; `None` if a flow did not arrive.
    pub fct_ms: Option<f64>,
    /// Time from the first to the last byte of the response, as a mean too.
    pub fct_data_ms: Option<f64>,
    /// Completion time of each flow that arrived, in the order in which they ended.
    pub flows_ms: Vec<f64>,
}

impl Each {
    /// Takes the times of `result`.
    pub fn new(result: &RunResult) -> Each {
        Each {
            fct_ms: result.fct_ms().map(rounded),
            fct_data_ms: result.fct_data_ms().map(rounded),
            flows_ms: result
                .flow_fcts
                .iter()
                .map(|t| rounded(millis(*t)))
                .collect(),
        }
    }
}

/// Times of a case's completed runs, ms; `None` if there were too few runs for the statistic.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Mean.
    pub mean: Option<f64>,
    /// Median.
    pub median: Option<f64>,
    /// 95th percentile; see [`stats::quantile`].
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// Standard deviation.
    pub sd: Option<f64>,
    /// Half width of the 95 % confidence interval of the mean, by Student's t distribution.
    pub ci95: Option<f64>,
}

impl Row {
    /// Computes the statistics of `results`, the runs of `case` on `backend`.
    pub fn new(case: &Case, backend: Backend, results: &[RunResult]) -> Self {
        let paths = case.paths.specs().len();
        let sum = |counter: fn(&RunResult) -> &Vec<u64>| -> Vec<u64> {
            let on_path = |n| results.iter().filter_map(|r| counter(r).get(n)).sum();
            (0..paths).map(on_path).collect()
        };
        let packets = sum(|r| &r.packets_by_path);
        let copies = sum(|r| &r.copies_by_path);
        let shares = packets.iter().zip(&copies);
        let completed: Vec<&RunResult> = results.iter().filter(|r| r.completed).collect();
        Row {
            // The kernel ignores the case's strategy, because it has its own scheduler.
            strategy: match backend {
                Backend::Kernel => backend.name().to_owned(),
                Backend::Sim | Backend::Links => case.strategy.clone(),
            },
            size: case.size.to_string(),
            flows: case.flows,
            cc: case.cc.clone(),
            backend: backend.name(),
            runs: results.len() as u64,
            paths: case.paths.to_string(),
            direction: case.direction.to_string(),
            seed: case.seed,
            fct_ms: Summary::new(completed.iter().map(|r| r.fct)),
            fct_data_ms: Summary::new(completed.iter().map(|r| r.fct_data)),
            bytes_by_path: sum(|r| &r.bytes_by_path),
            copy_bytes_by_path: sum(|r| &r.copy_bytes_by_path),
            copy_share_by_path: shares.map(|(all, copies)| share(*copies, *all)).collect(),
            join_syns: results.iter().map(|r| r.join_syns).sum(),
            retransmissions: results.iter().map(|r| r.retransmissions).sum(),
            completed: completed.len() as u64,
            each: None,
        }
    }
}

impl Summary {
    /// Computes the statistics of `times`.
    pub fn new(times: impl Iterator<Item = Duration>) -> Self {
        let ms: Vec<f64> = times.map(millis).collect();
        let mut sorted = ms.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let quantile = |q| stats::quantile(&sorted, q).map(rounded);
        Summary {
            mean: stats::mean(&ms).map(rounded),
            median: quantile(0.5),
            p95: quantile(0.95),
            p99: quantile(0.99),
            sd: stats::standard_deviation(&ms).map(rounded),
            ci95: stats::half_width(&ms, 0.95).map(rounded),
        }
    }
}

/// Returns `part / whole`, or 0 if `whole` is 0, rounded to six digits for the reason of [`rounded`].
fn share(part: u64, whole: u64) -> f64 {
    // `part` is 0 too if `whole` is.
    (part as f64 / whole.max(1) as f64 * 1e6).round() / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case() -> Case {
        Case::new(
            "5mbit,40ms,0%;5mbit,100ms,2%".parse().unwrap(),
            "64k".parse().unwrap(),
        )
    }

    fn result(completed: bool, ms: u64, packets: [u64; 2], copies: [u64; 2]) -> RunResult {
        RunResult {
            completed,
            fct: Duration::from_millis(ms),
            fct_data: Duration::from_millis(ms / 2),
            bytes_by_path: packets.map(|n| n * 1000).to_vec(),
            copy_bytes_by_path: copies.map(|n| n * 1000).to_vec(),
            packets_by_path: packets.to_vec(),
            copies_by_path: copies.to_vec(),
            join_syns: 1,
            retransmissions: 2,
            ..RunResult::default()
        }
    }

    #[test]
    fn times_are_of_completed_runs_and_counts_of_all() {
        let results = [
            result(true, 100, [10, 0], [0, 0]),
            result(true, 300, [10, 4], [1, 1]),
            result(false, 9999, [10, 0], [0, 0]),
        ];
        let row = Row::new(&case(), Backend::Sim, &results);
        assert_eq!((row.runs, row.completed), (3, 2));
        assert_eq!(row.fct_ms.mean, Some(200.0));
        // Linear interpolation: 100 + 0.95 * (300 - 100).
        assert_eq!(row.fct_ms.p95, Some(290.0));
        assert_eq!(row.fct_data_ms.median, Some(100.0));
        // t(1 degree of freedom) * sd / sqrt(n) = 12.706 * 141.421 / sqrt(2) = 1270.6.
        assert_eq!(row.fct_ms.ci95.map(f64::round), Some(1271.0));
        assert_eq!(row.bytes_by_path, [30_000, 4_000]);
        assert_eq!(row.copy_bytes_by_path, [1_000, 1_000]);
        // 1 copy of 10 + 10 + 10 packets, and 1 copy of 4.
        assert_eq!(row.copy_share_by_path, [0.033333, 0.25]);
        assert_eq!((row.join_syns, row.retransmissions), (3, 6));
    }

    #[test]
    fn without_a_completed_run_there_are_no_times() {
        let row = Row::new(&case(), Backend::Sim, &[result(false, 1, [1, 0], [0, 0])]);
        assert_eq!(row.fct_ms.mean, None);
        assert_eq!(row.copy_share_by_path, [0.0, 0.0]);
    }
}
