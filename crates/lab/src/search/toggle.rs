//! Toggles: changes to a lost draw. A toggle that closes the gap shows the kind of the loss.

use super::draw::{Draw, NO_LOSS, Start};
use super::judge::Contest;
use super::run::{Measured, Variant, measure};
use crate::backend::Error;
use crate::case::Records;

/// Bytes that the runs of a variant with a toggle may carry. There are a dozen toggles, so it is a guess at what the
/// time of a search allows.
const TOGGLE_BYTES: u64 = 60_000_000;
/// Minimum and maximum number of runs with a toggle. Guesses: a gap that was proven in more runs is seen in these.
const TOGGLE_RUNS: [u64; 2] = [6, 40];

/// A change to a draw.
struct Toggle {
    name: String,
    changed: Draw,
    /// The path that the change removes.
    removes: Option<usize>,
}

type Change = fn(&mut Draw);

/// The changes that remove no path, by name.
const CHANGES: [(&str, Change); 8] = [
    ("records of the paths", |draw| draw.records = Records::Warm),
    ("the size declared", |draw| draw.declared = true),
    ("the subflows joined", |draw| draw.start = Start::Joined),
    ("CUBIC", |draw| draw.cc = "cubic"),
    ("no loss", |draw| {
        for path in &mut draw.paths {
            path.loss = NO_LOSS.to_owned();
        }
    }),
    ("no jitter", |draw| {
        for path in &mut draw.paths {
            path.jitter = None;
        }
    }),
    ("constant rates", |draw| {
        for path in &mut draw.paths {
            path.rate = path.mean_rate.clone();
        }
    }),
    ("one flow", |draw| draw.flows = 1),
];

/// Returns the changes that make a difference to `draw`.
fn toggles(draw: &Draw) -> Vec<Toggle> {
    let changed = CHANGES.into_iter().map(|(name, change)| {
        let mut changed = draw.clone();
        change(&mut changed);
        Toggle {
            name: name.to_owned(),
            changed,
            removes: None,
        }
    });
    let removals = (0..draw.paths.len()).map(|path| Toggle {
        name: format!("without path {path}"),
        changed: draw.with_paths(|n| n != path),
        removes: Some(path),
    });
    let all = changed.chain(removals);
    all.filter(|toggle| toggle.changed != *draw).collect()
}

/// Returns the names of the toggles with which the candidate does not lose the contest. `rival` are the rival's
/// runs: without a path, the candidate must reach what the rival reached with it.
pub fn closing(draw: &Draw, contest: &Contest, rival: &Measured) -> Result<Vec<String>, Error> {
    let criterion = contest.criterion();
    let statistic = |measured: &Measured| measured.sample.statistic(criterion.statistic);
    let (runs, seed) = (draw.runs(TOGGLE_BYTES, TOGGLE_RUNS), draw.seeds[1]);
    let mut closing = Vec::new();
    for toggle in toggles(draw) {
        let mut variants = vec![Variant::CANDIDATE];
        if toggle.removes.is_none() {
            variants.push(contest.rival);
        }
        let measured = measure(&toggle.changed, &variants, seed, runs)?;
        let theirs = measured.get(1).unwrap_or(rival);
        if measured[0].is_complete()
            && statistic(&measured[0]) <= criterion.limit() * statistic(theirs)
        {
            closing.push(toggle.name);
        }
    }
    Ok(closing)
}
