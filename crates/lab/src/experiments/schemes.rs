//! Comparisons of schemes: the runs of each scheme in a setting, and tables and figures of them.

use std::sync::Arc;
use std::time::Duration;

use braid_engine::Config;
use braid_links::Schedule;
use braid_sim::background::Background;
use braid_sim::traffic::Role;
use braid_sim::transfer::PathSettings;
use serde_json::{Value, json};

use super::outcome::Table;
use super::series::{self, BySecond, by_second, estimate, gains, plus_minus};
use super::session::Session;
use crate::backend::Error;
use crate::plot::{Figure, Point, Series};
use crate::session_trace::{Packet, SessionScenario, SessionTrace};
use crate::stats;

/// The congestion control of all schemes.
pub(super) const CC: &str = "cubic";

/// A scheme: its name, its strategy, and the setting in which it differs from other schemes.
pub(super) type Scheme<T> = (&'static str, &'static str, T);

/// Returns the scenario in which the server sends over `paths` for `span`, beside background traffic.
pub(super) fn scenario(
    strategy: &'static str,
    paths: Vec<PathSettings>,
    sends: Role,
    span: Duration,
) -> Result<SessionScenario<'static>, Error> {
    Ok(SessionScenario {
        strategy,
        engine: Config {
            congestion: CC.parse().map_err(Error::Usage)?,
            ..Config::default()
        },
        paths,
        first: Schedule::default(),
        background: Some(Background::published(span)),
        sends,
        span,
        moves: None,
    })
}

