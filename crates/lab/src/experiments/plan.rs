//! Plans: sweeps as data, with their claims, tables and figures.

use braid_units::value::ValueError;
use serde::Deserialize;

use super::claim::{Claim, Measure};
use super::session::Session;
use super::sweep::{self, Sweep, Swept, Variant};
use crate::backend::{Backend, Error};
use crate::case::{Case, Records};

/// A set of sweeps, one for each congestion control and initial window.
#[derive(Debug, Deserialize)]
// Names and sizes are borrowed from the text of the file.
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'static"))]
pub struct Plan {
    /// Name of a sweep, with which the names of its records begin. `{cc}` and `{window}` stand for its
    /// congestion control and initial window.
    name: String,
    /// Label of a sweep in claims, tables and figures, with `{CC}` and `{window}`.
    label: String,
    /// Title of the figures of completion times. Without a title there are neither these figures nor tables.
    title: Option<String>,
    paths: String,
    /// Flow sizes, in the syntax of the command line.
    sizes: Vec<&'static str>,
    /// Fewer sizes for runs over links, where they take long.
    sizes_over_links: Option<Vec<&'static str>>,
    /// Congestion controls.
    ccs: Vec<String>,
    /// Initial windows, segments. RFC 6928 sets 10. RFC 3390, which older hosts follow, gives 3 for segments
    /// of 1460 bytes. A claim must hold with both.
    windows: Vec<u32>,
    variants: Vec<Variant>,
    /// See [`Case::default_path`].
    default_path: String,
    /// Names of the paths, if runs that opened on each are shown apart: runs that open on a good path differ
    /// much from runs that open on a poor path, and a mean over all runs hides that.
    #[serde(default)]
    opened_on: Vec<String>,
    /// True for [`Records::Warm`].
    #[serde(default)]
    warm_records: bool,
    /// See [`Case::warm_subflows`].
    #[serde(default)]
    warm_subflows: bool,
    /// Claims on each sweep.
    #[serde(default)]
    claims: Vec<Claim>,
    /// Further tables of each sweep.
    #[serde(default)]
    tables: Vec<ValueTable>,
    bars: Option<Bars>,
}

/// A table of a measure, with a row for each size and a column for each variant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ValueTable {
    title: String,
    measure: Measure,
}

/// Bar charts of a measure, with a bar for each size and variant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bars {
    /// Name of the figure; the name of the sweep follows if there is a chart for each.
    name: String,
    title: String,
    measure: Measure,
    /// Label of the y axis.
    label: String,
    /// True for a chart of the first sweep alone.
    #[serde(default)]
    first_only: bool,
    /// True if the first chart comes before all other figures.
    #[serde(default)]
    leads: bool,
}

impl Plan {
    /// Returns the sweeps, each with the label that its claims, tables and figures show.
    pub fn sweeps(&'static self, backend: Backend) -> Result<Vec<(String, Sweep)>, Error> {
        let default_path = self.default_path.parse();
        let case = Case {
            default_path: default_path.map_err(|e: ValueError| Error::Usage(e.to_string()))?,
            records: if self.warm_records {
                Records::Warm
            } else {
                Records::Cold
            },
            warm_subflows: self.warm_subflows,
            ..sweep::case(&self.paths)?
        };
        let mut sweeps = Vec::new();
        for cc in &self.ccs {
            for window in &self.windows {
                let fill = |text: &str| {
                    let text = text.replace("{cc}", cc).replace("{CC}", &cc.to_uppercase());
                    text.replace("{window}", &window.to_string())
                };
                let sweep = Sweep {
                    name: fill(&self.name),
                    sizes: self.sizes(backend),
                    case: Case {
                        cc: cc.clone(),
                        initial_window: *window,
                        ..case.clone()
                    },
                    variants: self.variants(backend, cc),
                };
                sweeps.push((fill(&self.label), sweep));
            }
        }
        Ok(sweeps)
    }

    fn sizes(&self, backend: Backend) -> &[&'static str] {
        match &self.sizes_over_links {
            Some(sizes) if !backend.is_virtual() => sizes,
            _ => &self.sizes,
        }
    }

    /// Returns the variants. The simulator cannot run the kernel's MPTCP. Over links the kernel runs only
    /// with CUBIC, because kernels need not have the other congestion controls.
    fn variants(&self, backend: Backend, cc: &str) -> Vec<Variant> {
        let with_kernel = !backend.is_virtual() && cc == "cubic";
        let runs = |variant: &Variant| with_kernel || variant.backend != Some(Backend::Kernel);
        self.variants.iter().copied().filter(runs).collect()
    }

    /// Returns the number of cases of all sweeps, for progress.
    pub fn cases(&self, backend: Backend) -> usize {
        let variants = self.ccs.iter().map(|cc| self.variants(backend, cc).len());
        variants.sum::<usize>() * self.sizes(backend).len() * self.windows.len()
    }

    /// Measures and judges all sweeps, and adds their tables and figures.
    pub fn run(&'static self, session: &mut Session<'_>) -> Result<Vec<(String, Swept)>, Error> {
        let mut results = Vec::new();
        for (label, sweep) in self.sweeps(session.backend())? {
            let swept = sweep.run(session)?;
            for claim in &self.claims {
                session.verdict(claim.judge(&label, &swept)?);
            }
            if let Some(title) = &self.title {
                self.show_times(session, title, &label, &swept);
            }
            results.push((label, swept));
        }
        for (label, swept) in &results {
            for table in &self.tables {
                let title = format!("{}, {label}", table.title);
                session.table(swept.table_of(title, |size, runs| table.measure.text(size, runs)));
            }
        }
        if let Some(bars) = &self.bars {
            self.draw_bars(session, bars, &results);
        }
        Ok(results)
    }

    /// Adds a figure and tables of completion times.
    fn show_times(&self, session: &mut Session<'_>, title: &str, label: &str, swept: &Swept) {
        let note = format!("{}; {label}, {} runs", self.paths, session.runs());
        session.figure(&format!("fct-{}", swept.name), swept.figure(title, &note));
        session.table(swept.table(&format!("Flow completion time, {label}")));
        for (path, which) in self.opened_on.iter().enumerate() {
            let part = swept.opened_on(path, self.opened_on.len());
            session.table(part.table(&format!("{label}, opened on the {which} path")));
        }
    }

    fn draw_bars(&self, session: &mut Session<'_>, bars: &Bars, results: &[(String, Swept)]) {
        let charts = if bars.first_only { 1 } else { results.len() };
        let name = |swept: &Swept| match bars.first_only {
            true => bars.name.clone(),
            false => format!("{}-{}", bars.name, swept.name),
        };
        for (label, swept) in &results[..charts] {
            let note = format!("{}; {label}", self.paths);
            let value = |size: &_, runs: &_| bars.measure.of(size, runs);
            session.figure(
                &name(swept),
                swept.bars(&bars.title, &note, &bars.label, value),
            );
        }
        if bars.leads {
            session.put_first(&name(&results[0].1));
        }
    }
}
