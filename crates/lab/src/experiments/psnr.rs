//! PO-MPTCP's experiment on picture quality: the PSNR of a video whose frames may arrive too late.

use std::collections::BTreeMap;

use braid_sim::background::Background;
use braid_sim::traffic::{Frame, Received};
use serde_json::json;

use super::definition::Definition;
use super::outcome::Table;
use super::po::{CC, DRAIN, PO_4, SCHEMES, SPAN, Scheme, parameters, percent, scenario};
use super::series::{BySecond, bars, by_second, estimate, gains, over_time, plus_minus, values};
use super::session::Session;
use super::verdict::{Bound, Verdict};
use crate::backend::{Backend, Error};
use crate::plot::Point;
use crate::stats;
use crate::video::{self, EncodedVideo};

/// PSNR of a video.
pub const PO_8: Definition = Definition {
    id: "po-8",
    title: "PSNR of a video",
    source: "PO-MPTCP, figure 8",
    setup: "As po-4, but the video is a clip of H.264 of 60 s: I frames are one stream, P and B frames \
            another. A frame that is later than 250 ms is lost; what came is decoded and compared with \
            the pictures before they were encoded, and for what cannot be shown the picture before \
            stays",
    reported: "PSNR = 20 log10(MAX_Rbit / |E_Th - A_Th|) is 3.7 % higher than standard MPTCP's, and \
               steadier.",
    must_hold: "The true PSNR is higher and steadier; that of the paper's formula, in windows of 1 s, is \
                at least 3.7 % higher.",
    backends: &[Backend::Sim],
    cases: |_| LOSSES.len() * SCHEMES.len(),
    measure,
    ..PO_4
};

/// Shares of packets lost (0 to 1) on both paths. At lower loss hardly any frame is late, whatever the
/// scheme.
const LOSSES: [f64; 2] = [0.02, 0.05];
/// Minimum difference of throughputs in the formula, bit/s. Without it the formula would divide by 0 in a
/// second in which no frame is late. 1 kb/s is a choice of this lab.
const MIN_RATE_DIFFERENCE: f64 = 1e3;

/// The figures of one run that the experiment uses.
#[derive(Debug)]
struct Run {
    /// PSNR of every frame, dB.
    psnr: Vec<f64>,
    /// PSNR of every second by the paper's formula, dB.
    formula: Vec<f64>,
    /// Share of frames that were late, %, in the order of [`KINDS`].
    late: [f64; 2],
}

/// The labels of late frames.
const KINDS: [&str; 2] = ["I frames late, %", "P and B frames late, %"];

impl Run {
    fn mean(&self) -> f64 {
        stats::mean(&self.psnr).unwrap_or(f64::NAN)
    }

    fn deviation(&self) -> f64 {
        stats::standard_deviation(&self.psnr).unwrap_or(f64::NAN)
    }

    fn formula(&self) -> f64 {
        stats::mean(&self.formula).unwrap_or(f64::NAN)
    }

    fn by_second(&self) -> BySecond {
        let mut seconds = BySecond::default();
        for (n, psnr) in self.psnr.iter().enumerate() {
            seconds.add(
                n as f64 / self.psnr.len() as f64 * SPAN.as_secs_f64(),
                *psnr,
            );
        }
        seconds
    }

    fn record(&self) -> serde_json::Value {
        let seconds = BySecond::means([&self.by_second()]);
        json!({
            "psnr_db": self.mean(),
            "psnr_sd_db": self.deviation(),
            "psnr_by_second_db": seconds,
            "formula_db": self.formula(),
            "late_percent": self.late,
        })
    }
}

