//! Runs in the simulator.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use braid_engine::ConnId;
use braid_sim::transfer::PathSettings;
use braid_sim::{Host, Transfer, World};
use braid_wire::{Instant, Rng};

use super::error::Error;
use super::flow;
use super::history::Memory;
use crate::case::{Case, ReceivedBytes, RunResult, run_seed};

/// Stream of the run's own random numbers, apart from the streams of the world's components.
const RUN_STREAM: u64 = 1 << 41;
/// Most time between the start of the world and the opening of the connection.
const START_JITTER: Duration = Duration::from_millis(10);

/// The simulator for the runs of a case.
#[derive(Debug, Default)]
pub struct Sim {
    memory: Memory,
}

impl Sim {
    pub(super) fn run(&mut self, case: &Case, index: u64) -> Result<RunResult, Error> {
        let mut run = Run::new(case, index)?;
        self.remember(case, index, &mut run)?;
        run.carry_out()
    }

    /// Loads the case's records, if it has any, into both ends of a run.
    fn remember(&mut self, case: &Case, index: u64, run: &mut Run<'_>) -> Result<(), Error> {
        if let Some(history) = self.memory.of(case, index)? {
            let transfer = &mut run.transfer;
            for (n, end) in transfer.ends().into_iter().enumerate() {
                let load = |host: &mut Host, now| history.load(n, host.stack_mut(), now);
                transfer.world.with_node(end, load);
            }
        }
        Ok(())
    }
}

/// Directories in which a run is recorded; `None` for no record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// Directory of captures, one for each end: `NAME-client.pcapng` and `NAME-server.pcapng`.
    pub captures: Option<PathBuf>,
    /// Directory of logs: `NAME.jsonl`.
    pub logs: Option<PathBuf>,
}

/// Makes run `index` of `case` and records it in files called `name`. The result is the same as without
/// a record.
///
/// # Errors
/// The errors of a run; a file cannot be written.
pub fn record(
    case: &Case,
    index: u64,
    recording: &Recording,
    name: &str,
) -> Result<RunResult, Error> {
    let mut run = Run::new(case, index)?;
    Sim::default().remember(case, index, &mut run)?;
    let transfer = &mut run.transfer;
    let mut captures = Vec::new();
    for end in transfer.ends() {
        let Some(directory) = &recording.captures else {
            continue;
        };
        let (path, file) = create(directory, &format!("{name}-{}.pcapng", transfer.name(end)))?;
        let capture = transfer.capture(end, Box::new(file));
        captures.push((capture.map_err(|e| unwritten(&path, &e))?, path));
    }
    let mut log = None;
    if let Some(directory) = &recording.logs {
        let (path, file) = create(directory, &format!("{name}.jsonl"))?;
        log = Some((path, transfer.log(Box::new(file))));
    }
    let result = run.carry_out()?;
    for (capture, path) in &captures {
        capture.finish().map_err(|e| unwritten(path, &e))?;
    }
    if let Some((path, log)) = &log {
        log.finish().map_err(|e| unwritten(path, &e))?;
    }
    Ok(result)
}

/// Makes run `index` of `case`. Returns its capture at the client, as a pcapng file.
///
/// # Errors
/// The errors of a run.
pub fn capture(case: &Case, index: u64) -> Result<Vec<u8>, Error> {
    let mut run = Run::new(case, index)?;
    Sim::default().remember(case, index, &mut run)?;
    let file = Memorised::default();
    let client = run.transfer.client;
    let captured = run.transfer.capture(client, Box::new(file.clone()));
    let captured = captured.map_err(|e| unwritten(Path::new("memory"), &e))?;
    run.carry_out()?;
    let finished = captured.finish();
    finished.map_err(|e| unwritten(Path::new("memory"), &e))?;
    Ok(std::mem::take(&mut *file.bytes()))
}

/// A file in memory.
#[derive(Debug, Clone, Default)]
struct Memorised(Arc<Mutex<Vec<u8>>>);

