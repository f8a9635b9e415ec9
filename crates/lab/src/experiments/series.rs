//! Helpers of the experiments: estimates over runs, means by second, and figures of them.

use crate::plot::{Axis, Body, Figure, Point, Series};
use crate::stats;

/// Returns the mean and the half width of its 95 % confidence interval. The half width is 0 for a single run.
pub(super) fn estimate(sample: &[f64]) -> (f64, f64) {
    let mean = stats::mean(sample).unwrap_or(f64::NAN);
    (mean, stats::half_width(sample, 0.95).unwrap_or(0.0))
}

/// Formats an estimate with this number of decimals.
pub(super) fn plus_minus((mean, half): (f64, f64), decimals: usize) -> String {
    format!("{mean:.decimals$} ± {half:.decimals$}")
}

/// Returns `value` of each run.
pub(super) fn values<T>(runs: &[T], value: impl Fn(&T) -> f64) -> Vec<f64> {
    runs.iter().map(value).collect()
}

/// Labels each value with the number of its run.
pub(super) fn by_run(values: impl IntoIterator<Item = f64>) -> impl Iterator<Item = (String, f64)> {
    let values = values.into_iter().enumerate();
    values.map(|(run, value)| (format!("run {run}"), value))
}

/// Returns by how many percent each value of `a` exceeds the value of `b` of the same run.
pub(super) fn gains(a: &[f64], b: &[f64]) -> Vec<f64> {
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| (a / b - 1.0) * 100.0).collect()
}

/// The sum and the number of values in each second.
#[derive(Debug, Clone, Default)]
pub(super) struct BySecond(Vec<(f64, f64)>);

impl BySecond {
    /// Adds a `value` at the time `at`, in seconds. Ignores times below 0 or above three hours. No run is
    /// so long, and a wrong time must not allocate memory without bound.
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

    /// Returns the mean of each second over all `runs`; NaN for a second without values.
    pub fn means<'a>(runs: impl IntoIterator<Item = &'a BySecond>) -> Vec<f64> {
        let mut all = BySecond::default();
        for run in runs {
            if all.0.len() < run.0.len() {
                all.0.resize(run.0.len(), (0.0, 0.0));
            }
            for (total, second) in all.0.iter_mut().zip(&run.0) {
                *total = (total.0 + second.0, total.1 + second.1);
            }
        }
        all.0.iter().map(|(sum, count)| sum / count).collect()
    }
}

/// Returns a line of one value a second. Each point is in the middle of its second.
pub(super) fn by_second(name: &str, values: &[f64]) -> Series {
    let point = |(second, value): (usize, &f64)| Point::new(second as f64 + 0.5, *value);
    Series::line(name, values.iter().enumerate().map(point))
}

/// Returns a figure whose x axis is the size of flows.
pub(super) fn by_size(title: &str, note: &str, y: Axis, series: Vec<Series>) -> Figure {
    plane(title, note, [Axis::sizes("flow size (bytes)"), y], series)
}

/// Returns a figure whose x axis is the time.
pub(super) fn over_time(title: &str, note: &str, y: &str, series: Vec<Series>) -> Figure {
    let axes = [Axis::linear("time (s)"), Axis::linear(y)];
    plane(title, note, axes, series)
}

/// Returns a figure of points in a plane.
pub(super) fn plane(title: &str, note: &str, [x, y]: [Axis; 2], series: Vec<Series>) -> Figure {
    Figure {
        title: title.to_owned(),
        note: note.to_owned(),
        x,
        y,
        body: Body::Plane(series),
    }
}

/// Returns a bar chart. `groups` are the names of the groups; each series has a name and a point for each
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
