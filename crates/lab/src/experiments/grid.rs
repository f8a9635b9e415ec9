//! The grid: every strategy in every case. It judges whether the candidate strategy is in no case slower
//! than the best other strategy.

mod cases;
mod judge;

use std::collections::BTreeSet;
use std::fmt;

use serde_json::json;

pub(super) use self::cases::Grid;
use self::cases::oracle_ms;
use self::judge::{ALPHA, Comparison, MEAN_MARGIN, Sample, TAIL_MARGIN, TAIL_RUNS, copies_allowed};
use super::definition::Definition;
use super::outcome::Table;
use super::session::Session;
use super::verdict::{Bound, Verdict};
use crate::backend::{Backend, Error};
use crate::case::Case;
use crate::plot::{Axis, Figure, Point, Series};
use crate::stats;

/// One strategy against all others in every case.
pub const GRID: Definition = Definition {
    id: "grid",
    title: "The adaptive strategy against every other, cell by cell",
    source: "beyond the papers",
    setup: "Download of 4 k to 4 M over 2 paths; round-trip times 40/40, 40/100 and 20/200 ms; \
            rates 5/5 and 20/5 Mb/s; loss of 0 to 5 % on the second path and half of it on the \
            first; 2 sets of 3 paths; CUBIC and BBR. Connections open on each path in turn. \
            Cold: nothing is known of the paths. Warm: one earlier connection over each of them \
            has left a record. Joined: the same, and all subflows are established.",
    reported: "",
    must_hold: "In no cell is the mean of another strategy more than 2 % shorter at 99 % \
                confidence (paired, Holm; suspects run again, 5,000 times in the end), nor its 95th \
                percentile more than 5 %, nor its 99th in 60 of the cells with 2,000 runs. Copies \
                are at most 10 % of the bytes from 256 k on, and none from 1 M on without loss. \
                Geometric mean of completion times at most 0.97 of minrtt's and 0.95 of fsa's \
                cold, 0.95 of minrtt's warm.",
    backends: &[Backend::Sim, Backend::Links],
    cases: |backend| grid_of(backend).len() * braid_strategy::names().count(),
    runs: (30, 3),
    measure: |session| measure(session, grid_of(session.backend())),
};

/// The strategy that is judged.
const CANDIDATE: &str = "adaptive";

/// The grid in virtual time.
const FULL: Grid = Grid {
    sizes: &[
        "4k", "8k", "16k", "32k", "64k", "128k", "256k", "512k", "1M", "4M",
    ],
    paths: &[
        "5mbit,40ms,H;5mbit,40ms,L",
        "5mbit,40ms,H;5mbit,100ms,L",
        "5mbit,20ms,H;5mbit,200ms,L",
        "20mbit,40ms,H;5mbit,40ms,L",
        "20mbit,40ms,H;5mbit,100ms,L",
        "20mbit,20ms,H;5mbit,200ms,L",
        "10mbit,30ms,H;5mbit,60ms,H;5mbit,120ms,L",
        "5mbit,40ms,H;20mbit,80ms,L;2mbit,50ms,H",
    ],
    losses: &[0.0, 0.5, 1.0, 2.0, 5.0],
    cc: &["cubic", "bbr"],
    starts: &[Start::Cold, Start::Warm, Start::Joined],
};

/// The grid over links, in wall-clock time: only 12 cases, so that a run of all strategies takes minutes.
const SMALL: Grid = Grid {
    sizes: &["16k", "128k", "1M"],
    paths: &["5mbit,40ms,H;5mbit,100ms,L", "20mbit,20ms,H;5mbit,200ms,L"],
    losses: &[0.0, 2.0],
    cc: &["cubic"],
    starts: &[Start::Cold],
};

/// Factors for the number of runs in the two rounds of reruns. With the default of 30 runs, a suspect gets
/// 300 runs in the first round and [`MAX_SUSPECT_RUNS`] in the second.
const RERUN_FACTORS: [u64; 2] = [10, 167];
/// Maximum number of runs of a suspect. A guess: enough to decide a difference of 2 %.
const MAX_SUSPECT_RUNS: u64 = 5_000;
/// Settings of the cases whose 99th percentile is compared too: the number of these cases, the factor for
/// their runs, and their maximum number of runs. With the default of 30 runs, the factor reaches the
/// maximum. 2,000 runs are twice the [`TAIL_RUNS`] that a comparison needs.
const TAIL_CASES: (usize, u64, u64) = (60, 67, 2_000);

/// Bounds on geometric means: the start, the rival, and the maximum ratio. The claims of the definition
/// set the values.
const MEAN_BOUNDS: [(Start, &str, f64); 3] = [
    (Start::Cold, "minrtt", 0.97),
    (Start::Cold, "fsa", 0.95),
    (Start::Warm, "minrtt", 0.95),
];

