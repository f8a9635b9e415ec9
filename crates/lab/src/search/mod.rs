//! A search for losses of the strategy `adaptive`. In each random draw, every strategy and each path alone make the
//! same transfers.

mod draw;
mod expected;
mod judge;
mod report;
mod run;
mod searched;
mod toggle;

use std::time::{Duration, Instant};

pub use self::draw::Draw;
pub use self::judge::Contest;
pub use self::report::{Report, command, first_command};
pub use self::run::Variant;
pub use self::searched::Searched;
use crate::backend::Error;
use crate::parallel_runs::ParallelRuns;

/// Searches `draws` draws of `seed`, or as many as begin within `time`. The number of threads does not change the
/// results.
///
/// # Errors
/// A draw cannot be set up.
pub fn search(
    seed: u64,
    draws: u64,
    time: Duration,
    threads: usize,
    progress: &(dyn Fn() + Sync),
) -> Result<Report, Error> {
    let begin = Instant::now();
    let parallel_runs = ParallelRuns {
        runs: draws,
        threads,
        progress,
    };
    let searched = parallel_runs.collect(
        || Ok(()),
        |(), number| {
            let in_time = number == 0 || begin.elapsed() < time;
            in_time
                .then(|| Searched::new(Draw::new(seed, number)))
                .transpose()
        },
        |()| (),
    )?;
    // A draw that began too late may come before one that began in time, if two threads look at the clock at once.
    let searched = searched.into_iter().map_while(|searched| searched);
    Ok(Report::new(seed, searched.collect()))
}
