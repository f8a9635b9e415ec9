//! The report on a search: the figures that must hold, and the lost draws.

use serde_json::{Value, json};

use super::judge::{CRITERIA, Contest, judge};
use super::run::{CANDIDATE, Measured, Variant};
use super::searched::Searched;
use crate::experiments::{Bound, Verdict};
use crate::stats;

/// Maximum geometric mean, over all draws, of the candidate's time divided by the time of one other strategy, for the
/// best of the others. A goal: `adaptive` had 0.81 in 304 random draws when the goal was set.
const MAX_OF_BEST_FIXED: f64 = 0.76;
/// Maximum geometric mean, over all draws, of the candidate's time divided by the time of the other strategy that is
/// best in the draw. A goal too. It is above [`MAX_OF_BEST_FIXED`], because the best of each draw is never slower than
/// one fixed strategy.
const MAX_OF_BEST_EACH: f64 = 0.975;
/// Median error of the expected arrivals, as a share of the delay, above which the estimates of a draw count as wrong.
/// A guess: an error of a quarter seldom changes a decision.
const WRONG_ESTIMATE: f64 = 0.25;
/// Maximum share of draws with wrong estimates, percent. A guess: 10 to 15 % were measured.
const MAX_WRONG_PERCENT: f64 = 20.0;

/// A judged search.
#[derive(Debug)]
pub struct Report {
    /// The seed of the draws.
    pub seed: u64,
    /// All draws, in their order.
    pub searched: Vec<Searched>,
}

impl Report {
    /// Judges all contests.
    pub fn new(seed: u64, mut searched: Vec<Searched>) -> Report {
        judge(
            searched
                .iter_mut()
                .flat_map(|searched| &mut searched.contests),
        );
        Report { seed, searched }
    }

    /// Returns the lost draws, the widest gap first. The candidate may send only a limited number of copies. If
    /// `to_payers` is false, returns the draws that it lost to a rival within this limit. If `to_payers` is true,
    /// returns the draws that it lost only to rivals that exceeded the limit.
    pub fn lost(&self, to_payers: bool) -> Vec<(&Searched, &Contest)> {
        let all = self.searched.iter().filter_map(|s| Some((s, s.lost()?)));
        let mut lost: Vec<_> = all.filter(|(_, c)| c.paid.is_some() == to_payers).collect();
        lost.sort_by(|a, b| b.1.excess().total_cmp(&a.1.excess()));
        lost
    }

    /// Returns the draws in which the candidate sent more copies than it may.
    pub fn over_copies(&self) -> impl Iterator<Item = &Searched> {
        let over = |s: &&Searched| {
            let mut candidate = s
                .measured
                .iter()
                .chain(&s.fresh)
                .filter(|m| m.variant == Variant::CANDIDATE);
            candidate.any(|m| m.exceeds_copies(&s.draw))
        };
        self.searched.iter().filter(over)
    }

    /// Returns the variants with a run that could not be made, or with a flow that did not arrive.
    pub fn incomplete(&self) -> impl Iterator<Item = (&Searched, &Measured)> {
        let all = self
            .searched
            .iter()
            .flat_map(|s| s.measured.iter().chain(&s.fresh).map(move |m| (s, m)));
        all.filter(|(_, measured)| !measured.is_complete())
    }

    /// Returns for each other strategy the geometric mean of the candidate's time as a share of the strategy's.
    pub fn shares(&self) -> Vec<(&'static str, f64)> {
        let others = braid_strategy::names().filter(|name| *name != CANDIDATE);
        let share = |name| {
            let is_named = |m: &&Measured| m.variant == Variant::Strategy(name) && m.is_complete();
            let theirs = |s: &Searched| {
                let named = s.measured.iter().find(is_named);
                named.map(|measured| measured.sample.mean())
            };
            Some((name, self.geometric_mean(theirs)?))
        };
        others.filter_map(share).collect()
    }

