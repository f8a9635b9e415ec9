//! Runs over emulated links with the engine on its driver at both ends, in wall-clock time.
//!
//! The engines have TUN devices in two namespaces, whose kernels forward between the devices and the
//! links. Random numbers are drawn as in the simulator: losses from the same streams by packet number,
//! keys and ports from the same streams of the stacks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use braid_engine::{Config, ConnId, ConnectOptions, Event, PathConfig, Stack};
use braid_linux::driver::{Clock, Context, Driver, Host};
use braid_linux::sockets::Limits;
use braid_linux::sys::become_realtime;
use braid_linux::tun::{PacketIo, Tun};
use braid_proxy::app::{Core, Ctx};
use braid_sim::oracle::Oracle;
use braid_sim::traffic::Stream;
use braid_sim::transfer::{self, REMOTE, client_addr, external_addr};
use braid_sim::world::node_streams;
use braid_testbed::netns;
use braid_wire::Instant;
use rustix::event::{EventfdFlags, eventfd};

use super::error::Error;
use super::fixture::{
    self, CLIENT, END_CHECK_INTERVAL, ENDPOINT_PRIORITY, Fixture, SERVER, run_error,
};
use super::flow;
use super::history::{History, Memory};
use crate::case::{Case, Direction, ReceivedBytes, RunResult};

/// Name of the engines' devices.
const DEVICE: &str = "engine";
/// Routing table of path 0 on the client; the other paths have the next numbers.
const FIRST_TABLE: usize = 100;

/// Namespaces and links, with an engine's device at both ends.
#[derive(Debug)]
pub struct Links {
    pub(super) fixture: Fixture,
    client: Tun,
    server: Tun,
    memory: Memory,
}

impl Links {
    pub(super) fn open(case: &Case) -> Result<Links, Error> {
        let paths = case.paths.specs().len();
        let fixture = Fixture::build(paths, &[])?;
        let (client, server) = open_devices(&fixture, paths)?;
        Ok(Links {
            fixture,
            client,
            server,
            memory: Memory::default(),
        })
    }

    pub(super) fn run(&mut self, case: &Case, index: u64) -> Result<RunResult, Error> {
        let (client, server) = (&mut self.client, &mut self.server);
        let history = self.memory.of(case, index)?;
        self.fixture.run(case, index, |seed| {
            // Packets that an earlier run left in the devices must not reach this run.
            discard_packets(client);
            discard_packets(server);
            let stacks = [
                stack(case, seed, 0, history)?,
                stack(case, seed, 1, history)?,
            ];
            transfer(case, index, stacks, (client, server))
        })
    }
}

/// Creates the devices of client and server, with routes over each path.
pub(crate) fn open_devices(fixture: &Fixture, paths: usize) -> Result<(Tun, Tun), Error> {
    let device = |host| {
        let made = || Tun::create(DEVICE).map_err(io::Error::other);
        netns::run_inside(&fixture.namespace(host)?, made).map_err(run_error)
    };
    let devices = (device(CLIENT)?, device(SERVER)?);
    // The MTU has room for super-segments, and no burst overflows the queue.
    let up = format!("link set {DEVICE} mtu 65535 txqueuelen 4000 multicast off up\n");
    let (mut there, mut back) = (up.clone(), up);
    back += &format!("route add {}/32 dev {DEVICE}\n", transfer::SERVER);
    for n in 0..paths {
        let (link, table) = (fixture::link_name(n), FIRST_TABLE + n);
        there += &format!("route add default dev {link} table {table}\n");
        for address in [client_addr(n), external_addr(n)] {
            there += &format!(
                "route add {address}/32 dev {DEVICE}\n\
                 rule add from {address}/32 lookup {table} pref {table}\n"
            );
            back += &format!("route add {address}/32 dev {link}\n");
        }
    }
    fixture.testbed.ip(CLIENT, &there).map_err(run_error)?;
    fixture.testbed.ip(SERVER, &back).map_err(run_error)?;
    Ok(devices)
}

/// Drops the packets that an earlier run has left in the device.
pub(crate) fn discard_packets(device: &mut Tun) {
    while let Ok(Some(_)) = device.recv() {}
}

