//! Flow completion time: what is measured, and what came out.

mod row;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::arm::{Arm, Error};

pub use self::row::{Row, Summary};
pub use crate::cell::{
    Cell, DefaultPath, Direction, Records, RunResult, Size, SizeError, UnknownName, run_seed,
};

/// Runs `cell` on `arm` `runs` times and gives the results in order of the runs, whatever the
/// number of `threads` (at least 1) the arm allows. `progress` is told of each finished run.
///
/// # Errors
/// The arm's, of the first run that could not be made.
pub fn run(
    cell: &Cell,
    arm: Arm,
    runs: u64,
    threads: usize,
    progress: &(dyn Fn() + Sync),
) -> Result<Vec<RunResult>, Error> {
    arm.check(cell)?;
    let threads = if arm.is_virtual() { threads.max(1) } else { 1 };
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let done = Mutex::new(Vec::new());
    let work = || {
        let mut session = arm.open(cell);
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= runs {
                break;
            }
            let result = match &mut session {
                Ok(session) => session.run(cell, index),
                Err(error) => Err(error.clone()),
            };
            failed.fetch_or(result.is_err(), Ordering::Relaxed);
            done.lock()
                .unwrap_or_else(|e| e.into_inner())
                .push((index, result));
            progress();
        }
        let repeated = session.map_or(0, |session| session.repeated());
        if repeated > 0 {
            tracing::warn!("{repeated} runs were repeated because the link emulator was late");
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(|e| e.into_inner());
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}
