//! Faults of a link while a user behind a box downloads, uploads and exchanges short messages.

mod catalogue;
mod users;

use std::time::Duration;

use braid_proxy::config::DEFAULT_CONGESTION;
use braid_testbed::fixture;
use serde_json::json;

use self::catalogue::{Fault, LINKS, PATHS};
use self::users::UserObservations;
use super::definition::Definition;
use super::outcome::Table;
use super::series::{bars, quantile};
use super::session::Session;
use super::verdict::{Bound, Verdict};
use crate::backend::gateways::Gateways;
use crate::backend::{Backend, Error};
use crate::case::ReceivedBytes;
use crate::plot::{Figure, Point};
use crate::stats;

/// Common faults of networks. Each run has one of them.
pub const FAULTS: Definition = Definition {
    id: "faults",
    title: "Faults of a link, while a download, an upload and a dialogue go on",
    source: "beyond the papers",
    setup: "A user behind a box with two links, 20 Mb/s, 30 ms and 10 Mb/s, 70 ms, queues of one \
            bandwidth-delay product: a download, an upload and ten words a second that are echoed, \
            all at once, by kernel sockets. After 8 s a fault of the first link lasts 10 s (both \
            links dark: 20 s); 6 s later all ends.",
    reported: "",
    must_hold: "No connection ends and no byte is wrong; after the first second of a fault never a \
                second without a byte; from the third on at least 90 % of what the second link gives \
                alone; 90 % of the full rate within 2 s after the fault; 99 % of echoes within \
                600 ms. Where both links are dark: bytes within 1 s of their return.",
    backends: &[Backend::Links],
    cases: |_| 1 + catalogue::all().len(),
    runs: (0, 1),
    measure,
};

/// Time before the fault. The full rate is measured over the second half, when slow start has ended.
const BEFORE_FAULT: Duration = Duration::from_secs(8);
/// Observed time after the fault: the 2 s that the claim allows until the full rate, the second over which
/// the rate is measured, and a reserve.
const AFTER_FAULT: Duration = Duration::from_secs(6);
const SECOND: Duration = Duration::from_secs(1);
/// Maximum time from the start of a fault until the rate is the rate of the second link alone.
const RECOVERY_TIME: Duration = Duration::from_secs(2);
/// Step of the search for times without a byte. It is also the error of their lengths.
const GAP_RESOLUTION: Duration = Duration::from_millis(10);
const DIRECTIONS: [&str; 2] = ["download", "upload"];

/// The measurement of one fault.
#[derive(Debug)]
struct FaultRun {
    name: &'static str,
    /// See [`Fault::total`].
    total: bool,
    /// The end of the fault, from the start of the observation.
    until: Duration,
    seen: UserObservations,
}

impl FaultRun {
    /// Returns the rate before the fault, Mb/s.
    fn full_rate(&self, direction: usize) -> f64 {
        self.seen.bulk[direction].mbit_s(BEFORE_FAULT / 2, BEFORE_FAULT / 2)
    }

    /// Returns the rate during the fault, Mb/s. The first [`RECOVERY_TIME`] of the fault does not count.
    fn rate_during_fault(&self, direction: usize) -> f64 {
        let from = BEFORE_FAULT + RECOVERY_TIME;
        self.seen.bulk[direction].mbit_s(from, self.until - from)
    }

    /// Returns the longest time without a byte after the first second of the fault, s.
    fn longest_silence(&self, direction: usize) -> f64 {
        let end = self.until + AFTER_FAULT;
        silence(&self.seen.bulk[direction], BEFORE_FAULT + SECOND, end).as_secs_f64()
    }

    /// Returns the time from the end of the fault to the first byte, s; NaN if no byte came.
    fn time_to_first_byte(&self, direction: usize) -> f64 {
        let next = self.seen.bulk[direction].next_after(self.until);
        next.map_or(f64::NAN, |time| (time - self.until).as_secs_f64())
    }

    /// Returns the time from the end of the fault to the start of the first second with 90 % of the full
    /// rate, s; NaN if there is no such second.
    fn recovery_time(&self, direction: usize) -> f64 {
        let rate = 0.9 * self.full_rate(direction);
        let recovered = self.seen.bulk[direction].time_to_rate(rate, self.until);
        recovered.map_or(f64::NAN, |time| time.as_secs_f64())
    }

    /// Returns the quantile `q` of the times from word to echo, ms.
    fn echo(&self, q: f64) -> f64 {
        let ms = |(_, took): &(Duration, Duration)| took.as_secs_f64() * 1e3;
        quantile(self.seen.echoes.iter().map(ms).collect(), q)
    }
}

