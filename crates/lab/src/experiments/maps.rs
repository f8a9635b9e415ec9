//! The experiments of MPTCP-MAPS, a scheduler that sends on the path of the better quality. In them a host
//! walks away from its WiFi, comes back, and walks away again.

use std::sync::Arc;
use std::time::Duration;

use braid_engine::{Config, PathId};
use braid_links::{Change, Schedule, Settings};
use braid_sim::background::Background;
use braid_sim::mobility;
use braid_sim::traffic::Role;
use braid_sim::transfer::{PathSettings, client_addr, external_addr};
use serde_json::json;

use super::definition::Definition;
use super::outcome::Table;
use super::series::{
    BySecond, by_second, estimate, gains, over_time, plus_minus, quantile, values,
};
use super::session::{Session, SharedRuns};
use super::verdict::{Bound, Verdict};
use crate::backend::{Backend, Error};
use crate::plot::{Mark, Point, Series};
use crate::session_trace::{Packet, SAMPLE_INTERVAL, SessionScenario, SessionTrace};
use crate::stats;

// The paper gives the rates, the queues, the times of the walk, and ranges of delay and loss (10 to 20
// ms, 1 to 2 %). The exact quality at each time is a choice of this lab; see `braid_sim::mobility`.
const SETUP: &str = "WiFi as the host walks (11 Mb/s, 20 ms, 1 % at its best; 0.5 Mb/s, 200 ms, 20 % \
    at its worst) and cellular of 10 Mb/s, 40 ms, 2 %; queues of 50 packets; on each path four \
    generators of TCP and one of UDP, 448 kb/s each; greedy download of 120 s";
const SOURCE_BASELINE: &str = "stays on WiFi";

/// The times at which `maps:single` moves from path to path.
pub const MAPS_2A: Definition = Definition {
    id: "maps-2a",
    title: "Throughput over time, one path at a time",
    source: "MPTCP-MAPS, figure 2(a)",
    setup: SETUP,
    reported: "Switches to 4G near 20 s, back near 60 s, away near 75 s.",
    must_hold: "Each switch of maps:single within 5 s of the crossing of the two path qualities; no \
                second without a byte.",
    backends: &[Backend::Sim, Backend::Links],
    cases: |backend| schemes(backend).len(),
    runs: (30, 3),
    measure: switches,
};

/// The gain in throughput over staying on WiFi.
pub const MAPS_2B: Definition = Definition {
    id: "maps-2b",
    title: "Mean throughput over 120 s",
    source: "MPTCP-MAPS, figure 2(b)",
    reported: "58 % more than by staying on WiFi.",
    must_hold: "At least 58 % more in both forms.",
    measure: throughput,
    ..MAPS_2A
};

/// The delay of packets.
pub const MAPS_3: Definition = Definition {
    id: "maps-3",
    title: "Delay of packets over time",
    source: "MPTCP-MAPS, figure 3",
    reported: "Lower than by staying on WiFi.",
    must_hold: "Lower mean and lower 95th percentile, in both forms.",
    measure: delay,
    ..MAPS_2A
};

/// The progress of the data sequence numbers.
pub const MAPS_4: Definition = Definition {
    id: "maps-4",
    title: "Data sequence numbers against the time of sending and of arrival",
    source: "MPTCP-MAPS, figure 4",
    reported: "The same numbers are sent and arrive earlier.",
    must_hold: "From 25 s on, what is acknowledged is never less than by staying on WiFi, in both \
                forms.",
    measure: sequence,
    ..MAPS_2A
};

/// A WiFi that vanishes and comes back under another address.
pub const MAPS_5: Definition = Definition {
    id: "maps-5",
    title: "The WiFi vanishes at 20 s and is back at 40 s under another address",
    source: "beyond the paper",
    setup: "WiFi of 11 Mb/s, 20 ms, 1 % and cellular of 10 Mb/s, 40 ms, 2 %, else as maps-2a; a \
            greedy download of 60 s. At 20 s the WiFi carries nothing any more, which nobody tells \
            the host (over links others neither); at 40 s the host has another address there, and the \
            old one is gone.",
    reported: "",
    must_hold: "No byte is lost, no second passes without delivery, and a subflow over the new \
                address opens by itself.",
    backends: &[Backend::Sim, Backend::Links],
    cases: |_| MOVES.len(),
    runs: (30, 3),
    measure: moves,
};

