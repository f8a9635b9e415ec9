//! Sweeps: the same transfers in several variants, each with several flow sizes.

use super::outcome::Table;
use super::series::{bars, by_size};
use super::session::Session;
use crate::backend::{Backend, Error};
use crate::case::{Case, Records, RunResult, Size};
use crate::paths::PathError;
use crate::plot::{Axis, Figure, Point, Scale, Series};
use crate::stats;

/// The range of all flow sizes, bytes.
pub const ALL: (u64, u64) = (0, u64::MAX);

/// The kernel's MPTCP as a variant. The kernel has no records of paths, so the case must be
/// [`Records::Cold`]: [`Backend::check`] rejects every other case.
pub const LINUX: Variant = Variant {
    name: "Linux MPTCP",
    backend: Some(Backend::Kernel),
    apply: |case, _| case.records = Records::Cold,
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
#[derive(Debug, Clone, Copy)]
pub struct Variant {
    /// Name in tables and figures.
    pub name: &'static str,
    /// Backend; `None` for the backend of the experiment.
    pub backend: Option<Backend>,
    /// Applies the variant's settings to a case. The second argument is the variant's name.
    pub apply: fn(&mut Case, &str),
}

impl Variant {
    /// Returns the variant with the strategy called `name`.
    pub const fn strategy(name: &'static str) -> Variant {
        Variant {
            name,
            backend: None,
            apply: |case, name| case.strategy = name.to_owned(),
        }
    }
}

/// Returns a case over `paths`, in the syntax of the command line.
pub fn case(paths: &str) -> Result<Case, Error> {
    let paths = paths.parse();
    let paths = paths.map_err(|e: PathError| Error::Usage(e.to_string()))?;
    // Every sweep replaces this size.
    Ok(Case::new(paths, size("1")?))
}

fn size(text: &str) -> Result<Size, Error> {
    let size = text.parse();
    size.map_err(|e: crate::case::SizeError| Error::Usage(e.to_string()))
}

impl Sweep {
    /// Returns the cases that run on `backend`, each with its name. They are the cases of the variants
    /// whose own backend is `backend` or `None`.
    pub fn cases(&self, seed: u64, backend: Backend) -> Result<Vec<(String, Case)>, Error> {
        let mut cases = Vec::new();
        for variant in self
            .variants
            .iter()
            .filter(|variant| variant.backend.is_none_or(|own| own == backend))
        {
            for text in self.sizes {
                cases.push(self.case(variant, &size(text)?, seed));
            }
        }
        Ok(cases)
    }

    /// Returns the case of a variant and a size, and the name of its record.
    fn case(&self, variant: &Variant, size: &Size, seed: u64) -> (String, Case) {
        let mut case = Case {
            size: size.clone(),
            seed,
            ..self.case.clone()
        };
        (variant.apply)(&mut case, variant.name);
        let name = format!("{}-{size}-{}", self.name, variant.name.replace(' ', "-"));
        (name, case)
    }

    /// Measures all variants with all sizes.
    pub fn run(&self, session: &mut Session<'_>) -> Result<Swept, Error> {
        let mut swept = Swept {
            sizes: Vec::new(),
            variants: Vec::new(),
        };
        for text in self.sizes {
            swept.sizes.push(size(text)?);
        }
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
        for variant in &self.variants {
            let mut runs = Vec::new();
            for size in &swept.sizes {
                let (name, case) = self.case(variant, size, session.seed());
                let backend = variant.backend.unwrap_or(session.backend());
                runs.push(Runs(session.fct_on(backend, name, &case)?));
            }
            swept.variants.push((variant.name, runs));
        }
        Ok(swept)
    }
}

/// The results of a [`Sweep`].
#[derive(Debug, Clone)]
pub struct Swept {
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
        value: fn(&Runs) -> f64,
    ) -> Vec<(String, f64)> {
        let sizes = self.sizes.iter().zip(self.of(variant));
        let in_range = sizes.filter(|(size, _)| (min..=max).contains(&size.bytes()));
        in_range
            .map(|(size, runs)| (size.to_string(), value(runs)))
            .collect()
    }

    /// Returns, for each size, `value` of a variant divided by the lowest `value` among `others`.
    pub fn shares(
        &self,
        variant: &str,
        others: &[&str],
        sizes: (u64, u64),
        value: fn(&Runs) -> f64,
    ) -> Vec<(String, f64)> {
        let mut shares = self.values(variant, sizes, value);
        let others: Vec<_> = others
            .iter()
            .map(|o| self.values(o, sizes, value))
            .collect();
        for (n, (_, share)) in shares.iter_mut().enumerate() {
            let rivals = others
                .iter()
                .filter_map(|o| o.get(n))
                .map(|(_, value)| *value);
            // `f64::min` ignores NaN, so NaN remains only if there is no other value. A share that is NaN
            // makes the verdict fail.
            *share /= rivals.fold(f64::NAN, f64::min);
        }
        shares
    }

    /// Returns the results with only those runs that opened on `path`. The function assumes that run n
    /// opened on path n modulo `paths`, as with `DefaultPath::Mix`.
    pub fn opened_on(&self, path: usize, paths: usize) -> Swept {
        let on_path =
            |runs: &Runs| Runs(runs.0.iter().skip(path).step_by(paths).cloned().collect());
        let variants = self.variants.iter();
        Swept {
            sizes: self.sizes.clone(),
            variants: variants
                .map(|(name, runs)| (*name, runs.iter().map(on_path).collect()))
                .collect(),
        }
    }

    /// Returns a table of completion times, with a row for each size and a column for each variant.
    pub fn table(&self, title: &str) -> Table {
        let head = std::iter::once("size").chain(self.variants.iter().map(|(name, _)| *name));
        let row = |(n, size): (usize, &Size)| {
            let times = self.variants.iter().map(|(_, runs)| runs[n].text());
            std::iter::once(size.to_string()).chain(times).collect()
        };
        Table {
            title: format!("{title}; mean ± 95 % interval (standard deviation), ms"),
            columns: head.map(str::to_owned).collect(),
            rows: self.sizes.iter().enumerate().map(row).collect(),
        }
    }

    /// Returns a figure of the mean completion time against the size, with 95 % intervals.
    pub fn figure(&self, title: &str, note: &str) -> Figure {
        let point = |(size, runs): (&Size, &Runs)| {
            Point::with_error(size.bytes() as f64, runs.mean(), runs.half_width())
        };
        let variants = self.variants.iter();
        let series = variants
            .map(|(name, runs)| Series::line(*name, self.sizes.iter().zip(runs).map(point)));
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
        (label, value): (&str, fn(&Runs) -> f64),
    ) -> Figure {
        // A bar's place follows from its group, so its x does not matter.
        let point = |runs: &Runs| Point::new(0.0, value(runs));
        let variants = self.variants.iter();
        let series = variants.map(|(name, runs)| (*name, runs.iter().map(point).collect()));
        let sizes: Vec<String> = self.sizes.iter().map(ToString::to_string).collect();
        let groups: Vec<&str> = sizes.iter().map(String::as_str).collect();
        Figure {
            x: Axis::sizes("flow size (bytes)"),
            ..bars(title, note, label, (&groups, series.collect()))
        }
    }
}