    /// Returns the geometric mean of the candidate's mean time as a share of `theirs`, over the draws that have both.
    fn geometric_mean(&self, theirs: impl Fn(&Searched) -> Option<f64>) -> Option<f64> {
        let complete = self.searched.iter().filter(|s| s.measured[0].is_complete());
        let shares = complete.filter_map(|s| Some(s.measured[0].sample.mean() / theirs(s)?));
        stats::geometric_mean(&shares.collect::<Vec<_>>())
    }

    /// Returns the figures that must hold.
    pub fn figures(&self) -> Vec<Verdict> {
        let mut figures = Vec::new();
        for (n, criterion) in CRITERIA.iter().enumerate() {
            let judged = self
                .searched
                .iter()
                .filter(|s| (criterion.applies)(&s.draw));
            let judged: Vec<&Searched> = judged.collect();
            let lost = judged.iter().filter_map(|searched| {
                let lost = searched.contests.iter().filter(|contest| {
                    contest.criterion == n && contest.lost && contest.paid.is_none()
                });
                lost.map(Contest::ratio).max_by(f64::total_cmp)
            });
            let lost: Vec<f64> = lost.collect();
            let percent = 100.0 * lost.len() as f64 / judged.len().max(1) as f64;
            let unit = format!("% of {}", judged.len());
            let (claim, max) = (criterion.claim, criterion.max_percent);
            figures.push(at_most(max, claim, &unit, [("", percent)]));
            if let Some(max) = criterion.max_worst {
                let worst = lost.into_iter().fold(1.0, f64::max);
                let claim = format!("{claim}: the worst");
                figures.push(at_most(max, claim, "x", [("", worst)]));
            }
        }
        figures.extend(self.means());
        figures.push(self.wrong_estimates());
        let over = self.over_copies().count() as f64;
        let candidates = self.incomplete();
        let missing = candidates.filter(|(_, m)| m.variant == Variant::CANDIDATE);
        let missing = missing.count() as f64;
        let unit = format!("of {}", self.searched.len());
        let claim = "copies beyond their limit";
        figures.push(at_most(0.0, claim, &unit, [("", over)]));
        let claim = "a flow of adaptive does not arrive, or breaks a rule";
        figures.push(at_most(0.0, claim, &unit, [("", missing)]));
        figures
    }

    /// Returns the figure on the arrivals that the candidate's decisions expected.
    fn wrong_estimates(&self) -> Verdict {
        let compared = self.searched.iter().filter_map(|s| s.errors);
        let compared: Vec<f64> = compared.map(|errors| errors.median_abs).collect();
        let wrong = compared.iter().filter(|error| **error > WRONG_ESTIMATE);
        // Without a draw there is no share, and the figure does not hold.
        let percent = (!compared.is_empty())
            .then(|| rounded(100.0 * wrong.count() as f64 / compared.len() as f64));
        Verdict::new(
            "the median error of expected arrivals is more than a quarter of the delay",
            Bound::AtMost(MAX_WRONG_PERCENT),
            &format!("% of {}", compared.len()),
            percent.map(|percent| ("", percent)),
        )
    }

