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

/// An entry. Its fields are those of [`Definition`](super::Definition).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'static"))]
pub struct Entry {
    pub title: String,
    pub source: String,
    pub setup: String,
    #[serde(default)]
    pub reported: String,
    pub must_hold: String,
    pub backends: Vec<Backend>,
    pub runs: (u64, u64),
    /// Tables by name, whose rows the code of the experiment adds.
    #[serde(default)]
    pub tables: BTreeMap<String, Head>,
    /// The claims whose values the code of the experiment computes.
    #[serde(default)]
    pub claims: Vec<Claim>,
    /// The sweeps that the experiment measures.
    #[serde(default)]
    pub sweeps: Vec<Plan>,
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

/// Returns the sweeps of the experiment `id`; none if its code alone measures.
pub fn sweeps(id: &str) -> &'static [Plan] {
    ENTRIES.get(id).map_or(&[], |entry| &entry.sweeps)
}

/// Measures and judges the sweeps of the session's experiment. Returns the results, each with its label.
pub fn measure(session: &mut Session<'_>) -> Result<Vec<(String, Swept)>, Error> {
    let mut all = Vec::new();
    for plan in sweeps(session.id()) {
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
/// The entry has not `N` claims.
pub fn judge<E: Into<Estimate>, const N: usize>(
    id: &str,
    values: [Vec<(String, E)>; N],
) -> Vec<Verdict> {
    let claims = ENTRIES[id].claims.iter();
    assert_eq!(claims.len(), N, "the claims of {id}");
    let pairs = claims.zip(values);
    pairs.map(|(claim, values)| claim.verdict(values)).collect()
}
