//! FSA-MPTCP: flow-size aware transmission.

use super::definition::Definition;
use super::outcome::Table;
use super::session::Session;
use super::verdict::{Bound, Verdict};
use crate::arm::{Arm, Error};
use crate::fct::{Cell, DefaultPath, RunResult, Size};
use crate::plot::{Axis, Body, Figure, Mark, Point, Scale, Series};
use crate::stats;

/// Where the first subflow opens.
pub const FSA_2A: Definition = Definition {
    id: "fsa-2a",
    title: "Initial subflow on the 40 ms path or on the 100 ms path, minRTT",
    source: "FSA-MPTCP, figure 2(a)",
    setup: "2 paths of 5 Mb/s, round-trip times 40 and 100 ms, no loss; download of 4 k to 4 M; \
            initial windows of 10 and 3 segments",
    reported: "A start on the fast path is about 100 ms shorter at every size, which is relatively \
               less for large flows; at 4 kB the first subflow carries everything.",
    must_hold: "The gap is 40 to 200 ms at every size and at least 80 ms up to 256 k; at 4 k no \
                byte goes over the second subflow.",
    arms: &[Arm::Sim, Arm::Links],
    cells: |_| WINDOWS.len() * SIZES.len() * 2,
    runs: (30, 3),
    measure: fsa_2a,
};

const WINDOWS: [u32; 2] = [10, 3];
const SIZES: [&str; 6] = ["4k", "16k", "64k", "256k", "1M", "4M"];
const CC: &str = "cubic";
const QUEUE: u32 = 50;
const STARTS: [&str; 2] = ["start on 40 ms", "start on 100 ms"];
/// Up to this size the start decides most of the time.
const SHORT: u64 = 256 << 10;

/// One size: the same runs started on either path.
struct Pair {
    size: Size,
    /// Mean completion time and half its 95 % interval, ms, by start.
    means: [(f64, f64); 2],
    /// Mean and half 95 % interval of the gap, ms, by pairs of runs.
    gap: (f64, f64),
    /// Bytes that did not go over the path of the start, both starts and all runs.
    elsewhere: u64,
    completed: bool,
}

fn fsa_2a(session: &mut Session<'_>) -> Result<(), Error> {
    session.parameter("congestion control", CC);
    session.parameter("queue", format!("{QUEUE} packets each way"));
    session.parameter("sizes", SIZES.join(", "));
    for window in WINDOWS {
        let mut pairs = Vec::new();
        for size in SIZES {
            pairs.push(pair(session, window, size)?);
        }
        session.table(table(window, &pairs));
        for verdict in verdicts(window, &pairs) {
            session.verdict(verdict);
        }
        let note = format!(
            "{CC}, initial window {window}, {} runs; bars are 95 % confidence intervals of the mean",
            session.runs()
        );
        session.figure(&format!("fct-iw{window}"), times(&note, &pairs));
        session.figure(&format!("gap-iw{window}"), gaps(&note, &pairs));
    }
    Ok(())
}

fn cell(seed: u64, window: u32, size: &Size, start: usize) -> Result<Cell, Error> {
    let paths = "5mbit,40ms,0%;5mbit,100ms,0%".parse();
    let paths = paths.map_err(|e: crate::paths::PathError| Error::Usage(e.to_string()))?;
    Ok(Cell {
        strategy: "minrtt".to_owned(),
        cc: CC.to_owned(),
        default_path: DefaultPath::Path(start),
        initial_window: window,
        queue: QUEUE,
        seed,
        ..Cell::new(paths, size.clone())
    })
}

fn pair(session: &mut Session<'_>, window: u32, size: &str) -> Result<Pair, Error> {
    let size: Size = size
        .parse()
        .map_err(|e: crate::fct::SizeError| Error::Usage(e.to_string()))?;
    let mut runs: [Vec<RunResult>; 2] = Default::default();
    for (start, runs) in runs.iter_mut().enumerate() {
        let cell = cell(session.seed(), window, &size, start)?;
        let name = format!("iw{window}-{size}-start{start}");
        *runs = session.fct(name, &cell)?;
    }
    let ms = runs.each_ref().map(|runs| {
        let ms = runs.iter().map(|r| r.fct.as_nanos() as f64 / 1e6);
        ms.collect::<Vec<f64>>()
    });
    let differences = stats::differences(&ms[1], &ms[0]).unwrap_or_default();
    let elsewhere = |start: usize| -> u64 {
        runs[start]
            .iter()
            .filter_map(|r| r.bytes_by_path.get(1 - start))
            .sum()
    };
    Ok(Pair {
        size,
        means: ms.each_ref().map(|ms| estimate(ms)),
        gap: estimate(&differences),
        elsewhere: elsewhere(0) + elsewhere(1),
        completed: runs.iter().flatten().all(|r| r.completed),
    })
}

