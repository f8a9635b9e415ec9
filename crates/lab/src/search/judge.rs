//! The judgement on a search. A rival that may have beaten the candidate is a suspect. Only fresh runs of suspects
//! give verdicts.

use braid_wire::Rng;

use super::draw::Draw;
use super::run::{Measured, Variant};
use crate::case::Records;
use crate::stats;

/// Maximum probability that any contest of a criterion is judged lost although both are equal (family-wise error
/// rate).
const ALPHA: f64 = 0.05;
/// Part of a criterion's margin by which a rival must be shorter in the first runs to become a suspect. A guess: a
/// rival that is shorter by less seldom exceeds the whole margin in fresh runs.
const SUSPECT_SHARE: f64 = 0.5;
/// Maximum number of suspects of a criterion in a draw: of rivals within the candidate's limit of copies, and of
/// rivals beyond it. Guesses: the best of the first runs is seldom worse than the third in fresh runs.
const SUSPECTS: [usize; 2] = [2, 1];
/// Number of samples that a test of percentiles draws with replacement. The lowest p-value is about 1 divided by
/// this number, so that 5,000 contests can be corrected.
const RESAMPLES: usize = 99_999;
/// Stream of the random numbers of those samples; any number works.
const RESAMPLE_STREAM: u64 = 0;

/// The rivals that a criterion compares with the candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rivals {
    /// The other strategies.
    Strategies,
    /// Each path alone.
    Alone,
    /// The path on which the connection opens, alone.
    Opened,
}

/// A figure that must hold: the share of draws in which a rival is shorter by more than a margin.
#[derive(Debug)]
pub struct Criterion {
    /// The loss, in words.
    pub claim: &'static str,
    rivals: Rivals,
    /// The statistic by its number among those of [`crate::experiments::grid::judge::STATISTICS`].
    pub statistic: usize,
    /// Share by which the rival must be shorter to count.
    pub margin: f64,
    /// The draws that are judged.
    pub applies: fn(&Draw) -> bool,
    /// Maximum share of lost draws, percent.
    pub max_percent: f64,
    /// Maximum of the candidate's time divided by the rival's in a lost draw.
    pub max_worst: Option<f64>,
}

/// All criteria.
pub static CRITERIA: [Criterion; 5] = [
    Criterion {
        claim: "another strategy's mean is more than 3 % shorter",
        rivals: Rivals::Strategies,
        statistic: 0,
        margin: 0.03,
        applies: |_| true,
        max_percent: 3.0,
        max_worst: Some(1.5),
    },
    Criterion {
        claim: "with records and the size declared, another strategy's mean is more than 3 % shorter",
        rivals: Rivals::Strategies,
        statistic: 0,
        margin: 0.03,
        applies: Draw::is_told_everything,
        max_percent: 1.0,
        max_worst: Some(1.1),
    },
    Criterion {
        claim: "another strategy's 95th percentile is more than 5 % shorter",
        rivals: Rivals::Strategies,
        statistic: 1,
        margin: 0.05,
        applies: |_| true,
        max_percent: 4.0,
        max_worst: None,
    },
    Criterion {
        claim: "with records, the mean of a path alone is more than 5 % shorter",
        rivals: Rivals::Alone,
        statistic: 0,
        margin: 0.05,
        applies: |draw| draw.records == Records::Warm,
        max_percent: 0.5,
        max_worst: Some(1.1),
    },
    Criterion {
        claim: "without records, the mean of the opening path alone is more than 5 % shorter",
        rivals: Rivals::Opened,
        statistic: 0,
        margin: 0.05,
        applies: |draw| draw.records == Records::Cold,
        max_percent: 1.0,
        max_worst: None,
    },
];

impl Criterion {
    /// Returns the ratio of the candidate's time to the rival's above which the candidate loses.
    pub fn limit(&self) -> f64 {
        1.0 / (1.0 - self.margin)
    }

