//! Sweeps: the same transfers in several variants, each with several flow sizes.

use std::ops::Range;
use std::sync::Arc;

use serde::Deserialize;

use super::outcome::Table;
use super::series::{bars, by_size, estimate};
use super::session::Session;
use crate::backend::{Backend, Error};
use crate::case::{Case, DefaultPath, Records, RunResult, Size};
use crate::paths::{PathError, Paths};
use crate::plot::{Axis, Figure, Point, Scale, Series};
use crate::stats;

/// The kernel's MPTCP as a variant.
pub const LINUX: Variant = Variant {
    backend: Some(Backend::Kernel),
    ..Variant::strategy("Linux MPTCP")
};

/// A set of variants, each run with every size.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// Prefix of the names of its records.
    pub name: String,
    /// Sizes of the flows, in the syntax of the command line.
    pub sizes: &'static [&'static str],
    /// Settings that all variants share. `sizes` and the session's seed replace the size and the seed of
    /// this case.
    pub case: Case,
    /// The variants.
    pub variants: Vec<Variant>,
}

/// A variant of the transfers.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Name in tables and figures.
    pub name: &'static str,
    /// Name of the strategy, if it is not the name of the variant.
    strategy: Option<&'static str>,
    /// The path on which connections open, if the variant sets it.
    opens_on: Option<usize>,
    /// The only path, if the variant uses a single path as plain TCP does.
    only: Option<usize>,
    /// Backend; `None` for the backend of the experiment.
    pub backend: Option<Backend>,
}

impl Variant {
    /// Returns the variant with the strategy called `name`.
    pub const fn strategy(name: &'static str) -> Variant {
        Variant {
            name,
            strategy: None,
            opens_on: None,
            only: None,
            backend: None,
        }
    }

    /// Returns `case` with the settings of the variant.
    fn of(&self, mut case: Case) -> Case {
        match self.backend {
            // The kernel has no records of paths, and `Backend::check` rejects a case with records.
            Some(Backend::Kernel) => case.records = Records::Cold,
            _ => case.strategy = self.strategy.unwrap_or(self.name).to_owned(),
        }
        case.default_path = self.opens_on.map_or(case.default_path, DefaultPath::Path);
        if let Some(path) = self.only {
            case.paths = case.paths.only(path);
            case.default_path = DefaultPath::Path(0);
        }
        case
    }
}

/// Returns a case over `paths`, in the syntax of the command line.
pub fn case(paths: &str) -> Result<Case, Error> {
    let paths = paths.parse();
    let paths = paths.map_err(|e: PathError| Error::Usage(e.to_string()))?;
    // Every sweep replaces this size.
    Ok(Case::new(paths, size("1")?))
}

/// Reads a size in the syntax of the command line.
pub fn size(text: &str) -> Result<Size, Error> {
    let size = text.parse();
    size.map_err(|e: crate::case::SizeError| Error::Usage(e.to_string()))
}

impl Sweep {
    /// Returns the cases of a variant, by size, each with the name of its record.
    pub fn cases(&self, variant: &Variant, seed: u64) -> Result<Vec<(String, Case)>, Error> {
        let case = |text: &&str| {
            let size = size(text)?;
            let name = format!("{}-{size}-{}", self.name, variant.name.replace(' ', "-"));
            let case = self.case.clone();
            Ok((name, variant.of(Case { size, seed, ..case })))
        };
        self.sizes.iter().map(case).collect()
    }

    /// Measures all variants with all sizes.
    pub fn run(&self, session: &mut Session<'_>) -> Result<Swept, Error> {
        session.parameter("paths", &self.case.paths);
        session.parameter("congestion control", &self.case.cc);
        session.parameter("initial window", self.case.initial_window);
        let queue = format!(
            "{} packets where a path has none of its own",
            self.case.queue
        );
        session.parameter("queue", queue);
        session.parameter("opens on path", self.case.default_path);
        session.parameter("records of paths", self.case.records.name());
        let mut variants = Vec::new();
        for variant in &self.variants {
            let mut runs = Vec::new();
            for (name, case) in self.cases(variant, session.seed())? {
                let backend = variant.backend.unwrap_or(session.backend());
                runs.push(Runs::new(session.fct(backend, name, &case)?));
            }
            variants.push((variant.name, runs));
        }
        let sizes = self.sizes.iter().map(|text| size(text));
        Ok(Swept {
            name: self.name.clone(),
            paths: self.case.paths.clone(),
            sizes: sizes.collect::<Result<_, _>>()?,
            variants,
        })
    }
}

