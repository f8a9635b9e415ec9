//! Plans: sweeps as data, with their claims, tables and figures.

use braid_units::value::ValueError;
use serde::Deserialize;

use super::claim::{Claim, Measure};
use super::series::plane;
use super::session::Session;
use super::sweep::{self, Runs, Sweep, Swept, Variant};
use crate::backend::{Backend, Error};
use crate::case::{Case, Records};
use crate::plot::{Axis, Point, Scale, Series};

/// A set of sweeps, one for each congestion control, initial window and loss.
#[derive(Debug, Deserialize)]
// Names and sizes are borrowed from the text of the file.
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'static"))]
pub struct Plan {
    /// First part of the names of a sweep's records; may be empty. Congestion control, initial window and loss of the
    /// sweep follow.
    #[serde(default)]
    name: String,
    /// Title of the figures of completion times. Without a title there are neither these figures nor tables.
    title: Option<String>,
    /// The paths, with `{loss}` in place of the swept loss.
    paths: String,
    /// Flow sizes, in the syntax of the command line.
    sizes: Vec<&'static str>,
    /// Congestion controls.
    ccs: Vec<String>,
    /// Initial windows, segments. RFC 6928 sets 10. RFC 3390, which older hosts follow, gives 3 for segments
    /// of 1460 bytes.
    windows: Vec<u32>,
    /// Losses to sweep, percent, if the source gives none. A verdict names the losses with which its claim holds.
    #[serde(default)]
    losses: Vec<f64>,
    /// The losses with every window but the first, if they are not all losses: the full product of windows and losses
    /// would take too long.
    further_losses: Option<Vec<f64>>,
    /// Shorter lists for runs over links, which take as long as the flows do.
    #[serde(default)]
    over_links: Fewer,
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
    /// Figures of measures by loss, one for each congestion control with the first window.
    #[serde(default)]
    by_loss: Vec<ByLoss>,
}

/// Lists that replace those of a [`Plan`].
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'static"))]
struct Fewer {
    sizes: Option<Vec<&'static str>>,
    ccs: Option<Vec<String>>,
    windows: Option<Vec<u32>>,
    losses: Option<Vec<f64>>,
}

/// A figure with a line for each variant, whose points are means over all sizes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ByLoss {
    title: String,
    measure: Measure,
    /// The variant whose measure is the divisor for all variants, for each size; `None` to show the measure itself.
    over: Option<String>,
}

impl ByLoss {
    fn name(&self, cc: &str) -> String {
        format!("{}-by-loss-{cc}", self.measure.id())
    }
}

/// The parameters of a sweep that the source of an experiment leaves open.
#[derive(Debug, Clone)]
pub struct Place {
    /// Congestion control and initial window, as claims, tables and figures show them.
    pub setting: String,
    /// The loss in percent, if it is swept.
    loss: Option<f64>,
    cc: String,
    /// True for the first initial window, the only one with figures.
    is_shown: bool,
}

impl Place {
    /// Returns the value of the swept parameter as claims show it; empty if none is swept.
    fn at(&self) -> String {
        self.loss.map_or(String::new(), |loss| format!("{loss} %"))
    }

    /// Returns the setting and the value of the swept parameter.
    pub fn label(&self) -> String {
        let loss = self.loss.map(|loss| format!(", loss {loss} %"));
        format!("{}{}", self.setting, loss.unwrap_or_default())
    }
}

/// A table of a measure, with a row for each size and a column for each variant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ValueTable {
    title: String,
    measure: Measure,
}

/// A bar chart of a measure in the first sweep, with a bar for each size and variant. It comes before all other
/// figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bars {
    /// Name of the figure.
    name: String,
    title: String,
    measure: Measure,
    /// Label of the y axis.
    label: String,
}

impl Plan {
    /// Returns the sweeps, each with its place.
    pub fn sweeps(&'static self, backend: Backend) -> Result<Vec<(Place, Sweep)>, Error> {
        let default_path = self.default_path.parse();
        let default_path = default_path.map_err(|e: ValueError| Error::Usage(e.to_string()))?;
        let mut sweeps = Vec::new();
        for (cc, window, loss) in self.places(backend) {
            let percent = loss.map_or(String::new(), |loss| format!("{loss}%"));
            let name = [
                self.name.clone(),
                format!("{cc}-iw{window}"),
                loss.map_or(String::new(), |loss| format!("loss{loss}")),
            ];
            let name = name.into_iter().filter(|part| !part.is_empty());
            let sweep = Sweep {
                name: name.collect::<Vec<_>>().join("-"),
                sizes: self.over_links(backend, &self.sizes, &self.over_links.sizes),
                case: Case {
                    cc: cc.clone(),
                    initial_window: window,
                    default_path,
                    records: if self.warm_records {
                        Records::Warm
                    } else {
                        Records::Cold
                    },
                    warm_subflows: self.warm_subflows,
                    ..sweep::case(&self.paths.replace("{loss}", &percent))?
                },
                variants: self.variants(backend, cc),
            };
            let place = Place {
                setting: format!("{}, IW {window}", cc.to_uppercase()),
                loss,
                cc: cc.clone(),
                is_shown: window == self.windows[0],
            };
            sweeps.push((place, sweep));
        }
        Ok(sweeps)
    }

