//! The definition of an experiment.

use super::entry::{self, Entry};
use super::outcome::{ExperimentResult, Outcome, Request};
use super::session::Session;
use crate::backend::{Backend, Error};

/// The definition of an experiment.
#[derive(Debug, Clone, Copy)]
pub struct Definition {
    /// Unique short name, by which a user picks the experiment.
    pub id: &'static str,
    /// The texts, sweeps and numbers of runs. Texts are stored with results and shown in reports.
    pub entry: &'static Entry,
    /// Returns the number of cases on a backend without those of the entry's sweeps.
    pub(super) cases: fn(Backend) -> usize,
    /// Measures all cases, and adds verdicts, tables and figures to the session.
    pub(super) measure: fn(&mut Session<'_>) -> Result<(), Error>,
}

impl Definition {
    /// Returns the definition of an experiment. `cases` counts what `measure` measures beside the sweeps in
    /// `experiments.toml`.
    ///
    /// # Panics
    /// The file has no entry `id`.
    pub(super) fn new(
        id: &'static str,
        cases: fn(Backend) -> usize,
        measure: fn(&mut Session<'_>) -> Result<(), Error>,
    ) -> Definition {
        Definition {
            id,
            entry: &entry::ENTRIES[id],
            cases,
            measure,
        }
    }

    /// Returns the number of cases on a backend, for progress. Runs that a case repeats do not count.
    pub fn cases(&self, backend: Backend) -> usize {
        let sweeps = self.entry.sweeps.iter();
        (self.cases)(backend) + sweeps.map(|plan| plan.cases(backend)).sum::<usize>()
    }

    /// Returns the default number of runs of a case on `backend`.
    pub fn default_runs(&self, backend: Backend) -> u64 {
        if backend.is_virtual() {
            self.entry.runs.0
        } else {
            self.entry.runs.1
        }
    }

    /// Returns the backend to run on: `wanted`, or the default.
    ///
    /// # Errors
    /// The experiment does not run on `wanted`; the error names the backends that it runs on.
    pub fn backend(&self, wanted: Option<Backend>) -> Result<Backend, Error> {
        let wanted = wanted.unwrap_or(self.entry.backends[0]);
        if self.entry.backends.contains(&wanted) {
            return Ok(wanted);
        }
        let names: Vec<&str> = self.entry.backends.iter().map(|b| b.name()).collect();
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
    /// A case cannot be run. A claim that does not hold is no error, but a verdict.
    pub fn run(&self, request: Request<'_>) -> Result<ExperimentResult, Error> {
        let mut session = self.session(request);
        (self.measure)(&mut session)?;
        Ok(session.finish())
    }

    /// Returns a session in which nothing has been measured.
    pub(super) fn session<'a>(&self, request: Request<'a>) -> Session<'a> {
        let entry = self.entry;
        let outcome = Outcome {
            id: self.id.to_owned(),
            title: entry.title.clone(),
            source: entry.source.clone(),
            setup: entry.setup.clone(),
            reported: entry.reported.clone(),
            must_hold: entry.must_hold.clone(),
            backend: request.backend.name().to_owned(),
            runs: request.runs,
            seed: request.seed,
            parameters: versions(request.backend),
            verdicts: Vec::new(),
            tables: Vec::new(),
            figures: Vec::new(),
        };
        Session::new(outcome, request)
    }
}

/// Name of the parameter with the commit that a result was made from.
pub const COMMIT: &str = "commit";

/// Returns the versions that the results depend on, as parameters. Results in the simulator depend on the
/// build alone; results over links depend on the kernel too. The scripts that publish results set the commit when
/// they build the program.
fn versions(backend: Backend) -> Vec<(String, String)> {
    let commit = option_env!("BRAID_COMMIT").unwrap_or("not recorded");
    let commit = (COMMIT.to_owned(), commit.to_owned());
    let mut versions = vec![
        ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        commit,
    ];
    if !backend.is_virtual() {
        let uname = rustix::system::uname();
        let release = uname.release().to_string_lossy();
        // The part after the hyphen names the distributor's build, which the report leaves out.
        let number = release.split('-').next().unwrap_or_default();
        versions.push(("kernel".to_owned(), number.to_owned()));
    }
    versions
}