/// The results of a [`Sweep`].
#[derive(Debug, Clone)]
pub struct Swept {
    /// The name of the sweep.
    pub name: String,
    /// The paths of variants with more than one.
    pub paths: Paths,
    /// The sizes.
    pub sizes: Vec<Size>,
    /// For each variant, the runs of each size.
    pub variants: Vec<(&'static str, Vec<Runs>)>,
}

impl Swept {
    /// Returns the runs of a variant by size; empty if there is no such variant.
    pub fn of(&self, variant: &str) -> &[Runs] {
        let found = self.variants.iter().find(|(name, _)| *name == variant);
        found.map_or(&[], |(_, runs)| runs)
    }

    /// Returns `value` of a variant for each size from `min` to `max` bytes, both included.
    pub fn values(
        &self,
        variant: &str,
        (min, max): (u64, u64),
        value: impl Fn(&Size, &Runs) -> f64,
    ) -> Vec<(String, f64)> {
        let sizes = self.sizes.iter().zip(self.of(variant));
        let in_range = sizes.filter(|(size, _)| (min..=max).contains(&size.bytes()));
        in_range
            .map(|(size, runs)| (size.to_string(), value(size, runs)))
            .collect()
    }

    /// Returns the mean of a variant's `value` over all sizes. With `over`, the value of each size is divided by
    /// that of the variant `over`, and the mean is geometric.
    pub fn overall(
        &self,
        variant: &str,
        over: Option<&str>,
        value: impl Fn(&Size, &Runs) -> f64,
    ) -> f64 {
        let values = |variant| self.values(variant, (0, u64::MAX), &value);
        let mut own = values(variant);
        if let Some(over) = over {
            divide_by_lowest(&mut own, &[values(over)]);
        }
        let own: Vec<f64> = own.into_iter().map(|(_, value)| value).collect();
        let mean = match over {
            Some(_) => stats::geometric_mean(&own),
            None => stats::mean(&own),
        };
        mean.unwrap_or(f64::NAN)
    }

    /// Returns the results with only those runs that opened on `path`. The function assumes that run n
    /// opened on path n modulo `paths`, as with `DefaultPath::Mix`.
    pub fn opened_on(&self, path: usize, paths: usize) -> Swept {
        let mut part = self.clone();
        for runs in part.variants.iter_mut().flat_map(|(_, runs)| runs) {
            let opened = runs.iter().skip(path).step_by(paths).cloned();
            *runs = Runs::new(opened.collect());
        }
        part
    }

    /// Returns the number of runs of each variant and size.
    pub fn runs(&self) -> usize {
        let runs = self.variants.first().and_then(|(_, runs)| runs.first());
        runs.map_or(0, Runs::len)
    }

    /// Returns the results without the runs of `group`. The runs form `groups` groups, counted from 0, whose sizes
    /// differ by at most one run.
    pub fn without(&self, group: usize, groups: usize) -> Swept {
        let mut part = self.clone();
        for runs in part.variants.iter_mut().flat_map(|(_, runs)| runs) {
            let at = |group: usize| runs.all.len() * group / groups;
            runs.left_out = at(group)..at(group + 1);
        }
        part
    }

    /// Returns a table of completion times, with a row for each size and a column for each variant.
    pub fn table(&self, title: &str) -> Table {
        let title = format!("{title}; mean ± 95 % interval (standard deviation), ms");
        self.table_of(title, |_, runs| runs.text())
    }

    /// Returns a table with a row for each size and a column for each variant.
    pub fn table_of(&self, title: String, cell: impl Fn(&Size, &Runs) -> String) -> Table {
        let head = std::iter::once("size").chain(self.variants.iter().map(|(name, _)| *name));
        let row = |(n, size): (usize, &Size)| {
            let cells = self.variants.iter().map(|(_, runs)| cell(size, &runs[n]));
            std::iter::once(size.to_string()).chain(cells).collect()
        };
        Table {
            title,
            columns: head.map(str::to_owned).collect(),
            rows: self.sizes.iter().enumerate().map(row).collect(),
        }
    }

    /// Returns a line against the size. `points` are in the order of the sizes, which replace their x.
    pub fn line(&self, name: &str, points: impl IntoIterator<Item = Point>) -> Series {
        let at = |(size, point): (&Size, Point)| Point {
            x: size.bytes() as f64,
            ..point
        };
        Series::line(name, self.sizes.iter().zip(points).map(at))
    }

    /// Returns a figure of the mean completion time against the size, with 95 % intervals.
    pub fn figure(&self, title: &str, note: &str) -> Figure {
        let point = |runs: &Runs| {
            let (mean, half) = estimate(&runs.fct());
            Point::with_error(0.0, mean, half)
        };
        let variants = self.variants.iter();
        let series = variants.map(|(name, runs)| self.line(name, runs.iter().map(point)));
        let note = format!("{note}; bars are 95 % intervals of the mean");
        let y = Axis {
            scale: Scale::Log,
            ..Axis::linear("flow completion time (ms)")
        };
        by_size(title, &note, y, series.collect())
    }

