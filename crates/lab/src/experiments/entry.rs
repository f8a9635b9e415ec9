//! The entries of `experiments.toml`: texts of experiments, and the sweeps that they measure.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::claim::Claim;
use super::outcome::Table;
use super::plan::Plan;
use super::session::Session;
use super::sweep::Swept;
use super::verdict::{Estimate, Verdict};
use crate::backend::{Backend, Error};

/// The part of a definition that is data.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'static"))]
pub struct Entry {
    /// Title: the alternatives that the experiment compares.
    pub title: String,
    /// Paper and figure whose measurement is repeated; begins with "beyond" if there is none.
    pub source: String,
    /// Paths, sizes and settings.
    pub setup: String,
    /// The results that the source reports; empty if it reports none.
    #[serde(default)]
    pub reported: String,
    /// The claims: the results that a run must show.
    pub must_hold: String,
    /// Backends that the experiment can run on, the default first.
    pub backends: Vec<Backend>,
    /// Default number of runs of a case, in virtual time and over links.
    pub runs: (u64, u64),
    /// Tables by name, whose rows the code of the experiment adds.
    #[serde(default)]
    tables: BTreeMap<String, Head>,
    /// The claims whose values the code of the experiment computes.
    #[serde(default)]
    claims: Vec<Claim>,
    /// The sweeps that the experiment measures.
    #[serde(default)]
    pub(super) sweeps: Vec<Plan>,
}

/// The head of a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    title: String,
    columns: Vec<String>,
}

/// All entries by id.
pub static ENTRIES: LazyLock<BTreeMap<&'static str, Entry>> = LazyLock::new(|| {
    toml::from_str(include_str!("experiments.toml")).expect("experiments.toml is well-formed")
});

/// Returns the sweeps of the session's experiment.
pub fn sweeps(session: &Session<'_>) -> &'static [Plan] {
    &ENTRIES[session.id()].sweeps
}

/// Measures and judges the sweeps of the session's experiment. Returns the results, each with its label.
pub fn measure(session: &mut Session<'_>) -> Result<Vec<(String, Swept)>, Error> {
    let mut all = Vec::new();
    for plan in sweeps(session) {
        let results = plan.run(session)?.into_iter();
        all.extend(results.map(|(place, swept)| (place.label(), swept)));
    }
    Ok(all)
}

/// Returns the table `name` of the entry `id` with these rows.
///
/// # Panics
/// There is no such table.
pub fn table(id: &str, name: &str, rows: Vec<Vec<String>>) -> Table {
    let Head { title, columns } = &ENTRIES[id].tables[name];
    Table {
        title: title.clone(),
        columns: columns.clone(),
        rows,
    }
}

/// Judges the claims of the entry `id`, each by its values.
///
/// # Panics
/// The entry does not have `N` claims.
pub fn judge<L: ToString, E: Into<Estimate>, const N: usize>(
    id: &str,
    values: [Vec<(L, E)>; N],
) -> [Verdict; N] {
    let claims = &ENTRIES[id].claims;
    assert_eq!(claims.len(), N, "the claims of {id}");
    let mut claims = claims.iter();
    values.map(|values| claims.next().expect("N claims").verdict(values))
}