    fn compares(&self, draw: &Draw, rival: Variant) -> bool {
        match (self.rivals, rival) {
            (Rivals::Strategies, Variant::Strategy(_)) => rival != Variant::CANDIDATE,
            (Rivals::Alone, Variant::Alone(_)) => true,
            (Rivals::Opened, Variant::Alone(path)) => path == draw.opens_on,
            _ => false,
        }
    }
}

/// A comparison of the candidate with a suspect over fresh runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Contest {
    /// The criterion by its number in the list of criteria.
    pub criterion: usize,
    /// The suspect.
    pub rival: Variant,
    /// The statistic of the candidate and of the suspect, ms.
    pub ms: [f64; 2],
    /// P-value of the hypothesis that the suspect's statistic is not shorter.
    pub p: f64,
    /// Copies of the suspect, divided by the bytes of the flows, if they exceed the candidate's limit.
    pub paid: Option<f64>,
    /// Number of runs.
    pub runs: usize,
    /// True if the candidate lost.
    pub lost: bool,
    /// The toggles with which the candidate does not lose; `None` if they were not tried, because the candidate
    /// would not even lose if this were the only contest.
    pub closed_by: Option<Vec<String>>,
}

impl Contest {
    /// Compares fresh runs of the candidate and of a suspect.
    pub fn new(criterion: usize, draw: &Draw, ours: &Measured, theirs: &Measured) -> Contest {
        let statistic = CRITERIA[criterion].statistic;
        let pairs = [ours, theirs].map(|measured| &*measured.sample.ms);
        Contest {
            criterion,
            rival: theirs.variant,
            ms: [ours, theirs].map(|measured| measured.sample.statistic(statistic)),
            p: match statistic {
                0 => {
                    let gaps = stats::differences(pairs[0], pairs[1]);
                    gaps.map_or(1.0, |gaps| stats::p_above_zero(&gaps))
                }
                _ => p_shorter_tail(pairs),
            },
            paid: theirs.exceeds_copies(draw).then(|| theirs.copies(draw)),
            runs: ours.sample.ms.len(),
            lost: false,
            closed_by: None,
        }
    }

    /// Returns the criterion.
    pub fn criterion(&self) -> &'static Criterion {
        &CRITERIA[self.criterion]
    }

    /// Returns the candidate's statistic divided by the suspect's.
    pub fn ratio(&self) -> f64 {
        self.ms[0] / self.ms[1]
    }

    /// Returns how far the ratio exceeds the criterion's limit; above 1 if it does.
    pub fn excess(&self) -> f64 {
        self.ratio() / self.criterion().limit()
    }

    /// Returns whether the candidate would lose if this were the only contest.
    pub fn may_be_lost(&self) -> bool {
        self.excess() > 1.0 && self.p <= ALPHA
    }
}

/// Returns the p-value of the hypothesis that the 95th percentile of the second of two paired samples is not
/// shorter: the share of samples with replacement (the bootstrap) in which it is not.
fn p_shorter_tail([ours, theirs]: [&[f64]; 2]) -> f64 {
    let mut rng = Rng::for_component(ours.len() as u64, RESAMPLE_STREAM);
    let runs = ours.len().min(theirs.len());
    if runs == 0 {
        return 1.0;
    }
    let mut not_shorter = 0;
    let mut drawn = [Vec::new(), Vec::new()];
    for _ in 0..RESAMPLES {
        drawn.iter_mut().for_each(Vec::clear);
        for _ in 0..runs {
            let index = rng.below(runs as u64) as usize;
            drawn[0].push(ours[index]);
            drawn[1].push(theirs[index]);
        }
        let [ours, theirs] = drawn
            .each_ref()
            .map(|sample| stats::quantile_of(sample, 0.95));
        not_shorter += usize::from(theirs >= ours);
    }
    (not_shorter + 1) as f64 / (RESAMPLES + 1) as f64
}

