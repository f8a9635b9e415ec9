//! The experiments of PO-MPTCP, a scheduler that sends important data first and on the best path.

use std::sync::Arc;
use std::time::Duration;

use braid_links::{Loss, QueueLimit, Rate, Settings};
use braid_sim::background::Background;
use braid_sim::traffic::{Bulk, Frame, Received, Role, Session as Streams, Video, jitter};
use braid_sim::transfer::PathSettings;
use serde::Serialize;
use serde_json::json;

use super::entry;
use super::outcome::Table;
use super::schemes::{
    self, CC, Compared, Measure, Scheme, Timed, arrived, bars, delay_ms, in_each,
};
use super::series::{BySecond, over_time};
use super::session::{Session, SharedRuns};
use super::verdict::{Bound, Estimate, Verdict};
use crate::backend::{Backend, Error};
use crate::plot::Series;
use crate::session_trace::{Packet, SAMPLE_INTERVAL, SessionScenario, SessionTrace, seconds};

/// The compared schemes, each with the priorities of I frames, other frames and bulk data: standard MPTCP,
/// PO-MPTCP, and Braid's own `adaptive`. Functions below refer to a scheme by its index. Standard MPTCP
/// uses its subflows in turn and gives all streams the same priority. PO-MPTCP builds on round robin here,
/// so it differs from standard MPTCP only in the handling of priorities.
pub(super) const SCHEMES: [Scheme<[u8; 3]>; 3] = [
    ("standard MPTCP", "roundrobin", [3, 3, 3]),
    ("PO-MPTCP", "po:base=roundrobin", [1, 3, 5]),
    ("adaptive", "adaptive", [1, 3, 5]),
];
/// PO-MPTCP on the other base scheduler that the paper may mean.
const ON_MINRTT: Scheme<[u8; 3]> = ("PO-MPTCP on minRTT", "po:base=minrtt", [1, 3, 5]);
/// For each loss: the share of packets lost (0 to 1), and the gain in throughput that the paper reports, %.
const REPORTED: [(f64, f64); 4] = [(0.0, 2.28), (0.01, 8.18), (0.02, 2.69), (0.05, 8.04)];
/// Shares of packets lost (0 to 1) in figure 5.
const LOSSES: [f64; 6] = [0.0, 0.01, 0.02, 0.03, 0.04, 0.05];

/// Returns the number of cases of figure 4.
pub(super) fn throughput_cases(backend: Backend) -> usize {
    background_kinds(backend).len() * shown(backend, &REPORTED).len() * SCHEMES.len()
}

/// Returns the number of cases of figure 5.
pub(super) fn delay_cases(backend: Backend) -> usize {
    shown(backend, &LOSSES).len() * SCHEMES.len()
}

