//! One run in the simulator.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use braid_engine::{ConnId, PathConfig};
use braid_sim::log::Log;
use braid_sim::{Capture, Host, HostConfig, NodeId, World};
use braid_wire::{Instant, Rng};

use super::{Error, flow};
use crate::fct::{Cell, RunResult, run_seed};

/// Stream of the run's own random numbers, apart from those of the world's components.
const RUN_STREAM: u64 = 1 << 41;
/// The connection opens up to this long after the start.
const START_JITTER: Duration = Duration::from_millis(10);

/// Run `index` of `cell`.
pub(super) fn run(cell: &Cell, index: u64) -> Result<RunResult, Error> {
    Run::new(cell, run_seed(cell.seed, index))?.carry_out(index)
}

/// Where a run is to be recorded; `None` for not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// Directory of captures, one of each end: `NAME-client.pcapng` and `NAME-server.pcapng`.
    pub captures: Option<PathBuf>,
    /// Directory of logs: `NAME.jsonl`.
    pub logs: Option<PathBuf>,
}

/// Makes run `index` of `cell`, which is the same as without a record, and records it in files
/// called `name`.
///
/// # Errors
/// Those of a run; a file cannot be written.
pub fn record(
    cell: &Cell,
    index: u64,
    recording: &Recording,
    name: &str,
) -> Result<RunResult, Error> {
    let mut run = Run::new(cell, run_seed(cell.seed, index))?;
    let ends = [(run.client, "client"), (run.server, "server")];
    let mut captures = Vec::new();
    for (node, end) in ends {
        let Some(directory) = &recording.captures else {
            continue;
        };
        let (path, file) = create(directory, &format!("{name}-{end}.pcapng"))?;
        let capture = Capture::new(Box::new(file)).map_err(|e| unwritten(&path, &e))?;
        capture.node(&mut run.world, node, end);
        captures.push((path, capture));
    }
    let mut log = None;
    if let Some(directory) = &recording.logs {
        let (path, file) = create(directory, &format!("{name}.jsonl"))?;
        log = Some((path, Log::start(&mut run.world, &ends, Box::new(file))));
    }
    let result = run.carry_out(index)?;
    for (path, capture) in &captures {
        capture.finish().map_err(|e| unwritten(path, &e))?;
    }
    if let Some((path, log)) = &log {
        log.finish().map_err(|e| unwritten(path, &e))?;
    }
    Ok(result)
}

fn create(directory: &Path, name: &str) -> Result<(PathBuf, File), Error> {
    let path = directory.join(name);
    let created = fs::create_dir_all(directory).and_then(|()| File::create(&path));
    let file = created.map_err(|e| unwritten(&path, &e))?;
    Ok((path, file))
}

fn unwritten(path: &Path, error: &io::Error) -> Error {
    Error::Run(format!("cannot write {}: {error}", path.display()))
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
        let engine = flow::engine(cell)?;
        let strategy = braid_strategy::factory(&cell.strategy);
        let strategy = strategy.map_err(|e| Error::Usage(e.to_string()))?;
        let host = |paths: Vec<PathConfig>, routes| HostConfig {
            engine: engine.clone(),
            paths,
            routes,
            strategy: Box::new(strategy.clone()),
        };
        let addresses = (0..cell.paths.specs().len()).map(flow::client_addr);
        let client_paths = addresses.clone().map(flow::local).collect();
        let back = addresses.map(IpAddr::V4).zip(0..).collect();
        let client = host(client_paths, Vec::new());
        let server = host(vec![flow::local(flow::SERVER)], back);
        let client = world.add(|rng| Host::new(client, rng));
        let server = world.add(|rng| Host::new(server, rng));
        for settings in flow::links(cell, seed) {
            world.connect(client, server, settings.clone(), settings);
        }
        let mut rng = Rng::for_component(seed, RUN_STREAM);
        let start = rng.below(START_JITTER.as_nanos() as u64);
        world.advance(Duration::from_nanos(start));
        Ok(Run {
            cell,
            started: world.now(),
            world,
            client,
            server,
        })
    }

    /// Makes the transfer of run `index`.
    fn carry_out(mut self, index: u64) -> Result<RunResult, Error> {
        self.world.keep_violations();
        let conn = self.open(index)?;
        let cold = self.cell.warm_subflows && !self.warm_up(conn);
        let result = if cold {
            RunResult::default()
        } else {
            self.finish()
        };
        let Some((node, violation)) = self.world.violations().first() else {
            return Ok(result);
        };
        let end = if *node == self.client {
            "client"
        } else {
            "server"
        };
        let replay = self.cell.command(index + 1);
        Err(Error::Run(format!(
            "the {end} broke a rule in run {index}, {violation}; to see it again: {replay}"
        )))
    }

    /// Opens the connection of run `index`.
    fn open(&mut self, index: u64) -> Result<ConnId, Error> {
        let options = flow::connect_options(self.cell, index)?;
        let (asks, answers) = (flow::asking(self.cell), flow::answering(self.cell));
        let serve = |host: &mut Host, _| host.serve(flow::remote(), answers);
        let served = self.world.with_node(self.server, serve);
        let open = |host: &mut Host, now| host.open(now, options, asks);
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
        let warm = self.world.run(flow::WARM_UP, |world| {
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
    fn finish(&mut self) -> RunResult {
        let ends = [self.client, self.server];
        self.world.run(flow::limit(self.cell), |world| {
            ends.iter()
                .all(|end| !world.node::<Host>(*end).finished().is_empty())
        });
        let streams = ends.map(|end| self.host(end).finished().first());
        let join_syns = self.host(self.client).stack().stats().join_syns;
        flow::result(self.cell, self.started, streams, join_syns)
    }

    fn host(&self, id: NodeId) -> &Host {
        self.world.node(id)
    }
}