/// Returns the suspects of a draw: pairs of a criterion and a rival. The candidate's results are the first. A
/// candidate or a rival whose flows did not all arrive is not compared.
pub fn suspects(draw: &Draw, measured: &[Measured]) -> Vec<(usize, Variant)> {
    let Some((ours, rivals)) = measured
        .split_first()
        .filter(|(ours, _)| ours.is_complete())
    else {
        return Vec::new();
    };
    let mut suspects = Vec::new();
    for (n, criterion) in CRITERIA.iter().enumerate() {
        if !(criterion.applies)(draw) {
            continue;
        }
        let statistic = |measured: &Measured| measured.sample.statistic(criterion.statistic);
        let longest = statistic(ours) * (1.0 - SUSPECT_SHARE * criterion.margin);
        let rivals = rivals.iter().filter(|rival| {
            let is_rival = criterion.compares(draw, rival.variant) && rival.is_complete();
            is_rival && statistic(rival) < longest
        });
        let mut rivals: Vec<&Measured> = rivals.collect();
        rivals.sort_by(|a, b| statistic(a).total_cmp(&statistic(b)));
        // A strategy that decided as another did (`po` without priorities, as its base) is no second suspect.
        rivals.dedup_by(|a, b| a.sample.ms == b.sample.ms);
        for (pays, count) in [false, true].into_iter().zip(SUSPECTS) {
            let those = rivals.iter().filter(|r| r.exceeds_copies(draw) == pays);
            suspects.extend(those.take(count).map(|rival| (n, rival.variant)));
        }
    }
    suspects
}

