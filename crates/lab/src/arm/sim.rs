//! One run in the simulator.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use braid_engine::cc::Algorithm;
use braid_engine::stats::{PathStats, Traffic};
use braid_engine::{Config, ConnId, ConnectOptions, PathConfig, PathId};
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
/// How long the subflows of a warm start may take to be established.
const WARM_UP: Duration = Duration::from_secs(120);

/// Whether the strategy and the congestion control that `cell` names exist.
pub(super) fn check(cell: &Cell) -> Result<(), Error> {
    braid_strategy::by_name(&cell.strategy).map_err(|e| Error::Usage(e.to_string()))?;
    algorithm(cell).map(|_| ())
}

fn algorithm(cell: &Cell) -> Result<Algorithm, Error> {
    cell.cc.parse().map_err(Error::Usage)
}

/// Run `index` of `cell`.
pub(super) fn run(cell: &Cell, index: u64) -> Result<RunResult, Error> {
    let mut run = Run::new(cell, run_seed(cell.seed, index))?;
    let conn = run.open(cell.opening_path(index))?;
    if cell.warm_subflows && !run.warm_up(conn) {
        return Ok(RunResult::default());
    }
    Ok(run.finish())
}

/// A world with one transfer.
struct Run<'a> {
    cell: &'a Cell,
    world: World,
    client: NodeId,
    server: NodeId,
    /// When the flow completion time started.
    started: Instant,
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
        world.advance(Duration::from_nanos(
            rng.below(START_JITTER.as_nanos() as u64),
        ));
        Ok(Run {
            cell,
            started: world.now(),
            world,
            client,
            server,
        })
    }

    /// Opens the connection on `path`.
    fn open(&mut self, path: usize) -> Result<ConnId, Error> {
        let size = self.cell.size.bytes();
        let declared = self.cell.declare_size.then_some(size);
        let request = REQUEST;
        let (asks, answers) = match self.cell.direction {
            Direction::Down => (Role::Fetch { request }, Role::Answer { request, size }),
            Direction::Up => (Role::Upload { size }, Role::Sink),
        };
        let mut service = Stream::new(answers);
        service.flow_size = declared;
        let mut stream = Stream::new(asks);
        stream.held = self.cell.warm_subflows;
        let remote = SocketAddr::new(IpAddr::V4(SERVER), PORT);
        let policy = braid_strategy::by_name(&self.cell.strategy);
        let options = ConnectOptions {
            path: Some(PathId(path as u8)),
            flow_size: declared,
            ..ConnectOptions::new(remote, policy.map_err(|e| Error::Usage(e.to_string()))?)
        };
        let serve = |host: &mut Host, _| host.serve(remote, service);
        let served = self.world.with_node(self.server, serve);
        let open = |host: &mut Host, now| host.open(now, options, stream);
        let opened = self.world.with_node(self.client, open);
        served
            .and(opened)
            .map_err(|e| Error::Run(format!("the connection does not open: {e}")))
    }

    /// Waits until both ends have a subflow on every path, and starts the transfer; false if that
    /// takes too long.
    fn warm_up(&mut self, conn: ConnId) -> bool {
        let paths = self.cell.paths.specs().len();
        let ends = [self.client, self.server];
        let warm = self.world.run(WARM_UP, |world| {
            ends.iter().all(|end| {
                let host = world.node::<Host>(*end);
                let subflows = host
                    .open_streams()
                    .flat_map(|(conn, _)| host.stack().subflows(conn));
                subflows.filter(|s| s.established).count() >= paths
            })
        });
        self.started = self.world.now();
        let release = |host: &mut Host, now| host.release(now, conn);
        self.world.with_node(self.client, release);
        warm
    }

    /// Runs to the end of the connection at both ends, or to the limit.
    fn finish(mut self) -> RunResult {
        let (sender, receiver) = match self.cell.direction {
            Direction::Down => (self.server, self.client),
            Direction::Up => (self.client, self.server),
        };
        let ends = [sender, receiver];
        let limit = self.limit();
        self.world.run(limit, |world| {
            ends.iter()
                .all(|end| !world.node::<Host>(*end).finished().is_empty())
        });
        let mut result = RunResult {
            join_syns: self.host(self.client).stack().stats().join_syns,
            ..RunResult::default()
        };
        let received = self.host(receiver).finished().first();
        if let Some(stream) = received.filter(|s| s.received == self.cell.size.bytes()) {
            let (first, last) = (stream.first_byte_at, stream.last_byte_at);
            let last = last.unwrap_or(self.started);
            result.completed = true;
            result.fct = last.saturating_since(self.started);
            result.fct_data = last.saturating_since(first.unwrap_or(last));
        }
        let report = self
            .host(sender)
            .finished()
            .first()
            .and_then(|s| s.report.as_ref());
        self.count(report.map_or(&[], |r| &r.paths), &mut result);
        result
    }

    fn host(&self, id: NodeId) -> &Host {
        self.world.node(id)
    }

    /// Adds up what the sender put on each path.
    fn count(&self, moved: &[PathStats], result: &mut RunResult) {
        for n in 0..self.cell.paths.specs().len() {
            let here = moved.iter().filter(|path| match self.cell.direction {
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