/// A strategy, and the number of paths that it has.
struct Scheme {
    name: &'static str,
    strategy: &'static str,
    paths: usize,
}

const fn scheme(strategy: &'static str) -> Scheme {
    Scheme {
        name: strategy,
        strategy,
        paths: 2,
    }
}

/// The compared schemes: the baseline, both forms of MAPS, further strategies, and the kernel's MPTCP.
/// Functions below refer to a scheme by its index. The kernel's MPTCP is the last scheme, because the
/// simulator must leave it out.
const SCHEMES: [Scheme; 6] = [
    Scheme {
        name: SOURCE_BASELINE,
        strategy: "minrtt",
        paths: 1,
    },
    scheme("maps:single"),
    scheme("maps"),
    scheme("minrtt"),
    scheme("adaptive"),
    // `walks` runs the kernel's MPTCP for the scheme of this name. The kernel has its own scheduler, so
    // nothing reads the field `strategy`.
    Scheme {
        name: LINUX,
        strategy: "minrtt",
        paths: 2,
    },
];
const LINUX: &str = "Linux MPTCP";
/// Indices in [`SCHEMES`] of the two forms of MAPS. Only these two are judged.
const FORMS: [usize; 2] = [1, 2];
/// The strategies of maps-5; the two forms of MAPS come first.
const MOVES: [&str; 4] = ["maps:single", "maps", "minrtt", "adaptive"];
const CC: &str = "cubic";
/// Gain in throughput that the paper reports for MAPS over staying on WiFi, %.
const REPORTED_GAIN_PERCENT: f64 = 58.0;
/// Maximum time between a switch and the moment at which both paths have the same quality, s. A choice of
/// this lab: the paper says only that MAPS switches "near" 20, 60 and 75 s.
const MAX_SWITCH_OFFSET_S: f64 = 5.0;
/// Start of the time in which MAPS must be ahead of the baseline. Until 20 s WiFi is the better path, so
/// MAPS has nothing to gain. The other 5 s are a guess.
const LEAD_FROM: Duration = Duration::from_secs(25);

fn schemes(backend: Backend) -> &'static [Scheme] {
    match backend.is_virtual() {
        true => &SCHEMES[..5],
        false => &SCHEMES,
    }
}

fn scenario(
    scheme: &Scheme,
    first: Schedule,
    span: Duration,
) -> Result<SessionScenario<'_>, Error> {
    let paths = [mobility::wifi(), mobility::cellular()].map(PathSettings::both);
    Ok(SessionScenario {
        strategy: scheme.strategy,
        engine: Config {
            congestion: CC.parse().map_err(Error::Usage)?,
            ..Config::default()
        },
        paths: paths[..scheme.paths].to_vec(),
        first,
        background: Some(Background::published(span)),
        sends: Role::Greedy { span },
        span,
        moves: None,
    })
}

/// The figures of one run that the experiments use.
struct Walk {
    /// Rate at the reader by second, Mbit/s.
    rate: BySecond,
    /// Mean rate at the reader over all 120 s, Mbit/s.
    mean_rate: f64,
    /// Delays of packets, ms, by the second in which a packet was sent. Only packets that brought new data
    /// count.
    delays: BySecond,
    mean_delay: f64,
    p95_delay: f64,
    /// Times at which new data left the WiFi, came back and left again, s.
    switches: [f64; 3],
    /// Bytes acknowledged to the server, at each sample.
    acked: Vec<u64>,
    /// Numbers of the seconds in which the reader received nothing.
    empty: Vec<usize>,
    /// A sample of the packets for the figures, taken from the first run only.
    packets: Vec<Packet>,
}

/// Step between the packets that figures show: one packet of every 40. More dots would cover each other. 40
/// is a guess.
const SHOWN_PACKET_STEP: usize = 40;

impl Walk {
    /// Evaluates a trace. `first` is true for the first run, whose packets the figures show.
    fn new(trace: &SessionTrace, first: bool) -> Self {
        let mut rate = BySecond::default();
        let read = seconds_of(&trace.read);
        for (second, bytes) in read.iter().enumerate() {
            rate.add(second as f64, *bytes as f64 * 8e-6);
        }
        let mut by_second = BySecond::default();
        let fresh = trace.packets.iter().filter(|p| p.fresh > 0);
        let delays: Vec<f64> = fresh
            .filter_map(|p| {
                let delay = (p.arrived? - p.sent) * 1e3;
                by_second.add(p.sent, delay);
                Some(delay)
            })
            .collect();
        let shown = trace
            .packets
            .iter()
            .step_by(SHOWN_PACKET_STEP)
            .filter(|_| first);
        Walk {
            rate,
            mean_rate: read.iter().sum::<u64>() as f64 * 8e-6 / read.len().max(1) as f64,
            delays: by_second,
            mean_delay: stats::mean(&delays).unwrap_or(f64::NAN),
            p95_delay: quantile(delays, 0.95),
            switches: switch_times(&trace.packets),
            acked: trace.acked.clone(),
            empty: empty_seconds(&read),
            packets: shown.copied().collect(),
        }
    }
}

