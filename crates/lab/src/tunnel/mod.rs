//! Tunnels: how an inner flow fares through a tunnel over several paths, and over the best path alone.

mod inner;
mod quic;
mod row;
mod tls;
mod world;

use braid_tunnel as tunnel;

use crate::backend::Error;
use crate::case::Size;
use crate::parallel_runs::ParallelRuns;
use crate::paths::Paths;
use crate::stats;

pub use self::inner::Inner;
pub use self::quic::Congestion;
pub use self::row::{Delay, Goodput, Row};

/// A way to carry the inner flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The tunnel gives each packet to the path where it arrives first.
    Aggregate,
    /// The tunnel uses the path with the smallest delay.
    Fastest,
    /// The tunnel sends copies of urgent packets.
    Redundant,
    /// The best path alone carries the flow, without a tunnel.
    Single,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 4] = [
        Mode::Aggregate,
        Mode::Fastest,
        Mode::Redundant,
        Mode::Single,
    ];

    /// Returns the name by which a user picks the mode.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Aggregate => "aggregate",
            Mode::Fastest => "fastest",
            Mode::Redundant => "redundant",
            Mode::Single => "single",
        }
    }

    /// Returns the mode of the tunnel, if there is one.
    fn of_tunnel(self) -> Option<tunnel::Mode> {
        match self {
            Mode::Aggregate => Some(tunnel::Mode::Aggregate),
            Mode::Fastest => Some(tunnel::Mode::Fastest),
            Mode::Redundant => Some(tunnel::Mode::Redundant),
            Mode::Single => None,
        }
    }
}

/// An inner flow over paths, which is run many times.
#[derive(Debug, Clone, PartialEq)]
pub struct TunnelCase {
    /// The paths between box and server.
    pub paths: Paths,
    /// The inner flow.
    pub inner: Inner,
    /// Payload of a download; bytes of IP packets of a UDP flow.
    pub size: Size,
    /// Queue length, packets, of each path whose settings have no queue length.
    pub queue: u32,
    /// Number of runs.
    pub runs: u64,
    /// Seed of all runs; see [`run_seed`](crate::case::run_seed).
    pub seed: u64,
}

/// The result of one run. A vector by path has an entry for each path of the case.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TunnelRun {
    /// True if a download arrived completely within the time limit, or a UDP flow has ended.
    pub completed: bool,
    /// Payload of a download, or IP packets of a UDP flow that arrived, Mbit/s.
    pub goodput: f64,
    /// One-way delays of the inner packets to the client, in microseconds.
    pub delays_us: Vec<u32>,
    /// Inner packets to the client.
    pub packets: u64,
    /// The part of `packets` that did not arrive.
    pub lost: u64,
    /// The part of `packets` that arrived after a later one.
    pub reordered: u64,
    /// Bytes of IP packets that were sent to the client on each path.
    pub bytes_by_path: Vec<u64>,
    /// IP packets that were sent to the client on all paths.
    pub datagrams: u64,
    /// Bytes of the inner packets to the client.
    pub inner_bytes: u64,
}

/// Runs `case` in `mode`, on `threads` threads (at least 1), and calls `progress` after each run. Their number does
/// not change the results. In mode `single` the runs are those of the path with the highest mean goodput.
///
/// # Errors
/// The connection ended early, or the tunnel violated a rule.
pub fn run(
    case: &TunnelCase,
    mode: Mode,
    threads: usize,
    progress: &(dyn Fn() + Sync),
) -> Result<Vec<TunnelRun>, Error> {
    let runs = |path: Option<usize>| {
        let parallel_runs = ParallelRuns {
            runs: case.runs,
            threads,
            progress,
        };
        let run = |(): &mut (), index| match (mode.of_tunnel(), path) {
            (Some(mode), _) => world::through_tunnel(case, mode, index),
            (None, path) => world::alone(case, path.unwrap_or(0), index),
        };
        parallel_runs.collect(|| Ok(()), run, |()| ())
    };
    if mode != Mode::Single {
        return runs(None);
    }
    let mut best = (f64::NEG_INFINITY, Vec::new());
    for path in 0..case.paths.specs().len() {
        let results = runs(Some(path))?;
        let mean = goodput(&results);
        if mean > best.0 {
            best = (mean, results);
        }
    }
    Ok(best.1)
}

/// Returns the number of runs that [`run`] makes, for progress.
pub fn run_count(case: &TunnelCase, mode: Mode) -> u64 {
    match mode {
        Mode::Single => case.runs * case.paths.specs().len() as u64,
        Mode::Aggregate | Mode::Fastest | Mode::Redundant => case.runs,
    }
}

/// Returns the mean goodput of runs, Mbit/s.
pub fn goodput(runs: &[TunnelRun]) -> f64 {
    let each: Vec<f64> = runs.iter().map(|run| run.goodput).collect();
    stats::mean(&each).unwrap_or(f64::NAN)
}
