//! Faults of a link while a user behind a box downloads, uploads and exchanges short messages.

mod catalogue;
mod users;

use std::iter;
use std::time::Duration;

use braid_proxy::config::DEFAULT_CONGESTION;
use braid_testbed::fixture;
use serde_json::json;

use self::catalogue::{Fault, LINKS, PATHS};
use self::users::UserObservations;
use super::outcome::Table;
use super::series::{bars, estimate, values};
use super::session::Session;
use super::verdict::{Bound, Verdict};
use crate::backend::gateways::Gateways;
use crate::backend::{Backend, Error, run_error};
use crate::case::ReceivedBytes;
use crate::plot::{Figure, Point};
use crate::stats;

/// Time before the fault. The full rate is measured over the second half, when slow start has ended.
const BEFORE_FAULT: Duration = Duration::from_secs(8);
/// Observed time after the fault: the 2 s that the claim allows until the full rate, the second over which
/// the rate is measured, and a reserve.
const AFTER_FAULT: Duration = Duration::from_secs(6);
const SECOND: Duration = Duration::from_secs(1);
/// Maximum time from the start of a fault until the rate is the rate of the second link alone.
const RECOVERY_TIME: Duration = Duration::from_secs(2);
const DIRECTIONS: [&str; 2] = ["download", "upload"];

/// The measurement of one fault. Arrays have a value for each of [`DIRECTIONS`].
#[derive(Debug, Default)]
struct FaultRun {
    /// Name of the fault; empty if this is the measurement of the second link alone.
    name: &'static str,
    /// See [`Fault::total`].
    total: bool,
    /// The end of the observation.
    end: Duration,
    /// The rate before the fault, Mb/s.
    full_rate: [f64; 2],
    /// The rate during the fault, Mb/s. The first [`RECOVERY_TIME`] of the fault does not count.
    rate: [f64; 2],
    /// The longest time without a byte after the first second of the fault, s.
    silence: [f64; 2],
    /// The time from the end of the fault to the first byte, s; NaN if no byte came.
    first_byte: [f64; 2],
    /// The time from the end of the fault to the start of the first second with 90 % of the full rate, s;
    /// NaN if there is no such second.
    recovery: [f64; 2],
    seen: UserObservations,
}

impl FaultRun {
    /// Evaluates the observation of a fault that ended at `until`.
    fn new(fault: &Fault, until: Duration, seen: UserObservations) -> FaultRun {
        let seconds = |time: Option<Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64());
        let [from, end] = [BEFORE_FAULT + RECOVERY_TIME, until + AFTER_FAULT];
        let bulk = seen.bulk.each_ref();
        let full_rate = bulk.map(|bulk| bulk.mbit_s(BEFORE_FAULT / 2, BEFORE_FAULT / 2));
        FaultRun {
            name: fault.name,
            total: fault.total,
            end,
            full_rate,
            rate: bulk.map(|bulk| bulk.mbit_s(from, until - from)),
            silence: bulk.map(|bulk| silence(bulk, BEFORE_FAULT + SECOND, end).as_secs_f64()),
            first_byte: bulk.map(|bulk| seconds(bulk.next_after(until).map(|time| time - until))),
            recovery: [0, 1].map(|n| seconds(bulk[n].time_to_rate(0.9 * full_rate[n], until))),
            seen,
        }
    }

    /// Returns the quantile `q` of the times from word to echo, ms.
    fn echo(&self, q: f64) -> f64 {
        let times = values(&self.seen.echoes, |(_, took)| took.as_secs_f64() * 1e3);
        stats::quantile_of(&times, q)
    }
}

/// Returns the longest time without a byte between `from` and `until`.
fn silence(arrivals: &ReceivedBytes, from: Duration, until: Duration) -> Duration {
    let next = |at: &Duration| arrivals.next_after(*at).filter(|next| *next < until);
    let times = iter::successors(Some(from), next).chain([until]);
    let times: Vec<Duration> = times.collect();
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_default()
}

/// Returns the number of cases.
pub fn cases(_: Backend) -> usize {
    1 + catalogue::all().len()
}

/// Measures each fault of the catalogue.
pub fn measure(session: &mut Session<'_>) -> Result<(), Error> {
    let faults = catalogue::all();
    // Each round measures the second link alone, then every fault once.
    let round = 1 + faults.len() as u64;
    let runs = session.each(session.runs() * round, |index, _| {
        let fault = (index % round).checked_sub(1);
        observe(fault.map(|n| &faults[n as usize]))
    })?;
    let (alone, fault_runs): (Vec<_>, Vec<_>) =
        runs.into_iter().partition(|run| run.name.is_empty());
    let alone = [0, 1].map(|direction| estimate(&values(&alone, |run| run.rate[direction])).0);
    let rates = format!("{:.1} and {:.1} Mb/s", alone[0], alone[1]);
    session.parameter("second link alone", rates);
    session.parameter("congestion control", DEFAULT_CONGESTION.name());
    for fault in &faults {
        let of_fault = fault_runs.iter().filter(|run| run.name == fault.name);
        let runs: Vec<_> = of_fault.map(record).collect();
        let name = fault.name.replace(", ", "-").replace([' ', '%', '/'], "-");
        session.record(name, json!({ "runs": runs }));
    }
    judge(session, &fault_runs, alone);
    session.table(table(&fault_runs));
    session.figure("rates", figure(&fault_runs, alone));
    Ok(())
}

