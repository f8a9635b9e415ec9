//! The experiments of PO-MPTCP, a scheduler that sends important data first and on the best path.

use std::sync::Arc;
use std::time::Duration;

use braid_engine::Config;
use braid_links::{Loss, QueueLimit, Rate, Schedule, Settings};
use braid_sim::background::Background;
use braid_sim::traffic::{Bulk, Frame, Kind, Received, Role, Session as Streams, Video, jitter};
use braid_sim::transfer::PathSettings;
use serde_json::json;

use super::definition::Definition;
use super::outcome::Table;
use super::series::{
    BySecond, bars, by_second, estimate, gains, over_time, plus_minus, quantile, values,
};
use super::session::{Session, SharedRuns};
use super::verdict::{Bound, Verdict};
use crate::backend::{Backend, Error};
use crate::plot::{Point, Series};
use crate::session_trace::{Packet, SAMPLE_INTERVAL, SessionScenario, SessionTrace, seconds};
use crate::stats;

// The paper gives the rates of the paths and the loss. The delay, the queue length, the receive buffer
// and the rate of the TCP generators are choices of this lab; the UDP generator is that of MPTCP-MAPS.
const SETUP: &str = "WiFi of 11 Mb/s and WiMAX of 10 Mb/s, 10 ms each way, queues of 50 packets; on \
    each four generators of TCP and one of UDP, 448 kb/s each; 60 s; one session of three streams: I \
    frames, P and B frames of a video of 4 Mb/s, and bulk data that takes what is left; receive \
    buffer of 64 kB";

/// Throughput by loss.
pub const PO_4: Definition = Definition {
    id: "po-4",
    title: "Mean throughput by loss",
    source: "PO-MPTCP, figure 4",
    setup: SETUP,
    reported: "PO-MPTCP has 2.28, 8.18, 2.69 and 8.04 % more than standard MPTCP at losses of 0, 1, 2 \
               and 5 %.",
    must_hold: "At each loss the video's goodput is not less than standard MPTCP's, and neither is the \
                throughput of all streams (95 % interval).",
    backends: &[Backend::Sim, Backend::Links],
    cases: |backend| background_kinds(backend).len() * reported(backend).len() * SCHEMES.len(),
    runs: (30, 3),
    measure: throughput,
};

/// Delay by loss.
pub const PO_5: Definition = Definition {
    id: "po-5",
    title: "Mean delay by loss",
    source: "PO-MPTCP, figure 5",
    reported: "Lower than standard MPTCP's at every loss.",
    must_hold: "Lower at every loss from 0 to 5 %, for the important data and for the whole video.",
    cases: |backend| losses(backend).len() * SCHEMES.len(),
    measure: delay,
    ..PO_4
};

/// Delay over time.
pub const PO_6: Definition = Definition {
    id: "po-6",
    title: "Delay over time at a loss of 1 %",
    source: "PO-MPTCP, figure 6",
    reported: "Lower than standard MPTCP's.",
    must_hold: "Lower in every second, for the important data and for the whole video (means over the \
                runs).",
    cases: |_| SCHEMES.len(),
    measure: delay_over_time,
    ..PO_4
};

/// Jitter.
pub const PO_7: Definition = Definition {
    id: "po-7",
    title: "Jitter over 60 s at a loss of 2 %",
    source: "PO-MPTCP, figure 7",
    reported: "Smaller, and fewer packets out of order.",
    must_hold: "The 95th percentile of jitter and the number of packets that arrive out of order are \
                both smaller.",
    cases: |_| SCHEMES.len(),
    measure: jitters,
    ..PO_4
};

/// A strategy, and the priorities of I frames, other frames and bulk data.
pub(super) struct Scheme {
    pub name: &'static str,
    strategy: &'static str,
    priorities: [u8; 3],
}

