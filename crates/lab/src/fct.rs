//! Flow completion time: what is measured, and what came out.

mod cell;
mod row;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use braid_wire::Rng;

use crate::arm::{Arm, Error};

pub use self::cell::{Cell, DefaultPath, Direction, Size, SizeError, UnknownName};
pub use self::row::{Row, Summary};

/// What one run of a [`Cell`] gave. Paths are in the order of the cell; a vector by path has one
/// entry for each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunResult {
    /// Whether the whole flow arrived in time; the two times mean nothing otherwise.
    pub completed: bool,
    /// From the client's first SYN, or from the first byte of the transfer on warm subflows, to
    /// the last byte at the receiver.
    pub fct: Duration,
    /// From the first byte of the response (of the flow, where the client sends it) at the
    /// receiver to the last; never more than `fct`.
    pub fct_data: Duration,
    /// Payload bytes the flow's sender put on each path, copies included, retransmissions not.
    pub bytes_by_path: Vec<u64>,
    /// Of these, bytes that were copies of what another path carried.
    pub copy_bytes_by_path: Vec<u64>,
    /// Data packets sent on each path while unsent data remained, copies included.
    pub packets_by_path: Vec<u64>,
    /// Of these, copies.
    pub copies_by_path: Vec<u64>,
    /// SYNs with MP_JOIN the client sent, repeated ones included.
    pub join_syns: u64,
    /// Segments the flow's sender sent again.
    pub retransmissions: u64,
}

/// The seed of run `index` of an experiment with `seed`. It depends on nothing else, so that all
/// strategies see the same runs.
pub fn run_seed(seed: u64, index: u64) -> u64 {
    Rng::for_component(seed, RUNS + index).u64()
}

/// Streams of runs count from here, apart from those of a world's components.
const RUNS: u64 = 1 << 48;

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
