//! Failover: a path drops every packet for a while, although its interface stays up.

use std::time::Duration;

use serde_json::json;

use super::outcome::Table;
use super::series::{estimate, over_time, values};
use super::session::Session;
use super::sweep::{self, LINUX, Sweep, Variant};
use super::verdict::{Bound, Verdict};
use crate::backend::{Backend, Error};
use crate::case::{Case, Outage, ReceivedBytes, RunResult, millis};
use crate::plot::{Point, Series};

/// Paths with queues of one bandwidth-delay product in packets of 1500 bytes: 20 Mb/s · 40 ms is 67
/// packets, and 10 Mb/s · 60 ms is 50.
const PATHS: &str = "20mbit,40ms,0%,67;10mbit,60ms,0%,50";
/// The flow's size. At the full rate of 30 Mb/s the flow takes 18 s. The outage makes it slower, so the flow lasts
/// beyond the end of the outage.
const SIZES: &[&str] = &["64M"];
/// Start of the outage. It is late enough for the rate to have been steady for [`RATE_WINDOW`].
const OUTAGE_FROM: Duration = Duration::from_secs(8);
/// End of the outage.
const OUTAGE_UNTIL: Duration = Duration::from_secs(18);
/// Time before the outage over which the full rate is measured.
const RATE_WINDOW: Duration = Duration::from_secs(4);
/// Time over which a point of the figures averages.
const BIN_WIDTH: Duration = Duration::from_millis(250);
/// The names of the paths.
const NAMES: [&str; 2] = ["20 Mb/s", "10 Mb/s"];

/// Returns the number of cases.
pub fn cases(backend: Backend) -> usize {
    2 * variants(backend).len()
}

fn variants(backend: Backend) -> Vec<Variant> {
    let mut variants = vec![Variant::strategy("adaptive"), Variant::strategy("minrtt")];
    variants.extend((!backend.is_virtual()).then_some(LINUX));
    variants
}

/// Returns the downloads during which `path` fails.
fn outage_sweep(path: usize, backend: Backend) -> Result<Sweep, Error> {
    let outage = Outage {
        path,
        from: OUTAGE_FROM,
        until: OUTAGE_UNTIL,
    };
    Ok(Sweep {
        name: format!("dark{path}"),
        sizes: SIZES,
        case: Case {
            outage: Some(outage),
            ..sweep::case(PATHS)?
        },
        variants: variants(backend),
    })
}

/// Measures the pause and the recovery of a download while either of two paths fails for ten seconds.
pub fn measure(session: &mut Session<'_>) -> Result<(), Error> {
    let mut rows = Vec::new();
    for (path, dark) in NAMES.into_iter().enumerate() {
        let sweep = outage_sweep(path, session.backend())?;
        let swept = sweep.run(session)?;
        let mut series = Vec::new();
        for (name, runs) in &swept.variants {
            // The sweep has one size.
            let runs: Vec<RunResult> = runs[0].iter().cloned().collect();
            let of_each = |value: fn(&RunResult) -> f64| values(&runs, value);
            let [pauses, rtos, recovery] = [pause, timeout, recovery_time].map(of_each);
            let [pause, rto, rate, recovered] =
                [&pauses, &rtos, &of_each(full_rate), &recovery].map(|values| estimate(values).0);
            rows.push(vec![
                dark.to_owned(),
                (*name).to_owned(),
                format!("{pause:.0}"),
                shown(rto, 0),
                format!("{rate:.1}"),
                shown(recovered, 2),
            ]);
            series.push(goodput(name, &runs[0].arrivals));
            // The kernel is shown for comparison. It does not report the timeout that the claim needs.
            if *name == LINUX.name {
                continue;
            }
            let in_timeouts = pauses.iter().zip(&rtos).map(|(pause, rto)| pause / rto);
            let in_timeouts: Vec<f64> = in_timeouts.collect();
            let back = "after its return, time to 90 % of the full rate";
            // The bounds are those of `must_hold` in experiments.toml.
            for (claim, max, unit, values) in [
                ("longest pause", 2.0, "timeouts of the path", in_timeouts),
                (back, 1.0, "s", recovery),
            ] {
                let claim = format!("{name}, {dark} path dark: {claim}");
                let runs = values.into_iter().enumerate();
                let runs = runs.map(|(n, value)| (format!("run {n}"), value));
                session.verdict(Verdict::new(claim, Bound::AtMost(max), unit, runs));
            }
        }
        let points = |s: &Series| s.points.iter().map(|p| (p.x, p.y)).collect::<Vec<_>>();
        let record = |s: &Series| json!({ "way": s.name, "mbit_s": points(s) });
        let name = format!("goodput-{}", sweep.name);
        session.record(name.clone(), series.iter().map(record).collect());
        let title = format!("Goodput while the {dark} path is dark from 8 to 18 s");
        let width = BIN_WIDTH.as_millis();
        let note = format!("{PATHS}; CUBIC; the first run, over {width} ms each");
        let figure = over_time(&title, &note, "bytes in order (Mb/s)", series);
        session.figure(&name, figure);
    }
    let columns = [
        "dark",
        "",
        "longest pause, ms",
        "timeout before, ms",
        "rate before, Mb/s",
        "full rate again after, s",
    ];
    session.table(Table::new("Means over all runs", &columns, rows));
    Ok(())
}

/// Returns the retransmission timeout that the failing path had before the outage, ms; NaN if the sender
/// does not report it.
fn timeout(run: &RunResult) -> f64 {
    match run.outage_rto.is_zero() {
        true => f64::NAN,
        false => run.outage_rto.as_secs_f64() * 1e3,
    }
}

/// Formats a value, or a dash if there is none.
fn shown(value: f64, decimals: usize) -> String {
    match value.is_finite() {
        true => format!("{value:.decimals$}"),
        false => "-".to_owned(),
    }
}

/// Returns the longest pause of the bytes in order during the outage, ms.
fn pause(run: &RunResult) -> f64 {
    millis(run.arrivals.longest_gap(OUTAGE_FROM, OUTAGE_UNTIL))
}

/// Returns the time from the end of the outage until the rate is 90 % of the full rate, s; NaN if the rate
/// stays lower.
fn recovery_time(run: &RunResult) -> f64 {
    let recovered = run
        .arrivals
        .time_to_rate(0.9 * full_rate(run), OUTAGE_UNTIL);
    recovered.map_or(f64::NAN, |time| time.as_secs_f64())
}

/// Returns the rate before the outage, Mb/s.
fn full_rate(run: &RunResult) -> f64 {
    run.arrivals.mbit_s(OUTAGE_FROM - RATE_WINDOW, RATE_WINDOW)
}

/// Returns the goodput over time. The line ends when bytes stop arriving, but not before the end of the
/// outage. During the outage a flow may pause without having ended.
fn goodput(name: &str, arrivals: &ReceivedBytes) -> Series {
    let bins = (0..).map(|n| BIN_WIDTH * n);
    let bins =
        bins.take_while(|at| arrivals.at(*at + BIN_WIDTH) > arrivals.at(*at) || *at < OUTAGE_UNTIL);
    let points = bins.map(|at| {
        let middle = at + BIN_WIDTH / 2;
        Point::new(middle.as_secs_f64(), arrivals.mbit_s(at, BIN_WIDTH))
    });
    Series::line(name, points)
}