/// The compared schemes: standard MPTCP, PO-MPTCP, and Braid's own `adaptive`. Functions below refer to a
/// scheme by its index. Standard MPTCP uses its subflows in turn and gives all streams the same priority.
pub(super) const SCHEMES: [Scheme; 3] = [
    Scheme {
        name: "standard MPTCP",
        strategy: "roundrobin",
        priorities: [3, 3, 3],
    },
    // PO-MPTCP builds on round robin here. It thus differs from standard MPTCP only in the handling of
    // priorities.
    Scheme {
        name: "PO-MPTCP",
        strategy: "po:base=roundrobin",
        priorities: [1, 3, 5],
    },
    Scheme {
        name: "adaptive",
        strategy: "adaptive",
        priorities: [1, 3, 5],
    },
];
/// For each loss: the share of packets lost (0 to 1), and the gain in throughput that the paper reports, %.
const REPORTED: [(f64, f64); 4] = [(0.0, 2.28), (0.01, 8.18), (0.02, 2.69), (0.05, 8.04)];
/// Shares of packets lost (0 to 1) in figure 5.
const LOSSES: [f64; 6] = [0.0, 0.01, 0.02, 0.03, 0.04, 0.05];

/// Returns the losses of figure 4 with the reported gains. Over links these are only the losses of figures
/// 6 and 7, because a run takes [`SPAN`] of wall-clock time and the runs of those figures can be used
/// again.
fn reported(backend: Backend) -> &'static [(f64, f64)] {
    match backend.is_virtual() {
        true => &REPORTED,
        false => &REPORTED[1..3],
    }
}

/// Returns the losses of figure 5, with the same restriction over links as [`reported`].
fn losses(backend: Backend) -> &'static [f64] {
    match backend.is_virtual() {
        true => &LOSSES,
        false => &LOSSES[1..3],
    }
}

/// Returns one entry for each table of throughput: true if the table's background traffic is greedy. Over
/// links no table has greedy background traffic, because such a table is not judged and would double the
/// time.
fn background_kinds(backend: Backend) -> &'static [bool] {
    match backend.is_virtual() {
        true => &[false, true],
        false => &[false],
    }
}

pub(super) const CC: &str = "cubic";
pub(super) const SPAN: Duration = Duration::from_secs(60);
/// Time after [`SPAN`] in which data of the span may still arrive. A frame that is then incomplete counts
/// as missing. 5 s is a guess.
pub(super) const DRAIN: Duration = Duration::from_secs(5);
/// Receive buffer of all streams together, bytes. A choice of this lab: the paper says only that the
/// streams share a buffer.
const RECV_BUFFER: usize = 64 << 10;
/// Send buffer, bytes. It is twice the receive buffer, so that the receive window, not the send buffer,
/// limits the bytes in flight.
const SEND_BUFFER: usize = 2 * RECV_BUFFER;
/// Bytes of a message of the bulk stream. A guess: about a quarter of the receive
/// buffer, so that a frame never waits for a long message to be written.
const BULK_MESSAGE_BYTES: u32 = 16_000;
/// Stream number of the I frames. P and B frames have the next number.
const IMPORTANT: u16 = 0;
/// Stream number of the bulk data.
const BULK_STREAM: u16 = 2;

fn path(rate: u64, loss: f64) -> PathSettings {
    PathSettings::both(Settings {
        rate: Rate::bits_per_second(rate),
        delay: Duration::from_millis(10),
        queue: QueueLimit::Packets(50),
        loss: Loss::uniform(loss),
        ..Settings::default()
    })
}

impl Scheme {
    /// Returns the video, with its streams and their priorities.
    pub(super) fn video(&self) -> Video {
        Video {
            important: (IMPORTANT, self.priorities[0]),
            other: (IMPORTANT + 1, self.priorities[1]),
            ..Video::default()
        }
    }
}

/// Returns the scenario in which the server sends `frames` and, beside them, bulk data without end.
pub(super) fn scenario(
    scheme: &Scheme,
    frames: Vec<Frame>,
    loss: f64,
    background: Background,
) -> Result<SessionScenario<'_>, Error> {
    let session = Streams {
        frames: frames.into(),
        bulk: vec![Bulk {
            stream: BULK_STREAM,
            priority: scheme.priorities[2],
            message: BULK_MESSAGE_BYTES,
            rate: None,
            span: SPAN,
        }],
    };
    Ok(SessionScenario {
        strategy: scheme.strategy,
        engine: Config {
            congestion: CC.parse().map_err(Error::Usage)?,
            recv_buffer: RECV_BUFFER,
            send_buffer: SEND_BUFFER,
            ..Config::default()
        },
        paths: vec![path(11_000_000, loss), path(10_000_000, loss)],
        first: Schedule::default(),
        background: Some(background),
        sends: Role::Send(session),
        span: SPAN + DRAIN,
        moves: None,
    })
}