/// Returns the longest time without a byte between `from` and `until`.
fn silence(arrivals: &ReceivedBytes, from: Duration, until: Duration) -> Duration {
    let (mut longest, mut since, mut at) = (Duration::ZERO, from, from);
    while at < until {
        let next = at + GAP_RESOLUTION;
        if arrivals.at(next) > arrivals.at(at) {
            since = next;
        }
        longest = longest.max(next - since);
        at = next;
    }
    longest
}

fn measure(session: &mut Session<'_>) -> Result<(), Error> {
    let faults = catalogue::all();
    // Each round measures the second link alone, then every fault once.
    let round = 1 + faults.len() as u64;
    let fault_runs = session.each(session.runs() * round, |index, _| {
        match (index % round).checked_sub(1) {
            None => second_link_alone().map(|rates| (Some(rates), None)),
            Some(n) => run_fault(&faults[n as usize]).map(|run| (None, Some(run))),
        }
    })?;
    let (alone, fault_runs): (Vec<_>, Vec<_>) = fault_runs.into_iter().unzip();
    let alone: Vec<[f64; 2]> = alone.into_iter().flatten().collect();
    let fault_runs: Vec<FaultRun> = fault_runs.into_iter().flatten().collect();
    let alone = [0, 1].map(|direction| {
        let rates: Vec<f64> = alone.iter().map(|rates| rates[direction]).collect();
        stats::mean(&rates).unwrap_or(f64::NAN)
    });
    session.parameter(
        "second link alone",
        format!("{:.1} and {:.1} Mb/s", alone[0], alone[1]),
    );
    session.parameter("congestion control", DEFAULT_CONGESTION.name());
    for fault in &faults {
        let of = fault_runs.iter().filter(|run| run.name == fault.name);
        let runs: Vec<_> = of.map(record).collect();
        let name = fault.name.replace(", ", "-").replace([' ', '%', '/'], "-");
        session.record(name, json!({ "runs": runs }));
    }
    for verdict in verdicts(&fault_runs, alone) {
        session.verdict(verdict);
    }
    session.table(table(&fault_runs));
    session.figure("rates", figure(&fault_runs, alone));
    Ok(())
}

/// Builds the network and starts server and box. Every run has a network of its own, because runs are
/// concurrent.
fn network() -> Result<Gateways, Error> {
    let mut net = Gateways::build(|name| fixture::description(name, PATHS), None, 1)?;
    net.start_server("server")?;
    net.start_box()?;
    Ok(net)
}

/// Measures the rate of the second link alone, download and upload, Mb/s.
fn second_link_alone() -> Result<[f64; 2], Error> {
    let mut net = network()?;
    net.ask(&["link", LINKS[0], "off"])?;
    let seen = net.retry_while_late(|net| users::observe(net, 2 * BEFORE_FAULT, |_| Ok(())))?;
    Ok(seen
        .bulk
        .map(|bulk| bulk.mbit_s(BEFORE_FAULT, BEFORE_FAULT)))
}

/// Observes the users before, during and after a fault.
fn run_fault(fault: &Fault) -> Result<FaultRun, Error> {
    let mut net = network()?;
    let until = BEFORE_FAULT + fault.duration();
    let seen = net.retry_while_late(|net| {
        users::observe(net, until + AFTER_FAULT, |net| {
            net.fixture
                .sleep(BEFORE_FAULT)
                .map_err(crate::backend::run_error)?;
            fault.apply(&mut net.fixture)
        })
    })?;
    Ok(FaultRun {
        name: fault.name,
        total: fault.total,
        until,
        seen,
    })
}

fn record(run: &FaultRun) -> serde_json::Value {
    let by_second = |bulk: &ReceivedBytes| {
        let seconds = (run.until + AFTER_FAULT).as_secs() as u32;
        let rate = |n| bulk.mbit_s(SECOND * n, SECOND);
        (0..seconds).map(rate).collect::<Vec<_>>()
    };
    let [down, up] = [0, 1].map(|direction| by_second(&run.seen.bulk[direction]));
    let echoes = run.seen.echoes.iter();
    let echoes: Vec<_> = echoes
        .map(|(at, took)| [at, took].map(Duration::as_secs_f64))
        .collect();
    json!({ "down_mbit_s": down, "up_mbit_s": up, "echoes_s": echoes, "failures": run.seen.failures })
}

