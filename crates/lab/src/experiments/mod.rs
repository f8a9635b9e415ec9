//! The experiments: each is a definition that runs on backends and judges whether its claims hold.
//!
//! A [`Definition`] is an entry of [`ALL`]. `experiments.toml` has texts, claims and sweeps of experiments as
//! data. [`Definition::run`] measures the cases of an experiment and returns [`ExperimentResult`]: an
//! [`Outcome`] (parameters, tables, verdicts), figures, and one record for each case. [`crate::report`] stores
//! them and makes pages of the stored results.

mod claim;
mod definition;
mod entry;
mod failover;
mod faults;
mod fsa;
pub(crate) mod grid;
mod kernel;
mod maps;
mod outcome;
mod plan;
mod po;
mod psnr;
mod schemes;
mod segment;
mod series;
mod session;
mod sweep;
mod tm;
mod tunnel;
mod verdict;

#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use crate::backend::Error;

pub use definition::{COMMIT, Definition};
pub use entry::Entry;
pub use outcome::{ExperimentResult, Outcome, Request, Table};
pub use session::Session;
pub use verdict::{Bound, Judgement, Verdict};

/// All experiments, in the order in which they are listed.
pub static ALL: LazyLock<Vec<Definition>> = LazyLock::new(|| {
    let swept = |id, measure| Definition::new(id, |_| 0, measure);
    let sweeps_only = |id| swept(id, |session| entry::measure(session).map(drop));
    let walked = |id, measure| Definition::new(id, maps::walk_cases, measure);
    vec![
        swept("fsa-2a", fsa::fsa_2a),
        sweeps_only("fsa-2b"),
        sweeps_only("fsa-3"),
        swept("fsa-5", fsa::fsa_5),
        swept("fsa-6a", fsa::fsa_6a),
        sweeps_only("fsa-6b"),
        sweeps_only("fsa-6c"),
        Definition::new("po-4", po::throughput_cases, po::throughput),
        Definition::new("po-5", po::delay_cases, po::delay),
        Definition::new("po-6", |_| po::SCHEMES.len(), po::delay_over_time),
        Definition::new("po-7", |_| po::SCHEMES.len() + 1, po::jitters),
        Definition::new("po-8", |_| psnr::CASES, psnr::measure),
        walked("maps-2a", maps::switches),
        walked("maps-2b", maps::throughput),
        walked("maps-3", maps::delay),
        walked("maps-4", maps::sequence),
        Definition::new("maps-5", |_| maps::MOVES.len(), maps::moves),
        Definition::new("tm-1", tm::choice::cases, tm::choice::measure),
        Definition::new("tm-3", |_| 1, tm::establishment::measure),
        Definition::new("tm-5a", tm::speed::phase_cases, tm::speed::over_phases),
        Definition::new("tm-5b", tm::speed::size_cases, tm::speed::over_sizes),
        Definition::new("failover", failover::cases, failover::measure),
        Definition::new("faults", faults::cases, faults::measure),
        Definition::new("grid", grid::case_count, grid::measure),
        swept("kernel", kernel::measure),
        Definition::new("tunnel", tunnel::cases, tunnel::measure),
    ]
});

/// Returns the experiment with this `id`.
///
/// # Errors
/// No experiment has this `id`. The error names similar ids, or the command that lists all.
pub fn find(id: &str) -> Result<&'static Definition, Error> {
    ALL.iter().find(|d| d.id == id).ok_or_else(|| {
        let similar = similar(id);
        let hint = match similar.is_empty() {
            true => "`braid-lab list` shows all".to_owned(),
            false => format!("did you mean {}?", similar.join(" or ")),
        };
        Error::Usage(format!("there is no experiment `{id}`; {hint}"))
    })
}

/// Returns at most three ids that are similar to `id`, the most similar first.
fn similar(id: &str) -> Vec<&'static str> {
    let similarity = |name: &str| strsim::jaro_winkler(id, name);
    let mut names: Vec<_> = ALL.iter().map(|d| (similarity(d.id), d.id)).collect();
    // 0.75 is a guess: a missing hyphen passes, and an unrelated word does not.
    names.retain(|(similarity, _)| *similarity > 0.75);
    names.sort_by(|a, b| b.0.total_cmp(&a.0));
    names.into_iter().take(3).map(|(_, name)| name).collect()
}