fn grid_of(backend: Backend) -> &'static Grid {
    match backend.is_virtual() {
        true => &FULL,
        false => &SMALL,
    }
}

/// The records and subflows that exist before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Start {
    /// No records.
    Cold,
    /// Records of the paths.
    Warm,
    /// Records of the paths, and all subflows established.
    Joined,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Start::Cold => "cold",
            Start::Warm => "warm",
            Start::Joined => "joined",
        })
    }
}

/// A strategy other than the candidate, and its comparison with the candidate in a case.
struct Rival {
    name: &'static str,
    /// The comparison over the last round of runs.
    comparison: Comparison,
    /// Number of runs that were compared.
    runs: usize,
    /// The candidate's mean divided by the rival's, over the first round of runs. Reruns do not count,
    /// because all cases must have the same weight in geometric means.
    ratio: f64,
}

/// A case, and the results of all strategies in it.
struct Judged {
    start: Start,
    case: Case,
    candidate: Sample,
    rivals: Vec<Rival>,
    /// Number of flows of all strategies that did not arrive.
    missing: u64,
    /// True if the 99th percentile is judged.
    tail: bool,
}

impl Judged {
    /// Returns the bytes that the candidate sent as copies, divided by the bytes of the flows.
    fn copies(&self) -> f64 {
        let runs = self.candidate.ms.len().max(1) as f64;
        self.candidate.copied as f64 / (self.case.size.bytes() as f64 * runs)
    }

    /// Returns whether the candidate sent more copies than allowed.
    fn exceeds_copies(&self) -> bool {
        let lossy = self.case.paths.specs().iter().any(|path| path.loss > 0.0);
        self.copies() > copies_allowed(self.case.size.bytes(), lossy)
    }
}

pub(super) fn measure(session: &mut Session<'_>, grid: &Grid) -> Result<(), Error> {
    if !braid_strategy::names().any(|name| name == CANDIDATE) {
        return Err(Error::Usage(format!("there is no strategy `{CANDIDATE}`")));
    }
    let cases = grid.cases(session.seed())?;
    // Sizes change fastest from case to case. The stride is one less than a divisor of the cases, so that
    // it is no multiple of the number of sizes, and the chosen cases have all sizes.
    let (tails, times, max_runs) = TAIL_CASES;
    let step = (cases.len() / tails).saturating_sub(1);
    let is_tail = |n: usize| step > 0 && n.is_multiple_of(step) && n / step < tails;
    let mut judged = Vec::new();
    for (n, (start, case)) in cases.into_iter().enumerate() {
        let runs = match is_tail(n) {
            true => (session.runs() * times).min(max_runs).max(session.runs()),
            false => session.runs(),
        };
        judged.push(judge(session, start, case, runs)?);
    }
    let starts: BTreeSet<Start> = judged.iter().map(|j| j.start).collect();
    session.parameter(
        "queue",
        format!("{} packets each way", judged[0].case.queue),
    );
    session.parameter("initial window", judged[0].case.initial_window);
    session.parameter("cells", judged.len());
    let lost = lost(&judged);
    for start in &starts {
        let of: Vec<&Judged> = judged.iter().filter(|j| j.start == *start).collect();
        for verdict in verdicts(*start, &of, &lost) {
            session.verdict(verdict);
        }
        session.table(means(*start, &of));
        session.figure(&format!("{start}-by-size"), by_size(*start, &of, grid));
        session.record(start.to_string(), of.iter().map(|j| record(j)).collect());
    }
    session.table(lost_table(&lost));
    Ok(())
}

/// Runs every strategy `first` times in `case`. A rival that may be faster than the candidate runs again,
/// more often.
fn judge(session: &Session<'_>, start: Start, case: Case, first: u64) -> Result<Judged, Error> {
    let runs_of = |strategy: &str, runs| {
        let case = Case {
            strategy: strategy.to_owned(),
            ..case.clone()
        };
        let results = session.runs_of(&case, runs)?;
        Ok::<_, Error>(Sample::new(&results))
    };
    let tail = first >= TAIL_RUNS;
    let candidate = runs_of(CANDIDATE, first)?;
    let mut missing = candidate.missing;
    let mut rivals = Vec::new();
    for name in braid_strategy::names().filter(|name| *name != CANDIDATE) {
        let other = runs_of(name, first)?;
        missing += other.missing;
        rivals.push(Rival {
            name,
            comparison: Comparison::new(&candidate, &other),
            runs: other.ms.len(),
            ratio: candidate.mean() / other.mean(),
        });
    }
    // A few runs can neither prove nor refute a difference near the margin. A rival runs again in the first
    // round if it is faster by more than half of the margin, and in the second round if it is faster by
    // more than the margin.
    for (times, share) in RERUN_FACTORS.into_iter().zip([0.5, 1.0]) {
        let runs = (session.runs() * times).min(MAX_SUSPECT_RUNS).max(first);
        let suspected = |r: &Rival| r.comparison.is_suspect(share, tail);
        if !rivals.iter().any(suspected) {
            break;
        }
        let candidate = runs_of(CANDIDATE, runs)?;
        for rival in rivals.iter_mut().filter(|r| suspected(r)) {
            let other = runs_of(rival.name, runs)?;
            rival.comparison = Comparison::new(&candidate, &other);
            rival.runs = other.ms.len();
        }
    }
    Ok(Judged {
        start,
        case,
        candidate,
        rivals,
        missing,
        tail,
    })
}

