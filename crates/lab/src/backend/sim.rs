//! Measurements in the simulator.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use braid_engine::{ApiError, ConnId};
use braid_links::Settings;
use braid_sim::log::{Kind, Reader, Record};
use braid_sim::transfer::external_addr;
use braid_sim::{Host, LinkId, Router, Transfer, World, world};
use braid_wire::{Instant, Rng};

use super::error::Error;
use super::history::Memory;
use super::setup::Setup;
use super::{Session, flow};
use crate::case::{Case, ReceivedBytes, RunResult};
use crate::session_trace::{
    Packet, SAMPLE_INTERVAL, Samples, SessionScenario, SessionTrace, seconds,
};

/// Stream of the run's own random numbers. The number is far above the streams of a world's components,
/// which count from 0.
const RUN_STREAM: u64 = 1 << 41;
/// Stream of the session's own random numbers.
const SESSION_STREAM: u64 = 1 << 42;
/// Maximum time between the start of the world and the opening of the connection. The time is random, so
/// that runs without loss differ. 10 ms is a guess.
const START_JITTER: Duration = Duration::from_millis(10);

/// The simulator, with the records of earlier connections that its runs share.
#[derive(Debug, Default)]
pub(super) struct Sim {
    memory: Memory,
}

impl Session for Sim {
    fn run(&mut self, case: &Case, index: u64) -> Result<RunResult, Error> {
        let (result, ()) = self.observed(case, index, |_| Ok(()))?;
        Ok(result)
    }

    fn trace(&mut self, scenario: &SessionScenario<'_>, seed: u64) -> Result<SessionTrace, Error> {
        let setup = &Setup::of_session(scenario, seed);
        let mut transfer = build(setup)?;
        let (up, down) = match scenario.moves {
            // Only the client moves out of reach of the path. Hosts that share the path keep it.
            Some(_) => transfer.world.interfaces(transfer.client)[0],
            None => transfer.links[0],
        };
        schedule(&mut transfer.world, &[(up, down)], setup);
        let interfaces = transfer.world.interfaces(transfer.server);
        let packets = PacketReader {
            outgoing: interfaces.into_iter().map(|(out, _)| out).collect(),
            seen: Shared::new(),
        };
        let log = transfer.read(Box::new(packets.clone()));
        if scenario.moves.is_some() {
            add_second_address(&mut transfer, scenario);
        }
        wait_for_start(&mut transfer.world, SESSION_STREAM);
        open(&mut transfer, setup)?;
        let mut samples = [Samples::default(), Samples::default()];
        let ends = transfer.ends();
        for sample in 1..=scenario.samples() {
            let due = world::START + SAMPLE_INTERVAL * sample as u32;
            let now = transfer.world.now();
            transfer.world.advance(due.saturating_since(now));
            for (end, samples) in ends.into_iter().zip(&mut samples) {
                let host = transfer.world.host(end);
                let read = host.labelled(0).map_or(0, |stream| stream.received);
                let conn = host.open_streams().next().map(|(conn, _)| conn);
                samples.take(read, conn, host.stack());
            }
            if scenario.moves == Some(sample) {
                let move_client = |host: &mut Host, now| {
                    scenario.move_client(host.stack_mut(), now, sample);
                };
                transfer.world.with_node(transfer.client, move_client);
            }
        }
        if let Some((_, violation)) = transfer.world.violations().first() {
            let strategy = scenario.strategy;
            let text =
                format!("{strategy} with world seed {seed} violated the protocol, {violation}");
            return Err(Error::Run(text));
        }
        log.finish()?;
        let [client, server] = ends.map(|end| transfer.world.host(end).labelled(0));
        let [reads, sends] = &setup.streams;
        let streams = [client.unwrap_or(reads), server.unwrap_or(sends)];
        let mut packets = packets.seen.take();
        packets.sort_by(|a, b| a.sent.total_cmp(&b.sent));
        Ok(SessionTrace::new(packets, samples, streams))
    }
}

impl Sim {
    /// Makes run `index` of `case`. Calls `observe` with the world before the connection opens, and returns
    /// its value too. An error if an oracle found a violation of the protocol.
    fn observed<T>(
        &mut self,
        case: &Case,
        index: u64,
        observe: impl FnOnce(&mut Transfer) -> Result<T, Error>,
    ) -> Result<(RunResult, T), Error> {
        let setup = &Setup::of_case(case, index, flow::engine(case)?);
        let mut transfer = build(setup)?;
        let links = transfer.links.clone();
        schedule(&mut transfer.world, &links, setup);
        wait_for_start(&mut transfer.world, RUN_STREAM);
        if let Some(history) = self.memory.of(case, index)? {
            for (n, end) in transfer.ends().into_iter().enumerate() {
                let load = |host: &mut Host, now| history.load(n, host.stack_mut(), now);
                transfer.world.with_node(end, load);
            }
        }
        let observer = observe(&mut transfer)?;
        let mut conns = vec![open(&mut transfer, setup)?];
        for _ in 1..case.flows {
            let (world, client) = (&mut transfer.world, transfer.client);
            let opened = world.open(client, setup.config().options(), setup.streams[0].clone());
            conns.push(opened.map_err(refused)?);
        }
        let mut run = Run {
            case,
            started: transfer.world.now(),
            transfer,
        };
        let result = run.carry_out(&conns);
        let world = &run.transfer.world;
        if let Some((node, violation)) = world.violations().first() {
            let (end, replay) = (run.transfer.name(*node), case.command(index + 1));
            return Err(Error::Run(format!(
                "the {end} violated the protocol in run {index}, {violation}; to repeat it: {replay}"
            )));
        }
        Ok((result, observer))
    }
}