/// Returns the bytes read in each second. `read` is the total at each [`SAMPLE_INTERVAL`].
fn seconds_of(read: &[u64]) -> Vec<u64> {
    let samples = (1.0 / SAMPLE_INTERVAL.as_secs_f64()).round() as usize;
    let ends: Vec<u64> = read
        .iter()
        .skip(samples - 1)
        .step_by(samples)
        .copied()
        .collect();
    let starts = std::iter::once(0).chain(ends.iter().copied());
    ends.iter()
        .zip(starts)
        .map(|(end, start)| end - start)
        .collect()
}

/// Returns the numbers of the seconds without a byte.
fn empty_seconds(read: &[u64]) -> Vec<usize> {
    let seconds = read.iter().enumerate();
    seconds
        .filter(|(_, bytes)| **bytes == 0)
        .map(|(second, _)| second)
        .collect()
}

/// Estimates the times at which new data left the first path, came back and left again.
///
/// A single packet on another path is no switch. Each switch is therefore estimated as a best fit within
/// the interval around one crossing of the path qualities. The best fit is the time T with the largest sum
/// of the bytes sent on the old path before T and on the new path after T. Two intervals meet in the middle
/// between their crossings.
fn switch_times(packets: &[Packet]) -> [f64; 3] {
    let ends = [0, 1, 2, 3].map(|n| match n {
        0 => 0.0,
        3 => mobility::SPAN.as_secs_f64(),
        n => {
            let [a, b] = [n - 1, n].map(|n| mobility::CROSSINGS[n].as_secs_f64());
            (a + b) / 2.0
        }
    });
    [0, 1, 2].map(|n| {
        let leaves = n != 1;
        let mut in_interval: Vec<&Packet> = packets
            .iter()
            .filter(|p| p.new && (ends[n]..ends[n + 1]).contains(&p.sent))
            .collect();
        in_interval.sort_by(|a, b| a.sent.total_cmp(&b.sent));
        // If the switch is assumed one packet later, the fit gains the bytes of that packet if it is on the
        // old path, and loses them if it is on the new path. `score` is the sum of gains and losses since
        // the start of the interval.
        let mut best = (0i64, ends[n]);
        let mut score = 0i64;
        for packet in in_interval {
            let on_old_path = (packet.path == 0) == leaves;
            score += if on_old_path { 1 } else { -1 } * packet.len as i64;
            if score > best.0 {
                best = (score, packet.sent);
            }
        }
        best.1
    })
}

/// All runs of one scheme.
type Walks = Arc<Vec<Walk>>;

/// Runs that the four experiments on the walk share.
static WALKS: SharedRuns<Walk> = SharedRuns::new();

/// Returns the runs of every scheme, in the order of [`SCHEMES`].
fn walks(session: &mut Session<'_>) -> Result<Vec<Walks>, Error> {
    session.parameter("congestion control", CC);
    session.parameter("access of the generators", "100 Mb/s, 25 ms");
    session.parameter("baseline", "one subflow, over WiFi, whatever its quality");
    let mut all = Vec::new();
    for scheme in schemes(session.backend()) {
        let scenario = scenario(scheme, mobility::wifi_schedule(), mobility::SPAN)?;
        let which = (scheme.name.to_owned(), session.runs());
        let backend = session.backend();
        let run = |index, seed| {
            let trace = match scheme.name {
                LINUX => scenario.run_by_kernel(seed),
                _ => scenario.run_on(backend, seed),
            };
            Ok(Walk::new(&trace?, index == 0))
        };
        let runs = WALKS.runs(session, which, run)?;
        let record: Vec<_> = runs.iter().map(record).collect();
        session.record(file_name(scheme.name), json!({ "runs": record }));
        all.push(runs);
    }
    Ok(all)
}