    /// Returns `fewer` over links if it has a list, else `all`.
    fn over_links<'a, T>(
        &self,
        backend: Backend,
        all: &'a [T],
        fewer: &'a Option<Vec<T>>,
    ) -> &'a [T] {
        match fewer {
            Some(fewer) if !backend.is_virtual() => fewer,
            _ => all,
        }
    }

    /// Returns the congestion control, the initial window and the loss of each sweep.
    fn places(&self, backend: Backend) -> Vec<(&String, u32, Option<f64>)> {
        let fewer = &self.over_links;
        let losses = self.over_links(backend, &self.losses, &fewer.losses);
        let further = self.further_losses.as_deref().unwrap_or(losses);
        let mut places = Vec::new();
        for cc in self.over_links(backend, &self.ccs, &fewer.ccs) {
            for window in self.over_links(backend, &self.windows, &fewer.windows) {
                let losses = if *window == self.windows[0] {
                    losses
                } else {
                    further
                };
                if losses.is_empty() {
                    places.push((cc, *window, None));
                }
                places.extend(losses.iter().map(|loss| (cc, *window, Some(*loss))));
            }
        }
        places
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
        let places = self.places(backend);
        let variants = places
            .iter()
            .map(|(cc, ..)| self.variants(backend, cc).len());
        variants.sum::<usize>()
            * self
                .over_links(backend, &self.sizes, &self.over_links.sizes)
                .len()
    }

    /// Measures and judges all sweeps, and adds their tables and figures.
    pub fn run(&'static self, session: &mut Session<'_>) -> Result<Vec<(Place, Swept)>, Error> {
        let mut results = Vec::new();
        for (place, sweep) in self.sweeps(session.backend())? {
            let swept = sweep.run(session)?;
            for claim in &self.claims {
                let verdict = claim.judge(&swept)?.with(&place.setting);
                session.verdict(match place.loss {
                    Some(_) => verdict.at("loss", &place.at()),
                    None => verdict,
                });
            }
            if let Some(title) = &self.title {
                self.show_times(session, title, &place, &swept);
            }
            results.push((place, swept));
        }
        for (place, swept) in &results {
            for table in &self.tables {
                let title = format!("{}, {}", table.title, place.label());
                session.table(swept.table_of(title, |size, runs| table.measure.text(size, runs)));
            }
        }
        if let (Some(bars), Some((place, swept))) = (&self.bars, results.first()) {
            let note = format!("{}; {}", swept.paths, place.label());
            let value = |size: &_, runs: &_| bars.measure.of(size, runs);
            let figure = swept.bars(&bars.title, &note, &bars.label, value);
            session.figure(&bars.name, figure);
            session.put_first(&bars.name);
        }
        for figure in &self.by_loss {
            self.draw_by_loss(session, figure, &results);
        }
        if let (Some(figure), Some(cc)) = (self.by_loss.first(), self.ccs.first()) {
            session.put_first(&figure.name(cc));
        }
        Ok(results)
    }

    /// Adds a figure and tables of completion times.
    fn show_times(&self, session: &mut Session<'_>, title: &str, place: &Place, swept: &Swept) {
        let label = place.label();
        if place.is_shown {
            let note = format!("{}; {label}, {} runs", swept.paths, session.runs());
            session.figure(&format!("fct-{}", swept.name), swept.figure(title, &note));
        }
        session.table(swept.table(&format!("Flow completion time, {label}")));
        for (path, which) in self.opened_on.iter().enumerate() {
            let part = swept.opened_on(path, self.opened_on.len());
            session.table(part.table(&format!("{label}, opened on the {which} path")));
        }
    }

    /// Adds a figure of a measure by loss for each congestion control.
    fn draw_by_loss(&self, session: &mut Session<'_>, figure: &ByLoss, results: &[(Place, Swept)]) {
        for cc in self.over_links(session.backend(), &self.ccs, &self.over_links.ccs) {
            let shown = results
                .iter()
                .filter(|(place, _)| place.is_shown && place.cc == *cc);
            let shown: Vec<&(Place, Swept)> = shown.collect();
            let Some((place, first)) = shown.first() else {
                continue;
            };
            let line = |(variant, _): &(&'static str, Vec<Runs>)| {
                let points = shown.iter().map(|(place, swept)| {
                    let value = |size: &_, runs: &_| figure.measure.of(size, runs);
                    let value = swept.overall(variant, figure.over.as_deref(), value);
                    Point::new(place.loss.unwrap_or(f64::NAN), value)
                });
                Series::line(*variant, points)
            };
            let name = figure.measure.name();
            let y = match &figure.over {
                Some(over) => {
                    // A quotient has no unit.
                    let (name, _) = name.split_once(" (").unwrap_or((name, ""));
                    Axis {
                        scale: Scale::Log,
                        ..Axis::linear(&format!("{name}, as a multiple of that of {over}"))
                    }
                }
                None => Axis::linear(name),
            };
            let sizes = first.sizes.iter().map(ToString::to_string);
            let sizes: Vec<String> = sizes.collect();
            let note = format!(
                "{}; {}, {} runs; means over {}",
                self.paths.replace("{loss}", "loss"),
                place.setting,
                session.runs(),
                sizes.join(", ")
            );
            let axes = [Axis::linear("loss (%)"), y];
            let lines = first.variants.iter().map(line);
            let drawn = plane(&figure.title, &note, axes, lines.collect());
            session.figure(&figure.name(cc), drawn);
        }
    }
}
