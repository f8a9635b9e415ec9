//! The grid: every strategy in every case. It judges whether the candidate strategy is in no case slower
//! than the best other strategy.

mod cases;
pub(crate) mod judge;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::json;

pub(super) use self::cases::Grid;
use self::cases::oracle_ms;
use self::judge::{ALPHA, Comparison, MARGINS, STATISTICS, Sample, TAIL_RUNS, copies_allowed};
use super::entry;
use super::outcome::{Table, row};
use super::session::Session;
use super::verdict::{Bound, Verdict};
use crate::backend::{Backend, Error};
use crate::case::Case;
use crate::plot::{Axis, Figure, Point, Series};
use crate::stats;

/// The strategy that is judged.
const CANDIDATE: &str = "adaptive";

/// The grid of each backend, by the backend's name.
static GRIDS: LazyLock<BTreeMap<String, Grid>> = LazyLock::new(|| {
    toml::from_str(include_str!("grid/grids.toml")).expect("grids.toml is well-formed")
});

/// Divisor of the usual number of runs that gives the number of first runs of a rival in a case. A rival that is not
/// near after them makes no more runs, so that time is spent on runs that can decide.
const FIRST_DIVISOR: u64 = 5;
/// A rival is near if a statistic of it is at most this multiple of the candidate's. A guess, far beyond the
/// margins.
const NEAR: f64 = 1.10;
/// Factors for the number of runs in the two rounds of reruns. With the default of 30 runs, a suspect gets
/// 300 runs in the first round and [`MAX_SUSPECT_RUNS`] in the second.
const RERUN_FACTORS: [u64; 2] = [10, 167];
/// Maximum number of runs of a suspect. A guess: enough to decide a difference of 2 %.
const MAX_SUSPECT_RUNS: u64 = 5_000;
/// Size from which flows make only a third of the usual runs, and at most a fifth of [`MAX_SUSPECT_RUNS`]. Their times
/// vary less, and with all runs they would carry five sixths of all bytes. A guess.
const LARGE_BYTES: u64 = 1 << 20;
/// Settings of the cases whose 99th percentile is compared too: the number of these cases, the factor for
/// their runs, and their maximum number of runs. With the default of 30 runs, the factor reaches the
/// maximum. 2,000 runs are twice the [`TAIL_RUNS`] that a comparison needs.
const TAIL_CASES: (usize, u64, u64) = (60, 67, 2_000);
/// Size below which flows are among [`TAIL_CASES`]: a rare loss delays small flows the most.
const TAIL_BYTES: u64 = 256 << 10;

/// The records and subflows that exist before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
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

/// Returns the names of the strategies other than the candidate. Without priorities `po` decides as `minrtt`, its
/// base, and is left out.
fn others() -> impl Iterator<Item = &'static str> {
    braid_strategy::names().filter(|name| ![CANDIDATE, "po"].contains(name))
}

/// A strategy other than the candidate, and its comparison with the candidate in a case.
struct Rival {
    name: &'static str,
    /// The comparison over the last round of runs.
    comparison: Comparison,
    /// Number of runs that were compared.
    runs: usize,
    /// The candidate's mean divided by the rival's, without reruns of suspects, because all cases must have the
    /// same weight in geometric means.
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
        self.candidate.copies(self.case.size.bytes())
    }

    /// Returns whether the candidate sent more copies than allowed.
    fn exceeds_copies(&self) -> bool {
        let lossy = self
            .case
            .paths
            .specs()
            .iter()
            .any(|path| path.loss.mean() > 0.0);
        self.copies() > copies_allowed(self.case.size.bytes(), lossy)
    }
}

/// Returns the number of cases on `backend`.
pub fn case_count(backend: Backend) -> usize {
    GRIDS[backend.name()].len() * (others().count() + 1)
}

/// Measures one strategy against all others in every case of the backend's grid.
pub fn measure(session: &mut Session<'_>) -> Result<(), Error> {
    measure_grid(session, &GRIDS[session.backend().name()])
}