fn record(walk: &Walk) -> serde_json::Value {
    json!({
        "throughput_mbit": walk.mean_rate,
        "delay_mean_ms": walk.mean_delay,
        "delay_p95_ms": walk.p95_delay,
        "switches_s": walk.switches,
        "seconds_without_a_byte": walk.empty.len(),
        "acked": walk.acked.last(),
    })
}

/// Returns `name` as part of a file name: all characters except ASCII letters and digits become `-`.
fn file_name(name: &str) -> String {
    let replaced = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    name.chars().map(replaced).collect()
}

fn note(session: &Session<'_>) -> String {
    format!(
        "{CC}; means over {} runs; the paths are alike at 20, 60 and 75 s",
        session.runs()
    )
}

/// Returns a line for each scheme: the mean of all runs in each second. A scheme without values gets no
/// line, such as the kernel, whose packets are not observed.
fn lines(all: &[Walks], of: impl Fn(&Walk) -> &BySecond) -> Vec<Series> {
    let each = SCHEMES.iter().zip(all);
    each.map(|(scheme, runs)| by_second(scheme.name, &BySecond::means(runs.iter().map(&of))))
        .filter(|line| !line.points.is_empty())
        .collect()
}

fn switches(session: &mut Session<'_>) -> Result<(), Error> {
    let all = walks(session)?;
    let single = &all[FORMS[0]];
    for (n, crossing) in mobility::CROSSINGS.iter().enumerate() {
        let crossing = crossing.as_secs_f64();
        let times = values(single, |walk| walk.switches[n] - crossing);
        // The quantiles 0 and 1 are the extremes; NaN stands for the mean.
        let summary = [
            ("earliest run", 0.0),
            ("mean", f64::NAN),
            ("latest run", 1.0),
        ];
        let summary = summary.map(|(name, q)| match q.is_nan() {
            true => (name, estimate(&times).0),
            false => (name, quantile(times.clone(), q)),
        });
        let what = ["leaves WiFi", "comes back to WiFi", "leaves WiFi again"][n];
        let claim = format!("maps:single {what}, after the paths are alike at {crossing} s");
        let bound = Bound::Within(-MAX_SWITCH_OFFSET_S, MAX_SWITCH_OFFSET_S);
        session.verdict(
            Verdict::new(claim, bound, "s", summary).reported(&format!("near {crossing} s")),
        );
    }
    let empty = single.iter().flat_map(|walk| &walk.empty);
    let claim = "seconds without a byte, of all runs of maps:single";
    let count = [("", empty.clone().count() as f64)];
    session.verdict(Verdict::new(claim, Bound::AtMost(0.0), "", count));
    let rows = SCHEMES.iter().zip(&all).map(|(scheme, runs)| {
        let empty = values(runs, |walk| walk.empty.len() as f64);
        let time = |n: usize| plus_minus(estimate(&values(runs, |walk| walk.switches[n])), 1);
        // The other schemes send on both paths at once or never switch, so the estimated times mean nothing
        // for them.
        let times = match scheme.name {
            "maps:single" => [0, 1, 2].map(time),
            _ => [(); 3].map(|()| String::new()),
        };
        let empty = format!("{:.0}", empty.iter().sum::<f64>());
        [&[scheme.name.to_owned()], &times[..], &[empty]].concat()
    });
    session.table(Table::new(
        "When new data moves from path to path, s (mean ± 95 % interval), and seconds of all runs \
         without a byte",
        &[
            "scheme",
            "leaves WiFi",
            "comes back",
            "leaves again",
            "seconds without a byte",
        ],
        rows.collect(),
    ));
    let note = note(session);
    let title = "Throughput while the host leaves the WiFi, comes back and leaves again";
    let lines = lines(&all, |walk| &walk.rate);
    session.figure(
        "throughput",
        over_time(title, &note, "throughput (Mb/s)", lines),
    );
    Ok(())
}