/// A value for the I frames, and a value for the whole video.
type ByFrames<T> = [T; 2];
/// The names of the two groups of frames in [`ByFrames`].
const FRAME_GROUPS: ByFrames<&str> = ["I frames", "whole video"];

/// The kinds of jitter. The jitter of a frame is the difference between its delay and the delay of the
/// previous frame of the same group. The jitter of a packet is the difference between its delay and the
/// delay of the packet that arrived before it.
const JITTERS: [&str; 4] = ["I frames", "P and B frames", "whole video", "packets"];
/// Indices in [`JITTERS`] of the kinds that are judged. The jitter of the whole video is not judged: it
/// compares I frames with P and B frames, whose delays differ because of their sizes.
const JUDGED: [usize; 3] = [0, 1, 3];

/// The figures of one run that the experiments use.
#[derive(Debug, Default)]
struct Run {
    /// Goodput of frames complete within the span, Mbit/s.
    video: f64,
    /// Goodput of frames complete within the span and before their deadline, Mbit/s.
    in_time: f64,
    /// Goodput of all streams within the span, Mbit/s.
    total: f64,
    /// Mean delay of frames, ms.
    mean_delay: ByFrames<f64>,
    /// Delays of frames by the second in which the frame was made, ms.
    delays: ByFrames<BySecond>,
    /// 95th percentiles of [`JITTERS`], ms.
    p95_jitter: [f64; 4],
    /// [`JITTERS`] by second, ms.
    jitter: [BySecond; 4],
    /// Number of packets that arrived after a packet with a higher data sequence number.
    out_of_order: f64,
    /// Number of packets that arrived and brought new data.
    packets: f64,
    /// Frames that were never complete.
    missing: usize,
}

impl Run {
    /// Evaluates a trace. `frames` is the number of frames that the server had to send.
    fn new(trace: &SessionTrace, frames: usize) -> Self {
        let video = trace
            .messages
            .iter()
            .filter(|m| m.message.kind != Kind::Bulk);
        let video: Vec<Received> = video.copied().collect();
        let important = video.iter().filter(|m| m.message.stream == IMPORTANT);
        let important: Vec<Received> = important.copied().collect();
        let other = video.iter().filter(|m| m.message.stream != IMPORTANT);
        let other: Vec<Received> = other.copied().collect();
        let within = |m: &&Received| seconds(m.complete_at) <= SPAN.as_secs_f64();
        let rate = |bytes: u64| bytes as f64 * 8e-6 / SPAN.as_secs_f64();
        let goodput = |counts: &dyn Fn(&&Received) -> bool| {
            let counted = video.iter().filter(|m| counts(m));
            rate(counted.map(|m| m.message.len).sum())
        };
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let mut run = Run {
            video: goodput(&within),
            in_time: goodput(&|m| within(m) && m.deadline_miss().is_zero()),
            // The sample at the end of the span; later bytes do not count.
            total: rate(trace.read[SPAN.div_duration_f64(SAMPLE_INTERVAL) as usize - 1]),
            missing: frames - video.len(),
            ..Run::default()
        };
        for (n, messages) in [&important, &other, &video].into_iter().enumerate() {
            // The first frame has no predecessor, so it has no jitter.
            let times = messages.iter().skip(1).map(|m| seconds(m.message.made_at));
            run.add_jitter(n, times.zip(jitter(messages).map(ms)));
        }
        for (n, messages) in [important, video].iter().enumerate() {
            let delays: Vec<f64> = messages.iter().map(|m| ms(m.delay())).collect();
            for (m, delay) in messages.iter().zip(&delays) {
                run.delays[n].add(seconds(m.message.made_at), *delay);
            }
            run.mean_delay[n] = stats::mean(&delays).unwrap_or(f64::NAN);
        }
        run.add_packets(trace);
        run
    }