/// A value of a run: its name, its number of decimals in tables, and the function that returns it.
pub(super) type Measure<R> = (&'static str, usize, fn(&R) -> f64);

/// The runs of several schemes in one setting, such as one loss. Functions refer to a scheme by its index.
/// All other schemes are compared with the first.
#[derive(Debug)]
pub(super) struct Compared<R> {
    /// Name of the setting.
    pub setting: String,
    /// Each scheme's name and runs. Runs of the same index have the same seed with all schemes.
    pub schemes: Vec<(&'static str, Arc<Vec<R>>)>,
}

impl<R> Compared<R> {
    /// Makes the runs of each scheme, and records them. `runs` returns the runs of a scheme and the name of
    /// their record.
    pub fn measure<T>(
        session: &mut Session<'_>,
        setting: String,
        schemes: &[Scheme<T>],
        runs: impl Fn(&Session<'_>, &Scheme<T>) -> Result<(String, Arc<Vec<R>>), Error>,
        record: fn(&R) -> Value,
    ) -> Result<Self, Error> {
        let mut compared = Vec::new();
        for scheme in schemes {
            let (name, runs) = runs(session, scheme)?;
            let record: Vec<_> = runs.iter().map(record).collect();
            session.record(name, json!({ "runs": record }));
            compared.push((scheme.0, runs));
        }
        let schemes = compared;
        Ok(Compared { setting, schemes })
    }

    /// Returns a value of each run of a scheme.
    pub fn values(&self, scheme: usize, of: impl Fn(&R) -> f64) -> Vec<f64> {
        series::values(&self.schemes[scheme].1, of)
    }

    /// Returns the estimate of a scheme's value: its mean and the half width of its interval.
    pub fn estimate(&self, scheme: usize, of: impl Fn(&R) -> f64) -> (f64, f64) {
        estimate(&self.values(scheme, of))
    }

    /// Returns the estimate of the percentage by which a scheme's value exceeds the value of the first
    /// scheme.
    pub fn gain(&self, scheme: usize, of: impl Fn(&R) -> f64) -> (f64, f64) {
        estimate(&gains(&self.values(scheme, &of), &self.values(0, &of)))
    }

    /// Returns the estimate of the scheme's value less the value of the first scheme.
    pub fn difference(&self, scheme: usize, of: impl Fn(&R) -> f64) -> (f64, f64) {
        let pairs = stats::differences(&self.values(scheme, &of), &self.values(0, &of));
        estimate(&pairs.unwrap_or_default())
    }

    /// Returns a point at `x` with the estimate of a scheme's value.
    pub fn point(&self, x: f64, scheme: usize, of: impl Fn(&R) -> f64) -> Point {
        let (mean, half) = self.estimate(scheme, of);
        Point::with_error(x, mean, half)
    }

    /// Returns the mean of all runs of a scheme in each second.
    pub fn by_second(&self, scheme: usize, of: impl Fn(&R) -> &BySecond) -> Vec<f64> {
        BySecond::means(self.schemes[scheme].1.iter().map(of))
    }

    /// Returns a line over time for each scheme. A scheme without values gets no line, such as the kernel,
    /// whose packets are not observed.
    pub fn lines(&self, of: impl Fn(&R) -> &BySecond) -> Vec<Series> {
        let schemes = self.schemes.iter().enumerate();
        schemes
            .map(|(n, (name, _))| by_second(name, &self.by_second(n, &of)))
            .filter(|line| !line.points.is_empty())
            .collect()
    }

    /// Adds a figure with these lines to a session.
    pub fn plot(
        &self,
        session: &mut Session<'_>,
        name: &str,
        [title, note, y]: [&str; 3],
        of: impl Fn(&R) -> &BySecond,
    ) {
        session.figure(name, series::over_time(title, note, y, self.lines(of)));
    }

    /// Returns the cell of a table with the estimate of a scheme's value.
    pub fn cell(&self, scheme: usize, (_, decimals, of): Measure<R>) -> String {
        plus_minus(self.estimate(scheme, of), decimals)
    }

    /// Returns a table with a row for each scheme. `columns` are the heads of the columns behind the scheme's
    /// name, and `cells` returns the cells in them.
    pub fn table(
        &self,
        title: &str,
        columns: &[&str],
        cells: impl Fn(usize) -> Vec<String>,
    ) -> Table {
        let schemes = self.schemes.iter().enumerate();
        let rows = schemes.map(|(n, (name, _))| [vec![(*name).to_owned()], cells(n)].concat());
        Table::new(title, &[&["scheme"], columns].concat(), rows.collect())
    }
}

/// Returns a value of each setting, with the name of the setting.
pub(super) fn in_each<R, V>(
    settings: &[Compared<R>],
    value: impl Fn(&Compared<R>) -> V,
) -> Vec<(&str, V)> {
    let settings = settings.iter();
    settings
        .map(|compared| (&*compared.setting, value(compared)))
        .collect()
}

/// Returns a bar chart with a group for each setting and a bar for each scheme.
pub(super) fn bars<R>(
    title: &str,
    note: &str,
    y: &str,
    settings: &[Compared<R>],
    of: fn(&R) -> f64,
) -> Figure {
    let groups: Vec<&str> = settings.iter().map(|s| &*s.setting).collect();
    let schemes = settings.first().map_or(&[][..], |s| &s.schemes);
    let schemes = schemes.iter().enumerate();
    // A bar's place follows from its group, so its x does not matter.
    let series = schemes.map(|(n, (name, _))| {
        let bars = settings.iter().map(|s| s.point(0.0, n, of));
        (*name, bars.collect())
    });
    series::bars(title, note, y, (&groups, series.collect()))
}

/// Values of a run over time.
#[derive(Debug, Default)]
pub(super) struct Timed {
    pub by_second: BySecond,
    pub values: Vec<f64>,
}

impl Timed {
    /// Returns the mean of all values; NaN if there is none.
    pub fn mean(&self) -> f64 {
        stats::mean(&self.values).unwrap_or(f64::NAN)
    }

    /// Returns the 95th percentile of all values; NaN if there is none.
    pub fn p95(&self) -> f64 {
        stats::quantile_of(&self.values, 0.95)
    }
}

/// Collects values, each with its time in seconds.
impl FromIterator<(f64, f64)> for Timed {
    fn from_iter<I: IntoIterator<Item = (f64, f64)>>(timed: I) -> Self {
        let mut all = Timed::default();
        for (at, value) in timed {
            all.by_second.add(at, value);
            all.values.push(value);
        }
        all
    }
}

/// Returns the packets that arrived, each with the time of its arrival, in order of sending. Packets
/// without new data are left out: copies and spurious retransmissions delay nothing.
pub(super) fn arrived(trace: &SessionTrace) -> impl Iterator<Item = (f64, &Packet)> {
    let fresh = trace.packets.iter().filter(|p| p.fresh > 0);
    fresh.filter_map(|packet| Some((packet.arrived?, packet)))
}

/// Returns the time from sending to arrival, ms.
pub(super) fn delay_ms((arrived, packet): (f64, &Packet)) -> f64 {
    (arrived - packet.sent) * 1e3
}
