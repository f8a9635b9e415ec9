//! The statistics over all runs of a [`TunnelCase`] in one mode.

use serde::Serialize;

use super::{Mode, TunnelCase, TunnelRun};
use crate::stats::{self, rounded};

/// A case in one mode and the statistics of its runs; the object that `braid-lab tunnel --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the mode.
    pub mode: &'static str,
    /// The inner flow, in the syntax of the command line.
    pub inner: String,
    /// The paths, in the syntax of the command line.
    pub paths: String,
    /// Number of runs.
    pub runs: u64,
    /// Seed of all runs.
    pub seed: u64,
    /// Goodput of the inner flow. A download that did not end counts with what arrived.
    pub goodput_mbit_s: Goodput,
    /// One-way delay of inner packets to the client, over all runs.
    pub delay_ms: Delay,
    /// Inner packets to the client that did not arrive, over all runs.
    pub lost: u64,
    /// Inner packets to the client that arrived after a later one of their flow, over all runs.
    pub reordered: u64,
    /// Bytes of IP packets that were sent to the client on each path, over all runs.
    pub bytes_by_path: Vec<u64>,
}

/// Statistics of the goodput, Mbit/s; `None` if there were too few runs for the statistic.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Goodput {
    /// Mean.
    pub mean: Option<f64>,
    /// Standard deviation.
    pub sd: Option<f64>,
    /// Half width of the 95 % confidence interval of the mean, by Student's t distribution.
    pub ci95: Option<f64>,
}

/// Quantiles of the delay, ms; `None` if no packet arrived.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Delay {
    /// Median.
    pub p50: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
}

impl Row {
    /// Computes the statistics of `results`, the runs of `case` in `mode`.
    pub fn new(case: &TunnelCase, mode: Mode, results: &[TunnelRun]) -> Self {
        let goodputs: Vec<f64> = results.iter().map(|run| run.goodput).collect();
        let delays = results.iter().flat_map(|run| &run.delays_us);
        let mut delays_ms: Vec<f64> = delays.map(|us| f64::from(*us) / 1e3).collect();
        delays_ms.sort_unstable_by(f64::total_cmp);
        let quantile = |q| stats::quantile(&delays_ms, q).map(rounded);
        let sum = |count: fn(&TunnelRun) -> u64| results.iter().map(count).sum();
        let on_path = |n: usize| {
            results
                .iter()
                .filter_map(|run| run.bytes_by_path.get(n))
                .sum()
        };
        Row {
            mode: mode.name(),
            inner: case.inner.to_string(),
            paths: case.paths.to_string(),
            runs: results.len() as u64,
            seed: case.seed,
            goodput_mbit_s: Goodput {
                mean: stats::mean(&goodputs).map(rounded),
                sd: stats::standard_deviation(&goodputs).map(rounded),
                ci95: stats::half_width(&goodputs, 0.95).map(rounded),
            },
            delay_ms: Delay {
                p50: quantile(0.5),
                p99: quantile(0.99),
            },
            lost: sum(|run| run.lost),
            reordered: sum(|run| run.reordered),
            bytes_by_path: (0..case.paths.specs().len()).map(on_path).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_fields_of_the_documentation() {
        let case = TunnelCase {
            paths: "5mbit,40ms,0%;5mbit,100ms,2%".parse().unwrap(),
            inner: "quic:bbr".parse().unwrap(),
            size: "64k".parse().unwrap(),
            queue: 50,
            runs: 2,
            seed: 7,
        };
        let run = |goodput, delays_us: [u32; 2]| TunnelRun {
            completed: true,
            goodput,
            delays_us: delays_us.to_vec(),
            lost: 1,
            reordered: 2,
            bytes_by_path: vec![1000, 10],
            ..TunnelRun::default()
        };
        let runs = [run(3.0, [20_000, 21_000]), run(5.0, [22_000, 50_500])];
        let row = Row::new(&case, Mode::Aggregate, &runs);
        // t(1 degree of freedom) * sd / sqrt(n) = 12.706 * sqrt(2) / sqrt(2). The 99th percentile lies 97 % of the
        // way from the third to the fourth value.
        let expected = concat!(
            r#"{"mode":"aggregate","inner":"quic:bbr","paths":"5mbit,40ms,0%;5mbit,100ms,2%","runs":2,"seed":7,"#,
            r#""goodput_mbit_s":{"mean":4.0,"sd":1.414,"ci95":12.706},"delay_ms":{"p50":21.5,"p99":49.645},"#,
            r#""lost":2,"reordered":4,"bytes_by_path":[2000,20]}"#
        );
        assert_eq!(serde_json::to_string(&row).unwrap(), expected);
    }
}
