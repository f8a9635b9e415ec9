//! The experiments of MPTCP-MAPS, a scheduler that sends on the path of the better quality. In them a host
//! walks away from its WiFi, comes back, and walks away again.

use std::ops::Range;
use std::time::Duration;

use braid_engine::PathId;
use braid_links::{Change, Schedule, Settings};
use braid_sim::mobility;
use braid_sim::traffic::Role;
use braid_sim::transfer::{PathSettings, client_addr, external_addr};
use serde_json::{Value, json};

use super::entry;
use super::schemes::{CC, Compared, Measure, Scheme, Timed, arrived, bars, delay_ms, scenario};
use super::series::{estimate, over_time, plus_minus};
use super::session::{Session, SharedRuns};
use super::verdict::Estimate;
use crate::backend::{Backend, Error};
use crate::plot::{Mark, Point, Series};
use crate::session_trace::{Packet, SAMPLE_INTERVAL, SessionTrace};
use crate::stats;

/// The compared schemes, each with its number of paths: the baseline, both forms of MAPS, further
/// strategies, and the kernel's MPTCP. Functions below refer to a scheme by its index. The kernel's MPTCP
/// is the last scheme, because the simulator must leave it out. The kernel has its own scheduler, so
/// nothing reads the strategy of that scheme.
const SCHEMES: [Scheme<usize>; 6] = [
    ("stays on WiFi", "minrtt", 1),
    ("maps:single", "maps:single", 2),
    ("maps", "maps", 2),
    ("minrtt", "minrtt", 2),
    ("adaptive", "adaptive", 2),
    (LINUX, "minrtt", 2),
];
const LINUX: &str = "Linux MPTCP";
/// Indices in [`SCHEMES`] of the two forms of MAPS.
const FORMS: [usize; 2] = [1, 2];
/// Indices in [`SCHEMES`] of the schemes of maps-5.
pub const MOVES: Range<usize> = 1..5;
/// Start of the time in which MAPS must be ahead of the baseline. Until 20 s WiFi is the better path, so
/// MAPS has nothing to gain. The other 5 s are a guess.
const LEAD_FROM: Duration = Duration::from_secs(25);

/// Returns the number of cases of the experiments on the walk.
pub fn walk_cases(backend: Backend) -> usize {
    schemes(backend).len()
}

fn schemes(backend: Backend) -> &'static [Scheme<usize>] {
    match backend.is_virtual() {
        true => &SCHEMES[..5],
        false => &SCHEMES,
    }
}

/// The figures of one run that the experiments use.
#[derive(Debug)]
struct Run {
    /// Rate at the reader by second, Mbit/s.
    rate: Timed,
    /// Delays of packets, ms, by the second in which a packet was sent. Only packets that brought new data
    /// count.
    delays: Timed,
    /// Mean rate at the reader over the whole time, Mbit/s.
    mean_rate: f64,
    /// Times at which new data left the WiFi, came back and left again, s.
    switches: [f64; 3],
    /// Bytes acknowledged to the server, at each sample.
    acked: Vec<u64>,
    /// Number of the seconds in which the reader received nothing.
    empty: usize,
    /// A sample of the packets for the figures, taken from the first run only.
    packets: Vec<Packet>,
    /// True if the client read every byte up to the end of the stream.
    complete: bool,
    /// Seconds from the return of the WiFi in maps-5 to an established subflow over it; `None` if there was
    /// none.
    reopened: Option<f64>,
}

/// Step between the packets that figures show: one packet of every 40. More dots would cover each other. 40
/// is a guess.
const SHOWN_PACKET_STEP: usize = 40;
/// Number of samples in a second.
const SAMPLES_PER_SECOND: usize = (1000 / SAMPLE_INTERVAL.as_millis()) as usize;

