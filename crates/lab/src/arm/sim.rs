//! One run in the simulator.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use braid_engine::cc::Algorithm;
use braid_engine::{Config, ConnectOptions, PathConfig, PathId};
use braid_sim::traffic::{Role, Stream};
use braid_sim::{Host, HostConfig, NodeId, World};
use braid_wire::{Instant, Rng};

use super::Error;
use crate::fct::{Cell, Direction, RunResult, run_seed};
use crate::paths::PathSpec;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 255, 1);
const PORT: u16 = 80;
/// Bytes of the request that asks for a download.
const REQUEST: u64 = 100;
/// Stream of the run's own random numbers, apart from those of the world's components.
const RUN_STREAM: u64 = 1 << 40;
/// The connection opens up to this long after the start.
const START_JITTER: Duration = Duration::from_millis(10);
/// Each path's delay differs from run to run by up to this much, so that runs without loss differ
/// as they do on real links.
const DELAY_VARIATION: Duration = Duration::from_micros(100);

/// Whether the strategy and the congestion control that `cell` names exist.
pub(super) fn check(cell: &Cell) -> Result<(), Error> {
    braid_strategy::by_name(&cell.strategy).map_err(|e| Error::Usage(e.to_string()))?;
    algorithm(cell)?;
    Ok(())
}

fn algorithm(cell: &Cell) -> Result<Algorithm, Error> {
    cell.cc.parse().map_err(Error::Usage)
}

/// Run `index` of `cell`.
pub(super) fn run(cell: &Cell, index: u64) -> Result<RunResult, Error> {
    let mut run = Run::new(cell, run_seed(cell.seed, index))?;
    run.open(cell.opening_path(index))?;
    Ok(run.finish())
}

/// A world with one transfer.
struct Run<'a> {
    cell: &'a Cell,
    world: World,
    client: NodeId,
    server: NodeId,
    /// When the client sent its first SYN.
    opened_at: Instant,
}

impl<'a> Run<'a> {
    fn new(cell: &'a Cell, seed: u64) -> Result<Self, Error> {
        let mut world = World::new(seed);
        let engine = Config {
            initial_window: cell.initial_window,
            congestion: algorithm(cell)?,
            ..Config::default()
        };
        let policy = braid_strategy::factory(&cell.strategy);
        let policy = policy.map_err(|e| Error::Usage(e.to_string()))?;
        let host = |paths: Vec<PathConfig>, routes| HostConfig {
            engine: engine.clone(),
            paths,
            routes,
            policy: Box::new(policy.clone()),
        };
        let specs = cell.paths.specs();
        let client_paths = (0..specs.len()).map(|n| local(client_addr(n))).collect();
        let back = (0..specs.len()).map(|n| (IpAddr::V4(client_addr(n)), n as u32));
        let client = host(client_paths, Vec::new());
        let server = host(vec![local(SERVER)], back.collect());
        let client = world.add(|rng| Host::new(client, rng));
        let server = world.add(|rng| Host::new(server, rng));
        let mut rng = Rng::for_component(seed, RUN_STREAM);
        for path in specs {
            let mut settings = path.settings(cell.queue);
            settings.delay = varied(settings.delay, &mut rng);
            world.connect(client, server, settings.clone(), settings);
        }
        let start = rng.below(START_JITTER.as_nanos() as u64);
        world.advance(Duration::from_nanos(start));
        Ok(Run {
            cell,
            opened_at: world.now(),
            world,
            client,
            server,
        })
    }

    /// Opens the connection on `path`.
    fn open(&mut self, path: usize) -> Result<(), Error> {
        let size = self.cell.size.bytes();
        let (asks, answers) = match self.cell.direction {
            Direction::Down => (
                Role::Fetch { request: REQUEST },
                Role::Answer {
                    request: REQUEST,
                    size,
                },
            ),
            Direction::Up => (Role::Upload { size }, Role::Sink),
        };
        let remote = SocketAddr::new(IpAddr::V4(SERVER), PORT);
        let policy = braid_strategy::by_name(&self.cell.strategy);
        let policy = policy.map_err(|e| Error::Usage(e.to_string()))?;
        let options = ConnectOptions {
            path: Some(PathId(path as u8)),
            flow_size: self.cell.declare_size.then_some(size),
            ..ConnectOptions::new(remote, policy)
        };
        let served = self.world.with_node(self.server, |host: &mut Host, _| {
            host.serve(remote, Stream::new(answers))
        });
        let opened = self.world.with_node(self.client, |host: &mut Host, now| {
            host.open(now, options, Stream::new(asks))
        });
        served
            .and(opened)
            .map(|_| ())
            .map_err(|e| Error::Run(format!("the connection does not open: {e}")))
    }

    /// Runs the transfer to its end.
    fn finish(mut self) -> RunResult {
        let (sender, receiver) = match self.cell.direction {
            Direction::Down => (self.server, self.client),
            Direction::Up => (self.client, self.server),
        };
        let size = self.cell.size.bytes();
        let whole = |stream: &Stream| stream.received == size && stream.complete_at.is_some();
        let limit = self.limit();
        let completed = self.world.run(limit, |world| {
            let host = world.node::<Host>(receiver);
            host.open_streams().any(|(_, stream)| whole(stream))
                || host.finished().iter().any(whole)
        });
        let mut result = RunResult {
            completed,
            bytes_by_path: vec![0; self.cell.paths.specs().len()],
            ..RunResult::default()
        };
        let open = self
            .world
            .node::<Host>(receiver)
            .open_streams()
            .map(|(_, s)| s);
        if let Some(stream) = open
            .chain(self.world.node::<Host>(receiver).finished())
            .next()
        {
            let last = stream.complete_at.unwrap_or(self.world.now());
            result.fct = last.saturating_since(self.opened_at);
            result.fct_data = last.saturating_since(stream.first_byte_at.unwrap_or(last));
        }
        let host = self.world.node::<Host>(sender);
        for subflow in host
            .open_streams()
            .flat_map(|(conn, _)| host.stack().subflows(conn))
        {
            let client = match self.cell.direction {
                Direction::Down => subflow.remote.ip(),
                Direction::Up => subflow.local.ip(),
            };
            if let Some(path) = (0..result.bytes_by_path.len()).find(|n| client_addr(*n) == client)
            {
                result.bytes_by_path[path] += subflow.traffic.bytes_sent;
            }
        }
        result
    }

    /// How long a flow may take: a hundred times its bare transmission, and two minutes for
    /// handshakes and timeouts.
    fn limit(&self) -> Duration {
        let rates = self
            .cell
            .paths
            .specs()
            .iter()
            .filter_map(PathSpec::mean_rate);
        let slowest = rates.fold(f64::INFINITY, f64::min);
        let seconds = self.cell.size.bytes() as f64 * 8.0 / slowest;
        Duration::from_secs(120) + Duration::from_secs_f64((seconds * 100.0).min(1e6))
    }
}

/// `delay`, up to [`DELAY_VARIATION`] more or less.
fn varied(delay: Duration, rng: &mut Rng) -> Duration {
    let most = DELAY_VARIATION.min(delay);
    let drawn = Duration::from_nanos(rng.below(2 * most.as_nanos() as u64 + 1));
    delay + drawn - most
}

fn client_addr(path: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, path as u8, 2)
}

fn local(addr: Ipv4Addr) -> PathConfig {
    PathConfig {
        v4: Some(addr),
        v6: None,
        mtu: 1500,
        backup: false,
    }
}
