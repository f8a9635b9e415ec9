//! The transfer of a case, the same for all backends: one flow between a client with an address on each
//! path, and a server with one address.

use std::net::IpAddr;
use std::time::Duration;

use braid_engine::cc::Algorithm;
use braid_engine::stats::{PathStats, Traffic};
use braid_engine::{Config, ConnId, PathId, Stack};
use braid_links::{Change, Schedule, Settings};
use braid_sim::traffic::Stream;
use braid_sim::transfer::{Direction, PathSettings, TransferConfig, client_addr};
use braid_wire::{Instant, Rng};

use super::error::Error;
use crate::case::{Case, RunResult};

/// Maximum time that a warm start waits for its subflows to be established. It is the time that [`limit`]
/// allows for handshakes and timeouts, which is a guess.
pub(super) const WARM_UP: Duration = Duration::from_secs(120);

/// Stream of the random numbers of the links' delays. The number is far above the streams of a world's
/// components, which count from 0.
const LINKS_STREAM: u64 = 1 << 40;
/// Maximum difference between a path's delay in a run and its setting. Without the difference, all runs
/// without loss would be equal, and intervals would have no width. 100 µs is a guess: small against every
/// delay of the experiments.
const DELAY_VARIATION: Duration = Duration::from_micros(100);

/// Checks that the engine has the strategy and the congestion control that `case` names.
pub(super) fn check(case: &Case) -> Result<(), Error> {
    braid_strategy::by_name(&case.strategy).map_err(|e| Error::Usage(e.to_string()))?;
    engine(case).map(drop)
}

/// Returns the settings of the engines at both ends.
pub(super) fn engine(case: &Case) -> Result<Config, Error> {
    let congestion: Algorithm = case.cc.parse().map_err(Error::Usage)?;
    Ok(Config {
        initial_window: case.initial_window,
        congestion,
        ..Config::default()
    })
}

/// Returns the paths of the run with `seed`, each with the same settings in both directions.
pub(super) fn paths(case: &Case, seed: u64) -> Vec<PathSettings> {
    let mut rng = Rng::for_component(seed, LINKS_STREAM);
    let paths = case.paths.specs().iter().map(|path| {
        let mut settings = path.settings(case.queue);
        settings.delay = varied(settings.delay, &mut rng);
        PathSettings::both(settings)
    });
    paths.collect()
}

/// Returns the changes of path `n` during a run: its outage, if it has one. `settings` are the path's
/// settings outside the outage.
pub(super) fn schedule(case: &Case, n: usize, settings: &Settings) -> Schedule {
    let outage = case.outage.filter(|outage| outage.path == n);
    let changes = outage.into_iter().flat_map(|outage| {
        [(outage.from, false), (outage.until, true)].map(|(at, up)| Change {
            at,
            settings: Settings {
                up,
                ..settings.clone()
            },
        })
    });
    Schedule::new(changes)
}

/// Returns `delay` plus or minus up to [`DELAY_VARIATION`].
fn varied(delay: Duration, rng: &mut Rng) -> Duration {
    // A delay must not become negative.
    let variation = DELAY_VARIATION.min(delay);
    let drawn = Duration::from_nanos(rng.below(2 * variation.as_nanos() as u64 + 1));
    delay + drawn - variation
}

/// Returns the transfer of run `index` over `paths`.
pub(super) fn transfer<'a>(
    case: &'a Case,
    index: u64,
    paths: &'a [PathSettings],
) -> Result<TransferConfig<'a>, Error> {
    check(case)?;
    Ok(TransferConfig {
        engine: engine(case)?,
        initial_path: Some(PathId(case.opening_path(index) as u8)),
        strategy: &case.strategy,
        declared: case.declare_size,
        awaiting_release: case.warm_subflows,
        ..TransferConfig::new(paths, case.size.bytes(), case.direction)
    })
}

/// Returns the time after which a run counts as not completed: two minutes for handshakes and timeouts,
/// plus a hundred times the transmission time over the slowest path. Both are guesses; only a flow that
/// stalls takes so long.
pub(super) fn limit(case: &Case) -> Duration {
    let rates = case
        .paths
        .specs()
        .iter()
        .filter_map(|path| path.rate.mean());
    let slowest = rates.fold(f64::INFINITY, f64::min);
    let seconds = case.size.bytes() as f64 * 8.0 / slowest;
    // Without the bound, `from_secs_f64` would panic on a rate near 0.
    Duration::from_secs(120) + Duration::from_secs_f64((seconds * 100.0).min(1e6))
}

/// Returns the result of a flow. `client` and `server` are the streams of the ended connections, or `None`
/// for a connection that has not ended. Times count from `started`.
pub(super) fn result(
    case: &Case,
    started: Instant,
    [client, server]: [Option<&Stream>; 2],
    join_syns: u64,
) -> RunResult {
    let (sender, receiver) = match case.direction {
        Direction::Down => (server, client),
        Direction::Up => (client, server),
    };
    let mut result = RunResult {
        join_syns,
        ..RunResult::default()
    };
    if let Some(stream) = receiver.filter(|s| s.received == case.size.bytes()) {
        let last = stream.last_byte_at.unwrap_or(started);
        result.completed = true;
        result.fct = last.saturating_since(started);
        // With warm subflows, an upload sends its first byte before the transfer starts, so that subflows
        // open. Time counts from the start of the transfer, not from that byte.
        let first = stream.first_byte_at.unwrap_or(last).max(started);
        result.fct_data = last.saturating_since(first);
    }
    let report = sender.and_then(|stream| stream.report.as_ref());
    count(
        case,
        report.map_or(&[], |report| &report.paths),
        &mut result,
    );
    result
}

/// Returns the sender's retransmission timeout for the path of the outage; zero if no subflow uses the
/// path.
pub(super) fn outage_rto(case: &Case, stack: &Stack, conn: ConnId) -> Duration {
    let subflows = stack.subflows(conn).into_iter();
    // The server has one address, so it tells paths apart by the client's address.
    let mut on_path = subflows.filter(|subflow| {
        case.outage.is_some_and(|outage| match case.direction {
            Direction::Down => subflow.remote.ip() == IpAddr::V4(client_addr(outage.path)),
            Direction::Up => subflow.path == PathId(outage.path as u8),
        })
    });
    on_path.next().map_or(Duration::ZERO, |subflow| subflow.rto)
}

/// Adds the sender's traffic on each path to `result`.
fn count(case: &Case, stats: &[PathStats], result: &mut RunResult) {
    for n in 0..case.paths.specs().len() {
        let on_path = stats.iter().filter(|path| match case.direction {
            Direction::Down => path.remote == IpAddr::V4(client_addr(n)),
            Direction::Up => path.path == PathId(n as u8),
        });
        let mut traffic = Traffic::default();
        on_path.for_each(|path| traffic.add(&path.moved.traffic));
        result.bytes_by_path.push(traffic.bytes_sent);
        result.copy_bytes_by_path.push(traffic.bytes_copied);
        result.packets_by_path.push(traffic.packets_while_unsent);
        result.copies_by_path.push(traffic.copies_while_unsent);
        result.retransmissions += traffic.packets_retransmitted;
        result.rtos += traffic.rtos;
    }
}
