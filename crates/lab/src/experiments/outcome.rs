//! The request for an experiment, and its outcome.

use std::fmt::Display;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::verdict::Verdict;
use crate::backend::Backend;
use crate::plot::Figure;

/// The settings with which an experiment is run.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The backend.
    pub backend: Backend,
    /// Number of runs of each case, at least 1.
    pub runs: u64,
    /// Seed of all cases.
    pub seed: u64,
    /// Number of threads that share the runs, at least 1.
    pub threads: usize,
    /// Called after each finished run.
    pub progress: &'a (dyn Fn() + Sync),
}

/// Everything that an experiment found.
#[derive(Debug)]
pub struct ExperimentResult {
    /// The part that the report shows.
    pub outcome: Outcome,
    /// Figures by name, in the order of [`Outcome::figures`].
    pub figures: Vec<(String, Figure)>,
    /// The measurements, each under the name of its case.
    pub records: Vec<(String, serde_json::Value)>,
    /// Captures by name, as pcapng files.
    pub captures: Vec<(String, Vec<u8>)>,
}

/// The result of an experiment as reports show it. It is stored as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// [`Definition::id`](super::Definition::id).
    pub id: String,
    /// [`Entry::title`](super::Entry::title).
    pub title: String,
    /// [`Entry::source`](super::Entry::source).
    pub source: String,
    /// [`Entry::setup`](super::Entry::setup).
    pub setup: String,
    /// [`Entry::reported`](super::Entry::reported).
    pub reported: String,
    /// [`Entry::must_hold`](super::Entry::must_hold).
    pub must_hold: String,
    /// Name of the backend. The JSON key is older than this name, and stored results have it.
    #[serde(rename = "arm")]
    pub backend: String,
    /// Number of runs of each case.
    pub runs: u64,
    /// Seed of all cases.
    pub seed: u64,
    /// Parameters that the source leaves open, each with the value that was used.
    pub parameters: Vec<(String, String)>,
    /// The verdicts, one for each claim.
    pub verdicts: Vec<Verdict>,
    /// The tables.
    pub tables: Vec<Table>,
    /// Names of the figures, without extension.
    pub figures: Vec<String>,
}

/// A table of text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// The title, with units.
    pub title: String,
    /// Heads of the columns.
    pub columns: Vec<String>,
    /// Rows, each with as many cells as there are columns.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table. `columns` are the heads of the columns.
    pub fn new(title: impl Into<String>, columns: &[&str], rows: Vec<Vec<String>>) -> Table {
        Table {
            title: title.into(),
            columns: columns.iter().map(|c| (*c).to_owned()).collect(),
            rows,
        }
    }
}

/// Returns the cells of a row.
pub(super) fn row(cells: &[&dyn Display]) -> Vec<String> {
    cells.iter().map(ToString::to_string).collect()
}

impl Outcome {
    /// Returns whether all claims hold.
    pub fn holds(&self) -> bool {
        self.verdicts.iter().all(Verdict::holds)
    }

    /// Returns the outcome as JSON: reported and measured values by claim.
    pub fn json(&self) -> Value {
        let by_claim = |value: fn(&Verdict) -> Value| -> Map<String, Value> {
            let each = self.verdicts.iter().map(|v| (v.claim.clone(), value(v)));
            // A claim without a reported value is left out.
            each.filter(|(_, value)| value != "").collect()
        };
        let named = |(name, value): &(String, String)| (name.clone(), json!(value));
        let mut parameters: Map<String, Value> = self.parameters.iter().map(named).collect();
        parameters.insert("arm".to_owned(), json!(self.backend));
        parameters.insert("runs".to_owned(), json!(self.runs));
        parameters.insert("set-up".to_owned(), json!(self.setup));
        json!({
            "id": self.id,
            "holds": self.holds(),
            "reported": by_claim(|v| json!(v.reported)),
            "measured": by_claim(Verdict::json),
            "parameters": parameters,
            "seeds": [self.seed],
        })
    }
}