/// Returns for each of `frames` whether it arrived before its deadline. Messages of a stream arrive in
/// order, so the n-th message of a stream is the n-th frame of the stream.
fn in_time(frames: &[Frame], messages: &[Received]) -> Vec<bool> {
    let mut streams: BTreeMap<u16, Vec<bool>> = BTreeMap::new();
    // The messages are reversed, so that `pop` returns the first message first.
    for received in messages.iter().rev() {
        let in_time = streams.entry(received.message.stream).or_default();
        in_time.push(received.deadline_miss().is_zero());
    }
    // A frame without a message did not arrive at all.
    let next_of_stream = |frame: &Frame| streams.get_mut(&frame.stream)?.pop();
    frames
        .iter()
        .map(next_of_stream)
        .map(Option::unwrap_or_default)
        .collect()
}

/// Returns the PSNR of every second by the paper's formula, dB. Its MAX_Rbit is the highest bit rate of any
/// second, and its |E_Th - A_Th| is the rate of the second's frames that were not in time.
fn formula(frames: &[Frame], in_time: &[bool]) -> Vec<f64> {
    let mut offered = vec![0.0; SPAN.as_secs() as usize];
    let mut arrived = offered.clone();
    for (frame, in_time) in frames.iter().zip(in_time) {
        let bits = f64::from(frame.len) * 8.0;
        let second = frame.at.as_secs() as usize;
        offered[second] += bits;
        arrived[second] += bits * f64::from(u8::from(*in_time));
    }
    let peak = offered.iter().copied().fold(0.0, f64::max);
    let seconds = offered.iter().zip(&arrived);
    let psnr = |(offered, arrived): (&f64, &f64)| {
        20.0 * (peak / (offered - arrived).max(MIN_RATE_DIFFERENCE)).log10()
    };
    seconds.map(psnr).collect()
}

/// Returns the share of a stream's frames that were not in time, %.
fn late(frames: &[Frame], in_time: &[bool], stream: u16) -> f64 {
    let of_stream = frames
        .iter()
        .zip(in_time)
        .filter(|(frame, _)| frame.stream == stream);
    let (late, all) = of_stream.fold((0.0, 0.0), |(late, all), (_, in_time)| {
        (late + f64::from(u8::from(!in_time)), all + 1.0)
    });
    late / all * 100.0
}

/// The video that the server sends.
struct Source {
    encoded: EncodedVideo,
    /// PSNR of each frame if no frame is late, dB. It is finite because encoding loses detail.
    complete_psnr: Vec<f64>,
}

impl Source {
    fn new() -> Result<Self, Error> {
        let encoded = EncodedVideo::encode(SPAN)?;
        let all = vec![true; encoded.len()];
        let complete_psnr = encoded.psnr(&all)?;
        Ok(Source {
            encoded,
            complete_psnr,
        })
    }

    /// Makes the runs of a scheme at the given loss.
    fn runs(&self, session: &Session<'_>, scheme: &Scheme, loss: f64) -> Result<Vec<Run>, Error> {
        let video = scheme.video();
        let frames = self.encoded.frames(&video);
        let others = Background::published(SPAN + DRAIN);
        let scenario = scenario(scheme, frames.clone(), loss, others)?;
        session.each(session.runs(), |_, seed| {
            let in_time = in_time(&frames, &scenario.simulate(seed)?.messages);
            let streams = [video.important, video.other].map(|(stream, _)| stream);
            Ok(Run {
                // Decoding takes seconds, so a run without a late frame skips it.
                psnr: match in_time.iter().all(|in_time| *in_time) {
                    true => self.complete_psnr.clone(),
                    false => self.encoded.psnr(&in_time)?,
                },
                formula: formula(&frames, &in_time),
                late: streams.map(|stream| late(&frames, &in_time, stream)),
            })
        })
    }
}

/// The runs of each of [`SCHEMES`].
type RunsByScheme = [Vec<Run>; 3];