/// Builds the world of `setup` without a connection.
fn build(setup: &Setup<'_>) -> Result<Transfer, Error> {
    let (seed, config) = (setup.seed, setup.config());
    let mut transfer = match setup.background {
        Some(background) => Transfer::shared(seed, &config, background).map_err(refused)?,
        None => Transfer::build(seed, &config),
    };
    // By default a violation panics. This call keeps it, so that the error can name the run.
    transfer.world.keep_violations();
    Ok(transfer)
}

/// Schedules the changes of the paths, whose links are given as (up, down).
fn schedule(world: &mut World, links: &[(LinkId, LinkId)], setup: &Setup<'_>) {
    for ((up, down), schedule) in links.iter().zip(&setup.schedules) {
        world.schedule(*up, schedule.clone());
        world.schedule(*down, schedule.clone());
    }
}

/// Runs the world until a random time, at which its connection opens. The time is drawn from `stream`.
fn wait_for_start(world: &mut World, stream: u64) {
    let mut rng = Rng::for_component(world.seed(), stream);
    let start = rng.below(START_JITTER.as_nanos() as u64);
    world.advance(Duration::from_nanos(start));
}

/// Opens the connection.
fn open(transfer: &mut Transfer, setup: &Setup<'_>) -> Result<ConnId, Error> {
    let [client, server] = setup.streams.clone();
    let opened = transfer.open_with(setup.config().options(), client, server);
    opened.map_err(refused)
}

fn refused(error: ApiError) -> Error {
    Error::Run(format!("a connection does not open: {error}"))
}

/// Adds the client's second address to the first path's router, with a link to it.
fn add_second_address(transfer: &mut Transfer, scenario: &SessionScenario<'_>) {
    let (client, router) = (transfer.client, transfer.boxes[0]);
    let world = &mut transfer.world;
    let iface = world.interfaces(router).len() as u32;
    world.with_node(router, |router: &mut Router, _| {
        let old = std::mem::take(router);
        *router = old.route(IpAddr::V4(external_addr(0)), iface);
    });
    world.connect(client, router, Settings::default(), Settings::default());
    world.with_node(client, |host: &mut Host, now| {
        scenario.add_second_path(host.stack_mut(), now);
    });
}

/// A reader of the world's log that collects the server's packets.
#[derive(Debug, Clone)]
struct PacketReader {
    /// The link on which the server sends, for each path.
    outgoing: Vec<LinkId>,
    seen: Shared<Packet>,
}

