//! What an experiment is.

use super::outcome::{Findings, Outcome, Request};
use super::session::Session;
use crate::arm::{Arm, Error};

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
    /// Arms it runs on, the usual one first.
    pub arms: &'static [Arm],
    /// Cells it measures on an arm, each as often as there are runs; some may be run again.
    pub cells: fn(Arm) -> usize,
    /// Runs of a cell in virtual time and over real links, where the user does not say.
    pub runs: (u64, u64),
    pub(super) measure: fn(&mut Session<'_>) -> Result<(), Error>,
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

    /// The arm to run on where the user asks for `wanted`, or for nothing.
    ///
    /// # Errors
    /// It does not run there; says where it does.
    pub fn arm(&self, wanted: Option<Arm>) -> Result<Arm, Error> {
        let wanted = wanted.unwrap_or(self.arms[0]);
        if self.arms.contains(&wanted) {
            return Ok(wanted);
        }
        let names: Vec<&str> = self.arms.iter().map(|arm| arm.name()).collect();
        Err(Error::Usage(format!(
            "{} does not run with --backend {}; expected {}",
            self.id,
            wanted.name(),
            names.join(" or ")
        )))
    }

    /// Runs the experiment.
    ///
    /// # Errors
    /// A cell could not be run on the arm. That a claim does not hold is none.
    pub fn run(&self, request: Request<'_>) -> Result<Findings, Error> {
        self.run_as(request, self.measure)
    }

    /// Runs it with another way to measure.
    pub(super) fn run_as(
        &self,
        request: Request<'_>,
        measure: impl FnOnce(&mut Session<'_>) -> Result<(), Error>,
    ) -> Result<Findings, Error> {
        let outcome = Outcome {
            id: self.id.to_owned(),
            title: self.title.to_owned(),
            source: self.source.to_owned(),
            setup: self.setup.to_owned(),
            reported: self.reported.to_owned(),
            must_hold: self.must_hold.to_owned(),
            arm: request.arm.name().to_owned(),
            runs: request.runs,
            seed: request.seed,
            parameters: versions(request.arm),
            verdicts: Vec::new(),
            tables: Vec::new(),
            figures: Vec::new(),
        };
        let mut session = Session::new(outcome, request);
        measure(&mut session)?;
        Ok(session.finish())
    }
}

/// What was run: the same build in the simulator gives the same results, and over links the
/// system matters too.
fn versions(arm: Arm) -> Vec<(String, String)> {
    let mut versions = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    if !arm.is_virtual() {
        let uname = rustix::system::uname();
        let release = uname.release().to_string_lossy();
        // What follows the number is the name of whoever built it.
        let number = release.split('-').next().unwrap_or_default();
        versions.push(("kernel", number.to_owned()));
    }
    let named = |(name, value): (&str, String)| (name.to_owned(), value);
    versions.into_iter().map(named).collect()
}