pub(super) fn measure_grid(session: &mut Session<'_>, grid: &Grid) -> Result<(), Error> {
    let cases = grid.cases(session.seed())?;
    let is_small = |case: &Case| case.size.bytes() < TAIL_BYTES;
    // Sizes change fastest from case to case. The stride is one less than a divisor of the small cases, so that
    // it is no multiple of the number of sizes, and the chosen cases have all small sizes.
    let (tails, times, max_runs) = TAIL_CASES;
    let small = cases.iter().filter(|(_, case)| is_small(case)).count();
    let step = (small / tails).saturating_sub(1);
    let is_tail = |n: usize| step > 0 && n.is_multiple_of(step) && n / step < tails;
    let mut judged = Vec::new();
    let mut small = 0;
    for (start, case) in cases {
        let runs = if is_small(&case) {
            small += 1;
            if is_tail(small - 1) {
                (session.runs() * times).min(max_runs).max(session.runs())
            } else {
                session.runs()
            }
        } else if case.size.bytes() < LARGE_BYTES {
            session.runs()
        } else {
            session.runs().div_ceil(3)
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
    session.parameter("left out", "po, which decides as minrtt without priorities");
    let lost = lost(&judged);
    for start in &starts {
        let of: Vec<&Judged> = judged.iter().filter(|j| j.start == *start).collect();
        for cc in &grid.cc {
            let of: Vec<&Judged> = of.iter().copied().filter(|j| j.case.cc == *cc).collect();
            let setting = format!("{}, {start}", cc.to_uppercase());
            let verdicts = verdicts(&of, &lost).into_iter();
            session.verdicts(verdicts.map(|verdict| verdict.with(&setting)));
            session.figure(
                &format!("{start}-{cc}-by-size"),
                by_size(&setting, &of, grid),
            );
        }
        session.table(means(*start, &of));
        session.record(start.to_string(), of.iter().map(|j| record(j)).collect());
    }
    session.table(lost_table(&lost));
    Ok(())
}

/// Runs the candidate `usual` times in `case`, and every rival as often if it is near. A rival that may be faster
/// than the candidate runs again, more often.
fn judge(session: &Session<'_>, start: Start, case: Case, usual: u64) -> Result<Judged, Error> {
    let runs_of = |strategy: &str, runs| {
        let case = Case {
            strategy: strategy.to_owned(),
            ..case.clone()
        };
        let results = session.runs_of(session.backend(), &case, runs)?;
        Ok::<_, Error>(Sample::new(&results))
    };
    let tail = usual >= TAIL_RUNS;
    let candidate = runs_of(CANDIDATE, usual)?;
    let mut missing = candidate.missing;
    let mut rivals = Vec::new();
    for name in others() {
        // Tails need all runs to be compared.
        let first = if tail {
            usual
        } else {
            usual.div_ceil(FIRST_DIVISOR)
        };
        let mut other = runs_of(name, first)?;
        let mut comparison = Comparison::new(&candidate.first(first as usize), &other);
        if first < usual && comparison.is_near(NEAR) {
            other = runs_of(name, usual)?;
            comparison = Comparison::new(&candidate, &other);
        }
        missing += other.missing;
        rivals.push(Rival {
            name,
            runs: other.ms.len(),
            ratio: candidate.first(other.ms.len()).mean() / other.mean(),
            comparison,
        });
    }
    // A few runs can neither prove nor refute a difference near the margin. A rival runs again in the first
    // round if it is faster by more than half of the margin, and in the second round if it is faster by
    // more than the margin.
    for (times, share) in RERUN_FACTORS.into_iter().zip([0.5, 1.0]) {
        let most = match case.size.bytes() {
            LARGE_BYTES.. => MAX_SUSPECT_RUNS / 5,
            _ => MAX_SUSPECT_RUNS,
        };
        let runs = (session.runs() * times).min(most).max(usual);
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

/// A comparison that the candidate lost.
struct Lost<'a> {
    judged: &'a Judged,
    rival: &'a Rival,
    /// True for each of [`STATISTICS`] in which the candidate lost.
    by: [bool; 3],
}

/// Returns all lost comparisons. Holm's method corrects the p-values of each statistic for the number of
/// comparisons: among thousands, some would seem lost by chance.
fn lost(judged: &[Judged]) -> Vec<Lost<'_>> {
    let mut all = Vec::new();
    for judged in judged {
        let by = [false; 3];
        let lost = |rival| Lost { judged, rival, by };
        all.extend(judged.rivals.iter().map(lost));
    }
    for n in 0..STATISTICS.len() {
        let is_tested = |l: &&mut Lost<'_>| n < 2 || l.judged.tail;
        let mut tested: Vec<_> = all.iter_mut().filter(is_tested).collect();
        let p: Vec<f64> = tested.iter().map(|l| l.rival.comparison.p[n]).collect();
        for (tested, lost) in tested.iter_mut().zip(stats::holm(&p, ALPHA)) {
            tested.by[n] = lost;
        }
    }
    all.retain(|l| l.by.contains(&true));
    all
}

/// Returns the verdicts on the cases of a start and a congestion control.
fn verdicts(of: &[&Judged], lost: &[Lost<'_>]) -> Vec<Verdict> {
    let none = |claim: &str, count: usize, cases: usize| {
        Verdict::new(
            claim,
            Bound::AtMost(0.0),
            "",
            [(format!("of {cases}"), count as f64)],
        )
    };
    let lost_by = |n: usize, cases: usize| {
        let is_of = |l: &&Lost<'_>| l.by[n] && of.iter().any(|j| std::ptr::eq(*j, l.judged));
        // The address identifies a case, so that a case that several rivals win counts once.
        let lost = lost
            .iter()
            .filter(is_of)
            .map(|l| std::ptr::from_ref(l.judged));
        let lost: BTreeSet<_> = lost.collect();
        let (statistic, margin) = (STATISTICS[n], MARGINS[n] * 100.0);
        let claim =
            format!("cells in which another's {statistic} is more than {margin:.0} % shorter");
        none(&claim, lost.len(), cases)
    };
    let costly = of.iter().filter(|j| j.exceeds_copies()).count();
    let missing: u64 = of.iter().map(|j| j.missing).sum();
    let mut verdicts = vec![
        none(
            "flows of all strategies that do not arrive",
            missing as usize,
            of.len(),
        ),
        lost_by(0, of.len()),
        lost_by(1, of.len()),
        none("cells with copies beyond their limit", costly, of.len()),
    ];
    let tails = of.iter().filter(|j| j.tail).count();
    if tails > 0 {
        verdicts.push(lost_by(2, tails));
    }
    let claim = "geometric mean of completion times as a share of that of each other strategy";
    let ratios = others().map(|name| (name, ratio(of, name).unwrap_or(f64::NAN)));
    verdicts.push(Verdict::new(claim, Bound::Below(1.0), "", ratios));
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
    let row = |name: &str, share: &dyn Fn(&[&Judged]) -> Option<f64>| {
        let mut row = vec![name.to_owned()];
        for cc in &ccs {
            let cases: Vec<&Judged> = of.iter().copied().filter(|j| j.case.cc == *cc).collect();
            row.push(share(&cases).map_or("-".to_owned(), |share| format!("{share:.3}")));
        }
        row
    };
    let mut rows: Vec<Vec<String>> = others()
        .map(|name| row(name, &|cases| ratio(cases, name)))
        .collect();
    rows.push(row("an oracle without loss and windows", &|cases| {
        let share = |j: &&Judged| j.candidate.mean() / oracle_ms(&j.case);
        stats::geometric_mean(&cases.iter().map(share).collect::<Vec<_>>())
    }));
    let head: Vec<&str> = ["against"].into_iter().chain(ccs.iter().copied()).collect();
    let title = format!("{CANDIDATE}, {start}: geometric mean of its completion times as shares");
    Table::new(title, &head, rows)
}

/// Returns a table of the lost comparisons.
fn lost_table(lost: &[Lost<'_>]) -> Table {
    let cells = |Lost { judged, rival, by }: &Lost<'_>| {
        let Case {
            cc, paths, size, ..
        } = &judged.case;
        let mut row = row(&[&judged.start, cc, paths, size, &rival.name]);
        for (share, lost) in rival.comparison.shares.iter().zip(by) {
            row.push(format!("{share:.3}{}", if *lost { " lost" } else { "" }));
        }
        row.push(rival.runs.to_string());
        row
    };
    entry::table("grid", "lost", lost.iter().map(cells).collect())
}

fn by_size(setting: &str, of: &[&Judged], grid: &Grid) -> Figure {
    let point = |name: &str, size: &str| {
        let of_size = of.iter().filter(|j| j.case.size.to_string() == size);
        let of_size: Vec<&Judged> = of_size.copied().collect();
        let bytes = of_size.first()?.case.size.bytes();
        // The figure shows the rivals' times over the candidate's, so that slower rivals are above 1.
        Some(Point::new(bytes as f64, 1.0 / ratio(&of_size, name)?))
    };
    let sizes = grid.sizes.iter();
    let series =
        others().map(|name| Series::line(name, sizes.clone().filter_map(|size| point(name, size))));
    super::series::by_size(
        &format!("Flow completion time as a multiple of that of {CANDIDATE}, {setting}"),
        "geometric means over all paths and losses; above 1 the other strategy is slower",
        Axis::linear("multiple"),
        series.collect(),
    )
}

fn record(judged: &Judged) -> serde_json::Value {
    let rival = |r: &Rival| {
        let Comparison { shares, p } = r.comparison;
        json!({
            "strategy": r.name,
            "ratio": r.ratio,
            "mean": shares[0],
            "p95": shares[1],
            "p99": shares[2],
            "p_mean": p[0],
            "p_p95": p[1],
            "p_p99": p[2],
            "runs": r.runs,
        })
    };
    let case = Case {
        strategy: CANDIDATE.to_owned(),
        ..judged.case.clone()
    };
    json!({
        "cell": case.command(judged.candidate.ms.len() as u64),
        "mean_ms": judged.candidate.mean(),
        "p95_ms": judged.candidate.statistic(1),
        "oracle_ms": oracle_ms(&judged.case),
        "copies": judged.copies(),
        "rivals": judged.rivals.iter().map(rival).collect::<Vec<_>>(),
    })
}
