//! The definition of an experiment.

use super::entry;
use super::outcome::{ExperimentResult, Outcome, Request};
use super::session::Session;
use crate::backend::{Backend, Error};

/// The definition of an experiment. Its texts are stored with results and shown in reports.
#[derive(Debug)]
pub struct Definition {
    /// Unique short name, by which a user picks the experiment.
    pub id: &'static str,
    /// Title: the alternatives that the experiment compares.
    pub title: &'static str,
    /// Paper and figure whose measurement is repeated; begins with "beyond" if there is none.
    pub source: &'static str,
    /// Paths, sizes and settings.
    pub setup: &'static str,
    /// The results that the source reports; empty if it reports none.
    pub reported: &'static str,
    /// The claims: the results that a run must show.
    pub must_hold: &'static str,
    /// Backends that the experiment can run on, the default first.
    pub backends: &'static [Backend],
    /// Returns the number of cases on a backend without those of [`entry::sweeps`].
    pub(super) cases: fn(Backend) -> usize,
    /// Default number of runs of a case, in virtual time and over links.
    pub runs: (u64, u64),
    /// Measures all cases, and adds verdicts, tables and figures to the session.
    pub(super) measure: fn(&mut Session<'_>) -> Result<(), Error>,
}

impl Definition {
    /// Returns the definition of an experiment whose texts are in `experiments.toml`. `cases` counts what
    /// `measure` measures beside the sweeps in the file.
    ///
    /// # Panics
    /// The file has no entry `id`.
    pub(super) fn in_file(
        id: &'static str,
        cases: fn(Backend) -> usize,
        measure: fn(&mut Session<'_>) -> Result<(), Error>,
    ) -> Definition {
        let entry = &entry::ENTRIES[id];
        Definition {
            id,
            title: &entry.title,
            source: &entry.source,
            setup: &entry.setup,
            reported: &entry.reported,
            must_hold: &entry.must_hold,
            backends: &entry.backends,
            cases,
            runs: entry.runs,
            measure,
        }
    }

    /// Returns the number of cases on a backend, for progress. Runs that a case repeats do not count.
    pub fn cases(&self, backend: Backend) -> usize {
        let sweeps = entry::sweeps(self.id).iter();
        (self.cases)(backend) + sweeps.map(|plan| plan.cases(backend)).sum::<usize>()
    }

    /// Returns the default number of runs of a case on `backend`.
    pub fn default_runs(&self, backend: Backend) -> u64 {
        if backend.is_virtual() {
            self.runs.0
        } else {
            self.runs.1
        }
    }

    /// Returns the backend to run on: `wanted`, or the default.
    ///
    /// # Errors
    /// The experiment does not run on `wanted`; the error names the backends that it runs on.
    pub fn backend(&self, wanted: Option<Backend>) -> Result<Backend, Error> {
        let wanted = wanted.unwrap_or(self.backends[0]);
        if self.backends.contains(&wanted) {
            return Ok(wanted);
        }
        let names: Vec<&str> = self.backends.iter().map(|backend| backend.name()).collect();
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
        let outcome = Outcome {
            id: self.id.to_owned(),
            title: self.title.to_owned(),
            source: self.source.to_owned(),
            setup: self.setup.to_owned(),
            reported: self.reported.to_owned(),
            must_hold: self.must_hold.to_owned(),
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
