//! PO-MPTCP's experiment on picture quality: the PSNR of a video whose frames may arrive too late.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use braid_sim::traffic::Frame;
use serde::Serialize;

use super::entry;
use super::po::{SCHEMES, SPAN, compare, note, parameters, scenario, table, video};
use super::schemes::{CC, Compared, Measure, Scheme, Timed, bars, in_each};
use super::series::{BySecond, by_second, estimate, over_time, plus_minus, values};
use super::session::Session;
use crate::backend::{Backend, Error};
use crate::stats;
use crate::video::{self, EncodedVideo};

/// Shares of packets lost (0 to 1) on both paths. At lower loss hardly any frame is late, whatever the
/// scheme.
const LOSSES: [f64; 2] = [0.02, 0.05];
/// Number of cases.
pub(super) const CASES: usize = LOSSES.len() * SCHEMES.len();
/// Minimum difference of throughputs in the formula, bit/s. Without it the formula would divide by 0 in a
/// second in which no frame is late. 1 kb/s is a choice of this lab.
const MIN_RATE_DIFFERENCE: f64 = 1e3;

/// The figures of one run that the experiment uses. The PSNR is in dB.
#[derive(Debug, Serialize)]
struct Run {
    /// Mean of all frames.
    psnr_db: f64,
    /// Standard deviation over all frames.
    psnr_sd_db: f64,
    /// Mean of the frames of each second.
    psnr_by_second_db: Vec<f64>,
    #[serde(skip)]
    by_second: BySecond,
    /// Mean of all seconds by the paper's formula.
    formula_db: f64,
    /// Share of frames that were late: of the I frames, and of the P and B frames.
    late_percent: [f64; 2],
}

/// Spreads the PSNR of each frame over the span.
fn over_span(psnr: &[f64]) -> Timed {
    let at = |n: usize| n as f64 / psnr.len() as f64 * SPAN.as_secs_f64();
    let frames = psnr.iter().enumerate();
    frames.map(|(n, value)| (at(n), *value)).collect()
}

/// Returns for each of `frames` whether it arrived before its deadline. `messages` has the stream of each
/// message, and whether the message was in time. Messages of a stream arrive in order, so the n-th message
/// of a stream is the n-th frame of the stream.
fn in_time(frames: &[Frame], messages: impl IntoIterator<Item = (u16, bool)>) -> Vec<bool> {
    let mut streams: BTreeMap<u16, VecDeque<bool>> = BTreeMap::new();
    for (stream, in_time) in messages {
        streams.entry(stream).or_default().push_back(in_time);
    }
    // A frame without a message did not arrive at all.
    let next_of_stream = |frame: &Frame| streams.get_mut(&frame.stream)?.pop_front();
    let frames = frames.iter().map(next_of_stream);
    frames.map(Option::unwrap_or_default).collect()
}

/// Returns the PSNR of every second by the paper's formula, dB. Its MAX_Rbit is the highest bit rate of any
/// second, and its |E_Th - A_Th| is the rate of the second's frames that were not in time.
fn formula(frames: &[Frame], in_time: &[bool]) -> Vec<f64> {
    let mut offered = vec![0.0; SPAN.as_secs() as usize];
    let mut missing = offered.clone();
    for (frame, in_time) in frames.iter().zip(in_time) {
        let bits = f64::from(frame.len) * 8.0;
        let second = frame.at.as_secs() as usize;
        offered[second] += bits;
        missing[second] += if *in_time { 0.0 } else { bits };
    }
    let peak = offered.iter().copied().fold(0.0, f64::max);
    values(&missing, |missing| {
        20.0 * (peak / missing.max(MIN_RATE_DIFFERENCE)).log10()
    })
}

/// Returns the share of a stream's frames that were not in time, %.
fn late(frames: &[Frame], in_time: &[bool], stream: u16) -> f64 {
    let frames = frames.iter().zip(in_time);
    let of_stream = frames.filter(|(frame, _)| frame.stream == stream);
    let late = of_stream.map(|(_, in_time)| f64::from(u8::from(!in_time)));
    estimate(&late.collect::<Vec<_>>()).0 * 100.0
}

/// Makes the runs of a scheme at the given loss. `complete` has the PSNR of each frame if no frame of the video is
/// late.
fn runs(
    (encoded, complete): (&EncodedVideo, &[f64]),
    session: &Session<'_>,
    scheme: &Scheme<[u8; 3]>,
    loss: f64,
) -> Result<Vec<Run>, Error> {
    let video = video(scheme);
    let frames = encoded.frames(&video);
    let scenario = scenario(scheme, frames.clone(), loss)?;
    session.each(session.runs(), |_, seed| {
        let messages = scenario.run_on(Backend::Sim, seed)?.messages.into_iter();
        let messages = messages.map(|m| (m.message.stream, m.deadline_miss().is_zero()));
        let in_time = in_time(&frames, messages);
        // Decoding takes seconds, so a run without a late frame skips it.
        let psnr = match in_time.iter().all(|in_time| *in_time) {
            true => over_span(complete),
            false => over_span(&encoded.psnr(&in_time)?),
        };
        let streams = [video.important, video.other].map(|(stream, _)| stream);
        Ok(Run {
            psnr_db: psnr.mean(),
            psnr_sd_db: stats::standard_deviation(&psnr.values).unwrap_or(f64::NAN),
            psnr_by_second_db: BySecond::means([&psnr.by_second]),
            by_second: psnr.by_second,
            formula_db: estimate(&formula(&frames, &in_time)).0,
            late_percent: streams.map(|stream| late(&frames, &in_time, stream)),
        })
    })
}