fn verdicts(fault_runs: &[FaultRun], alone: [f64; 2]) -> Vec<Verdict> {
    let partial = || fault_runs.iter().filter(|run| !run.total);
    let labelled = |value: fn(&FaultRun, usize) -> f64, direction: usize| {
        move |run: &FaultRun| (run.name, value(run, direction))
    };
    let mut verdicts = vec![Verdict::new(
        "connections that ended or had a wrong byte",
        Bound::AtMost(0.0),
        "",
        fault_runs
            .iter()
            .map(|run| (run.name, run.seen.failures.len() as f64)),
    )];
    for (direction, name) in DIRECTIONS.into_iter().enumerate() {
        verdicts.extend([
            Verdict::new(
                format!("{name}: longest silence after the first second of a fault"),
                Bound::Below(1.0),
                "s",
                partial().map(labelled(FaultRun::longest_silence, direction)),
            ),
            Verdict::new(
                format!("{name}: during a fault, of what the second link gives alone"),
                Bound::AtLeast(90.0),
                "%",
                partial().map(|run| {
                    let share = run.rate_during_fault(direction) / alone[direction];
                    (run.name, share * 100.0)
                }),
            ),
            Verdict::new(
                format!("{name}: after a fault, time to 90 % of the full rate"),
                Bound::AtMost(2.0),
                "s",
                partial().map(labelled(FaultRun::recovery_time, direction)),
            ),
            Verdict::new(
                format!("{name}: both links dark, from their return to the first byte"),
                Bound::AtMost(1.0),
                "s",
                fault_runs
                    .iter()
                    .filter(|run| run.total)
                    .map(labelled(FaultRun::time_to_first_byte, direction)),
            ),
        ]);
    }
    verdicts.push(Verdict::new(
        "99th percentile of the echo",
        Bound::AtMost(600.0),
        "ms",
        partial().map(|run| (run.name, run.echo(0.99))),
    ));
    verdicts
}

fn table(fault_runs: &[FaultRun]) -> Table {
    let columns = [
        "fault of the first link",
        "before, Mb/s down + up",
        "during",
        "silence, s",
        "full rate again after, s",
        "echo, ms: median, 99 %",
    ];
    let both = |value: &dyn Fn(usize) -> f64, decimals: usize| {
        format!("{:.decimals$} + {:.decimals$}", value(0), value(1))
    };
    let row = |run: &FaultRun| {
        vec![
            run.name.to_owned(),
            both(&|direction| run.full_rate(direction), 1),
            both(&|direction| run.rate_during_fault(direction), 1),
            both(&|direction| run.longest_silence(direction), 2),
            both(&|direction| run.recovery_time(direction), 2),
            format!("{:.0}, {:.0}", run.echo(0.5), run.echo(0.99)),
        ]
    };
    Table::new("Each fault", &columns, fault_runs.iter().map(row).collect())
}

fn figure(fault_runs: &[FaultRun], alone: [f64; 2]) -> Figure {
    let groups: Vec<&str> = fault_runs.iter().map(|run| run.name).collect();
    let shares = |direction: usize| {
        let share =
            |run: &FaultRun| Point::new(0.0, run.rate_during_fault(direction) / alone[direction]);
        fault_runs.iter().map(share).collect()
    };
    bars(
        "Goodput from the third second of a fault on",
        "1 is what the second link gives alone; the first link has the fault",
        "share",
        (
            &groups,
            vec![(DIRECTIONS[0], shares(0)), (DIRECTIONS[1], shares(1))],
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a flow of 1000 bytes every 5 ms for `total` ms, without the bytes during `pause`, ms.
    fn arrivals(pause: (u64, u64), total: u64) -> ReceivedBytes {
        let mut arrivals = ReceivedBytes::default();
        let mut bytes = 0;
        for ms in (0..total)
            .step_by(5)
            .filter(|ms| *ms < pause.0 || *ms >= pause.1)
        {
            bytes += 1000;
            arrivals.record(Duration::from_millis(ms), bytes);
        }
        arrivals
    }

    #[test]
    fn silence_counts_from_the_second_second_of_a_fault_on() {
        // The fault begins at 8 s, so the observed time is from 9 s to 24 s.
        let silence_with = |pause| {
            silence(
                &arrivals(pause, 24_000),
                BEFORE_FAULT + SECOND,
                BEFORE_FAULT * 3,
            )
        };
        assert!(silence_with((8_100, 8_900)) < Duration::from_millis(50));
        let across = silence_with((8_100, 9_700));
        assert!(
            across.abs_diff(Duration::from_millis(700)) < Duration::from_millis(20),
            "{across:?}"
        );
        assert!(
            silence_with((20_000, 30_000)) >= Duration::from_secs(4),
            "a silence that lasts to the end counts"
        );
    }
}