fn measure(session: &mut Session<'_>) -> Result<(), Error> {
    let source = Source::new()?;
    let rate = source.encoded.bits_per_second() / 1e6;
    let about = format!("{}; {rate:.2} Mb/s, deadline 250 ms", video::ABOUT);
    parameters(session, &about);
    session.parameter("encoder and decoder", video::version()?);
    session.parameter("floor of the formula's difference", "1 kb/s");
    let mut measured = Vec::new();
    for loss in LOSSES {
        let mut by_scheme = RunsByScheme::default();
        for (scheme, runs) in SCHEMES.iter().zip(&mut by_scheme) {
            *runs = source.runs(session, scheme, loss)?;
            let name = scheme.name.replace(' ', "-");
            let record: Vec<_> = runs.iter().map(Run::record).collect();
            session.record(
                format!("{name}-loss{}", loss * 100.0),
                json!({ "runs": record }),
            );
        }
        measured.push(by_scheme);
    }
    judge(session, &measured);
    session.table(numbers(&source, &measured));
    figures(session, &source, &measured);
    Ok(())
}

fn judge(session: &mut Session<'_>, measured: &[RunsByScheme]) {
    let by_loss = |value: &dyn Fn(&RunsByScheme) -> f64| {
        let each = LOSSES.iter().zip(measured);
        each.map(|(loss, by_scheme)| (percent(*loss), value(by_scheme)))
            .collect::<Vec<_>>()
    };
    // PO-MPTCP's value minus that of standard MPTCP.
    let difference = |by_scheme: &RunsByScheme, value: fn(&Run) -> f64| {
        let mean = |n: usize| estimate(&values(&by_scheme[n], value)).0;
        mean(1) - mean(0)
    };
    let mean = by_loss(&|by_scheme| difference(by_scheme, Run::mean));
    let deviation = by_loss(&|by_scheme| difference(by_scheme, Run::deviation));
    let formula = by_loss(&|by_scheme| {
        let [standard, po, _] = by_scheme.each_ref().map(|runs| values(runs, Run::formula));
        estimate(&gains(&po, &standard)).0
    });
    session.verdict(
        Verdict::new(
            "true PSNR, above standard MPTCP's",
            Bound::Above(0.0),
            "dB",
            mean,
        )
        .reported("higher"),
    );
    session.verdict(
        Verdict::new(
            "standard deviation of the true PSNR over all frames, less standard MPTCP's",
            Bound::Below(0.0),
            "dB",
            deviation,
        )
        .reported("steadier")
        .unless(
            "where standard MPTCP brings nearly everything too late, it shows nearly nothing, and that \
             is steady",
        ),
    );
    session.verdict(
        Verdict::new(
            "PSNR by the paper's formula, above standard MPTCP's",
            Bound::AtLeast(3.7),
            "%",
            formula,
        )
        .reported("3.7 %"),
    );
}