const MEASURES: [Measure<Run>; 5] = [
    ("true PSNR, dB", 2, |run| run.psnr_db),
    ("its standard deviation over the frames, dB", 2, |run| {
        run.psnr_sd_db
    }),
    ("PSNR by the formula, dB", 2, |run| run.formula_db),
    ("I frames late, %", 2, |run| run.late_percent[0]),
    ("P and B frames late, %", 2, |run| run.late_percent[1]),
];

/// Measures the PSNR of a video whose frames may arrive too late.
pub(super) fn measure(session: &mut Session<'_>) -> Result<(), Error> {
    let encoded = EncodedVideo::encode(SPAN)?;
    // Encoding loses detail, so the PSNR of the complete video is finite.
    let complete = encoded.psnr(&vec![true; encoded.len()])?;
    let rate = encoded.bits_per_second() / 1e6;
    let about = format!("{}; {rate:.2} Mb/s, deadline 250 ms", video::ABOUT);
    parameters(session, &about);
    session.parameter("encoder and decoder", video::version()?);
    session.parameter("floor of the formula's difference", "1 kb/s");
    let all = compare(
        session,
        &SCHEMES,
        (&LOSSES, ""),
        |session, scheme, loss, _| runs((&encoded, &complete), session, scheme, loss).map(Arc::new),
    )?;
    judge(session, &all);
    let complete = over_span(&complete);
    let title = format!(
        "Mean ± 95 % interval; with every frame in time the true PSNR is {:.2} dB",
        complete.mean()
    );
    let columns = ["PO against standard, %"];
    session.table(table(&title, &all, &MEASURES, &columns, |n, (_, _, of)| {
        vec![plus_minus(all[n].gain(1, of), 2)]
    }));
    let complete = BySecond::means([&complete.by_second]);
    let runs = session.runs();
    for (loss, at) in LOSSES.iter().zip(&all) {
        let mut lines = at.lines(|run| &run.by_second);
        lines.push(by_second("nothing late", &complete));
        let title = format!("PSNR over time at a loss of {}", at.setting);
        let note = format!("{CC}; decoded pictures against the source; means over {runs} runs");
        let figure = over_time(&title, &note, "PSNR (dB)", lines);
        session.figure(&format!("over-time-loss{}", loss * 100.0), figure);
    }
    let (title, note) = ("Mean PSNR by loss", note(session));
    let figure = bars(title, &note, "PSNR (dB)", &all, MEASURES[0].2);
    session.figure("by-loss", figure);
    Ok(())
}

fn judge(session: &mut Session<'_>, all: &[Compared<Run>]) {
    let mean = in_each(all, |at| at.difference(1, |run| run.psnr_db));
    // The deviations are compared at the first loss only. At 5 %, nearly every frame of standard MPTCP is late, so
    // its PSNR is always low and deviates little.
    let deviation = in_each(&all[..1], |at| at.difference(1, |run| run.psnr_sd_db));
    let formula = in_each(all, |at| at.gain(1, |run| run.formula_db));
    let verdicts = entry::judge("po-8", [mean, deviation, formula]);
    session.verdicts(verdicts.map(|verdict| verdict.by("loss")));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use braid_sim::traffic::Kind;

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

    #[test]
    fn frames_are_told_apart_by_their_place_in_the_stream() {
        let frames = [0, 1, 1, 0, 1].map(|stream| frame(0, stream, 1));
        let in_time = in_time(&frames, [(1, true), (0, true), (1, false), (0, true)]);
        // The second message of stream 1 is late, and the last frame has no message.
        assert_eq!(in_time, [true, true, false, true, false]);
        assert_eq!(late(&frames, &in_time, 0), 0.0);
        // Two of the three frames of stream 1.
        assert!((late(&frames, &in_time, 1) - 200.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn the_formula_is_of_what_is_missing() {
        let frames = [(0, 125_000), (1, 25_000), (1, 100_000)];
        let frames = frames.map(|(second, len)| frame(second, 0, len));
        let psnr = formula(&frames, &[true, true, false]);
        // The peak is 1 Mbit/s. The first second lacks nothing, so the floor of 1 kbit/s counts:
        // 20 log10(1000) = 60. The second lacks 0.8 Mbit: 20 log10(1 / 0.8).
        for (seen, expected) in psnr.iter().zip([60.0, 20.0 * 1.25_f64.log10()]) {
            assert!((seen - expected).abs() < 1e-9, "{seen}");
        }
    }
}