/// Observes the users before, during and after a fault, or over the second link alone. Every observation has a
/// network of its own, because observations are concurrent.
fn observe(fault: Option<&Fault>) -> Result<FaultRun, Error> {
    let mut net = Gateways::build(|name| fixture::description(name, PATHS), None, 1)?;
    net.start_server("server")?;
    net.start_box()?;
    let Some(fault) = fault else {
        net.ask(&["link", LINKS[0], "off"])?;
        let seen = net.retry_while_late(|net| users::observe(net, 2 * BEFORE_FAULT, |_| Ok(())))?;
        let bulk = seen.bulk.each_ref();
        return Ok(FaultRun {
            rate: bulk.map(|bulk| bulk.mbit_s(BEFORE_FAULT, BEFORE_FAULT)),
            ..FaultRun::default()
        });
    };
    let until = BEFORE_FAULT + fault.duration();
    let seen = net.retry_while_late(|net| {
        users::observe(net, until + AFTER_FAULT, |net| {
            net.fixture.sleep(BEFORE_FAULT).map_err(run_error)?;
            fault.apply(&mut net.fixture)
        })
    })?;
    Ok(FaultRun::new(fault, until, seen))
}

fn record(run: &FaultRun) -> serde_json::Value {
    let [down, up] = run.seen.bulk.each_ref().map(|bulk| {
        let seconds = 0..run.end.as_secs() as u32;
        let rates = seconds.map(|n| bulk.mbit_s(SECOND * n, SECOND));
        rates.collect::<Vec<_>>()
    });
    let seconds = |(at, took): &(Duration, Duration)| [at, took].map(Duration::as_secs_f64);
    let echoes: Vec<_> = run.seen.echoes.iter().map(seconds).collect();
    json!({ "down_mbit_s": down, "up_mbit_s": up, "echoes_s": echoes, "failures": run.seen.failures })
}

fn judge(session: &mut Session<'_>, fault_runs: &[FaultRun], alone: [f64; 2]) {
    let all: Vec<&FaultRun> = fault_runs.iter().collect();
    let (total, partial): (Vec<_>, Vec<_>) = all.iter().partition(|run| run.total);
    let mut judge =
        |claim: &str, bound, unit, runs: &[&FaultRun], value: &dyn Fn(&FaultRun) -> f64| {
            let values = runs.iter().map(|run| (run.name, value(run)));
            session.verdict(Verdict::new(claim, bound, unit, values));
        };
    let failures = |run: &FaultRun| run.seen.failures.len() as f64;
    let claim = "connections that ended or had a wrong byte";
    judge(claim, Bound::AtMost(0.0), "", &all, &failures);
    for (n, name) in DIRECTIONS.into_iter().enumerate() {
        let silence = |run: &FaultRun| run.silence[n];
        let share = |run: &FaultRun| run.rate[n] / alone[n] * 100.0;
        let recovery = |run: &FaultRun| run.recovery[n];
        let first_byte = |run: &FaultRun| run.first_byte[n];
        let claim = format!("{name}: longest silence after the first second of a fault");
        judge(&claim, Bound::Below(1.0), "s", &partial, &silence);
        let claim = format!("{name}: during a fault, of what the second link gives alone");
        judge(&claim, Bound::AtLeast(90.0), "%", &partial, &share);
        let claim = format!("{name}: after a fault, time to 90 % of the full rate");
        judge(&claim, Bound::AtMost(2.0), "s", &partial, &recovery);
        let claim = format!("{name}: both links dark, from their return to the first byte");
        judge(&claim, Bound::AtMost(1.0), "s", &total, &first_byte);
    }
    let echo = |run: &FaultRun| run.echo(0.99);
    let claim = "99th percentile of the echo";
    judge(claim, Bound::AtMost(600.0), "ms", &partial, &echo);
}

fn table(fault_runs: &[FaultRun]) -> Table {
    let both =
        |[down, up]: [f64; 2], decimals: usize| format!("{down:.decimals$} + {up:.decimals$}");
    let row = |run: &FaultRun| {
        vec![
            run.name.to_owned(),
            both(run.full_rate, 1),
            both(run.rate, 1),
            both(run.silence, 2),
            both(run.recovery, 2),
            format!("{:.0}, {:.0}", run.echo(0.5), run.echo(0.99)),
        ]
    };
    let columns = [
        "fault of the first link",
        "before, Mb/s down + up",
        "during",
        "silence, s",
        "full rate again after, s",
        "echo, ms: median, 99 %",
    ];
    Table::new("Each fault", &columns, fault_runs.iter().map(row).collect())
}

fn figure(fault_runs: &[FaultRun], alone: [f64; 2]) -> Figure {
    let groups: Vec<&str> = fault_runs.iter().map(|run| run.name).collect();
    let series = [0, 1].map(|n| {
        let share = |run: &FaultRun| Point::new(0.0, run.rate[n] / alone[n]);
        (DIRECTIONS[n], fault_runs.iter().map(share).collect())
    });
    bars(
        "Goodput from the third second of a fault on",
        "1 is what the second link gives alone; the first link has the fault",
        "share",
        (&groups, series.into()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a flow of 1000 bytes every 5 ms for 24 s, without the bytes during `pause`, ms. The fault begins at
    /// 8 s, so the observed time is from 9 s to 24 s.
    #[test]
    fn silence_counts_from_the_second_second_of_a_fault_on() {
        let silence_with = |pause: std::ops::Range<u64>| {
            let mut arrivals = ReceivedBytes::default();
            let times = (0..24_000).step_by(5).filter(|ms| !pause.contains(ms));
            for (ms, n) in times.zip(1..) {
                arrivals.record(Duration::from_millis(ms), 1000 * n);
            }
            silence(&arrivals, BEFORE_FAULT + SECOND, BEFORE_FAULT * 3).as_millis()
        };
        assert!(silence_with(8_100..8_900) < 50);
        let across = silence_with(8_100..9_700);
        assert!((681..720).contains(&across), "{across} ms");
        // A silence that lasts to the end counts.
        assert!(silence_with(20_000..30_000) >= 4_000);
    }
}