    /// Adds jitters, each with its time in seconds, to kind `n` of [`JITTERS`].
    fn add_jitter(&mut self, n: usize, jitters: impl Iterator<Item = (f64, f64)>) {
        let mut all = Vec::new();
        for (at, jitter) in jitters {
            self.jitter[n].add(at, jitter);
            all.push(jitter);
        }
        self.p95_jitter[n] = quantile(all, 0.95);
    }

    /// Adds the order and the jitter of the packets. Packets without new data are left out: copies and
    /// spurious retransmissions delay nothing.
    fn add_packets(&mut self, trace: &SessionTrace) {
        let fresh = trace.packets.iter().filter(|p| p.fresh > 0);
        let mut arrived: Vec<(f64, &Packet)> =
            fresh.filter_map(|p| Some((p.arrived?, p))).collect();
        arrived.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut highest = 0;
        for (_, packet) in &arrived {
            self.out_of_order += f64::from(u8::from(packet.dsn < highest));
            highest = highest.max(packet.dsn);
        }
        self.packets = arrived.len() as f64;
        let delay = |(at, packet): &(f64, &Packet)| (at - packet.sent) * 1e3;
        let pairs = arrived.windows(2);
        let jitters = pairs.map(|p| (p[1].0, (delay(&p[1]) - delay(&p[0])).abs()));
        self.add_jitter(3, jitters);
    }

    fn record(&self) -> serde_json::Value {
        json!({
            "video_mbit": self.video,
            "video_in_time_mbit": self.in_time,
            "total_mbit": self.total,
            "delay_ms": self.mean_delay,
            "jitter_p95_ms": self.p95_jitter,
            "packets": self.packets,
            "out_of_order": self.out_of_order,
            "frames_missing": self.missing,
        })
    }
}

/// The runs of each of [`SCHEMES`], with the same loss on both paths.
type RunsByScheme = [Arc<Vec<Run>>; 3];

/// Runs that the experiments share: all four show the same session, at different losses.
static RUNS: SharedRuns<Run> = SharedRuns::new();
/// Maximum number of runs with greedy background traffic. No verdict depends on these runs, so fewer
/// are enough.
const MAX_GREEDY_RUNS: u64 = 10;

/// Makes the runs of all schemes at one loss, or takes them from [`RUNS`].
fn measure_loss(session: &mut Session<'_>, loss: f64, greedy: bool) -> Result<RunsByScheme, Error> {
    let mut by_scheme = RunsByScheme::default();
    for (scheme, runs) in SCHEMES.iter().zip(&mut by_scheme) {
        let span = SPAN + DRAIN;
        let (kind, others) = match greedy {
            false => ("", Background::published(span)),
            true => ("-greedy", Background::greedy(span)),
        };
        let frames = scheme.video().frames(SPAN);
        let frame_count = frames.len();
        let scenario = scenario(scheme, frames, loss, others)?;
        let name = scheme.name.replace(' ', "-");
        let name = format!("{name}-loss{}{kind}", loss * 100.0);
        let count = session
            .runs()
            .min(if greedy { MAX_GREEDY_RUNS } else { u64::MAX });
        let backend = session.backend();
        let run = |_, seed| Ok(Run::new(&scenario.run_on(backend, seed)?, frame_count));
        *runs = RUNS.runs(session, (name.clone(), count), run)?;
        let record: Vec<_> = runs.iter().map(Run::record).collect();
        session.record(name, json!({ "runs": record }));
    }
    Ok(by_scheme)
}

/// The parameter `video` of experiments that send frames of a model, without pictures in them.
const MODEL: &str = "25 frames a second, GOP 12, I:P:B 6:3:1, 4 Mb/s, deadline 250 ms";