impl Run {
    /// Evaluates the first `span` of a trace. `first` is true for the first run, whose packets the figures
    /// show. `second_path` is the path of the address that the host gets at the return of the WiFi.
    fn new(trace: &SessionTrace, first: bool, span: Duration, second_path: PathId) -> Self {
        let samples = span.as_secs() as usize * SAMPLES_PER_SECOND;
        let samples = &trace.read[..samples.min(trace.read.len())];
        let mut before = 0;
        let seconds = samples.chunks_exact(SAMPLES_PER_SECOND).map(|second| {
            let total = second[SAMPLES_PER_SECOND - 1];
            total - std::mem::replace(&mut before, total)
        });
        let seconds: Vec<u64> = seconds.collect();
        let rates = seconds.iter().map(|bytes| *bytes as f64 * 8e-6);
        let delays = arrived(trace).map(|(at, p)| (p.sent, delay_ms((at, p))));
        let shown = trace.packets.iter().step_by(SHOWN_PACKET_STEP);
        let mut since_return = trace.subflows.iter().skip(MOVE_SAMPLE);
        let reopened = since_return.position(|paths| paths & 1 << second_path.0 != 0);
        Run {
            rate: (0..).map(f64::from).zip(rates).collect(),
            delays: delays.collect(),
            mean_rate: seconds.iter().sum::<u64>() as f64 * 8e-6 / seconds.len().max(1) as f64,
            switches: switch_times(&trace.packets),
            acked: trace.acked.clone(),
            empty: seconds.iter().filter(|bytes| **bytes == 0).count(),
            packets: shown.filter(|_| first).copied().collect(),
            complete: trace.has_ended(),
            reopened: reopened.map(|samples| SAMPLE_INTERVAL.as_secs_f64() * (samples + 1) as f64),
        }
    }

    /// Returns the megabytes that were acknowledged at a time.
    fn acked_mb(&self, seconds: usize) -> f64 {
        // Sample 0 is taken one interval after the start.
        let acked = self.acked.get(seconds * SAMPLES_PER_SECOND - 1);
        acked.map_or(f64::NAN, |bytes| *bytes as f64 / 1e6)
    }
}

/// Estimates the times at which new data left the first path, came back and left again.
///
/// A single packet on another path is no switch. Each switch is therefore estimated as a best fit within
/// the interval around one crossing of the path qualities. The best fit is the time T with the largest sum
/// of the bytes sent on the old path before T and on the new path after T. Two intervals meet in the middle
/// between their crossings.
fn switch_times(packets: &[Packet]) -> [f64; 3] {
    let [leaves, returns, leaves_again] = mobility::CROSSINGS.map(|at| at.as_secs_f64());
    let middles = [(leaves + returns) / 2.0, (returns + leaves_again) / 2.0];
    let ends = [0.0, middles[0], middles[1], mobility::SPAN.as_secs_f64()];
    [0, 1, 2].map(|n| {
        let leaves = n != 1;
        let interval = ends[n]..ends[n + 1];
        // If the switch is assumed one packet later, the fit gains the bytes of that packet if it is on the
        // old path, and loses them if it is on the new path. `score` is the sum of gains and losses since
        // the start of the interval.
        let mut best = (0i64, ends[n]);
        let mut score = 0i64;
        let is_counted = |p: &&Packet| p.new && interval.contains(&p.sent);
        for packet in packets.iter().filter(is_counted) {
            let on_old_path = (packet.path == 0) == leaves;
            score += if on_old_path { 1 } else { -1 } * packet.len as i64;
            if score > best.0 {
                best = (score, packet.sent);
            }
        }
        best.1
    })
}

/// Runs that the experiments share.
static RUNS: SharedRuns<Run> = SharedRuns::new();

/// Makes the runs of each scheme, or takes them from [`RUNS`], and records them. `wifi` are the changes of
/// the WiFi. With `moves`, the host gets another address at [`WIFI_BACK_AT`].
fn compare(
    session: &mut Session<'_>,
    schemes: &[Scheme<usize>],
    (span, moves): (Duration, bool),
    wifi: &Schedule,
    record: fn(&Run) -> Value,
) -> Result<Compared<Run>, Error> {
    session.parameter("congestion control", CC);
    let setting = format!("{} s", span.as_secs());
    let runs = |session: &Session<'_>, &(name, strategy, paths): &Scheme<usize>| {
        let key = (format!("{name}, {} s", span.as_secs()), session.runs());
        let links = [mobility::wifi(), mobility::cellular()].map(PathSettings::both);
        let sends = Role::Greedy { span };
        let mut scenario = scenario(strategy, links[..paths].to_vec(), sends, span)?;
        scenario.first = wifi.clone();
        if moves {
            scenario.moves = Some(MOVE_SAMPLE);
            scenario.span += MOVE_DRAIN;
        }
        let backend = session.backend();
        let run = |index, seed| {
            let trace = match name {
                LINUX => scenario.run_on(Backend::Kernel, seed),
                _ => scenario.run_on(backend, seed),
            };
            Ok(Run::new(&trace?, index == 0, span, scenario.second_path()))
        };
        Ok((file_name(name), RUNS.runs(session, key, run)?))
    };
    Compared::measure(session, setting, schemes, runs, record)
}

