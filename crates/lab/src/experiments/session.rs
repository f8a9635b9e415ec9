//! The session with which a definition measures.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

use super::outcome::{ExperimentResult, Outcome, Request, Table};
use super::verdict::Verdict;
use crate::backend::{Backend, Error};
use crate::fct::{self, Case, Row, RunResult};
use crate::parallel_runs::ParallelRuns;
use crate::plot::Figure;

/// Long runs over links that are made at a time.
const CONCURRENT_LINK_RUNS: usize = 3;

/// A run of an experiment, which measures cases and collects the result.
#[derive(Debug)]
pub struct Session<'a> {
    request: Request<'a>,
    result: ExperimentResult,
}

impl<'a> Session<'a> {
    pub(super) fn new(outcome: Outcome, request: Request<'a>) -> Self {
        Session {
            request,
            result: ExperimentResult {
                outcome,
                figures: Vec::new(),
                records: Vec::new(),
                captures: Vec::new(),
            },
        }
    }

    pub(super) fn finish(self) -> ExperimentResult {
        self.result
    }

    /// Returns the seed of all cases.
    pub fn seed(&self) -> u64 {
        self.request.seed
    }

    /// Returns the number of runs of each case.
    pub fn runs(&self) -> u64 {
        self.request.runs
    }

    /// Measures flow completion times of `case` and records them as `name`.
    ///
    /// # Errors
    /// The errors of [`fct::run`].
    pub fn fct(&mut self, name: String, case: &Case) -> Result<Vec<RunResult>, Error> {
        self.fct_on(self.backend(), name, case)
    }

    /// Measures and records like [`Self::fct`], on another backend than the experiment's own.
    ///
    /// # Errors
    /// The errors of [`fct::run`].
    pub fn fct_on(
        &mut self,
        backend: Backend,
        name: String,
        case: &Case,
    ) -> Result<Vec<RunResult>, Error> {
        let results = self.runs_on(backend, case, self.runs())?;
        let each: Vec<_> = results.iter().map(run_record).collect();
        let record = json!({
            "cell": Row::new(case, backend, &results),
            "default_path": case.default_path.to_string(),
            "initial_window": case.initial_window,
            "queue": case.queue,
            "runs": each,
        });
        self.record(name, record);
        Ok(results)
    }

    /// Makes `runs` runs of `case` without a record.
    ///
    /// # Errors
    /// The errors of [`fct::run`].
    pub fn runs_of(&self, case: &Case, runs: u64) -> Result<Vec<RunResult>, Error> {
        self.runs_on(self.backend(), case, runs)
    }

    fn runs_on(&self, backend: Backend, case: &Case, runs: u64) -> Result<Vec<RunResult>, Error> {
        let Request {
            threads, progress, ..
        } = self.request;
        fct::run(case, backend, runs, threads, progress)
    }

    /// Makes `runs` runs by `run`, which receives number and seed. Runs of the same number have the
    /// same seed, whatever they measure. In wall-clock time a few runs are made at a time, because they
    /// mostly wait.
    ///
    /// # Errors
    /// The errors of `run`.
    pub fn each<T: Send>(
        &self,
        runs: u64,
        run: impl Fn(u64, u64) -> Result<T, Error> + Sync,
    ) -> Result<Vec<T>, Error> {
        let parallel_runs = ParallelRuns {
            runs,
            threads: match self.backend().is_virtual() {
                true => self.request.threads,
                false => CONCURRENT_LINK_RUNS,
            },
            progress: self.request.progress,
        };
        let seed = |index| fct::run_seed(self.request.seed, index);
        parallel_runs.collect(|| Ok(()), |(), index| run(index, seed(index)), |()| ())
    }

    /// Reports one more finished run, for runs that were made without the methods above.
    pub fn finished(&self) {
        (self.request.progress)();
    }

    /// Records `value` under a name that is a file name without extension.
    pub fn record(&mut self, name: String, value: serde_json::Value) {
        self.result.records.push((name, value));
    }

    /// Keeps a capture under a name that is a file name without extension.
    pub fn capture(&mut self, name: &str, pcapng: Vec<u8>) {
        self.result.captures.push((name.to_owned(), pcapng));
    }

    /// Returns the backend of the cases.
    pub fn backend(&self) -> Backend {
        self.request.backend
    }

    /// Adds a parameter to the result. Several values of the same parameter are all shown.
    pub fn parameter(&mut self, name: &str, value: impl ToString) {
        let (parameters, value) = (&mut self.result.outcome.parameters, value.to_string());
        match parameters.iter_mut().find(|(known, _)| known == name) {
            None => parameters.push((name.to_owned(), value)),
            Some((_, before)) if before.split(" | ").any(|one| one == value) => {}
            Some((_, before)) => *before += &format!(" | {value}"),
        }
    }

    /// Adds a verdict.
    pub fn verdict(&mut self, verdict: Verdict) {
        self.result.outcome.verdicts.push(verdict);
    }

    /// Adds a table.
    pub fn table(&mut self, table: Table) {
        self.result.outcome.tables.push(table);
    }

    /// Adds a figure under a name that is a file name without extension. The first figure stands for
    /// the experiment where there is room for only one.
    pub fn figure(&mut self, name: &str, figure: Figure) {
        self.result.outcome.figures.push(name.to_owned());
        self.result.figures.push((name.to_owned(), figure));
    }

    /// Moves the figure called `name` before all others.
    pub fn put_first(&mut self, name: &str) {
        self.result.outcome.figures.sort_by_key(|n| n != name);
        self.result.figures.sort_by_key(|(n, _)| n != name);
    }
}

/// Runs that several experiments use, made once by [`Session::each`].
#[derive(Debug)]
pub(super) struct SharedRuns<T>(Mutex<Vec<(Key, Arc<Vec<T>>)>>);

/// Name, backend, number, seed and threads of some runs.
type Key = (String, Backend, u64, u64, usize);

impl<T: Send> SharedRuns<T> {
    pub const fn new() -> Self {
        SharedRuns(Mutex::new(Vec::new()))
    }

    /// Returns the runs called `name`, which are made if they do not exist yet.
    pub fn runs(
        &self,
        session: &Session<'_>,
        (name, runs): (String, u64),
        run: impl Fn(u64, u64) -> Result<T, Error> + Sync,
    ) -> Result<Arc<Vec<T>>, Error> {
        let threads = session.request.threads;
        let key = (name, session.backend(), runs, session.seed(), threads);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = known.iter().find(|(k, _)| *k == key) {
            (0..runs).for_each(|_| (session.request.progress)());
            return Ok(found.clone());
        }
        let made = Arc::new(session.each(runs, run)?);
        known.push((key, made.clone()));
        Ok(made)
    }
}

/// Returns the record of one run.
fn run_record(result: &RunResult) -> serde_json::Value {
    let ms = |time: std::time::Duration| time.as_nanos() as f64 / 1e6;
    json!({
        "completed": result.completed,
        "fct_ms": ms(result.fct),
        "fct_data_ms": ms(result.fct_data),
        "bytes_by_path": result.bytes_by_path,
        "copy_bytes_by_path": result.copy_bytes_by_path,
        "packets_by_path": result.packets_by_path,
        "copies_by_path": result.copies_by_path,
        "join_syns": result.join_syns,
        "retransmissions": result.retransmissions,
        "rtos": result.rtos,
    })
}
