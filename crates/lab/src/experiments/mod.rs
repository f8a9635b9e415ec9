//! The experiments: definitions that run on any arm and say themselves whether what was expected
//! holds.
//!
//! A [`Definition`] is an entry of [`ALL`]. [`Definition::run`] measures its cells and gives
//! [`Findings`]: an [`Outcome`] (parameters, tables, verdicts), figures, and one record a cell;
//! [`crate::report`] stores them and makes pages of what is stored.

mod fsa;
mod session;

#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::arm::{Arm, Error};
use crate::plot::Figure;

pub use session::Session;

/// Every experiment, in the order in which they are listed.
pub static ALL: &[Definition] = &[fsa::FSA_2A];

/// An experiment.
#[derive(Debug)]
pub struct Definition {
    /// Short name, unique.
    pub id: &'static str,
    /// What is compared.
    pub title: &'static str,
    /// Paper and figure, or what else asks for it.
    pub source: &'static str,
    /// Paths, sizes, settings.
    pub setup: &'static str,
    /// What the source says.
    pub reported: &'static str,
    /// What a run here has to show.
    pub must_hold: &'static str,
    /// Cells it measures.
    pub cells: u32,
    /// Runs of a cell in virtual time and over real links, where the user does not say.
    pub runs: (u64, u64),
    measure: fn(&mut Session<'_>) -> Result<(), Error>,
}

/// How an experiment is to be run.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The arm.
    pub arm: Arm,
    /// Runs of each cell, at least 1.
    pub runs: u64,
    /// Seed of all cells.
    pub seed: u64,
    /// Threads to spread runs over, at least 1.
    pub threads: usize,
    /// Told of each finished run.
    pub progress: &'a (dyn Fn() + Sync),
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("arm", &self.arm)
            .field("runs", &self.runs)
            .field("seed", &self.seed)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// What an experiment found, in full.
#[derive(Debug)]
pub struct Findings {
    /// What the report shows.
    pub outcome: Outcome,
    /// Figures by name, in the order of [`Outcome::figures`].
    pub figures: Vec<(String, Figure)>,
    /// What was measured, by cell.
    pub records: Vec<(String, serde_json::Value)>,
}

/// What an experiment found, as the report shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// [`Definition::id`].
    pub id: String,
    /// [`Definition::title`].
    pub title: String,
    /// [`Definition::source`].
    pub source: String,
    /// [`Definition::setup`].
    pub setup: String,
    /// [`Definition::reported`].
    pub reported: String,
    /// [`Definition::must_hold`].
    pub must_hold: String,
    /// The arm.
    pub arm: String,
    /// Runs of each cell.
    pub runs: u64,
    /// Seed of all cells.
    pub seed: u64,
    /// What the source leaves open, as it was chosen.
    pub parameters: Vec<(String, String)>,
    /// Whether what was expected holds, claim by claim.
    pub verdicts: Vec<Verdict>,
    /// Tables.
    pub tables: Vec<Table>,
    /// Names of the figures, without extension.
    pub figures: Vec<String>,
}

/// Whether one claim holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What must hold.
    pub claim: String,
    /// What the source reports of it; may be empty.
    pub reported: String,
    /// What was measured.
    pub measured: String,
    /// Whether it holds.
    pub holds: bool,
}

/// A table of text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// What it shows, with units.
    pub title: String,
    /// Heads of the columns.
    pub columns: Vec<String>,
    /// Rows, as long as `columns`.
    pub rows: Vec<Vec<String>>,
}

impl Definition {
    /// Runs of a cell on `arm` where the user does not say.
    pub fn default_runs(&self, arm: Arm) -> u64 {
        if arm.is_virtual() {
            self.runs.0
        } else {
            self.runs.1
        }
    }

    /// Runs the experiment.
    ///
    /// # Errors
    /// A cell could not be run on the arm. That a claim does not hold is none.
    pub fn run(&self, request: Request<'_>) -> Result<Findings, Error> {
        let mut session = Session::new(self, request);
        (self.measure)(&mut session)?;
        Ok(session.finish())
    }
}

impl Outcome {
    /// Whether all claims hold.
    pub fn holds(&self) -> bool {
        self.verdicts.iter().all(|v| v.holds)
    }
}

/// The experiment called `id`.
///
/// # Errors
/// There is none; says which names are near, or all of them.
pub fn find(id: &str) -> Result<&'static Definition, UnknownId> {
    ALL.iter().find(|d| d.id == id).ok_or_else(|| UnknownId {
        id: id.to_owned(),
        near: near(id),
    })
}

/// An id that no experiment has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownId {
    id: String,
    near: Vec<&'static str>,
}

impl fmt::Display for UnknownId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no experiment `{}`", self.id)?;
        match self.near.is_empty() {
            true => write!(f, "; `braid lab list` shows all"),
            false => write!(f, "; did you mean {}?", self.near.join(" or ")),
        }
    }
}

impl std::error::Error for UnknownId {}

/// Names most like `id`, the best first, at most three.
fn near(id: &str) -> Vec<&'static str> {
    let likeness = |name: &str| strsim::jaro_winkler(id, name);
    let mut names: Vec<_> = ALL.iter().map(|d| (likeness(d.id), d.id)).collect();
    names.retain(|(likeness, _)| *likeness > 0.75);
    names.sort_by(|a, b| b.0.total_cmp(&a.0));
    names.into_iter().take(3).map(|(_, name)| name).collect()
}