/// Returns the runs of the walk with every scheme.
fn walks(session: &mut Session<'_>) -> Result<Compared<Run>, Error> {
    let schemes = schemes(session.backend());
    let walk = (mobility::SPAN, false);
    let all = compare(session, schemes, walk, &mobility::wifi_schedule(), |run| {
        json!({
            "throughput_mbit": run.mean_rate,
            "delay_mean_ms": run.delays.mean(),
            "delay_p95_ms": run.delays.p95(),
            "switches_s": run.switches,
            "seconds_without_a_byte": run.empty,
            "acked": run.acked.last(),
        })
    })?;
    session.parameter("access of the generators", "100 Mb/s, 25 ms");
    session.parameter("baseline", "one subflow, over WiFi, whatever its quality");
    Ok(all)
}

/// Returns `name` as part of a file name: all characters except ASCII letters and digits become `-`.
fn file_name(name: &str) -> String {
    name.replace(|c: char| !c.is_ascii_alphanumeric(), "-")
}

/// Judges the claims of the session's experiment by the values of each form of MAPS; only these two schemes are
/// judged. The name of a verdict's setting ends with `suffix`.
fn judge_forms<E: Into<Estimate>, const N: usize>(
    session: &mut Session<'_>,
    all: &Compared<Run>,
    suffix: &str,
    values: impl Fn(usize) -> [E; N],
) {
    let schemes = all.schemes.iter().enumerate();
    for (n, (name, _)) in schemes.filter(|(_, (name, _))| name.starts_with("maps")) {
        let values = values(n).map(|value| vec![("", value)]);
        let verdicts = entry::judge(session.id(), values);
        let setting = format!("{name}{suffix}");
        session.verdicts(verdicts.map(|verdict| verdict.with(&setting)));
    }
}

fn note(session: &Session<'_>) -> String {
    let runs = session.runs();
    format!("{CC}; means over {runs} runs; the paths are alike at 20, 60 and 75 s")
}

/// Measures when `maps:single` moves from path to path.
pub fn switches(session: &mut Session<'_>) -> Result<(), Error> {
    let all = walks(session)?;
    let single = FORMS[0];
    let [leaves, returns, leaves_again] = [0, 1, 2].map(|n| {
        let crossing = mobility::CROSSINGS[n].as_secs_f64();
        let times = all.values(single, |run| run.switches[n] - crossing);
        vec![("", estimate(&times).into())]
    });
    let empty = |n| all.values(n, |run| run.empty as f64).iter().sum::<f64>();
    let without_bytes = vec![("", Estimate::from(empty(single)))];
    let values = [leaves, returns, leaves_again, without_bytes];
    session.verdicts(entry::judge("maps-2a", values));
    session.table(all.table(
        "When new data moves from path to path, s (mean ± 95 % interval; earliest to latest run), and \
         seconds of all runs without a byte",
        &[
            "leaves WiFi",
            "comes back",
            "leaves again",
            "seconds without a byte",
        ],
        |n| {
            // The other schemes send on both paths at once or never switch, so the estimated times mean
            // nothing for them.
            let times = [0, 1, 2].map(|time| match n == single {
                true => {
                    let times = all.values(n, |run| run.switches[time]);
                    let mean = plus_minus(estimate(&times), 1);
                    let [first, last] = [0.0, 1.0].map(|q| stats::quantile_of(&times, q));
                    format!("{mean}; {first:.1} to {last:.1}")
                }
                false => String::new(),
            });
            [&times[..], &[format!("{:.0}", empty(n))]].concat()
        },
    ));
    let title = "Throughput while the host leaves the WiFi, comes back and leaves again";
    let texts = [title, &note(session), "throughput (Mb/s)"];
    all.plot(session, "throughput", texts, |run| &run.rate.by_second);
    Ok(())
}

