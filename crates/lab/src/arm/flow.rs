//! The transfer of a cell, as all arms make it: one flow between a client, with an address on
//! each path, and a server with one address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use braid_engine::cc::Algorithm;
use braid_engine::sched::Policy;
use braid_engine::stats::{PathStats, Traffic};
use braid_engine::{Config, ConnectOptions, PathConfig, PathId};
use braid_links::Settings;
use braid_sim::traffic::{Role, Stream};
use braid_wire::{Instant, Rng};

use super::Error;
use crate::fct::{Cell, Direction, RunResult};

/// The server's address.
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 255, 1);
/// The server's port; no dissector of Wireshark claims it.
pub(super) const PORT: u16 = 50_000;
/// Bytes of the request that asks for a download.
pub(super) const REQUEST: u64 = 100;
/// How long the subflows of a warm start may take to be established.
pub(super) const WARM_UP: Duration = Duration::from_secs(120);

/// Stream of the links' random numbers, apart from those of a world's components.
const LINKS_STREAM: u64 = 1 << 40;
/// Each path's delay differs from run to run by up to this much, so that runs without loss differ
/// as they do on real links.
const DELAY_VARIATION: Duration = Duration::from_micros(100);

/// Whether the strategy and the congestion control that `cell` names exist in the engine.
pub(super) fn check(cell: &Cell) -> Result<(), Error> {
    policy(cell)?;
    engine(cell).map(drop)
}

/// Scheduler and reinjector of a connection.
pub(super) fn policy(cell: &Cell) -> Result<Policy, Error> {
    braid_strategy::by_name(&cell.strategy).map_err(|e| Error::Usage(e.to_string()))
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

/// The links of the run with `seed`, each alike in both directions.
pub(super) fn links(cell: &Cell, seed: u64) -> Vec<Settings> {
    let mut rng = Rng::for_component(seed, LINKS_STREAM);
    let links = cell.paths.specs().iter().map(|path| {
        let mut settings = path.settings(cell.queue);
        settings.delay = varied(settings.delay, &mut rng);
        settings
    });
    links.collect()
}

/// `delay`, up to [`DELAY_VARIATION`] more or less.
fn varied(delay: Duration, rng: &mut Rng) -> Duration {
    let most = DELAY_VARIATION.min(delay);
    let drawn = Duration::from_nanos(rng.below(2 * most.as_nanos() as u64 + 1));
    delay + drawn - most
}

/// The client's address on a path.
pub(super) fn client_addr(path: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, path as u8, 2)
}

/// A path of an engine, from this address.
pub(super) fn local(addr: Ipv4Addr) -> PathConfig {
    PathConfig {
        v4: Some(addr),
        v6: None,
        mtu: 1500,
        backup: false,
    }
}

/// Where the server listens.
pub(super) fn remote() -> SocketAddr {
    SocketAddr::new(IpAddr::V4(SERVER), PORT)
}

/// How run `index` connects.
pub(super) fn connect_options(cell: &Cell, index: u64) -> Result<ConnectOptions, Error> {
    Ok(ConnectOptions {
        path: Some(PathId(cell.opening_path(index) as u8)),
        flow_size: declared(cell),
        ..ConnectOptions::new(remote(), policy(cell)?)
    })
}

/// What the client does.
pub(super) fn asking(cell: &Cell) -> Stream {
    let mut stream = Stream::new(match cell.direction {
        Direction::Down => Role::Fetch { request: REQUEST },
        Direction::Up => Role::Upload {
            size: cell.size.bytes(),
        },
    });
    stream.held = cell.warm_subflows;
    stream
}

/// What the server does.
pub(super) fn answering(cell: &Cell) -> Stream {
    let mut stream = Stream::new(match cell.direction {
        Direction::Down => Role::Answer {
            request: REQUEST,
            size: cell.size.bytes(),
        },
        Direction::Up => Role::Sink,
    });
    stream.flow_size = declared(cell);
    stream
}

fn declared(cell: &Cell) -> Option<u64> {
    cell.declare_size.then_some(cell.size.bytes())
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

/// Adds up what the sender put on each path.
fn count(cell: &Cell, moved: &[PathStats], result: &mut RunResult) {
    for n in 0..cell.paths.specs().len() {
        let here = moved.iter().filter(|path| match cell.direction {
            Direction::Down => path.remote == IpAddr::V4(client_addr(n)),
            Direction::Up => path.path == PathId(n as u8),
        });
        let mut traffic = Traffic::default();
        here.for_each(|path| traffic.add(&path.traffic));
        result.bytes_by_path.push(traffic.bytes_sent);
        result.copy_bytes_by_path.push(traffic.bytes_copied);
        result.packets_by_path.push(traffic.packets_while_unsent);
        result.copies_by_path.push(traffic.copies_while_unsent);
        result.retransmissions += traffic.packets_retransmitted;
    }
}