pub(super) fn parameters(session: &mut Session<'_>, video: &str) {
    session.parameter("congestion control", CC);
    session.parameter("loss", "of packets each way, the background's too");
    session.parameter("video", video);
    session.parameter("send buffer", format!("{} kB", SEND_BUFFER >> 10));
    session.parameter(
        "bulk",
        format!("messages of {BULK_MESSAGE_BYTES} bytes, as fast as they are taken"),
    );
    session.parameter("access of the generators", "100 Mb/s, 25 ms");
    if !session.backend().is_virtual() {
        let ends = "the engine at both, for standard MPTCP too: the kernel's has no streams; others' \
                    traffic is the kernel's";
        session.parameter("ends", ends);
    }
    for scheme in &SCHEMES {
        let text = format!("{}, urgencies {:?}", scheme.strategy, scheme.priorities);
        session.parameter(scheme.name, text);
    }
}

pub(super) fn percent(loss: f64) -> String {
    format!("{} %", loss * 100.0)
}

fn note(session: &Session<'_>) -> String {
    format!(
        "{CC}; {} runs; bars are 95 % confidence intervals of the mean",
        session.runs()
    )
}

/// A measured throughput: its name and its value.
type Measure = (&'static str, fn(&Run) -> f64);
const RATES: [Measure; 3] = [
    ("video", |run| run.video),
    ("video in time", |run| run.in_time),
    ("all streams", |run| run.total),
];

fn throughput(session: &mut Session<'_>) -> Result<(), Error> {
    parameters(session, MODEL);
    for &greedy in background_kinds(session.backend()) {
        let mut measured = Vec::new();
        for (loss, _) in reported(session.backend()) {
            measured.push(measure_loss(session, *loss, greedy)?);
        }
        if !greedy {
            judge_throughput(session, &measured);
            figures(session, &measured);
        }
        let with = if greedy {
            "greedy FTP, 10 runs at most"
        } else {
            "TCP of 448 kb/s a generator"
        };
        session.table(rates(with, reported(session.backend()), &measured));
    }
    Ok(())
}

/// Judges the throughput at each loss.
fn judge_throughput(session: &mut Session<'_>, measured: &[RunsByScheme]) {
    let gain = |by_scheme: &RunsByScheme, of: fn(&Run) -> f64| {
        let [standard, po, _] = by_scheme.each_ref().map(|runs| values(runs, of));
        estimate(&gains(&po, &standard))
    };
    let losses = reported(session.backend());
    let by_loss = |value: &dyn Fn(&RunsByScheme) -> f64| {
        let each = losses.iter().zip(measured);
        each.map(|((loss, _), by_scheme)| (percent(*loss), value(by_scheme)))
            .collect::<Vec<_>>()
    };
    let reported = REPORTED.map(|(loss, more)| format!("{more} ({})", percent(loss)));
    let reported = format!("{} %", reported.join(", "));
    let video = by_loss(&|by_scheme| gain(by_scheme, RATES[0].1).0);
    let total = by_loss(&|by_scheme| {
        let (mean, half) = gain(by_scheme, RATES[2].1);
        mean + half
    });
    for (claim, values, why) in [
        ("goodput of the video, above standard MPTCP's", video, ""),
        (
            "throughput of all streams above standard MPTCP's, upper end of its 95 % interval",
            total,
            "a packet has data of one urgency only, so the last one of a frame is short: packets carry \
             3 % less, and links lose packets, not bytes; round robin with the same urgencies has half \
             of this loss",
        ),
    ] {
        let verdict = Verdict::new(claim, Bound::AtLeast(0.0), "%", values);
        session.verdict(verdict.reported(&reported).unless(why));
    }
}

fn rates(with: &str, losses: &[(f64, f64)], measured: &[RunsByScheme]) -> Table {
    let mut rows = Vec::new();
    for ((loss, reported), by_scheme) in losses.iter().zip(measured) {
        for (what, of) in RATES {
            let rates = by_scheme.each_ref().map(|runs| values(runs, of));
            let gain = |n: usize| {
                let (mean, half) = estimate(&gains(&rates[n], &rates[0]));
                format!("{mean:+.2} ± {half:.2} %")
            };
            let means = rates.each_ref().map(|rates| plus_minus(estimate(rates), 3));
            let head = [percent(*loss), what.to_owned()];
            let gains = [gain(1), format!("{reported:+.2} %"), gain(2)];
            rows.push([&head[..], &means[..], &gains[..]].concat());
        }
    }
    let names = SCHEMES.map(|scheme| scheme.name);
    let columns = [
        &["loss", "of"][..],
        &names[..],
        &[
            "PO against standard",
            "reported",
            "adaptive against standard",
        ],
    ];
    Table::new(
        format!("Throughput, Mb/s: mean ± 95 % interval; background of {with}"),
        &columns.concat(),
        rows,
    )
}

fn figures(session: &mut Session<'_>, measured: &[RunsByScheme]) {
    let losses = reported(session.backend()).iter();
    let losses: Vec<String> = losses.map(|(loss, _)| percent(*loss)).collect();
    let losses: Vec<&str> = losses.iter().map(String::as_str).collect();
    for (what, of) in RATES {
        let series = SCHEMES.iter().enumerate().map(|(n, scheme)| {
            let bar = |by_scheme: &RunsByScheme| {
                let (mean, half) = estimate(&values(&by_scheme[n], of));
                Point::with_error(0.0, mean, half)
            };
            (scheme.name, measured.iter().map(bar).collect())
        });
        let title = format!("Mean throughput by loss: {what}");
        let mut figure = bars(
            &title,
            &note(session),
            "throughput (Mb/s)",
            (&losses, series.collect()),
        );
        figure.x.label = "loss on each path".to_owned();
        session.figure(&what.replace(' ', "-"), figure);
    }
}

fn delay(session: &mut Session<'_>) -> Result<(), Error> {
    parameters(session, MODEL);
    let (losses, mut measured) = (losses(session.backend()), Vec::new());
    for loss in losses {
        measured.push(measure_loss(session, *loss, false)?);
    }
    let mut rows = Vec::new();
    for (loss, by_scheme) in losses.iter().zip(&measured) {
        for (n, what) in FRAME_GROUPS.iter().enumerate() {
            let delays = by_scheme
                .each_ref()
                .map(|runs| values(runs, |run| run.mean_delay[n]));
            let means = delays
                .each_ref()
                .map(|delays| plus_minus(estimate(delays), 1));
            rows.push([&[percent(*loss), (*what).to_owned()], &means[..]].concat());
        }
    }
    for (n, what) in FRAME_GROUPS.iter().enumerate() {
        let less = |by_scheme: &RunsByScheme| {
            let delay = |s: usize| estimate(&values(&by_scheme[s], |run| run.mean_delay[n])).0;
            delay(1) - delay(0)
        };
        let by_loss = losses.iter().zip(&measured);
        let by_loss = by_loss.map(|(loss, by_scheme)| (percent(*loss), less(by_scheme)));
        let claim = format!("mean delay of {what}, less standard MPTCP's");
        let verdict = Verdict::new(claim, Bound::Below(0.0), "ms", by_loss);
        session.verdict(verdict.reported("lower"));
    }
    let names = SCHEMES.map(|scheme| scheme.name);
    session.table(Table::new(
        "Delay of frames from being made to their last byte, ms: mean ± 95 % interval",
        &[&["loss", "of"], &names[..]].concat(),
        rows,
    ));
    for (n, what) in FRAME_GROUPS.iter().enumerate() {
        let series = SCHEMES.iter().enumerate().map(|(s, scheme)| {
            let point = |(loss, by_scheme): (&f64, &RunsByScheme)| {
                let (mean, half) = estimate(&values(&by_scheme[s], |run| run.mean_delay[n]));
                Point::with_error(loss * 100.0, mean, half)
            };
            Series::line(scheme.name, losses.iter().zip(&measured).map(point))
        });
        let mut figure = over_time(
            &format!("Mean delay by loss: {what}"),
            &note(session),
            "mean delay (ms)",
            series.collect(),
        );
        figure.x.label = "loss (%)".to_owned();
        session.figure(&what.replace(' ', "-"), figure);
    }
    Ok(())
}

fn delay_over_time(session: &mut Session<'_>) -> Result<(), Error> {
    parameters(session, MODEL);
    let by_scheme = measure_loss(session, 0.01, false)?;
    let mut rows = Vec::new();
    for (n, what) in FRAME_GROUPS.iter().enumerate() {
        let means = by_scheme
            .each_ref()
            .map(|runs| BySecond::means(runs.iter().map(|run| &run.delays[n])));
        let pairs = means[0].iter().zip(&means[1]);
        let later = pairs.filter(|(standard, po)| po >= standard).count() as f64;
        let claim = format!("seconds in which {what} are not earlier than by standard MPTCP");
        let verdict = Verdict::new(claim, Bound::AtMost(0.0), "", [("", later)]);
        session.verdict(verdict.reported("lower"));
        let delay = |s: usize| estimate(&values(&by_scheme[s], |run| run.mean_delay[n]));
        let delays = [0, 1, 2].map(|s| plus_minus(delay(s), 1));
        rows.push([&[(*what).to_owned()], &delays[..]].concat());
        let lines = SCHEMES.iter().zip(&means);
        let lines = lines.map(|(scheme, means)| by_second(scheme.name, means));
        let title = format!("Delay over time: {what}");
        let note = format!("{CC}, loss 1 %; means over {} runs", session.runs());
        let figure = over_time(&title, &note, "mean delay (ms)", lines.collect());
        session.figure(&what.replace(' ', "-"), figure);
    }
    session.table(Table::new(
        "Delay of frames over all 60 s, ms: mean ± 95 % interval",
        &[&["of"], &SCHEMES.map(|scheme| scheme.name)[..]].concat(),
        rows,
    ));
    Ok(())
}

fn jitters(session: &mut Session<'_>) -> Result<(), Error> {
    parameters(session, MODEL);
    let by_scheme = measure_loss(session, 0.02, false)?;
    let p95 = |s: usize, n: usize| estimate(&values(&by_scheme[s], |run| run.p95_jitter[n]));
    let disorder = |s: usize| estimate(&values(&by_scheme[s], |run| run.out_of_order));
    session.verdict(
        Verdict::new(
            "95th percentile of jitter, less standard MPTCP's",
            Bound::Below(0.0),
            "ms",
            JUDGED.map(|n| (JITTERS[n], p95(1, n).0 - p95(0, n).0)),
        )
        .reported("smaller")
        .unless(
            "what is not important no longer waits equally long behind the bulk data, but now and then \
             behind an I frame; it is earlier all the same (po-5)",
        ),
    );
    session.verdict(
        Verdict::new(
            "packets that arrive out of order in 60 s, less standard MPTCP's",
            Bound::Below(0.0),
            "",
            [("", disorder(1).0 - disorder(0).0)],
        )
        .reported("fewer")
        .unless(
            "all but the I frames, an eighth of the bytes, is sent in turn as by standard MPTCP, and in \
             more packets, for those at the end of a frame are short; round robin with the same urgencies \
             has nearly as many",
        ),
    );
    let rows = SCHEMES.iter().enumerate().map(|(s, scheme)| {
        let share = values(&by_scheme[s], |run| run.out_of_order / run.packets * 100.0);
        let jitters = [0, 1, 2, 3].map(|n| plus_minus(p95(s, n), 1));
        let disorder = [plus_minus(disorder(s), 0), plus_minus(estimate(&share), 2)];
        [&[scheme.name.to_owned()], &jitters[..], &disorder].concat()
    });
    session.table(Table::new(
        "95th percentile of jitter, ms, and packets that arrive behind one with a later place in the \
         stream, in 60 s: mean ± 95 % interval",
        &[&["scheme"], &JITTERS[..], &["out of order", "of all packets, %"]].concat(),
        rows.collect(),
    ));
    for (n, what) in JITTERS.iter().enumerate() {
        let lines = SCHEMES.iter().zip(&by_scheme).map(|(scheme, runs)| {
            by_second(
                scheme.name,
                &BySecond::means(runs.iter().map(|run| &run.jitter[n])),
            )
        });
        let title = format!("Jitter over time: {what}");
        let note = format!("{CC}, loss 2 %; means over {} runs", session.runs());
        let figure = over_time(&title, &note, "mean jitter (ms)", lines.collect());
        session.figure(&what.replace(' ', "-"), figure);
    }
    Ok(())
}
