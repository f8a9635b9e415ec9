//! The transfer of a cell, as all arms make it: one flow between a client, with an address on
//! each path, and a server with one address.

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
use crate::cell::{Cell, RunResult};

/// How long the subflows of a warm start may take to be established.
pub(super) const WARM_UP: Duration = Duration::from_secs(120);

/// Stream of the links' random numbers, apart from those of a world's components.
const LINKS_STREAM: u64 = 1 << 40;
/// Each path's delay differs from run to run by up to this much, so that runs without loss differ
/// as they do on real links.
const DELAY_VARIATION: Duration = Duration::from_micros(100);

/// Whether the strategy and the congestion control that `cell` names exist in the engine.
pub(super) fn check(cell: &Cell) -> Result<(), Error> {
    braid_strategy::by_name(&cell.strategy).map_err(|e| Error::Usage(e.to_string()))?;
    engine(cell).map(drop)
}

/// Settings of the engines at both ends.
pub(super) fn engine(cell: &Cell) -> Result<Config, Error> {
    let congestion: Algorithm = cell.cc.parse().map_err(Error::Usage)?;
    Ok(Config {
        initial_window: cell.initial_window,
        congestion,
        ..Config::default()
    })
}

/// The paths of the run with `seed`, each alike in both directions.
pub(super) fn paths(cell: &Cell, seed: u64) -> Vec<PathSettings> {
    let mut rng = Rng::for_component(seed, LINKS_STREAM);
    let paths = cell.paths.specs().iter().map(|path| {
        let mut settings = path.settings(cell.queue);
        settings.delay = varied(settings.delay, &mut rng);
        PathSettings::both(settings)
    });
    paths.collect()
}

/// How path `n`, alike in both directions with `settings`, changes in the course of a run.
pub(super) fn schedule(cell: &Cell, n: usize, settings: &Settings) -> Schedule {
    let dark = cell.dark.filter(|dark| dark.path == n);
    let changes = dark.into_iter().flat_map(|dark| {
        [(dark.from, false), (dark.until, true)].map(|(at, up)| Change {
            at,
            settings: Settings {
                up,
                ..settings.clone()
            },
        })
    });
    Schedule::new(changes)
}

/// `delay`, up to [`DELAY_VARIATION`] more or less.
fn varied(delay: Duration, rng: &mut Rng) -> Duration {
    let most = DELAY_VARIATION.min(delay);
    let drawn = Duration::from_nanos(rng.below(2 * most.as_nanos() as u64 + 1));
    delay + drawn - most
}

/// The transfer of run `index` over `paths`.
pub(super) fn transfer<'a>(
    cell: &'a Cell,
    index: u64,
    paths: &'a [PathSettings],
) -> Result<TransferConfig<'a>, Error> {
    check(cell)?;
    Ok(TransferConfig {
        engine: engine(cell)?,
        initial_path: Some(PathId(cell.opening_path(index) as u8)),
        strategy: &cell.strategy,
        declared: cell.declare_size,
        held: cell.warm_subflows,
        ..TransferConfig::new(paths, cell.size.bytes(), cell.direction)
    })
}

/// How long a flow may take: a hundred times its bare transmission, and two minutes for
/// handshakes and timeouts.
pub(super) fn limit(cell: &Cell) -> Duration {
    let rates = cell
        .paths
        .specs()
        .iter()
        .filter_map(|path| path.rate.mean());
    let slowest = rates.fold(f64::INFINITY, f64::min);
    let seconds = cell.size.bytes() as f64 * 8.0 / slowest;
    Duration::from_secs(120) + Duration::from_secs_f64((seconds * 100.0).min(1e6))
}

/// What engines at both ends saw of the flow: `client` and `server` once their connections have
/// ended, the time counted from `started`.
pub(super) fn result(
    cell: &Cell,
    started: Instant,
    [client, server]: [Option<&Stream>; 2],
    join_syns: u64,
) -> RunResult {
    let (sender, receiver) = match cell.direction {
        Direction::Down => (server, client),
        Direction::Up => (client, server),
    };
    let mut result = RunResult {
        join_syns,
        ..RunResult::default()
    };
    if let Some(stream) = receiver.filter(|s| s.received == cell.size.bytes()) {
        let last = stream.last_byte_at.unwrap_or(started);
        result.completed = true;
        result.fct = last.saturating_since(started);
        // The byte that opens a held upload arrives while subflows are established.
        let first = stream.first_byte_at.unwrap_or(last).max(started);
        result.fct_data = last.saturating_since(first);
    }
    let report = sender.and_then(|stream| stream.report.as_ref());
    count(
        cell,
        report.map_or(&[], |report| &report.paths),
        &mut result,
    );
    result
}

/// The retransmission timeout that the sender has for the path that goes dark.
pub(super) fn dark_rto(cell: &Cell, stack: &Stack, conn: ConnId) -> Duration {
    let subflows = stack.subflows(conn).into_iter();
    let mut here = subflows.filter(|subflow| {
        cell.dark.is_some_and(|dark| match cell.direction {
            Direction::Down => subflow.remote.ip() == IpAddr::V4(client_addr(dark.path)),
            Direction::Up => subflow.path == PathId(dark.path as u8),
        })
    });
    here.next().map_or(Duration::ZERO, |subflow| subflow.rto)
}

/// Adds up what the sender put on each path.
fn count(cell: &Cell, moved: &[PathStats], result: &mut RunResult) {
    for n in 0..cell.paths.specs().len() {
        let here = moved.iter().filter(|path| match cell.direction {
            Direction::Down => path.remote == IpAddr::V4(client_addr(n)),
            Direction::Up => path.path == PathId(n as u8),
        });
        let mut traffic = Traffic::default();
        here.for_each(|path| traffic.add(&path.moved.traffic));
        result.bytes_by_path.push(traffic.bytes_sent);
        result.copy_bytes_by_path.push(traffic.bytes_copied);
        result.packets_by_path.push(traffic.packets_while_unsent);
        result.copies_by_path.push(traffic.copies_while_unsent);
        result.retransmissions += traffic.packets_retransmitted;
        result.rtos += traffic.rtos;
    }
}