/// Returns those losses of a figure that are measured on a backend. Over links these are only the losses of
/// figures 6 and 7, because a run takes [`SPAN`] of wall-clock time and the runs of those figures can be used
/// again.
fn shown<T>(backend: Backend, losses: &'static [T]) -> &'static [T] {
    match backend.is_virtual() {
        true => losses,
        false => &losses[1..3],
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
/// Bytes of a message of the bulk stream. A guess: about a quarter of the receive buffer, so that a frame never waits
/// for a long message to be written.
const BULK_MESSAGE_BYTES: u32 = 16_000;
/// Stream number of the I frames. P and B frames have the next number.
const IMPORTANT: u16 = 0;
/// Stream number of the bulk data.
const BULK_STREAM: u16 = 2;

/// Returns a path with this rate, bit/s, and this share of lost packets. The paper gives both. The delay and the
/// length of the queue are choices of this lab.
fn path(rate: u64, loss: f64) -> PathSettings {
    PathSettings::both(Settings {
        rate: Rate::bits_per_second(rate),
        delay: Duration::from_millis(10),
        queue: QueueLimit::Packets(50),
        loss: Loss::uniform(loss),
        ..Settings::default()
    })
}

/// Returns the video, with its streams and their priorities.
pub(super) fn video((_, _, priorities): &Scheme<[u8; 3]>) -> Video {
    Video {
        important: (IMPORTANT, priorities[0]),
        other: (IMPORTANT + 1, priorities[1]),
    }
}

/// Returns the scenario in which the server sends `frames` and, beside them, bulk data without end.
pub(super) fn scenario(
    (_, strategy, priorities): &Scheme<[u8; 3]>,
    frames: Vec<Frame>,
    loss: f64,
) -> Result<SessionScenario<'static>, Error> {
    let bulk = Bulk {
        stream: BULK_STREAM,
        priority: priorities[2],
        message: BULK_MESSAGE_BYTES,
        rate: None,
        span: SPAN,
    };
    let sends = Role::Send(Streams {
        frames: frames.into(),
        bulk: vec![bulk],
    });
    let paths = [11_000_000, 10_000_000].map(|rate| path(rate, loss));
    let mut scenario = schemes::scenario(strategy, paths.into(), sends, SPAN + DRAIN)?;
    scenario.engine.recv_buffer = RECV_BUFFER;
    scenario.engine.send_buffer = SEND_BUFFER;
    Ok(scenario)
}

/// The figures of one run that the experiments use. Pairs are of the I frames and of the whole video.
#[derive(Debug, Serialize)]
struct Run {
    /// Goodput of frames complete within the span.
    video_mbit: f64,
    /// Goodput of frames complete within the span and before their deadline.
    video_in_time_mbit: f64,
    /// Goodput of all streams within the span.
    total_mbit: f64,
    /// Mean delay of frames.
    delay_ms: [f64; 2],
    /// Delays of frames by the second in which the frame was made, ms.
    #[serde(skip)]
    delays: [BySecond; 2],
    /// 95th percentiles of [`JITTERS`].
    jitter_p95_ms: [f64; 4],
    /// Mean jitter of packets, ms.
    packet_jitter_ms: f64,
    /// [`JITTERS`] by second, ms.
    #[serde(skip)]
    jitters: [BySecond; 4],
    /// Number of packets that arrived and brought new data.
    packets: f64,
    /// Number of packets that arrived after a packet with a higher data sequence number.
    out_of_order: f64,
    /// Frames that were never complete.
    frames_missing: usize,
}

impl Run {
    /// Evaluates a trace. `frames` is the number of frames that the server had to send.
    fn new(trace: &SessionTrace, frames: usize) -> Self {
        let group = |is_in: fn(&&Received) -> bool| -> Vec<Received> {
            trace.messages.iter().filter(is_in).copied().collect()
        };
        let important = group(|m| m.message.stream == IMPORTANT);
        let other = group(|m| m.message.stream == IMPORTANT + 1);
        let video = group(|m| m.message.stream != BULK_STREAM);
        let rate = |bytes: u64| bytes as f64 * 8e-6 / SPAN.as_secs_f64();
        let is_within = |m: &&Received| seconds(m.complete_at) <= SPAN.as_secs_f64();
        let within = video.iter().filter(is_within);
        let in_time = within.clone().filter(|m| m.deadline_miss().is_zero());

        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let made_at = |m: &Received| seconds(m.message.made_at);
        let delays = [&important, &video].map(|frames| -> Timed {
            let delays = frames.iter().map(|m| (made_at(m), ms(m.delay())));
            delays.collect()
        });
        // The first frame has no predecessor, so it has no jitter.
        let [i, p_and_b, all] = [&important, &other, &video].map(|frames| -> Timed {
            let times = frames.iter().skip(1).map(made_at);
            times.zip(jitter(frames).map(ms)).collect()
        });
        let mut arrived: Vec<_> = arrived(trace).collect();
        arrived.sort_by(|a, b| a.0.total_cmp(&b.0));
        let between = arrived.windows(2).map(|pair| {
            let [before, delay] = [pair[0], pair[1]].map(delay_ms);
            (pair[1].0, (delay - before).abs())
        });
        let jitters = [i, p_and_b, all, between.collect()];
        let mut highest = 0;
        let is_behind = |(_, packet): &&(f64, &Packet)| {
            highest = highest.max(packet.dsn);
            packet.dsn < highest
        };
        Run {
            video_mbit: rate(within.map(|m| m.message.len).sum()),
            video_in_time_mbit: rate(in_time.map(|m| m.message.len).sum()),
            // The sample at the end of the span; later bytes do not count.
            total_mbit: rate(trace.read[SPAN.div_duration_f64(SAMPLE_INTERVAL) as usize - 1]),
            delay_ms: delays.each_ref().map(Timed::mean),
            delays: delays.map(|delays| delays.by_second),
            jitter_p95_ms: jitters.each_ref().map(Timed::p95),
            packet_jitter_ms: jitters[3].mean(),
            jitters: jitters.map(|jitters| jitters.by_second),
            packets: arrived.len() as f64,
            out_of_order: arrived.iter().filter(is_behind).count() as f64,
            frames_missing: frames - video.len(),
        }
    }

    fn disorder_percent(&self) -> f64 {
        self.out_of_order / self.packets * 100.0
    }
}

/// Runs that the experiments share: all four show the same session, at different losses.
static RUNS: SharedRuns<Run> = SharedRuns::new();
/// Maximum number of runs with greedy background traffic. No verdict depends on these runs, so fewer
/// are enough.
const MAX_GREEDY_RUNS: u64 = 5;

/// Makes the runs of schemes at each loss, or takes them from [`RUNS`].
fn measure(
    session: &mut Session<'_>,
    schemes: &[Scheme<[u8; 3]>],
    losses: &[f64],
    greedy: bool,
) -> Result<Vec<Compared<Run>>, Error> {
    parameters(session, MODEL);
    let (kind, max_runs) = match greedy {
        false => ("", u64::MAX),
        true => ("-greedy", MAX_GREEDY_RUNS),
    };
    compare(
        session,
        schemes,
        (losses, kind),
        |session, scheme, loss, name| {
            let frames = video(scheme).frames(SPAN);
            let frame_count = frames.len();
            let mut scenario = scenario(scheme, frames, loss)?;
            if greedy {
                scenario.background = Some(Background::greedy(SPAN + DRAIN));
            }
            let backend = session.backend();
            let run = |_, seed| Ok(Run::new(&scenario.run_on(backend, seed)?, frame_count));
            let count = session.runs().min(max_runs);
            RUNS.runs(session, (name.to_owned(), count), run)
        },
    )
}

/// Compares schemes at each loss, and records their runs. `runs` makes the runs of a scheme at a loss;
/// their name is its last argument. `kind` is the end of the name.
pub(super) fn compare<R: Serialize>(
    session: &mut Session<'_>,
    schemes: &[Scheme<[u8; 3]>],
    (losses, kind): (&[f64], &str),
    runs: impl Fn(&Session<'_>, &Scheme<[u8; 3]>, f64, &str) -> Result<Arc<Vec<R>>, Error>,
) -> Result<Vec<Compared<R>>, Error> {
    let at = |loss: &f64| {
        let percent = loss * 100.0;
        let runs = |session: &Session<'_>, scheme: &Scheme<_>| {
            let name = format!("{}-loss{percent}{kind}", scheme.0.replace(' ', "-"));
            let runs = runs(session, scheme, *loss, &name)?;
            Ok((name, runs))
        };
        let setting = format!("{percent} %");
        Compared::measure(session, setting, schemes, runs, |run| json!(run))
    };
    losses.iter().map(at).collect()
}

/// The parameter `video` of experiments that send frames of a model, without pictures in them.
const MODEL: &str = "25 frames a second, GOP 12, I:P:B 6:3:1, 4 Mb/s, deadline 250 ms";

pub(super) fn parameters(session: &mut Session<'_>, video: &str) {
    session.parameter("congestion control", CC);
    session.parameter("loss", "of packets each way, the background's too");
    session.parameter("video", video);
    session.parameter("send buffer", format!("{} kB", SEND_BUFFER >> 10));
    let bulk = format!("messages of {BULK_MESSAGE_BYTES} bytes, as fast as they are taken");
    session.parameter("bulk", bulk);
    session.parameter("access of the generators", "100 Mb/s, 25 ms");
    if !session.backend().is_virtual() {
        let ends = "the engine at both, for standard MPTCP too, because the kernel's MPTCP has no streams; \
                    background traffic by the kernel's sockets";
        session.parameter("ends", ends);
    }
    for (name, strategy, priorities) in SCHEMES {
        session.parameter(name, format!("{strategy}, urgencies {priorities:?}"));
    }
}

/// Returns the note of figures with a point or a bar for each loss.
pub(super) fn note(session: &Session<'_>) -> String {
    let runs = session.runs();
    format!("{CC}; {runs} runs; bars are 95 % confidence intervals of the mean")
}

/// Returns a table with a row for each loss and measure, and a column for each scheme. A single loss has no
/// column. `columns` are the heads of further columns, and `cells` returns their cells for the n-th loss
/// and a measure.
pub(super) fn table<R>(
    title: &str,
    losses: &[Compared<R>],
    measures: &[Measure<R>],
    columns: &[&str],
    cells: impl Fn(usize, Measure<R>) -> Vec<String>,
) -> Table {
    let first = usize::from(losses.len() == 1);
    let mut rows = Vec::new();
    for (n, compared) in losses.iter().enumerate() {
        for measure in measures {
            let head = [compared.setting.clone(), measure.0.to_owned()];
            let means = [0, 1, 2].map(|scheme| compared.cell(scheme, *measure));
            rows.push([&head[first..], &means, &cells(n, *measure)].concat());
        }
    }
    let names = SCHEMES.map(|(name, ..)| name);
    let columns = [&["loss", "of"][first..], &names, columns].concat();
    Table::new(title, &columns, rows)
}

const RATES: [Measure<Run>; 3] = [
    ("video", 3, |run| run.video_mbit),
    ("video in time", 3, |run| run.video_in_time_mbit),
    ("all streams", 3, |run| run.total_mbit),
];
const DELAYS: [Measure<Run>; 2] = [
    ("I frames", 1, |run| run.delay_ms[0]),
    ("whole video", 1, |run| run.delay_ms[1]),
];
/// The kinds of jitter. The jitter of a frame is the difference between its delay and the delay of the
/// previous frame of the same group. The jitter of a packet is the difference between its delay and the
/// delay of the packet that arrived before it.
const JITTERS: [Measure<Run>; 4] = [
    ("I frames", 1, |run| run.jitter_p95_ms[0]),
    ("P and B frames", 1, |run| run.jitter_p95_ms[1]),
    ("whole video", 1, |run| run.jitter_p95_ms[2]),
    ("packets", 1, |run| run.jitter_p95_ms[3]),
];
const DISORDER: [Measure<Run>; 2] = [
    ("out of order", 0, |run| run.out_of_order),
    ("of all packets, %", 2, Run::disorder_percent),
];

/// Measures the throughput by loss.
pub(super) fn throughput(session: &mut Session<'_>) -> Result<(), Error> {
    let reported = shown(session.backend(), &REPORTED);
    let losses: Vec<f64> = reported.iter().map(|(loss, _)| *loss).collect();
    for &greedy in background_kinds(session.backend()) {
        let all = measure(session, &SCHEMES, &losses, greedy)?;
        if !greedy {
            let video = in_each(&all, |at| at.gain(1, |run| run.video_mbit).into());
            let total = in_each(&all, |at| {
                let (mean, half) = at.gain(1, |run| run.total_mbit);
                Estimate::from(mean + half)
            });
            let verdicts = entry::judge("po-4", [video, total]);
            session.verdicts(verdicts.map(|verdict| verdict.by("loss")));
            for (what, _, of) in RATES {
                let title = format!("Mean throughput by loss: {what}");
                let mut figure = bars(&title, &note(session), "throughput (Mb/s)", &all, of);
                figure.x.label = "loss on each path".to_owned();
                session.figure(&what.replace(' ', "-"), figure);
            }
        }
        let with = if greedy {
            "greedy FTP, 5 runs at most"
        } else {
            "TCP of 448 kb/s a generator"
        };
        let title = format!("Throughput, Mb/s: mean ± 95 % interval; background of {with}");
        let columns = [
            "PO against standard",
            "reported",
            "adaptive against standard",
        ];
        session.table(table(&title, &all, &RATES, &columns, |n, (_, _, of)| {
            let gain = |scheme| {
                let (mean, half) = all[n].gain(scheme, of);
                format!("{mean:+.2} ± {half:.2} %")
            };
            vec![gain(1), format!("{:+.2} %", reported[n].1), gain(2)]
        }));
    }
    Ok(())
}

/// Measures the delay by loss.
pub(super) fn delay(session: &mut Session<'_>) -> Result<(), Error> {
    let losses = shown(session.backend(), &LOSSES);
    let all = measure(session, &SCHEMES, losses, false)?;
    let differences = DELAYS.map(|(.., of)| in_each(&all, |at| at.difference(1, of)));
    let verdicts = entry::judge("po-5", differences);
    session.verdicts(verdicts.map(|verdict| verdict.by("loss")));
    for (what, _, of) in DELAYS {
        let lines = SCHEMES.iter().enumerate().map(|(n, (name, ..))| {
            let points = losses.iter().zip(&all);
            let points = points.map(|(loss, at)| at.point(loss * 100.0, n, of));
            Series::line(*name, points)
        });
        let (title, note) = (format!("Mean delay by loss: {what}"), note(session));
        let mut figure = over_time(&title, &note, "mean delay (ms)", lines.collect());
        figure.x.label = "loss (%)".to_owned();
        session.figure(&what.replace(' ', "-"), figure);
    }
    let title = "Delay of frames from being made to their last byte, ms: mean ± 95 % interval";
    session.table(table(title, &all, &DELAYS, &[], |_, _| Vec::new()));
    Ok(())
}

/// Measures the delay over time at a loss of 1 %.
pub(super) fn delay_over_time(session: &mut Session<'_>) -> Result<(), Error> {
    let all = measure(session, &SCHEMES, &[0.01], false)?;
    let later = [0, 1].map(|n| {
        let means = |scheme| all[0].by_second(scheme, |run| &run.delays[n]);
        let (standard, po) = (means(0), means(1));
        let pairs = standard.iter().zip(&po);
        let later = pairs.filter(|(standard, po)| po >= standard).count();
        vec![("", later as f64)]
    });
    session.verdicts(entry::judge("po-6", later));
    for (n, (what, ..)) in DELAYS.iter().enumerate() {
        figure_by_second(session, &all[0], ("Delay", what), |run| &run.delays[n]);
    }
    let title = "Delay of frames over all 60 s, ms: mean ± 95 % interval";
    session.table(table(title, &all, &DELAYS, &[], |_, _| Vec::new()));
    Ok(())
}

/// Adds a figure of the runs over time. `quantity` is the kind of value, such as "Delay", and `what` names the frames
/// or packets that have this value.
fn figure_by_second(
    session: &mut Session<'_>,
    compared: &Compared<Run>,
    (quantity, what): (&str, &str),
    of: impl Fn(&Run) -> &BySecond,
) {
    let (loss, runs) = (&compared.setting, session.runs());
    let title = format!("{quantity} over time: {what}");
    let note = format!("{CC}, loss {loss}; means over {runs} runs");
    let y = format!("mean {} (ms)", quantity.to_lowercase());
    compared.plot(session, &what.replace(' ', "-"), [&title, &note, &y], of);
}

/// Measures the jitter over 60 s at a loss of 2 %.
pub(super) fn jitters(session: &mut Session<'_>) -> Result<(), Error> {
    let schemes = [&SCHEMES[..], &[ON_MINRTT]].concat();
    let all = &measure(session, &schemes, &[0.02], false)?[0];
    let (name, strategy, priorities) = ON_MINRTT;
    session.parameter(name, format!("{strategy}, urgencies {priorities:?}"));
    let mean: Measure<Run> = ("mean of packets", 2, |run| run.packet_jitter_ms);
    // The paper names neither the base scheduler nor the statistic.
    for (scheme, base) in [(1, "base=roundrobin"), (3, "base=minrtt")] {
        for (statistic, (.., of)) in [("mean", mean), ("95th percentile", JITTERS[3])] {
            let jitter = [("", all.difference(scheme, of))];
            let claim = "jitter of packets over 60 s, less standard MPTCP's";
            let verdict = Verdict::new(claim, Bound::Below(0.0), "ms", jitter);
            let setting = format!("{base}, {statistic}");
            session.verdict(verdict.with(&setting).reported("smaller"));
        }
        let behind = [("", all.difference(scheme, DISORDER[0].2))];
        let claim = "packets that arrive out of order in 60 s, less standard MPTCP's";
        let verdict = Verdict::new(claim, Bound::Below(0.0), "", behind).with(base);
        session.verdict(verdict.reported("fewer").unless(
            "with round robin as the base, all but the I frames, an eighth of the bytes, is sent in turn \
             as by standard MPTCP",
        ));
    }
    let columns = [&JITTERS[..], &[mean], &DISORDER].concat();
    let names: Vec<&str> = columns.iter().map(|(name, ..)| *name).collect();
    session.table(all.table(
        "95th percentile of jitter, ms, and packets that arrive behind one with a later place in the \
         stream, in 60 s: mean ± 95 % interval",
        &names,
        |n| columns.iter().map(|of| all.cell(n, *of)).collect(),
    ));
    for (n, (what, ..)) in JITTERS.iter().enumerate() {
        figure_by_second(session, all, ("Jitter", what), |run| &run.jitters[n]);
    }
    Ok(())
}