/// Makes one transfer. The client takes the random streams of node 0 of the simulated world, the server
/// those of node 1.
fn transfer(
    case: &Case,
    index: u64,
    [mut opening, mut accepting]: [Stack; 2],
    (client, server): (&mut Tun, &mut Tun),
) -> Result<RunResult, Error> {
    let clock = Clock::new();
    // No simulated paths: the emulated links take their place.
    let config = flow::transfer(case, index, &[])?;
    let shared = Shared {
        paths: case.paths.specs().len(),
        case,
        deadline: Instant::ZERO + flow::limit(case),
        warm: AtomicUsize::new(0),
        finished: AtomicUsize::new(0),
        wake: [new_eventfd()?, new_eventfd()?],
    };
    let driver = |node: usize, device, stack, stream| {
        let end = End::new(&shared, stream);
        let wake = Wake(&shared.wake[node]);
        Driver::new(clock, device, stack, end, wake, Limits::default()).map_err(run_error)
    };
    add_paths(&mut opening, &mut accepting, shared.paths)?;
    let mut server = driver(1, server, accepting, config.server_stream())?;
    let mut client = driver(0, client, opening, config.client_stream())?;
    thread::scope(|scope| {
        let serving = scope.spawn(|| run_end(&mut server, |_| Ok(())));
        let asking = scope.spawn(|| {
            run_end(&mut client, |driver| {
                let now = driver.clock().now();
                driver
                    .core
                    .connect(now, config.options(), &mut driver.stack)
            })
        });
        join_thread(asking).and(join_thread(serving))
    })?;
    let streams = [&client.core.ended, &server.core.ended].map(Option::as_ref);
    let join_syns = client.stack.stats().join_syns;
    let (sender, receiver) = match case.direction {
        Direction::Down => (&server.core, &client.core),
        Direction::Up => (&client.core, &server.core),
    };
    Ok(RunResult {
        arrivals: receiver.arrivals.clone(),
        outage_rto: sender.outage_rto,
        ..flow::result(case, client.core.started, streams, join_syns)
    })
}

fn stack(case: &Case, seed: u64, node: u32, history: Option<&History>) -> Result<Stack, Error> {
    let mut stack = new_stack(&case.strategy, flow::engine(case)?, (seed, node))?;
    if let Some(history) = history {
        history.load(node as usize, &mut stack, Instant::ZERO);
    }
    Ok(stack)
}

/// Returns the stack of an end, with the random stream of node `node` of the world of `seed`.
pub(crate) fn new_stack(
    strategy: &str,
    engine: Config,
    (seed, node): (u64, u32),
) -> Result<Stack, Error> {
    let strategy = braid_strategy::factory(strategy);
    let strategy = strategy.map_err(|e| Error::Usage(e.to_string()))?;
    let (_, rng) = node_streams(seed, node);
    Ok(Stack::new(engine, rng, strategy))
}

/// Adds the paths of client and server, and lets the server listen.
pub(crate) fn add_paths(
    opening: &mut Stack,
    accepting: &mut Stack,
    paths: usize,
) -> Result<(), Error> {
    let server = PathConfig::v4(transfer::SERVER);
    accepting.add_path(server).map_err(run_error)?;
    accepting.listen(REMOTE).map_err(run_error)?;
    for n in 0..paths {
        let path = PathConfig::v4(client_addr(n));
        opening.add_path(path).map_err(run_error)?;
    }
    Ok(())
}

pub(crate) fn new_eventfd() -> Result<OwnedFd, Error> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(run_error)
}

pub(crate) fn join_thread<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    let result = thread.join();
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

type EndDriver<'a> = Driver<&'a mut Tun, End<'a>, Wake<'a>>;

/// Runs an end until both ends have finished, or to the deadline.
fn run_end<'a>(
    driver: &mut EndDriver<'a>,
    start: impl FnOnce(&mut EndDriver<'a>) -> Result<(), Error>,
) -> Result<(), Error> {
    become_realtime(ENDPOINT_PRIORITY);
    let shared = driver.core.shared;
    let _leaving = Leaving(shared);
    start(driver)?;
    let never = new_eventfd()?;
    let ended = driver.run(never.as_fd(), |driver| {
        let late = driver.clock().now() >= shared.deadline;
        shared.finished.load(Ordering::Acquire) >= 2 || late || fixture::interrupted()
    });
    ended.map_err(run_error)
}

/// Tells the other end not to wait any longer, whether this end returns or panics.
struct Leaving<'a>(&'a Shared<'a>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.finished.store(2, Ordering::Release);
        self.0.wake_ends();
    }
}

/// The state that both ends share.
#[derive(Debug)]
struct Shared<'a> {
    paths: usize,
    case: &'a Case,
    deadline: Instant,
    /// Ends that have a subflow on every path.
    warm: AtomicUsize,
    /// Ends whose connection has ended.
    finished: AtomicUsize,
    /// Eventfds that wake client and server when a count changes.
    wake: [OwnedFd; 2],
}

