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

/// Stream of the run's own random numbers. The number is far above the streams of a world's components,
/// which count from 0.
const RUN_STREAM: u64 = 1 << 41;
/// Maximum time between the start of the world and the opening of the connection. The time is random, so
/// that runs without loss differ. 10 ms is a guess.
const START_JITTER: Duration = Duration::from_millis(10);

/// The simulator for the runs of a case.
#[derive(Debug, Default)]
pub struct Sim {
    memory: Memory,
}

impl Sim {
    pub(super) fn run(&mut self, case: &Case, index: u64) -> Result<RunResult, Error> {
        let mut run = Run::new(case, index)?;
        self.load_history(case, index, &mut run)?;
        run.carry_out()
    }

    /// Loads records of earlier connections into both ends of a run, if the case has records.
    fn load_history(&mut self, case: &Case, index: u64, run: &mut Run<'_>) -> Result<(), Error> {
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

/// The directories in which a run is recorded. With `None`, no file of that kind is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// Directory of the captures of both ends: `NAME-client.pcapng` and `NAME-server.pcapng`.
    pub captures: Option<PathBuf>,
    /// Directory of logs: `NAME.jsonl`.
    pub logs: Option<PathBuf>,
}

/// Makes run `index` of `case` and records it in files whose names begin with `name`. Recording does not
/// change the result.
///
/// # Errors
/// The run fails, or a file cannot be written.
pub fn record(
    case: &Case,
    index: u64,
    recording: &Recording,
    name: &str,
) -> Result<RunResult, Error> {
    let mut run = Run::new(case, index)?;
    Sim::default().load_history(case, index, &mut run)?;
    let transfer = &mut run.transfer;
    let mut captures = Vec::new();
    for end in transfer.ends() {
        let Some(directory) = &recording.captures else {
            continue;
        };
        let (path, file) = create(directory, &format!("{name}-{}.pcapng", transfer.name(end)))?;
        captures.push((transfer.capture(end, Box::new(file)), path));
    }
    let mut log = None;
    if let Some(directory) = &recording.logs {
        let (path, file) = create(directory, &format!("{name}.jsonl"))?;
        log = Some((path, transfer.log(Box::new(file))));
    }
    let result = run.carry_out()?;
    for (capture, path) in &captures {
        capture.finish().map_err(|e| write_error(path, &e))?;
    }
    if let Some((path, log)) = &log {
        log.finish().map_err(|e| write_error(path, &e))?;
    }
    Ok(result)
}

/// Makes run `index` of `case` and returns the capture at the client, as the bytes of a pcapng file.
///
/// # Errors
/// The errors of a run.
pub fn capture(case: &Case, index: u64) -> Result<Vec<u8>, Error> {
    let mut run = Run::new(case, index)?;
    Sim::default().load_history(case, index, &mut run)?;
    let file = MemoryFile::default();
    let client = run.transfer.client;
    let captured = run.transfer.capture(client, Box::new(file.clone()));
    run.carry_out()?;
    let finished = captured.finish();
    finished.map_err(|e| write_error(Path::new("memory"), &e))?;
    Ok(std::mem::take(&mut *file.bytes()))
}

/// A file in memory. Clones share its bytes: the capture writes through one, and [`capture`] reads the
/// other.
#[derive(Debug, Clone, Default)]
struct MemoryFile(Arc<Mutex<Vec<u8>>>);

impl MemoryFile {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl io::Write for MemoryFile {
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
    let file = created.map_err(|e| write_error(&path, &e))?;
    Ok((path, file))
}

fn write_error(path: &Path, error: &io::Error) -> Error {
    Error::Run(format!("cannot write {}: {error}", path.display()))
}

/// A run of a case: its world before the connection opens, and the settings of its measurement.
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

    /// Makes the transfer and returns its result; an error if an oracle found a violation of the protocol.
    fn carry_out(mut self) -> Result<RunResult, Error> {
        // By default a violation panics. This call keeps it, so that the error below can name the run and
        // the command to repeat the run.
        self.transfer.world.keep_violations();
        let config = flow::transfer(self.case, self.index, &self.paths)?;
        let opened = self.transfer.open(&config);
        let conn = opened.map_err(|e| Error::Run(format!("the connection does not open: {e}")))?;
        let not_warm = self.case.warm_subflows && !self.warm_up(conn);
        let result = if not_warm {
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
            "the {end} violated the protocol in run {index}, {violation}; to repeat it: {replay}"
        )))
    }

    /// Waits until both ends have an established subflow on every path, and starts the transfer. A
    /// connection that fell back to TCP has a single subflow, which is then enough. Returns whether the
    /// subflows were established within [`flow::WARM_UP`].
    fn warm_up(&mut self, conn: ConnId) -> bool {
        let (count, ends) = (self.paths.len(), self.transfer.ends());
        let world = &mut self.transfer.world;
        let warm = world.run(flow::WARM_UP, |world| {
            ends.iter().all(|end| {
                let host = world.host(*end);
                let stack = host.stack();
                host.open_streams().any(|(conn, _)| {
                    let subflows = stack.subflows(conn).into_iter().filter(|s| s.established);
                    // A connection without an initial data sequence number does not speak MPTCP.
                    let fell_back = stack.conn_stats(conn).is_some_and(|s| s.idsn.is_none());
                    subflows.count() >= if fell_back { 1 } else { count }
                })
            })
        });
        self.started = world.now();
        world.with_node(ends[0], |host: &mut Host, now| host.release(now, conn));
        warm
    }

    /// Runs until the connection has ended at both ends, or until the time limit.
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

    /// Runs until the flow has arrived, or until the time limit. Returns the arrivals, and the sender's
    /// retransmission timeout on the path of the outage. The timeout is read at the time `outage`, when the
    /// outage begins.
    fn record_outage(&mut self, outage: Instant) -> (ReceivedBytes, Duration) {
        let (case, started) = (self.case, self.started);
        let receiver = self.transfer.receiver(case.direction);
        let [client, server] = self.transfer.ends();
        let sender = if receiver == client { server } else { client };
        let mut arrivals = ReceivedBytes::default();
        let mut record_arrivals = |world: &World| {
            let host = world.host(receiver);
            let open = host.open_streams().map(|(_, stream)| stream.received);
            let ended = host.finished().iter().map(|stream| stream.received);
            // The receiver has one connection, either open or ended.
            let received = open.chain(ended).max().unwrap_or(0);
            arrivals.record(world.now().saturating_since(started), received);
            received >= case.size.bytes()
        };
        let world = &mut self.transfer.world;
        world.run(outage.saturating_since(world.now()), &mut record_arrivals);
        let host = world.host(sender);
        let conn = host.open_streams().map(|(conn, _)| conn).next();
        let rto = conn.map(|conn| flow::outage_rto(case, host.stack(), conn));
        world.run(flow::limit(case), record_arrivals);
        (arrivals, rto.unwrap_or_default())
    }
}