    /// Returns the figures on geometric means.
    fn means(&self) -> [Verdict; 2] {
        let shares = self.shares().into_iter();
        // A share is the candidate's time divided by the other's, so the fastest other has the largest share.
        let best = shares.max_by(|a, b| a.1.total_cmp(&b.1));
        let best_each = |searched: &Searched| {
            let others = searched.measured[1..].iter().filter(|m| {
                let is_strategy = matches!(m.variant, Variant::Strategy(_));
                is_strategy && m.is_complete() && !m.exceeds_copies(&searched.draw)
            });
            let means = others.map(|measured| measured.sample.mean());
            means.min_by(f64::total_cmp)
        };
        let fixed = "geometric mean as a share of that of the best other strategy";
        let each = "geometric mean as a share of the best other strategy of each draw";
        let mean = self.geometric_mean(best_each).map(|mean| ("", mean));
        [
            at_most(MAX_OF_BEST_FIXED, fixed, "", best),
            at_most(MAX_OF_BEST_EACH, each, "", mean),
        ]
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> Value {
        let figures = self.figures().into_iter().map(|verdict| {
            json!({
                "claim": verdict.claim,
                "measured": verdict.json(),
                "holds": verdict.holds(),
            })
        });
        let lost = |to_payers| {
            let lost = self.lost(to_payers).into_iter();
            lost.map(|(searched, contest)| contest_json(searched, contest))
                .collect::<Vec<_>>()
        };
        let numbers = |searched: &Searched| searched.draw.number;
        json!({
            "seed": self.seed,
            "draws": self.searched.len(),
            "figures": figures.collect::<Vec<_>>(),
            "shares": self.shares().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            "lost": lost(false),
            "lost_to_payers": lost(true),
            "over_copies": self.over_copies().map(numbers).collect::<Vec<_>>(),
            "results": self.searched.iter().map(searched_json).collect::<Vec<_>>(),
        })
    }
}

/// Returns the command that repeats a contest: one command for two strategies, or two for a path alone.
pub fn command(searched: &Searched, contest: &Contest) -> String {
    let (draw, runs) = (&searched.draw, contest.runs as u64);
    let seed = draw.seeds[1];
    match contest.rival {
        Variant::Strategy(name) => {
            let both = format!("{CANDIDATE},{name}");
            draw.case(&both, seed).command(runs)
        }
        Variant::Alone(_) => {
            let each = [Variant::CANDIDATE, contest.rival];
            let each = each.map(|variant| variant.case(draw, seed).command(runs));
            each.join(" && ")
        }
    }
}

/// Returns the command that repeats the first runs of `variant`.
pub fn first_command(searched: &Searched, variant: Variant) -> String {
    let draw = &searched.draw;
    // A variant makes no more runs after its first failure. So the number of runs is taken from the variant with most.
    let runs = searched.measured.iter().map(|m| m.sample.ms.len()).max();
    let case = variant.case(draw, draw.seeds[0]);
    case.command(runs.unwrap_or_default() as u64)
}

fn contest_json(searched: &Searched, contest: &Contest) -> Value {
    json!({
        "draw": searched.draw.number,
        "by": contest.criterion().claim,
        "rival": contest.rival.name(),
        "ms": contest.ms.map(rounded),
        "ratio": rounded(contest.ratio()),
        "p": contest.p,
        "lost": contest.lost,
        "paid": contest.paid.map(rounded),
        "runs": contest.runs,
        "closed_by": contest.closed_by,
        "command": command(searched, contest),
    })
}

fn searched_json(searched: &Searched) -> Value {
    let draw = &searched.draw;
    let ours = &searched.measured[0].sample;
    let variants = searched.measured.iter().map(|measured| {
        let sample = &measured.sample;
        json!({
            "name": measured.variant.name(),
            "mean_ms": rounded(sample.mean()),
            "p95_ms": rounded(sample.statistic(1)),
            "ratio": rounded(ours.mean() / sample.mean()),
            "p95_ratio": rounded(ours.statistic(1) / sample.statistic(1)),
            "copies": rounded(measured.copies(draw)),
            "missing": sample.missing,
            "failure": measured.failure,
        })
    });
    let contests = searched.contests.iter();
    json!({
        "draw": draw.number,
        "start": draw.start(),
        "told_everything": draw.is_told_everything(),
        "command": first_command(searched, Variant::CANDIDATE),
        "runs": ours.ms.len(),
        "arrival_errors": searched.errors,
        "variants": variants.collect::<Vec<_>>(),
        "contests": contests.map(|c| contest_json(searched, c)).collect::<Vec<_>>(),
    })
}

/// Returns a figure whose values may be at most `max`.
fn at_most<'a>(
    max: f64,
    claim: impl ToString,
    unit: &str,
    values: impl IntoIterator<Item = (&'a str, f64)>,
) -> Verdict {
    let values = values
        .into_iter()
        .map(|(label, value)| (label, rounded(value)));
    Verdict::new(claim, Bound::AtMost(max), unit, values)
}

/// Rounds to four decimals, so that JSON and tables are short.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