fn throughput(session: &mut Session<'_>) -> Result<(), Error> {
    let all = walks(session)?;
    let rates: Vec<_> = all
        .iter()
        .map(|runs| values(runs, |w| w.mean_rate))
        .collect();
    let gain_of = |n: usize| estimate(&gains(&rates[n], &rates[0]));
    session.verdict(
        Verdict::new(
            "throughput above that of staying on WiFi",
            Bound::AtLeast(REPORTED_GAIN_PERCENT),
            "%",
            FORMS.map(|n| (SCHEMES[n].name, gain_of(n).0)),
        )
        .reported("58 %"),
    );
    let rows = SCHEMES.iter().take(all.len()).enumerate();
    let rows = rows.map(|(n, scheme)| {
        let gain = match n {
            0 => String::new(),
            n => format!("{:+.0} ± {:.0} %", gain_of(n).0, gain_of(n).1),
        };
        vec![
            scheme.name.to_owned(),
            plus_minus(estimate(&rates[n]), 2),
            gain,
        ]
    });
    session.table(Table::new(
        "Throughput over 120 s, Mb/s: mean ± 95 % interval",
        &["scheme", "throughput", "against staying"],
        rows.collect(),
    ));
    let bars = SCHEMES.iter().zip(&rates).map(|(scheme, rates)| {
        let (mean, half) = estimate(rates);
        (scheme.name, vec![Point::with_error(0.0, mean, half)])
    });
    let note = note(session);
    session.figure(
        "throughput",
        super::series::bars(
            "Mean throughput over the whole walk",
            &note,
            "throughput (Mb/s)",
            (&["120 s"], bars.collect()),
        ),
    );
    Ok(())
}

fn delay(session: &mut Session<'_>) -> Result<(), Error> {
    let all = walks(session)?;
    let delays_of = |n: usize| {
        [
            values(&all[n], |walk| walk.mean_delay),
            values(&all[n], |walk| walk.p95_delay),
        ]
    };
    let seconds = |n: usize| BySecond::means(all[n].iter().map(|walk| &walk.delays));
    let mean_difference = |n: usize| {
        let (own, staying) = (seconds(n), seconds(0));
        let differences = own.iter().zip(&staying).map(|(own, staying)| own - staying);
        // A second in which a scheme sent nothing has no delay (NaN).
        let differences: Vec<f64> = differences.filter(|ms| ms.is_finite()).collect();
        stats::mean(&differences).unwrap_or(f64::NAN)
    };
    let values = FORMS.map(|n| (SCHEMES[n].name, mean_difference(n)));
    let claim = "mean delay of the seconds in which both send, less that of staying on WiFi";
    session.verdict(Verdict::new(claim, Bound::Below(0.0), "ms", values).reported("lower"));
    let names = ["mean delay of all packets", "95th percentile of delay"];
    for (what, name) in names.iter().enumerate() {
        let difference =
            |n: usize| estimate(&delays_of(n)[what]).0 - estimate(&delays_of(0)[what]).0;
        let values = FORMS.map(|n| (SCHEMES[n].name, difference(n)));
        let claim = format!("{name}, less that of staying on WiFi");
        let verdict = Verdict::new(claim, Bound::Below(0.0), "ms", values);
        session.verdict(verdict.reported("lower").unless(
            "by staying, most packets are sent while the WiFi is near, and few while it is slow",
        ));
    }
    // The kernel's packets are not observed. Its mean is then `None`, which leaves its row out.
    let schemes = SCHEMES.iter().take(all.len()).enumerate();
    let rows = schemes.filter_map(|(n, scheme)| {
        let seconds: Vec<f64> = seconds(n).into_iter().filter(|s| s.is_finite()).collect();
        let seconds = format!("{:.1}", stats::mean(&seconds)?);
        let [mean, p95] = delays_of(n).map(|sample| plus_minus(estimate(&sample), 1));
        Some(vec![scheme.name.to_owned(), seconds, mean, p95])
    });
    session.table(Table::new(
        "Delay of packets that brought something new, from sending to arrival, ms: mean ± 95 % \
         interval of the runs' means and 95th percentiles",
        &[
            "scheme",
            "mean of seconds",
            "mean of packets",
            "95th percentile of packets",
        ],
        rows.collect(),
    ));
    let note = note(session);
    let lines = lines(&all, |walk| &walk.delays);
    let title = "Delay of packets while the host leaves the WiFi, comes back and leaves again";
    session.figure("delay", over_time(title, &note, "mean delay (ms)", lines));
    Ok(())
}