/// Measures the gain in throughput over staying on WiFi.
pub fn throughput(session: &mut Session<'_>) -> Result<(), Error> {
    let all = walks(session)?;
    let rate: Measure<Run> = ("throughput", 2, |run| run.mean_rate);
    let gain = |n| all.gain(n, rate.2);
    judge_forms(session, &all, "", |n| [gain(n)]);
    session.table(all.table(
        "Throughput over 120 s, Mb/s: mean ± 95 % interval",
        &["throughput", "against staying"],
        |n| {
            let gain = match n {
                0 => String::new(),
                n => format!("{:+.0} ± {:.0} %", gain(n).0, gain(n).1),
            };
            vec![all.cell(n, rate), gain]
        },
    ));
    let title = "Mean throughput over the whole walk";
    let figure = bars(title, &note(session), "throughput (Mb/s)", &[all], rate.2);
    session.figure("throughput", figure);
    Ok(())
}

const DELAYS: [Measure<Run>; 2] = [
    ("mean delay of all packets", 1, |run| run.delays.mean()),
    ("95th percentile of delay", 1, |run| run.delays.p95()),
];

/// Measures the delay of packets.
pub fn delay(session: &mut Session<'_>) -> Result<(), Error> {
    let mut all = walks(session)?;
    // The kernel's packets are not observed.
    all.schemes.retain(|(name, _)| *name != LINUX);
    let seconds = |n| all.by_second(n, |run| &run.delays.by_second);
    // A second in which a scheme sent nothing has no delay (NaN).
    let mean = |mut seconds: Vec<f64>| {
        seconds.retain(|ms| ms.is_finite());
        stats::mean(&seconds).unwrap_or(f64::NAN)
    };
    // The seconds in which both schemes send.
    let pairs = |n| {
        let pairs = seconds(n).into_iter().zip(seconds(0));
        let both = pairs.filter(|(own, staying)| own.is_finite() && staying.is_finite());
        both.collect::<(Vec<f64>, Vec<f64>)>()
    };
    judge_forms(session, &all, ", by second", |n| {
        let (own, staying) = pairs(n);
        let p95 = |seconds| stats::quantile_of(seconds, 0.95);
        [
            estimate(&own).0 - estimate(&staying).0,
            p95(&own) - p95(&staying),
        ]
    });
    judge_forms(session, &all, ", by packet", |n| {
        DELAYS.map(|(.., of)| all.difference(n, of))
    });
    session.table(all.table(
        "Delay of packets that brought something new, from sending to arrival, ms: mean ± 95 % \
         interval of the runs' means and 95th percentiles",
        &[
            "mean of seconds",
            "mean of packets",
            "95th percentile of packets",
        ],
        |n| {
            let seconds = format!("{:.1}", mean(seconds(n)));
            let [mean, p95] = DELAYS.map(|of| all.cell(n, of));
            vec![seconds, mean, p95]
        },
    ));
    let title = "Delay of packets while the host leaves the WiFi, comes back and leaves again";
    let texts = [title, &note(session), "mean delay (ms)"];
    all.plot(session, "delay", texts, |run| &run.delays.by_second);
    Ok(())
}

const ACKED: [Measure<Run>; 3] = [
    ("25 s", 1, |run| run.acked_mb(25)),
    ("60 s", 1, |run| run.acked_mb(60)),
    ("120 s", 1, |run| run.acked_mb(120)),
];

/// Measures the progress of the data sequence numbers.
pub fn sequence(session: &mut Session<'_>) -> Result<(), Error> {
    let all = walks(session)?;
    // Sample 0 is taken one interval after the start.
    let from = LEAD_FROM.as_secs() as usize * SAMPLES_PER_SECOND - 1;
    let behind = |n: usize| {
        let runs = all.schemes[n].1.iter().zip(&*all.schemes[0].1);
        let runs = runs.map(|(ours, stays)| {
            let pairs = ours.acked.iter().zip(&stays.acked).skip(from);
            pairs.filter(|(ours, stays)| ours < stays).count()
        });
        runs.sum::<usize>() as f64
    };
    judge_forms(session, &all, "", |n| [behind(n)]);
    session.table(all.table(
        "Acknowledged at these times, MB: mean ± 95 % interval",
        &ACKED.map(|(time, ..)| time),
        |n| ACKED.map(|of| all.cell(n, of)).into(),
    ));
    figures_of_packets(session, &all);
    Ok(())
}

