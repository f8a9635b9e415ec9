//! Helpers for experiments over time: means over runs, and their figures.

use crate::plot::{Axis, Body, Figure, Point, Series};
use crate::stats;

/// Returns the mean and the half width of its 95 % interval, which is 0 for a single run.
pub(super) fn estimate(sample: &[f64]) -> (f64, f64) {
    let mean = stats::mean(sample).unwrap_or(f64::NAN);
    (mean, stats::half_width(sample, 0.95).unwrap_or(0.0))
}

/// Formats an estimate with `decimals`.
pub(super) fn plus_minus((mean, half): (f64, f64), decimals: usize) -> String {
    format!("{mean:.decimals$} ± {half:.decimals$}")
}

/// Returns the `q`-quantile of a sample in any order; NaN where it is empty.
pub(super) fn quantile(mut sample: Vec<f64>, q: f64) -> f64 {
    sample.sort_by(f64::total_cmp);
    stats::quantile(&sample, q).unwrap_or(f64::NAN)
}

/// Returns the value `of` each run.
pub(super) fn values<T>(runs: &[T], of: impl Fn(&T) -> f64) -> Vec<f64> {
    runs.iter().map(of).collect()
}

/// Returns the excess of `a` over `b`, run by run, in percent.
pub(super) fn gains(a: &[f64], b: &[f64]) -> Vec<f64> {
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| (a / b - 1.0) * 100.0).collect()
}

/// Sums and counts of a value by second.
#[derive(Debug, Clone, Default)]
pub(super) struct BySecond(Vec<(f64, f64)>);

impl BySecond {
    /// Adds a `value` at `at` seconds. Times before 0 and after three hours are left out.
    pub fn add(&mut self, at: f64, value: f64) {
        if !(0.0..10_800.0).contains(&at) {
            return;
        }
        let second = at as usize;
        if self.0.len() <= second {
            self.0.resize(second + 1, (0.0, 0.0));
        }
        let (sum, count) = &mut self.0[second];
        *sum += value;
        *count += 1.0;
    }

    /// Returns the mean of each second over all `runs`; NaN where nothing was counted.
    pub fn means<'a>(runs: impl IntoIterator<Item = &'a BySecond>) -> Vec<f64> {
        let mut all = BySecond::default();
        for run in runs {
            if all.0.len() < run.0.len() {
                all.0.resize(run.0.len(), (0.0, 0.0));
            }
            for (to, from) in all.0.iter_mut().zip(&run.0) {
                *to = (to.0 + from.0, to.1 + from.1);
            }
        }
        all.0.iter().map(|(sum, count)| sum / count).collect()
    }
}

/// Returns a line through values at the middle of each second.
pub(super) fn by_second(name: &str, values: &[f64]) -> Series {
    let point = |(second, value): (usize, &f64)| Point::new(second as f64 + 0.5, *value);
    Series::line(name, values.iter().enumerate().map(point))
}

/// Returns a figure against the size of flows.
pub(super) fn by_size(title: &str, note: &str, y: Axis, series: Vec<Series>) -> Figure {
    Figure {
        title: title.to_owned(),
        note: note.to_owned(),
        x: Axis::sizes("flow size (bytes)"),
        y,
        body: Body::Plane(series),
    }
}

/// Returns a figure over time.
pub(super) fn over_time(title: &str, note: &str, y: &str, series: Vec<Series>) -> Figure {
    Figure {
        title: title.to_owned(),
        note: note.to_owned(),
        x: Axis::linear("time (s)"),
        y: Axis::linear(y),
        body: Body::Plane(series),
    }
}

/// Returns a figure of bars. `groups` names the groups; each series has a name and one point for each
/// group.
pub(super) fn bars(
    title: &str,
    note: &str,
    y: &str,
    (groups, series): (&[&str], Vec<(&str, Vec<Point>)>),
) -> Figure {
    let series = series.into_iter();
    Figure {
        title: title.to_owned(),
        note: note.to_owned(),
        x: Axis::linear(""),
        y: Axis::linear(y),
        body: Body::Bars {
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
            series: series
                .map(|(name, points)| Series::line(name, points))
                .collect(),
        },
    }
}