    /// Returns a bar chart with one bar for each variant and size. `label` names the y axis, and `value`
    /// returns the height of a bar.
    pub fn bars(
        &self,
        title: &str,
        note: &str,
        label: &str,
        value: impl Fn(&Size, &Runs) -> f64,
    ) -> Figure {
        // A bar's place follows from its group, so its x does not matter.
        let point = |(size, runs): (&Size, &Runs)| Point::new(0.0, value(size, runs));
        let series = self.variants.iter().map(|(name, runs)| {
            let points = self.sizes.iter().zip(runs).map(point);
            (*name, points.collect())
        });
        let sizes: Vec<String> = self.sizes.iter().map(ToString::to_string).collect();
        let groups: Vec<&str> = sizes.iter().map(String::as_str).collect();
        Figure {
            x: Axis::sizes("flow size (bytes)"),
            ..bars(title, note, label, (&groups, series.collect()))
        }
    }
}

/// Divides each value by the lowest value at the same place among `others`.
pub fn divide_by_lowest(values: &mut [(String, f64)], others: &[Vec<(String, f64)>]) {
    for (n, (_, share)) in values.iter_mut().enumerate() {
        let rivals = others.iter().filter_map(|o| o.get(n));
        // `f64::min` ignores NaN, so NaN remains only if there is no other value. A share that is NaN
        // makes the verdict fail.
        *share /= rivals.map(|(_, value)| *value).fold(f64::NAN, f64::min);
    }
}

/// The results of a case's runs, in the order of the runs.
#[derive(Debug, Clone)]
pub struct Runs {
    all: Arc<Vec<RunResult>>,
    /// Runs that do not count; see [`Swept::without`].
    left_out: Range<usize>,
}

impl Runs {
    fn new(results: Vec<RunResult>) -> Runs {
        Runs {
            all: Arc::new(results),
            left_out: 0..0,
        }
    }

    /// Returns the results.
    pub fn iter(&self) -> impl Iterator<Item = &RunResult> {
        let (before, after) = (
            &self.all[..self.left_out.start],
            &self.all[self.left_out.end..],
        );
        before.iter().chain(after)
    }

    /// Returns the number of runs.
    pub fn len(&self) -> usize {
        self.all.len() - self.left_out.len()
    }

    /// Returns the completion times, ms; NaN for a flow that did not complete. NaN makes means and
    /// verdicts fail, so that a lost flow cannot pass as a short one.
    pub fn fct(&self) -> Vec<f64> {
        self.times(RunResult::fct_ms)
    }

    /// Returns the times from the first to the last byte of the response, ms; NaN for a flow that did
    /// not complete.
    pub fn fct_data(&self) -> Vec<f64> {
        self.times(RunResult::fct_data_ms)
    }

    fn times(&self, ms: fn(&RunResult) -> Option<f64>) -> Vec<f64> {
        let times = self.iter().map(|run| ms(run).unwrap_or(f64::NAN));
        times.collect()
    }

    /// Returns the mean completion time, ms.
    pub fn mean(&self) -> f64 {
        stats::mean(&self.fct()).unwrap_or(f64::NAN)
    }

    /// Returns the standard deviation of the completion time, ms.
    pub fn sd(&self) -> f64 {
        stats::standard_deviation(&self.fct()).unwrap_or(f64::NAN)
    }

    /// Returns the share of copies (0 to 1) among the packets sent on a path while unsent data remained.
    /// The numbers of all runs are added before the division, because a short flow sends only a few such
    /// packets.
    pub fn copies(&self, path: usize) -> f64 {
        let sum = |counter: fn(&RunResult) -> &Vec<u64>| {
            self.sum(|run| counter(run).get(path).copied().unwrap_or(0))
        };
        sum(|run| &run.copies_by_path) / sum(|run| &run.packets_by_path)
    }

    /// Returns the sum of a counter over all runs.
    pub fn sum(&self, counter: impl Fn(&RunResult) -> u64) -> f64 {
        self.iter().map(counter).sum::<u64>() as f64
    }

    /// Returns the cell of [`Swept::table`]. A single run has no interval and no deviation.
    fn text(&self) -> String {
        let ((mean, half), sd) = (estimate(&self.fct()), self.sd());
        match self.len() {
            0 | 1 => format!("{mean:.1}"),
            _ => format!("{mean:.1} ± {half:.1} ({sd:.1})"),
        }
    }
}
