//! The session of an experiment: it runs cases for a definition, and collects the result.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

use super::outcome::{ExperimentResult, Outcome, Request, Table};
use super::verdict::Verdict;
use crate::backend::{Backend, Error};
use crate::case::millis;
use crate::fct::{self, Case, Row, RunResult};
use crate::parallel_runs::ParallelRuns;
use crate::plot::Figure;
use crate::tunnel::{self, Mode, TunnelCase, TunnelRun};

/// Number of runs over links that are made at the same time. The runs mostly wait, but each has an emulator
/// that must be on time. 3 is a guess.
const CONCURRENT_LINK_RUNS: usize = 3;

/// An experiment while it runs. A definition measures its cases with it, and adds the parts of the result.
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

    /// Returns the id of the experiment.
    pub(super) fn id(&self) -> &str {
        &self.result.outcome.id
    }

    /// Returns the seed of all cases.
    pub fn seed(&self) -> u64 {
        self.request.seed
    }

    /// Returns the number of runs of each case.
    pub fn runs(&self) -> u64 {
        self.request.runs
    }

    /// Measures flow completion times of `case` on `backend` and records them as `name`.
    ///
    /// # Errors
    /// The errors of [`fct::run`].
    pub fn fct(
        &mut self,
        backend: Backend,
        name: String,
        case: &Case,
    ) -> Result<Vec<RunResult>, Error> {
        let results = self.runs_of(backend, case, self.runs())?;
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

    /// Makes `runs` runs of `case` on `backend` without recording them.
    ///
    /// # Errors
    /// The errors of [`fct::run`].
    pub fn runs_of(
        &self,
        backend: Backend,
        case: &Case,
        runs: u64,
    ) -> Result<Vec<RunResult>, Error> {
        let Request {
            threads, progress, ..
        } = self.request;
        fct::run(case, backend, runs, threads, progress)
    }

    /// Makes the runs of `case` in `mode`.
    ///
    /// # Errors
    /// The errors of [`tunnel::run`].
    pub fn tunnel(&self, case: &TunnelCase, mode: Mode) -> Result<Vec<TunnelRun>, Error> {
        let Request {
            threads, progress, ..
        } = self.request;
        tunnel::run(case, mode, threads, progress)
    }

    /// Calls `run` for each of `runs` runs, with the index and the seed of the run, and returns the results in
    /// order. The seed depends on the index alone, so that runs of different schemes can be compared in
    /// pairs. Runs are concurrent: on all threads in virtual time, a few at a time in wall-clock time.
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

    /// Reports a finished run to the progress display. The methods above that make runs call it themselves.
    pub fn finished(&self) {
        (self.request.progress)();
    }

    /// Adds a record. `name` is its file name without extension.
    pub fn record(&mut self, name: String, value: serde_json::Value) {
        self.result.records.push((name, value));
    }

    /// Adds a capture. `name` is its file name without extension.
    pub fn capture(&mut self, name: &str, pcapng: Vec<u8>) {
        self.result.captures.push((name.to_owned(), pcapng));
    }

    /// Returns the backend of the cases.
    pub fn backend(&self) -> Backend {
        self.request.backend
    }

    /// Adds a parameter to the result. A parameter with several values shows all of them.
    pub fn parameter(&mut self, name: &str, value: impl ToString) {
        let (parameters, value) = (&mut self.result.outcome.parameters, value.to_string());
        match parameters.iter_mut().find(|(known, _)| known == name) {
            None => parameters.push((name.to_owned(), value)),
            Some((_, values)) if values.split(" | ").any(|one| one == value) => {}
            Some((_, values)) => *values += &format!(" | {value}"),
        }
    }

    /// Adds a verdict. Verdicts on the same claim become parts of one.
    pub fn verdict(&mut self, verdict: Verdict) {
        let verdicts = &mut self.result.outcome.verdicts;
        match verdicts.iter_mut().find(|one| one.claim == verdict.claim) {
            Some(known) => known.parts.extend(verdict.parts),
            None => verdicts.push(verdict),
        }
    }

    /// Adds verdicts.
    pub fn verdicts(&mut self, verdicts: impl IntoIterator<Item = Verdict>) {
        verdicts
            .into_iter()
            .for_each(|verdict| self.verdict(verdict));
    }

    /// Adds a table.
    pub fn table(&mut self, table: Table) {
        self.result.outcome.tables.push(table);
    }

    /// Adds a figure. `name` is its file name without extension. The Markdown report shows only the first
    /// figure of an experiment.
    pub fn figure(&mut self, name: &str, figure: Figure) {
        self.result.outcome.figures.push(name.to_owned());
        self.result.figures.push((name.to_owned(), figure));
    }

    /// Moves the figure called `name` before all others.
    pub fn put_first(&mut self, name: &str) {
        // `false` sorts before `true`, and the sort is stable.
        self.result.outcome.figures.sort_by_key(|n| n != name);
        self.result.figures.sort_by_key(|(n, _)| n != name);
    }
}

/// Runs that several experiments use. The first experiment that needs them makes them, by [`Session::each`].
#[derive(Debug)]
pub(super) struct SharedRuns<T>(Mutex<Vec<(Key, Arc<Vec<T>>)>>);

/// Everything that identifies runs: name, backend, number of runs, seed, and number of threads. The threads do
/// not change results; with them in the key, a test can compare runs on different numbers of threads.
type Key = (String, Backend, u64, u64, usize);

impl<T: Send> SharedRuns<T> {
    pub const fn new() -> Self {
        SharedRuns(Mutex::new(Vec::new()))
    }

    /// Returns the runs with this name, and makes them if they do not exist yet.
    pub fn runs(
        &self,
        session: &Session<'_>,
        (name, runs): (String, u64),
        run: impl Fn(u64, u64) -> Result<T, Error> + Sync,
    ) -> Result<Arc<Vec<T>>, Error> {
        let threads = session.request.threads;
        let key = (name, session.backend(), runs, session.seed(), threads);
        // A panic while runs were made leaves the list as it was, so a poisoned lock is no danger.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = known.iter().find(|(k, _)| *k == key) {
            // Progress counts these runs for every experiment that uses them.
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
    json!({
        "completed": result.completed,
        "fct_ms": millis(result.fct),
        "fct_data_ms": millis(result.fct_data),
        "bytes_by_path": result.bytes_by_path,
        "copy_bytes_by_path": result.copy_bytes_by_path,
        "packets_by_path": result.packets_by_path,
        "copies_by_path": result.copies_by_path,
        "join_syns": result.join_syns,
        "retransmissions": result.retransmissions,
        "rtos": result.rtos,
    })
}