/// The results of a case's runs, in the order of the runs.
#[derive(Debug, Clone)]
pub struct Runs(pub Vec<RunResult>);

impl Runs {
    /// Returns the completion times, ms; NaN for a flow that did not complete. NaN makes means and
    /// verdicts fail, so that a lost flow cannot pass as a short one.
    pub fn fct(&self) -> Vec<f64> {
        self.times(|run| run.fct)
    }

    /// Returns the times from the first to the last byte of the response, ms; NaN for a flow that did
    /// not complete.
    pub fn fct_data(&self) -> Vec<f64> {
        self.times(|run| run.fct_data)
    }

    fn times(&self, time_of: fn(&RunResult) -> std::time::Duration) -> Vec<f64> {
        let time = |run: &RunResult| match run.completed {
            true => time_of(run).as_nanos() as f64 / 1e6,
            false => f64::NAN,
        };
        self.0.iter().map(time).collect()
    }

    /// Returns the mean completion time, ms.
    pub fn mean(&self) -> f64 {
        stats::mean(&self.fct()).unwrap_or(f64::NAN)
    }

    /// Returns the standard deviation of the completion time, ms.
    pub fn sd(&self) -> f64 {
        stats::standard_deviation(&self.fct()).unwrap_or(f64::NAN)
    }

    /// Returns the standard deviation of the time from the first to the last byte of the response, ms.
    pub fn data_sd(&self) -> f64 {
        stats::standard_deviation(&self.fct_data()).unwrap_or(f64::NAN)
    }

    /// Returns the bytes sent on a path in all runs.
    pub fn bytes(&self, path: usize) -> f64 {
        let on_path = self.0.iter().filter_map(|run| run.bytes_by_path.get(path));
        on_path.sum::<u64>() as f64
    }

    /// Returns the share of copies (0 to 1) among the packets sent on a path while unsent data remained.
    /// The numbers of all runs are added before the division, because a short flow sends only a few such
    /// packets.
    pub fn copies(&self, path: usize) -> f64 {
        let sum = |counter: fn(&RunResult) -> &Vec<u64>| {
            self.0
                .iter()
                .filter_map(|run| counter(run).get(path))
                .sum::<u64>() as f64
        };
        sum(|run| &run.copies_by_path) / sum(|run| &run.packets_by_path)
    }

    /// Returns the mean number of retransmission timeouts of a flow.
    pub fn rtos(&self) -> f64 {
        self.sum(|run| run.rtos) / self.0.len() as f64
    }

    /// Returns the share of flows that had a retransmission timeout.
    pub fn timed_out(&self) -> f64 {
        let flows = self.0.iter().filter(|run| run.rtos > 0).count();
        flows as f64 / self.0.len() as f64
    }

    /// Returns the half width of the mean's 95 % interval, ms; 0 for a single run.
    pub fn half_width(&self) -> f64 {
        stats::half_width(&self.fct(), 0.95).unwrap_or(0.0)
    }

    /// Returns the sum of a counter over all runs.
    pub fn sum(&self, counter: fn(&RunResult) -> u64) -> f64 {
        self.0.iter().map(counter).sum::<u64>() as f64
    }

    /// Returns the cell of [`Swept::table`]. A single run has no interval and no deviation.
    fn text(&self) -> String {
        let (mean, half, sd) = (self.mean(), self.half_width(), self.sd());
        match self.0.len() {
            0 | 1 => format!("{mean:.1}"),
            _ => format!("{mean:.1} ± {half:.1} ({sd:.1})"),
        }
    }
}