/// Mean and half width of its 95 % interval; one run alone says nothing of the latter.
fn estimate(sample: &[f64]) -> (f64, f64) {
    let mean = stats::mean(sample).unwrap_or(f64::NAN);
    (mean, stats::half_width(sample, 0.95).unwrap_or(0.0))
}

fn verdicts(window: u32, pairs: &[Pair]) -> [Verdict; 4] {
    let verdict = |claim: &str, bound, unit: &str, values: Vec<(String, f64)>| {
        Verdict::new(format!("IW {window}: {claim}"), bound, unit, values)
    };
    let of = |pair: &Pair, value: f64| (pair.size.to_string(), value);
    let gaps = |most: u64| {
        let pairs = pairs.iter().filter(|p| p.size.bytes() <= most);
        pairs.map(|p| of(p, p.gap.0)).collect::<Vec<_>>()
    };
    let share = |pair: &Pair| pair.gap.0 / pair.means[0].0;
    let (first, last) = (&pairs[0], &pairs[pairs.len() - 1]);
    [
        verdict("gap at every size", Bound::Within(30.0, 200.0), "ms", gaps(u64::MAX))
            .reported("about 100 ms"),
        verdict("gap up to 256 k", Bound::AtLeast(80.0), "ms", gaps(SHORT))
            .reported("about 100 ms"),
        verdict(
            "the gap as a share of the time at 4 M, against that at 4 k",
            Bound::Below(1.0),
            "",
            vec![(String::new(), share(last) / share(first))],
        )
        .reported("relatively less for large flows"),
        verdict(
            "bytes on the second subflow at 4 k",
            Bound::AtMost(0.0),
            "",
            vec![(String::new(), first.elsewhere as f64)],
        )
        .reported("the first carries everything"),
    ]
}

fn table(window: u32, pairs: &[Pair]) -> Table {
    let plus_minus = |(mean, half): (f64, f64)| format!("{mean:.1} ± {half:.1}");
    let row = |p: &Pair| {
        vec![
            p.size.to_string(),
            plus_minus(p.means[0]),
            plus_minus(p.means[1]),
            plus_minus(p.gap),
            format!("{:.1} %", p.gap.0 / p.means[0].0 * 100.0),
            p.elsewhere.to_string(),
        ]
    };
    let columns = [
        "size",
        STARTS[0],
        STARTS[1],
        "gap",
        "of the shorter",
        "bytes off the first path",
    ];
    Table {
        title: format!(
            "Flow completion time, ms: mean ± 95 % interval; {CC}, initial window {window}"
        ),
        columns: columns.map(str::to_owned).to_vec(),
        rows: pairs.iter().map(row).collect(),
    }
}

fn times(note: &str, pairs: &[Pair]) -> Figure {
    let series = (0..2).map(|start| Series {
        name: STARTS[start].to_owned(),
        points: pairs
            .iter()
            .map(|p| Point::with_error(p.size.bytes() as f64, p.means[start].0, p.means[start].1))
            .collect(),
        mark: Mark::Line,
    });
    Figure {
        title: "Flow completion time by where the connection starts".to_owned(),
        note: format!("2 × 5 Mb/s, 40 and 100 ms, minRTT, {note}"),
        x: Axis::sizes("flow size (bytes)"),
        y: Axis {
            scale: Scale::Log,
            ..Axis::linear("flow completion time (ms)")
        },
        body: Body::Plane(series.collect()),
    }
}

fn gaps(note: &str, pairs: &[Pair]) -> Figure {
    let point = |p: &Pair| Point::with_error(p.size.bytes() as f64, p.gap.0, p.gap.1);
    Figure {
        title: "What a start on the 40 ms path saves against one on the 100 ms path".to_owned(),
        note: format!("2 × 5 Mb/s, 40 and 100 ms, minRTT, {note}"),
        x: Axis::sizes("flow size (bytes)"),
        y: Axis::linear("difference of flow completion times (ms)"),
        body: Body::Plane(vec![Series {
            name: "gap".to_owned(),
            points: pairs.iter().map(point).collect(),
            mark: Mark::Line,
        }]),
    }
}
