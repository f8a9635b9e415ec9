//! Making runs on several threads, with results that do not depend on the number of threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::backend::Error;

/// A number of runs, and the threads that make them.
#[derive(Clone, Copy)]
pub struct ParallelRuns<'a> {
    /// Number of runs.
    pub runs: u64,
    /// Number of threads, at least 1.
    pub threads: usize,
    /// Called after each run.
    pub progress: &'a (dyn Fn() + Sync),
}

impl ParallelRuns<'_> {
    /// Makes the runs and returns their results in the order of their indices. Each thread calls `open` once
    /// for its state, then `run` with that state and the index of a run, and `close` at the end.
    ///
    /// # Errors
    /// The error of the failed run with the lowest index. No further run starts after a failure.
    pub fn collect<S, T: Send>(
        self,
        open: impl Fn() -> Result<S, Error> + Sync,
        run: impl Fn(&mut S, u64) -> Result<T, Error> + Sync,
        close: impl Fn(S) + Sync,
    ) -> Result<Vec<T>, Error> {
        let next = AtomicU64::new(0);
        let failed = AtomicBool::new(false);
        let done = Mutex::new(Vec::new());
        let work = || {
            let mut state = open();
            while !failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= self.runs {
                    break;
                }
                let result = match &mut state {
                    Ok(state) => run(state, index),
                    Err(error) => Err(error.clone()),
                };
                failed.fetch_or(result.is_err(), Ordering::Relaxed);
                done.lock()
                    .unwrap_or_else(|e| e.into_inner())
                    .push((index, result));
                (self.progress)();
            }
            if let Ok(state) = state {
                close(state);
            }
        };
        thread::scope(|scope| {
            for _ in 1..self.threads {
                scope.spawn(work);
            }
            work();
        });
        let mut done = done.into_inner().unwrap_or_else(|e| e.into_inner());
        done.sort_unstable_by_key(|(index, _)| *index);
        done.into_iter().map(|(_, result)| result).collect()
    }
}
