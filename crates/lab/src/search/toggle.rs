//! Toggles: changes to a lost draw. A toggle that closes the gap shows the kind of the loss.

use super::draw::{Draw, NO_LOSS};
use super::judge::Contest;
use super::run::{Measured, Variant, measure};
use crate::backend::Error;
use crate::case::Records;

type Change = fn(&mut Draw);

/// The changes that remove no path, by name.
const CHANGES: [(&str, Change); 8] = [
    ("records of the paths", |draw| draw.records = Records::Warm),
    ("the size declared", |draw| draw.declared = true),
    ("the subflows joined", |draw| draw.joined = true),
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

/// Returns `draw` after each change that makes a difference to it, with the name of the change.
fn toggles(draw: &Draw) -> impl Iterator<Item = (String, Draw)> {
    let changes = CHANGES.into_iter().map(|(name, change)| {
        let mut changed = draw.clone();
        change(&mut changed);
        (name.to_owned(), changed)
    });
    let removals = (0..draw.paths.len()).map(|path| {
        let rest = draw.with_paths(|n| n != path);
        (format!("without path {path}"), rest)
    });
    let all = changes.chain(removals);
    all.filter(move |(_, changed)| changed != draw)
}

/// Tries the toggles on those of the `contests` that may be lost, with as many runs as have shown the gaps, and notes
/// the toggles with which the candidate does not lose. `fresh` are the rivals' runs without a change. Under a toggle
/// that removes a path only the candidate runs again, and is compared with these runs of the rivals over all paths.
///
/// # Errors
/// The errors of [`measure`].
pub fn close(draw: &Draw, contests: &mut [Contest], fresh: &[Measured]) -> Result<(), Error> {
    let mut lost: Vec<_> = contests.iter_mut().filter(|c| c.may_be_lost()).collect();
    let Some(runs) = lost.first().map(|contest| contest.runs as u64) else {
        return Ok(());
    };
    let mut variants = vec![Variant::CANDIDATE];
    for contest in &mut lost {
        contest.closed_by = Some(Vec::new());
        if !variants.contains(&contest.rival) {
            variants.push(contest.rival);
        }
    }
    for (name, changed) in toggles(draw) {
        let has_all_paths = changed.paths.len() == draw.paths.len();
        let count = if has_all_paths { variants.len() } else { 1 };
        let measured = measure(&changed, &variants[..count], draw.seeds[1], runs)?;
        for contest in &mut lost {
            let n = contest.criterion().statistic;
            let limit = contest.criterion().limit();
            let mut rivals = measured.iter().chain(fresh);
            let theirs = rivals.find(|m| m.variant == contest.rival);
            let theirs = theirs.map_or(f64::NAN, |measured| measured.sample.statistic(n));
            if measured[0].is_complete() && measured[0].sample.statistic(n) <= limit * theirs {
                contest.closed_by.get_or_insert_default().push(name.clone());
            }
        }
    }
    Ok(())
}