/// A comparison that the candidate lost. Each flag is true if the candidate lost in that statistic.
struct Lost<'a> {
    judged: &'a Judged,
    rival: &'a Rival,
    mean: bool,
    p95: bool,
    p99: bool,
}

/// Returns all lost comparisons. Holm's method corrects the p-values of each statistic for the number of
/// comparisons: among thousands, some would seem lost by chance.
fn lost(judged: &[Judged]) -> Vec<Lost<'_>> {
    let all: Vec<(&Judged, &Rival)> = judged
        .iter()
        .flat_map(|j| j.rivals.iter().map(move |r| (j, r)))
        .collect();
    let holm = |p: fn(&Comparison) -> f64, counts: fn(&Judged) -> bool| {
        let tested: Vec<usize> = (0..all.len()).filter(|n| counts(all[*n].0)).collect();
        let p: Vec<f64> = tested.iter().map(|n| p(&all[*n].1.comparison)).collect();
        let lost = tested.into_iter().zip(stats::holm(&p, ALPHA));
        lost.filter_map(|(n, lost)| lost.then_some(n))
            .collect::<BTreeSet<_>>()
    };
    let mean = holm(|c| c.p_mean, |_| true);
    let p95 = holm(|c| c.p_p95, |_| true);
    let p99 = holm(|c| c.p_p99, |j| j.tail);
    let each = all.iter().enumerate();
    each.map(|(n, (judged, rival))| Lost {
        judged,
        rival,
        mean: mean.contains(&n),
        p95: p95.contains(&n),
        p99: p99.contains(&n),
    })
    .filter(|l| l.mean || l.p95 || l.p99)
    .collect()
}