/// Adds figures of the packets' data sequence numbers against time.
fn figures_of_packets(session: &mut Session<'_>, all: &Compared<Run>) {
    let dots = |n: usize, name: &str, time: &dyn Fn(&Packet) -> Option<f64>| {
        let packets = all.schemes[n].1.first().map_or(&[][..], |run| &run.packets);
        let point = |p: &Packet| Some(Point::new(time(p)?, p.dsn as f64 / 1e6));
        Series {
            name: name.to_owned(),
            points: packets.iter().filter_map(point).collect(),
            mark: Mark::Dots,
        }
    };
    let mut add = |name: &str, title: &str, dots| {
        let title = format!("Data sequence numbers {title}");
        let note = format!("{CC}; the first run; one packet in {SHOWN_PACKET_STEP}");
        let figure = over_time(&title, &note, "data sequence number (MB)", dots);
        session.figure(name, figure);
    };
    // The baseline, both forms of MAPS, and `adaptive`: more schemes would hide each other.
    let by_scheme = |time: fn(&Packet) -> Option<f64>| {
        let series = [0, 1, 2, 4].map(|n| dots(n, all.schemes[n].0, &time));
        series.to_vec()
    };
    let [arrived, sent] = [by_scheme(|p| p.arrived), by_scheme(|p| Some(p.sent))];
    add("arrived-by-scheme", "by the time they arrive", arrived);
    add("sent-by-scheme", "by the time they are sent", sent);
    for n in FORMS {
        let by_path = [(0, "WiFi"), (1, "cellular")]
            .map(|(path, name)| dots(n, name, &|p| p.arrived.filter(|_| p.path == path)));
        let name = all.schemes[n].0;
        add(
            &format!("{}-by-path", file_name(name)),
            &format!("of {name} by the time they arrive, and on which path"),
            by_path.to_vec(),
        );
    }
}

/// Time for which the server of maps-5 sends.
const MOVE_SPAN: Duration = Duration::from_secs(60);
/// Time after [`MOVE_SPAN`] in which the rest of the download must arrive. A guess: a download that has
/// not ended by then counts as cut short.
const MOVE_DRAIN: Duration = Duration::from_secs(10);
/// The time at which the WiFi vanishes.
const WIFI_LOST_AT: Duration = Duration::from_secs(20);
/// The time at which the WiFi is back.
const WIFI_BACK_AT: Duration = Duration::from_secs(40);
/// Index of the sample after which the host has its new address.
const MOVE_SAMPLE: usize = (WIFI_BACK_AT.as_millis() / SAMPLE_INTERVAL.as_millis()) as usize;

/// Measures a WiFi that vanishes and comes back under another address.
pub fn moves(session: &mut Session<'_>) -> Result<(), Error> {
    let schemes = &SCHEMES[MOVES];
    let all = compare(session, schemes, (MOVE_SPAN, true), &outage(), |run| {
        json!({
            "whole": run.complete,
            "seconds_without_a_byte": run.empty,
            "reopened_s": run.reopened,
        })
    })?;
    let addresses = format!("{}, then {}", client_addr(0), external_addr(0));
    session.parameter("addresses", addresses);
    let sum = |n, of: fn(&Run) -> f64| all.values(n, of).iter().sum::<f64>();
    let columns = |n: usize| {
        // NaN if any run has no new subflow, so that the claim does not hold.
        let mut waits = all.schemes[n].1.iter().map(|run| run.reopened);
        let latest = waits.try_fold(0.0, |a: f64, b| Some(a.max(b?)));
        [
            sum(n, |run| f64::from(u8::from(!run.complete))),
            sum(n, |run| run.empty as f64),
            latest.unwrap_or(f64::NAN),
        ]
    };
    judge_forms(session, &all, "", columns);
    session.table(all.table(
        "Of all runs",
        &[
            "runs cut short",
            "seconds without a byte",
            "subflow over the new address after, s",
        ],
        // A value that is a whole number, such as a count, is shown without a decimal.
        |n| {
            columns(n)
                .map(|value| format!("{value:.1}").replace(".0", ""))
                .into()
        },
    ));
    let note = format!("{CC}; means over {} runs", session.runs());
    let title = "Throughput while the WiFi is gone from 20 to 40 s";
    let texts = [title, &note, "throughput (Mb/s)"];
    all.plot(session, "throughput", texts, |run| &run.rate.by_second);
    Ok(())
}

/// Returns the schedule of a WiFi that carries nothing from [`WIFI_LOST_AT`] to [`WIFI_BACK_AT`], while
/// the host's interface stays up.
fn outage() -> Schedule {
    let change = |at, up| Change {
        at,
        settings: Settings {
            up,
            ..mobility::wifi()
        },
    };
    Schedule::new([change(WIFI_LOST_AT, false), change(WIFI_BACK_AT, true)])
}