/// Judges the contests of all draws. Holm's method corrects the p-values of each criterion for the number of its
/// contests.
pub fn judge<'a>(contests: impl Iterator<Item = &'a mut Contest>) {
    let mut contests: Vec<&mut Contest> = contests.collect();
    for n in 0..CRITERIA.len() {
        let of_criterion = contests.iter_mut().filter(|c| c.criterion == n);
        let mut of_criterion: Vec<_> = of_criterion.collect();
        let p: Vec<f64> = of_criterion.iter().map(|contest| contest.p).collect();
        for (contest, rejected) in of_criterion.iter_mut().zip(stats::holm(&p, ALPHA)) {
            contest.lost = rejected && contest.excess() > 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::grid::judge::Sample;

    /// Returns a lossless draw with or without records.
    fn draw(size: u64, records: Records) -> Draw {
        let mut draw = Draw::new(1, 0);
        for path in &mut draw.paths {
            path.loss = crate::search::draw::NO_LOSS.to_owned();
        }
        Draw {
            size,
            records,
            flows: 1,
            opens_on: 1,
            declared: false,
            ..draw
        }
    }

    /// Returns 40 runs around `ms`, of which every fifth takes `tail` longer.
    fn measured(variant: Variant, ms: f64, tail: f64, copied: u64) -> Measured {
        let run = |n: u32| ms + f64::from(n % 5) + if n.is_multiple_of(5) { tail } else { 0.0 };
        Measured {
            variant,
            sample: Sample {
                ms: (0..40).map(run).collect(),
                copied,
                missing: 0,
            },
            failure: None,
        }
    }

    const FSA: Variant = Variant::Strategy("fsa");
    const ECF: Variant = Variant::Strategy("ecf");
    const BLEST: Variant = Variant::Strategy("blest");
    const PO: Variant = Variant::Strategy("po");

    /// `po` has the same times as `blest`, so it is no second suspect.
    #[test]
    fn suspects_are_the_best_within_the_copies_and_the_best_beyond() {
        let draw = draw(300 << 10, Records::Cold);
        // A fifth of the bytes of 40 flows are copies; a tenth is allowed.
        let paid = 40 * draw.size / 5;
        let mut all = [
            measured(Variant::CANDIDATE, 100.0, 0.0, 0),
            measured(FSA, 90.0, 0.0, 0),
            measured(ECF, 80.0, 0.0, paid),
            measured(BLEST, 88.0, 0.0, 0),
            measured(PO, 88.0, 0.0, 0),
            measured(Variant::Alone(0), 50.0, 0.0, 0),
            measured(Variant::Alone(1), 95.0, 0.0, 0),
        ];
        let opened = (4, Variant::Alone(1));
        let strategies = |n| [(n, BLEST), (n, FSA), (n, ECF)];
        let expected = [&strategies(0)[..], &strategies(2), &[opened]].concat();
        assert_eq!(suspects(&draw, &all), expected);
        // A rival whose flows do not all arrive is no suspect, and a candidate with such flows has none.
        all[3].sample.missing = 1;
        assert_eq!(suspects(&draw, &all)[..2], [(0, PO), (0, FSA)]);
        all[0].failure = Some("a broken rule".to_owned());
        assert_eq!(suspects(&draw, &all), []);
    }

    #[test]
    fn with_records_every_path_alone_is_a_rival() {
        let draw = draw(4096, Records::Warm);
        let all = [
            measured(Variant::CANDIDATE, 100.0, 0.0, 0),
            measured(Variant::Alone(0), 98.0, 0.0, 0),
            measured(Variant::Alone(1), 90.0, 0.0, 0),
        ];
        // Path 0 is shorter by less than half of the margin.
        assert_eq!(suspects(&draw, &all), [(3, Variant::Alone(1))]);
    }

    #[test]
    fn a_contest_is_lost_by_a_proven_gap_beyond_the_margin() {
        let draw = draw(2 << 20, Records::Cold);
        let ours = measured(Variant::CANDIDATE, 100.0, 40.0, 0);
        let contest = |criterion, rival: &Measured| Contest::new(criterion, &draw, &ours, rival);
        // The mean of 100 to 104 ms is 102, and the tail adds 40 / 5.
        let shorter = contest(0, &measured(FSA, 90.0, 40.0, 0));
        assert_eq!(shorter.ms, [110.0, 100.0]);
        assert!((shorter.ratio() - 1.1).abs() < 1e-12);
        assert!(shorter.may_be_lost() && shorter.paid.is_none());
        // Proven, but within the margin of 3 %.
        let within = contest(0, &measured(FSA, 98.0, 40.0, 0));
        assert!(within.p < 1e-6 && !within.may_be_lost());
        // Only the tail is shorter: of 40 runs, the 95th percentile lies among the 8 of the tail.
        let tail = contest(2, &measured(FSA, 100.0, 0.0, 0));
        assert_eq!(tail.ms, [140.0, 104.0]);
        assert!(tail.p < 0.05 && tail.may_be_lost(), "{tail:?}");
        let equal = contest(2, &measured(FSA, 100.0, 40.0, 0));
        assert_eq!(equal.p, 1.0);
        // From 1 MiB on, the candidate may copy nothing where nothing is lost.
        let payer = contest(0, &measured(ECF, 90.0, 40.0, draw.size));
        assert_eq!(payer.paid, Some(1.0 / 40.0));
    }

    /// Holm at 5 % over two contests of a criterion: the lower p-value must be at most 2.5 %. The third has a
    /// criterion of its own.
    #[test]
    fn contests_of_a_criterion_are_corrected_together() {
        let contest = |criterion, p| Contest {
            criterion,
            rival: FSA,
            ms: [110.0, 100.0],
            p,
            paid: None,
            runs: 40,
            lost: false,
            closed_by: None,
        };
        let mut contests = [contest(0, 0.03), contest(0, 0.04), contest(2, 0.03)];
        judge(contests.iter_mut());
        assert_eq!(contests.each_ref().map(|c| c.lost), [false, false, true]);
        let mut contests = [contest(0, 0.04), contest(0, 0.02)];
        contests[1].ms = [102.0, 100.0];
        judge(contests.iter_mut());
        // Both are proven, but the second gap is within the margin.
        assert_eq!(contests.each_ref().map(|c| c.lost), [true, false]);
    }
}