fn verdicts(start: Start, of: &[&Judged], lost: &[Lost<'_>]) -> Vec<Verdict> {
    let verdict = |claim: String, bound, unit: &str, value| {
        Verdict::new(format!("{start}: {claim}"), bound, unit, [("", value)])
    };
    let none = Bound::AtMost(0.0);
    let cases = |statistic: fn(&Lost<'_>) -> bool| {
        let lost = lost
            .iter()
            .filter(|l| l.judged.start == start && statistic(l));
        // The address identifies a case, so that a case that several rivals win counts once.
        let cases = lost.map(|l| std::ptr::from_ref(l.judged));
        cases.collect::<BTreeSet<_>>().len() as f64
    };
    let lost_cases = |what: &str, margin: f64, lost: f64| {
        let claim = format!(
            "another's {what} is more than {:.0} % shorter",
            margin * 100.0
        );
        verdict(claim, none, &format!("of {} cells", of.len()), lost)
    };
    let costly = of.iter().filter(|j| j.exceeds_copies()).count();
    let missing: u64 = of.iter().map(|j| j.missing).sum();
    let mut verdicts = vec![
        verdict(
            "flows that do not arrive".to_owned(),
            none,
            "",
            missing as f64,
        ),
        lost_cases("mean", MEAN_MARGIN, cases(|l| l.mean)),
        lost_cases("95th percentile", TAIL_MARGIN, cases(|l| l.p95)),
        verdict(
            "copies beyond their limit".to_owned(),
            none,
            &format!("of {} cells", of.len()),
            costly as f64,
        ),
    ];
    let tails = of.iter().filter(|j| j.tail).count();
    if tails > 0 {
        verdicts.push(verdict(
            "another's 99th percentile is more than 5 % shorter".to_owned(),
            none,
            &format!("of {tails} cells"),
            cases(|l| l.p99),
        ));
    }
    for (_, rival, max_ratio) in MEAN_BOUNDS.into_iter().filter(|(bar, ..)| *bar == start) {
        if let Some(ratio) = ratio(of, rival) {
            let claim = format!("geometric mean as a share of that of {rival}");
            verdicts.push(verdict(claim, Bound::AtMost(max_ratio), "", ratio));
        }
    }
    verdicts
}

/// Returns the geometric mean, over these cases, of the candidate's mean time divided by that of `rival`.
fn ratio(cases: &[&Judged], rival: &str) -> Option<f64> {
    let rivals = cases.iter().flat_map(|j| &j.rivals);
    let ratios: Vec<f64> = rivals
        .filter(|r| r.name == rival)
        .map(|r| r.ratio)
        .collect();
    stats::geometric_mean(&ratios)
}

fn means(start: Start, of: &[&Judged]) -> Table {
    let ccs: BTreeSet<&str> = of.iter().map(|j| j.case.cc.as_str()).collect();
    let within =
        |cc: &str| -> Vec<&Judged> { of.iter().copied().filter(|j| j.case.cc == cc).collect() };
    let show = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{share:.3}"));
    let others = braid_strategy::names().filter(|name| *name != CANDIDATE);
    let mut rows: Vec<Vec<String>> = others
        .map(|name| {
            let shares = ccs.iter().map(|cc| show(ratio(&within(cc), name)));
            [name.to_owned()].into_iter().chain(shares).collect()
        })
        .collect();
    let against_oracle = |cc: &&str| {
        let cases = within(cc);
        let shares: Vec<f64> = cases
            .iter()
            .map(|j| j.candidate.mean() / oracle_ms(&j.case))
            .collect();
        show(stats::geometric_mean(&shares))
    };
    let oracle = "an oracle without loss and windows".to_owned();
    rows.push(
        [oracle]
            .into_iter()
            .chain(ccs.iter().map(against_oracle))
            .collect(),
    );
    let head = ["against".to_owned()].into_iter();
    Table {
        title: format!("{CANDIDATE}, {start}: geometric mean of its completion times as shares"),
        columns: head.chain(ccs.iter().map(|cc| (*cc).to_owned())).collect(),
        rows,
    }
}

/// Returns a table of the lost comparisons.
fn lost_table(lost: &[Lost<'_>]) -> Table {
    let columns = [
        "start", "cc", "paths", "size", "against", "mean", "p95", "p99", "runs",
    ];
    let share = |share: f64, lost: bool| format!("{share:.3}{}", if lost { " lost" } else { "" });
    let row = |l: &Lost<'_>| {
        let Comparison { mean, p95, p99, .. } = l.rival.comparison;
        vec![
            l.judged.start.to_string(),
            l.judged.case.cc.clone(),
            l.judged.case.paths.to_string(),
            l.judged.case.size.to_string(),
            l.rival.name.to_owned(),
            share(mean, l.mean),
            share(p95, l.p95),
            share(p99, l.p99),
            l.rival.runs.to_string(),
        ]
    };
    Table::new(
        format!("Where others are faster: their times as shares of those of {CANDIDATE}"),
        &columns,
        lost.iter().map(row).collect(),
    )
}

fn by_size(start: Start, of: &[&Judged], grid: &Grid) -> Figure {
    let point = |name: &str, size: &str| {
        let of_size = of.iter().filter(|j| j.case.size.to_string() == size);
        let of_size: Vec<&Judged> = of_size.copied().collect();
        let bytes = of_size.first()?.case.size.bytes();
        // The figure shows the rivals' times over the candidate's, so that slower rivals are above 1.
        Some(Point::new(bytes as f64, 1.0 / ratio(&of_size, name)?))
    };
    let others = braid_strategy::names().filter(|name| *name != CANDIDATE);
    let sizes = grid.sizes.iter();
    let series =
        others.map(|name| Series::line(name, sizes.clone().filter_map(|size| point(name, size))));
    super::series::by_size(
        &format!("Flow completion time as a multiple of that of {CANDIDATE}, {start}"),
        "geometric means over all paths, losses and congestion controls",
        Axis::linear("multiple"),
        series.collect(),
    )
}

fn record(judged: &Judged) -> serde_json::Value {
    let rival = |r: &Rival| {
        json!({
            "strategy": r.name,
            "ratio": r.ratio,
            "mean": r.comparison.mean,
            "p95": r.comparison.p95,
            "p99": r.comparison.p99,
            "p_mean": r.comparison.p_mean,
            "p_p95": r.comparison.p_p95,
            "p_p99": r.comparison.p_p99,
            "runs": r.runs,
        })
    };
    json!({
        "cell": Case { strategy: CANDIDATE.to_owned(), ..judged.case.clone() }.command(30),
        "mean_ms": judged.candidate.mean(),
        "p95_ms": judged.candidate.p95(),
        "oracle_ms": oracle_ms(&judged.case),
        "copies": judged.copies(),
        "rivals": judged.rivals.iter().map(rival).collect::<Vec<_>>(),
    })
}
