//! Flow completion time: running a case, and the statistics of its results.

mod row;

use crate::backend::{Backend, Error};
use crate::parallel_runs::ParallelRuns;

pub use self::row::{Each, Row, Summary};
pub use crate::case::{
    Case, DefaultPath, Direction, Records, RunResult, Size, SizeError, run_seed,
};

/// Runs `case` on `backend` `runs` times. Returns the results in the order of the runs. Only backends in
/// virtual time use the `threads` (at least 1); their number does not change the results. Calls `progress`
/// after each run.
///
/// # Errors
/// The backend's error for the first run that could not be made.
pub fn run(
    case: &Case,
    backend: Backend,
    runs: u64,
    threads: usize,
    progress: &(dyn Fn() + Sync),
) -> Result<Vec<RunResult>, Error> {
    backend.check(case)?;
    let parallel_runs = ParallelRuns {
        runs,
        threads: if backend.is_virtual() { threads } else { 1 },
        progress,
    };
    parallel_runs.collect(
        || backend.open(case),
        |session, index| session.run(case, index),
        |mut session| {
            let repeated = session.repeated();
            if repeated > 0 {
                tracing::warn!("{repeated} runs were repeated because the link emulator was late");
            }
        },
    )
}