impl Shared<'_> {
    fn count(&self, ends: &AtomicUsize) {
        ends.fetch_add(1, Ordering::AcqRel);
        self.wake_ends();
    }

    fn wake_ends(&self) {
        for wake in &self.wake {
            // The write fails only if the counter is full, and then the end is awake anyway.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }
}

/// One end of the transfer.
#[derive(Debug)]
struct End<'a> {
    shared: &'a Shared<'a>,
    /// The stream for the next connection; `None` once a connection has it.
    waiting: Option<Stream>,
    open: Option<(ConnId, Stream)>,
    ended: Option<Stream>,
    /// The start of the flow completion time.
    started: Instant,
    arrivals: ReceivedBytes,
    outage_rto: Duration,
    warm: bool,
    next_check: Instant,
    oracle: Oracle,
}

impl<'a> End<'a> {
    fn new(shared: &'a Shared<'a>, stream: Stream) -> Self {
        End {
            shared,
            waiting: Some(stream),
            open: None,
            ended: None,
            started: Instant::ZERO,
            arrivals: ReceivedBytes::default(),
            outage_rto: Duration::ZERO,
            warm: false,
            next_check: Instant::ZERO,
            oracle: Oracle::new(Config::default()),
        }
    }

    fn connect(
        &mut self,
        now: Instant,
        options: ConnectOptions,
        stack: &mut Stack,
    ) -> Result<(), Error> {
        self.started = now;
        let conn = stack.connect(now, options).map_err(run_error)?;
        self.open = self.waiting.take().map(|stream| (conn, stream));
        Ok(())
    }

    fn pump(&mut self, now: Instant, stack: &mut Stack) {
        if let Some((conn, stream)) = &mut self.open {
            stream.pump(now, *conn, stack, &mut self.oracle);
            if let Some(outage) = self.shared.case.outage {
                let time = now.saturating_since(self.started);
                self.arrivals.record(time, stream.received);
                if now < Instant::ZERO + outage.from {
                    self.outage_rto = flow::outage_rto(self.shared.case, stack, *conn);
                }
            }
            // The oracle sees no packets here; it checks only the bytes that the stream reads.
            if let Some(first) = self.oracle.take().first() {
                panic!("{first}");
            }
        }
    }

    /// Counts this end as warm once it has a subflow on every path.
    fn feel(&mut self, stack: &Stack) {
        let Some((conn, _)) = &self.open else { return };
        let subflows = stack.subflows(*conn).into_iter();
        let established = subflows.filter(|subflow| subflow.established).count();
        if !self.warm && established >= self.shared.paths {
            self.warm = true;
            self.shared.count(&self.shared.warm);
        }
    }

    /// Starts the transfer proper once both ends are warm, if it was held for that.
    fn release(&mut self, now: Instant, stack: &mut Stack) {
        if self.shared.warm.load(Ordering::Acquire) < 2 {
            return;
        }
        if let Some((conn, stream)) = self
            .open
            .as_mut()
            .filter(|(_, stream)| stream.awaiting_release)
        {
            stream.awaiting_release = false;
            // An open stream's connection exists, so this cannot fail.
            let _ = stack.set_flow_size(now, *conn, stream.flow_size);
            self.started = now;
            self.pump(now, stack);
        }
    }
}

impl Core for End<'_> {
    fn on_engine_event(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        let (now, stack) = (ctx.now, &mut *ctx.stack);
        match event {
            Event::Accepted { conn, .. } => {
                let Some(stream) = self.waiting.take() else {
                    return;
                };
                // The connection was accepted just now, so this cannot fail.
                let _ = stack.set_flow_size(now, conn, stream.flow_size);
                self.open = Some((conn, stream));
                self.pump(now, stack);
            }
            Event::Connected { .. } | Event::Readable { .. } | Event::Writable { .. } => {
                self.pump(now, stack);
            }
            Event::SubflowEstablished { .. } => self.feel(stack),
            Event::Closed { conn, reason } => {
                if let Some((_, mut stream)) = self.open.take() {
                    stream.closed = Some((now, reason));
                    stream.report = stack.conn_stats(conn);
                    self.ended = Some(stream);
                    self.shared.count(&self.shared.finished);
                }
            }
            _ => {}
        }
    }

    /// Returns the time of the next check, so that the driver notices the end of the run without packets.
    fn next_timeout(&self) -> Option<Instant> {
        Some(self.next_check)
    }

    fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        self.next_check = ctx.now + END_CHECK_INTERVAL;
    }
}

/// Wakes an end when the other one makes progress.
#[derive(Debug)]
struct Wake<'a>(&'a OwnedFd);

impl<'a> Host<End<'a>> for Wake<'_> {
    fn sources(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        vec![(self.0.as_fd(), 0)]
    }

    fn on_ready(&mut self, _: u32, context: &mut Context<'_, End<'a>>) {
        let _ = rustix::io::read(self.0, &mut [0u8; 8]);
        context.core.release(context.now, context.stack);
    }
}