fn sequence(session: &mut Session<'_>) -> Result<(), Error> {
    let all = walks(session)?;
    // Sample 0 is taken one interval after the start.
    let from = LEAD_FROM.div_duration_f64(SAMPLE_INTERVAL).round() as usize - 1;
    let behind = |n: usize| {
        let runs = all[n].iter().zip(&*all[0]).map(|(ours, stays)| {
            let pairs = ours.acked.iter().zip(&stays.acked).skip(from);
            pairs.filter(|(ours, stays)| ours < stays).count()
        });
        runs.sum::<usize>() as f64
    };
    session.verdict(
        Verdict::new(
            "looks from 25 s on, every 0.1 s, at which less is acknowledged than by staying on WiFi, \
             of all runs",
            Bound::AtMost(0.0),
            "",
            FORMS.map(|n| (SCHEMES[n].name, behind(n))),
        )
        .reported("earlier"),
    );
    let rows = SCHEMES.iter().zip(&all).map(|(scheme, runs)| {
        let at = |seconds: usize| {
            let acked = values(runs, |walk| {
                // Ten samples a second; sample 0 is at 0.1 s.
                walk.acked
                    .get(seconds * 10 - 1)
                    .map_or(f64::NAN, |b| *b as f64 / 1e6)
            });
            plus_minus(estimate(&acked), 1)
        };
        let times = [25, 60, 120].map(at);
        [&[scheme.name.to_owned()], &times[..]].concat()
    });
    session.table(Table::new(
        "Acknowledged at these times, MB: mean ± 95 % interval",
        &["scheme", "25 s", "60 s", "120 s"],
        rows.collect(),
    ));
    figures_of_packets(session, &all);
    Ok(())
}

