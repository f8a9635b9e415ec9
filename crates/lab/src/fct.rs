//! Flow completion time: what is measured, and what came out.

mod row;

use crate::arm::{Arm, Error};
use crate::spread::Spread;

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
    let spread = Spread {
        runs,
        threads: if arm.is_virtual() { threads } else { 1 },
        progress,
    };
    spread.over(
        || arm.open(cell),
        |session, index| session.run(cell, index),
        |session| {
            let repeated = session.repeated();
            if repeated > 0 {
                tracing::warn!("{repeated} runs were repeated because the link emulator was late");
            }
        },
    )
}
