//! The search in one draw, a random setup of paths and transfers. First runs of all strategies and single paths show
//! the suspects: rivals that may be faster than the candidate. Fresh runs judge the suspects, since a rival that was
//! picked for its first runs looks faster there than it is. Toggles change a lost draw to find the cause.

use super::draw::Draw;
use super::expected::Errors;
use super::judge::{Contest, suspects};
use super::run::{Measured, Variant, measure};
use super::toggle::close;
use crate::backend::Error;

/// Number of bytes that all first runs of a variant may carry together, so that draws with large transfers have few
/// runs. A guess: 300 draws then end within half an hour on two processors.
const FIRST_BYTES: u64 = 60_000_000;
/// Minimum and maximum number of first runs. Guesses.
const FIRST_RUNS: [u64; 2] = [6, 20];
/// Number of bytes that all fresh runs of a suspect may carry together. A guess for the same reason.
const FRESH_BYTES: u64 = 240_000_000;
/// Minimum and maximum number of fresh runs. Guesses: 20 runs show a large difference, and 120 runs have six above
/// their 95th percentile.
const FRESH_RUNS: [u64; 2] = [20, 120];

/// A draw and the results in it.
#[derive(Debug)]
pub struct Searched {
    /// The draw.
    pub draw: Draw,
    /// The first runs of all variants; the candidate is the first.
    pub measured: Vec<Measured>,
    /// The fresh runs of the candidate and its suspected rivals; empty if there are no suspects.
    pub fresh: Vec<Measured>,
    /// The comparisons with suspects over fresh runs.
    pub contests: Vec<Contest>,
    /// The errors of the candidate's estimates, unless a run of it failed.
    pub errors: Option<Errors>,
}

impl Searched {
    /// Makes all runs of `draw`.
    ///
    /// # Errors
    /// A case of the draw cannot be set up.
    pub fn new(draw: Draw) -> Result<Searched, Error> {
        let first_runs = draw.runs(FIRST_BYTES, FIRST_RUNS);
        let measured = measure(&draw, &Variant::all(&draw), draw.seeds[0], first_runs)?;
        let suspects = suspects(&draw, &measured);
        let mut variants = vec![Variant::CANDIDATE];
        for (_, rival) in &suspects {
            if !variants.contains(rival) {
                variants.push(*rival);
            }
        }
        let fresh = if suspects.is_empty() {
            Vec::new()
        } else {
            let fresh_runs = draw.runs(FRESH_BYTES, FRESH_RUNS);
            measure(&draw, &variants, draw.seeds[1], fresh_runs)?
        };
        let rival = |variant| {
            fresh
                .iter()
                .find(|m| m.variant == variant && m.is_complete())
        };
        let contests = suspects.iter().filter_map(|(criterion, variant)| {
            let ours = rival(Variant::CANDIDATE)?;
            Some(Contest::new(*criterion, &draw, ours, rival(*variant)?))
        });
        let mut contests: Vec<Contest> = contests.collect();
        close(&draw, &mut contests, &fresh)?;
        let errors = if measured[0].is_complete() {
            Errors::of(&draw)?
        } else {
            None
        };
        Ok(Searched {
            errors,
            draw,
            measured,
            fresh,
            contests,
        })
    }

    /// Returns the lost contest with the widest gap. A contest with a rival that sent more copies than allowed counts
    /// only if there is no other.
    pub fn lost(&self) -> Option<&Contest> {
        let lost = self.contests.iter().filter(|contest| contest.lost);
        lost.max_by(|a, b| {
            let rank = |contest: &Contest| (contest.paid.is_none(), contest.excess());
            let (a, b) = (rank(a), rank(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        })
    }
}