impl Reader for PacketReader {
    fn take(&mut self, record: &Record<'_>) -> io::Result<()> {
        if let Record::Segment(segment) = record
            && segment.host == "server"
            && let Some(link) = segment.link
            && let Some(path) = self.outgoing.iter().position(|out| out.0 == link)
        {
            self.seen.lock().push(Packet {
                path,
                new: segment.kind == Kind::New,
                dsn: segment.dsn,
                len: segment.len,
                sent: seconds(Instant::from_nanos(segment.sent_ns)),
                arrived: segment.arrived_ns.map(Instant::from_nanos).map(seconds),
                fresh: segment.fresh,
            });
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

/// Writes the rest of a file, and returns the first error of its writing.
type Finish = Box<dyn FnOnce() -> io::Result<()>>;

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
    let observe = |transfer: &mut Transfer| {
        let mut files: Vec<(PathBuf, Finish)> = Vec::new();
        if let Some(directory) = &recording.captures {
            for end in transfer.ends() {
                let name = format!("{name}-{}.pcapng", transfer.name(end));
                let (path, file) = create(directory, &name)?;
                let capture = transfer.capture(end, Box::new(file));
                files.push((path, Box::new(move || capture.finish())));
            }
        }
        if let Some(directory) = &recording.logs {
            let (path, file) = create(directory, &format!("{name}.jsonl"))?;
            let log = transfer.log(Box::new(file));
            files.push((path, Box::new(move || log.finish())));
        }
        Ok(files)
    };
    let (result, files) = Sim::default().observed(case, index, observe)?;
    for (path, finish) in files {
        finish().map_err(|e| write_error(&path, &e))?;
    }
    Ok(result)
}

/// Makes run `index` of `case` and returns the capture at the client, as the bytes of a pcapng file.
///
/// # Errors
/// The errors of a run.
pub fn capture(case: &Case, index: u64) -> Result<Vec<u8>, Error> {
    let file = Shared::new();
    let observe =
        |transfer: &mut Transfer| Ok(transfer.capture(transfer.client, Box::new(file.clone())));
    let (_, captured) = Sim::default().observed(case, index, observe)?;
    captured.finish()?;
    Ok(file.take())
}

/// A packet of payload whose arrival the strategy expected. Times are seconds from its sending.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expectation {
    /// The expected time of arrival; negative if the estimate lies before the sending.
    pub expected: f64,
    /// The time of arrival.
    pub actual: f64,
}

/// Makes run `index` of `case`, and returns the expected and actual arrivals of both ends' packets.
///
/// # Errors
/// The errors of a run.
pub fn expectations(case: &Case, index: u64) -> Result<Vec<Expectation>, Error> {
    let reader = ExpectationReader(Shared::new());
    let observe = |transfer: &mut Transfer| Ok(transfer.read(Box::new(reader.clone())));
    let (_, log) = Sim::default().observed(case, index, observe)?;
    log.finish()?;
    Ok(reader.0.take())
}

/// A reader of the world's log that collects expectations.
#[derive(Debug, Clone)]
struct ExpectationReader(Shared<Expectation>);

impl Reader for ExpectationReader {
    fn take(&mut self, record: &Record<'_>) -> io::Result<()> {
        if let Record::Segment(segment) = record
            && let (Some(expected), Some(arrived)) = (segment.expected_ns, segment.arrived_ns)
        {
            let from_sending = |ns: u64| (ns as f64 - segment.sent_ns as f64) / 1e9;
            self.0.lock().push(Expectation {
                expected: from_sending(expected),
                actual: from_sending(arrived),
            });
        }
        Ok(())
    }
}

/// A vector that its clones share: one adds to it while the world runs, and another takes the contents.
#[derive(Debug, Clone)]
struct Shared<T>(Arc<Mutex<Vec<T>>>);

impl<T> Shared<T> {
    fn new() -> Self {
        Shared(Arc::default())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.lock())
    }
}

/// The bytes of a file in memory.
impl io::Write for Shared<u8> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().write(bytes)
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

/// A run of a case whose connections are open.
struct Run<'a> {
    case: &'a Case,
    transfer: Transfer,
    /// The start of the flow completion time.
    started: Instant,
}

impl Run<'_> {
    /// Makes the transfer and returns its result: runs until all connections have ended at both ends, or until
    /// the time limit.
    fn carry_out(&mut self, conns: &[ConnId]) -> RunResult {
        if self.case.warm_subflows && !self.warm_up(conns) {
            return RunResult::default();
        }
        let (arrivals, outage_rto) = match self.case.outage {
            Some(outage) => self.record_outage(Instant::ZERO + outage.from),
            None => Default::default(),
        };
        let ends = self.transfer.ends();
        let world = &mut self.transfer.world;
        world.run(flow::limit(self.case), |world| {
            let mut ends = ends.iter().map(|end| world.host(*end).finished());
            ends.all(|finished| finished.len() >= conns.len())
        });
        let [client, server] = ends.map(|end| world.host(end));
        let ended = [client.finished(), server.finished()];
        RunResult {
            arrivals,
            outage_rto,
            ..flow::engine_result(self.case, self.started, ended, client.stack())
        }
    }

    /// Waits until both ends have an established subflow of each connection on every path, and starts the
    /// transfer. Returns whether the subflows were established within [`flow::WARM_UP`].
    fn warm_up(&mut self, conns: &[ConnId]) -> bool {
        let (case, ends) = (self.case, self.transfer.ends());
        let world = &mut self.transfer.world;
        let warm = world.run(flow::WARM_UP, |world| {
            ends.iter().all(|end| {
                let host = world.host(*end);
                let open = host.open_streams();
                let warm = open.filter(|(conn, _)| flow::is_warm(case, host.stack(), *conn));
                warm.count() == conns.len()
            })
        });
        self.started = world.now();
        for conn in conns {
            world.with_node(ends[0], |host: &mut Host, now| host.release(now, *conn));
        }
        warm
    }

    /// Runs until the flow has arrived, or until the time limit. Returns the arrivals, and the sender's
    /// retransmission timeout on the path of the outage. The timeout is read at the time `outage`, when the
    /// outage begins.
    fn record_outage(&mut self, outage: Instant) -> (ReceivedBytes, Duration) {
        let (case, started) = (self.case, self.started);
        let [sender, receiver] = flow::sender_first(case.direction, self.transfer.ends());
        let mut arrivals = ReceivedBytes::default();
        let mut record_arrivals = |world: &World| {
            let stream = world.host(receiver).labelled(0);
            let received = stream.map_or(0, |stream| stream.received);
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