/// A measured value of a run: its name, its value and its decimals.
type Measure = (&'static str, fn(&Run) -> f64, usize);
const MEASURES: [Measure; 5] = [
    ("true PSNR, dB", Run::mean, 2),
    (
        "its standard deviation over the frames, dB",
        Run::deviation,
        2,
    ),
    ("PSNR by the formula, dB", Run::formula, 2),
    (KINDS[0], |run| run.late[0], 2),
    (KINDS[1], |run| run.late[1], 2),
];

fn numbers(source: &Source, measured: &[RunsByScheme]) -> Table {
    let mut rows = Vec::new();
    for (loss, by_scheme) in LOSSES.iter().zip(measured) {
        for (what, of, decimals) in MEASURES {
            let runs = by_scheme.each_ref().map(|runs| values(runs, of));
            let means = runs
                .each_ref()
                .map(|runs| plus_minus(estimate(runs), decimals));
            let gain = plus_minus(estimate(&gains(&runs[1], &runs[0])), 2);
            rows.push([&[percent(*loss), what.to_owned()], &means[..], &[gain]].concat());
        }
    }
    let names = SCHEMES.map(|scheme| scheme.name);
    let complete = stats::mean(&source.complete_psnr).unwrap_or(f64::NAN);
    Table::new(
        format!("Mean ± 95 % interval; with every frame in time the true PSNR is {complete:.2} dB"),
        &[&["loss", "of"], &names[..], &["PO against standard, %"]].concat(),
        rows,
    )
}

fn figures(session: &mut Session<'_>, source: &Source, measured: &[RunsByScheme]) {
    let complete = Run {
        psnr: source.complete_psnr.clone(),
        formula: Vec::new(),
        late: [0.0; 2],
    };
    let runs = session.runs();
    for (loss, by_scheme) in LOSSES.iter().zip(measured) {
        let mut lines: Vec<_> = SCHEMES
            .iter()
            .zip(by_scheme)
            .map(|(scheme, runs)| {
                let seconds: Vec<BySecond> = runs.iter().map(Run::by_second).collect();
                by_second(scheme.name, &BySecond::means(&seconds))
            })
            .collect();
        lines.push(by_second(
            "nothing late",
            &BySecond::means([&complete.by_second()]),
        ));
        let title = format!("PSNR over time at a loss of {}", percent(*loss));
        let note = format!("{CC}; decoded pictures against the source; means over {runs} runs");
        let figure = over_time(&title, &note, "PSNR (dB)", lines);
        session.figure(&format!("over-time-loss{}", loss * 100.0), figure);
    }
    let losses = LOSSES.map(percent);
    let series = SCHEMES.iter().enumerate().map(|(n, scheme)| {
        let bar = |by_scheme: &RunsByScheme| {
            let (mean, half) = estimate(&values(&by_scheme[n], Run::mean));
            Point::with_error(0.0, mean, half)
        };
        (scheme.name, measured.iter().map(bar).collect())
    });
    let figure = bars(
        "Mean PSNR by loss",
        &format!("{CC}; {runs} runs; bars are 95 % confidence intervals of the mean"),
        "PSNR (dB)",
        (&losses.each_ref().map(String::as_str), series.collect()),
    );
    session.figure("by-loss", figure);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use braid_sim::traffic::{Kind, Message};
    use braid_wire::Instant;

    use super::*;

    fn frame(second: u64, stream: u16, len: u32) -> Frame {
        Frame {
            at: Duration::from_secs(second),
            stream,
            priority: 0,
            kind: Kind::P,
            len,
            deadline: Duration::from_millis(250),
        }
    }

    /// Returns a message of `stream` that is complete `ms` after it was made.
    fn received(stream: u16, ms: u64) -> Received {
        let complete_at = Instant::from_millis(ms);
        let message = Message {
            stream,
            priority: 0,
            kind: Kind::P,
            len: 1,
            made_at: Instant::ZERO,
            deadline: Some(Instant::from_millis(250)),
        };
        Received {
            message,
            first_byte_at: complete_at,
            complete_at,
            parts: 1,
        }
    }

    #[test]
    fn frames_are_told_apart_by_their_place_in_the_stream() {
        let frames = [0, 1, 1, 0, 1].map(|stream| frame(0, stream, 1));
        let messages = [(1, 100), (0, 200), (1, 260), (0, 250)];
        let messages = messages.map(|(stream, ms)| received(stream, ms));
        let in_time = in_time(&frames, &messages);
        // The message after 260 ms exceeds the deadline of 250 ms, and the last frame has no message.
        assert_eq!(in_time, [true, true, false, true, false]);
        assert_eq!(late(&frames, &in_time, 0), 0.0);
        // Two of the three frames of stream 1.
        assert!((late(&frames, &in_time, 1) - 200.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn the_formula_is_of_what_is_missing() {
        let frames = [
            frame(0, 0, 125_000),
            frame(1, 0, 25_000),
            frame(1, 0, 100_000),
        ];
        let psnr = formula(&frames, &[true, true, false]);
        // The peak is 1 Mbit/s. The first second lacks nothing, so the floor of 1 kbit/s counts:
        // 20 log10(1000) = 60. The second lacks 0.8 Mbit: 20 log10(1 / 0.8).
        assert!((psnr[0] - 60.0).abs() < 1e-9, "{}", psnr[0]);
        assert!(
            (psnr[1] - 20.0 * 1.25_f64.log10()).abs() < 1e-9,
            "{}",
            psnr[1]
        );
    }
}