impl Memorised {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl io::Write for Memorised {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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

/// One transfer, and the settings of its measurement.
struct Run<'a> {
    case: &'a Case,
    index: u64,
    paths: Vec<PathSettings>,
    transfer: Transfer,
    /// The start of the flow completion time.
    started: Instant,
}

impl<'a> Run<'a> {
    fn new(case: &'a Case, index: u64) -> Result<Self, Error> {
        let seed = run_seed(case.seed, index);
        let paths = flow::paths(case, seed);
        let mut transfer = Transfer::build(seed, &flow::transfer(case, index, &paths)?);
        let mut rng = Rng::for_component(seed, RUN_STREAM);
        let start = rng.below(START_JITTER.as_nanos() as u64);
        for (n, (path, (up, down))) in paths.iter().zip(transfer.links.clone()).enumerate() {
            let world = &mut transfer.world;
            world.schedule(up, flow::schedule(case, n, &path.up));
            world.schedule(down, flow::schedule(case, n, &path.down));
        }
        transfer.world.advance(Duration::from_nanos(start));
        Ok(Run {
            case,
            index,
            paths,
            started: transfer.world.now(),
            transfer,
        })
    }

    fn carry_out(mut self) -> Result<RunResult, Error> {
        self.transfer.world.keep_violations();
        let config = flow::transfer(self.case, self.index, &self.paths)?;
        let opened = self.transfer.open(&config);
        let conn = opened.map_err(|e| Error::Run(format!("the connection does not open: {e}")))?;
        let cold = self.case.warm_subflows && !self.warm_up(conn);
        let result = if cold {
            RunResult::default()
        } else {
            self.finish()
        };
        let Some((node, violation)) = self.transfer.world.violations().first() else {
            return Ok(result);
        };
        let (end, index) = (self.transfer.name(*node), self.index);
        let replay = self.case.command(index + 1);
        Err(Error::Run(format!(
            "the {end} broke a rule in run {index}, {violation}; to see it again: {replay}"
        )))
    }

    /// Waits until both ends have a subflow on every path, or their only one after a fallback to TCP,
    /// and starts the transfer. Returns whether the subflows were established in time.
    fn warm_up(&mut self, conn: ConnId) -> bool {
        let (count, ends) = (self.paths.len(), self.transfer.ends());
        let world = &mut self.transfer.world;
        let warm = world.run(flow::WARM_UP, |world| {
            ends.iter().all(|end| {
                let host = world.host(*end);
                let stack = host.stack();
                host.open_streams().any(|(conn, _)| {
                    let subflows = stack.subflows(conn).into_iter().filter(|s| s.established);
                    let fell_back = stack.conn_stats(conn).is_some_and(|s| s.idsn.is_none());
                    subflows.count() >= if fell_back { 1 } else { count }
                })
            })
        });
        self.started = world.now();
        world.with_node(ends[0], |host: &mut Host, now| host.release(now, conn));
        warm
    }

    /// Runs until the connection has ended at both ends, or to the limit.
    fn finish(&mut self) -> RunResult {
        let (arrivals, outage_rto) = match self.case.outage {
            Some(outage) => self.record_outage(Instant::ZERO + outage.from),
            None => Default::default(),
        };
        self.transfer.run(flow::limit(self.case));
        let client = self.transfer.world.host(self.transfer.client);
        let join_syns = client.stack().stats().join_syns;
        let ended = self.transfer.ended();
        RunResult {
            arrivals,
            outage_rto,
            ..flow::result(self.case, self.started, ended, join_syns)
        }
    }

    /// Runs until the flow has arrived, or to the limit. Returns the arrivals, and the sender's timeout
    /// on the path that goes dark, read at `dark`.
    fn record_outage(&mut self, outage: Instant) -> (ReceivedBytes, Duration) {
        let (case, started) = (self.case, self.started);
        let receiver = self.transfer.receiver(case.direction);
        let [client, server] = self.transfer.ends();
        let sender = if receiver == client { server } else { client };
        let mut arrivals = ReceivedBytes::default();
        let mut note = |world: &World| {
            let host = world.host(receiver);
            let open = host.open_streams().map(|(_, stream)| stream.received);
            let ended = host.finished().iter().map(|stream| stream.received);
            let received = open.chain(ended).max().unwrap_or(0);
            arrivals.record(world.now().saturating_since(started), received);
            received >= case.size.bytes()
        };
        let world = &mut self.transfer.world;
        world.run(outage.saturating_since(world.now()), &mut note);
        let host = world.host(sender);
        let conn = host.open_streams().map(|(conn, _)| conn).next();
        let rto = conn.map(|conn| flow::outage_rto(case, host.stack(), conn));
        world.run(flow::limit(case), note);
        (arrivals, rto.unwrap_or_default())
    }
}