/// Adds figures of the packets' data sequence numbers against time.
fn figures_of_packets(session: &mut Session<'_>, all: &[Walks]) {
    let note = format!("{CC}; the first run; one packet in {SHOWN_PACKET_STEP}");
    let dots = |name: &str, points: Vec<Point>| Series {
        name: name.to_owned(),
        points,
        mark: Mark::Dots,
    };
    let packets = |n: usize| all[n].first().map_or(&[][..], |walk| &walk.packets);
    let point = |time: f64, p: &Packet| Point::new(time, p.dsn as f64 / 1e6);
    for (what, when_sent) in [("arrived", false), ("sent", true)] {
        let time = |p: &Packet| if when_sent { Some(p.sent) } else { p.arrived };
        // The baseline, both forms of MAPS, and `adaptive`: more schemes would hide each other.
        let by_scheme = [0, 1, 2, 4].map(|n| {
            let points = packets(n).iter().filter_map(|p| Some(point(time(p)?, p)));
            dots(SCHEMES[n].name, points.collect())
        });
        let title = format!(
            "Data sequence numbers by the time they {} ",
            match when_sent {
                true => "are sent",
                false => "arrive",
            }
        );
        let y = "data sequence number (MB)";
        session.figure(
            &format!("{what}-by-scheme"),
            over_time(title.trim_end(), &note, y, by_scheme.into()),
        );
    }
    for n in FORMS {
        let by_path = ["WiFi", "cellular"].iter().enumerate().map(|(path, name)| {
            let here = packets(n).iter().filter(|p| p.path == path);
            let points = here.filter_map(|p| Some(point(p.arrived?, p)));
            dots(name, points.collect())
        });
        let name = SCHEMES[n].name;
        session.figure(
            &format!("{}-by-path", file_name(name)),
            over_time(
                &format!(
                    "Data sequence numbers of {name} by the time they arrive, and on which path"
                ),
                &note,
                "data sequence number (MB)",
                by_path.collect(),
            ),
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
/// Maximum time until a subflow over the new address is established, s. RFC 6298 sets the initial
/// retransmission timeout to 1 s, so the bound allows no lost SYN.
const MAX_REOPEN_S: f64 = 1.0;

/// The figures of one run of maps-5.
struct Move {
    /// True if the client read every byte up to the end of the stream.
    complete: bool,
    /// Numbers of the seconds in which the reader received nothing.
    empty: Vec<usize>,
    /// Seconds from the return of the WiFi to an established subflow over it; `None` if there was none.
    reopened: Option<f64>,
    /// Rate at the reader by second, Mbit/s.
    rate: BySecond,
}

fn moves(session: &mut Session<'_>) -> Result<(), Error> {
    session.parameter("congestion control", CC);
    session.parameter(
        "addresses",
        format!("{}, then {}", client_addr(0), external_addr(0)),
    );
    let (mut rows, mut figure, mut measured) = (Vec::new(), Vec::new(), Vec::new());
    for strategy in MOVES {
        let runs = move_runs(session, strategy)?;
        let cut_short = runs.iter().filter(|run| !run.complete).count();
        let empty: usize = runs.iter().map(|run| run.empty.len()).sum();
        // NaN if any run has no new subflow, so that the claim does not hold.
        let mut waits = runs.iter().map(|run| run.reopened);
        let latest = waits.try_fold(0.0, |a: f64, b| Some(a.max(b?)));
        let latest = latest.unwrap_or(f64::NAN);
        let columns = [cut_short as f64, empty as f64, latest];
        // A value that is a whole number, such as a count, is shown without a decimal.
        let texts = columns.map(|value| format!("{value:.1}").replace(".0", ""));
        rows.push([&[strategy.to_owned()], &texts[..]].concat());
        let rates = runs.iter().map(|run| &run.rate);
        figure.push(by_second(strategy, &BySecond::means(rates)));
        measured.push((strategy, columns));
    }
    let claims = [
        (
            "runs in which not every byte arrived in its place",
            Bound::AtMost(0.0),
            "",
            "",
        ),
        (
            "seconds without delivery, of all runs",
            Bound::AtMost(0.0),
            "",
            "",
        ),
        (
            "time from the return to a subflow over the new address, latest run",
            Bound::AtMost(MAX_REOPEN_S),
            "s",
            "a SYN of the join that is lost is sent again after a second (RFC 6298)",
        ),
    ];
    for (k, (claim, bound, unit, why)) in claims.into_iter().enumerate() {
        // `MOVES` begins with the two forms of MAPS; the other strategies are not judged.
        let forms = measured.iter().take(FORMS.len());
        let values = forms.map(|(strategy, columns)| (strategy, columns[k]));
        session.verdict(Verdict::new(claim, bound, unit, values).unless(why));
    }
    session.table(Table::new(
        "Of all runs",
        &[
            "scheme",
            "runs cut short",
            "seconds without a byte",
            "subflow over the new address after, s",
        ],
        rows,
    ));
    let note = format!("{CC}; means over {} runs", session.runs());
    let title = "Throughput while the WiFi is gone from 20 to 40 s";
    session.figure(
        "throughput",
        over_time(title, &note, "throughput (Mb/s)", figure),
    );
    Ok(())
}

/// Returns the schedule of a WiFi that carries nothing from [`WIFI_LOST_AT`] to [`WIFI_BACK_AT`], while
/// the host's interface stays up.
fn outage_schedule() -> Schedule {
    let change = |at, up| Change {
        at,
        settings: Settings {
            up,
            ..mobility::wifi()
        },
    };
    Schedule::new([change(WIFI_LOST_AT, false), change(WIFI_BACK_AT, true)])
}

/// Makes and records the runs of a strategy.
fn move_runs(session: &mut Session<'_>, strategy: &'static str) -> Result<Vec<Move>, Error> {
    let scheme = scheme(strategy);
    let scenario = SessionScenario {
        span: MOVE_SPAN + MOVE_DRAIN,
        moves: Some(MOVE_SAMPLE),
        ..scenario(&scheme, outage_schedule(), MOVE_SPAN)?
    };
    let backend = session.backend();
    let run = |_, seed| {
        Ok(Move::new(
            &scenario.run_on(backend, seed)?,
            scenario.second_path(),
        ))
    };
    let runs = session.each(session.runs(), run)?;
    let record = runs.iter().map(|r| {
        json!({ "whole": r.complete, "seconds_without_a_byte": r.empty.len(), "reopened_s": r.reopened })
    });
    let record: Vec<_> = record.collect();
    session.record(file_name(strategy), json!({ "runs": record }));
    Ok(runs)
}

impl Move {
    /// Evaluates a trace. `new_path` is the path of the address that the host gets at the return.
    fn new(trace: &SessionTrace, new_path: PathId) -> Self {
        let read = seconds_of(&trace.read);
        let in_span = &read[..MOVE_SPAN.as_secs() as usize];
        let mut rate = BySecond::default();
        for (second, bytes) in in_span.iter().enumerate() {
            rate.add(second as f64, *bytes as f64 * 8e-6);
        }
        let mut since_return = trace.subflows.iter().skip(MOVE_SAMPLE);
        let reopened = since_return.position(|paths| paths & 1 << new_path.0 != 0);
        Move {
            complete: trace.ended,
            empty: empty_seconds(in_span),
            reopened: reopened.map(|samples| SAMPLE_INTERVAL.as_secs_f64() * (samples + 1) as f64),
            rate,
        }
    }
}
