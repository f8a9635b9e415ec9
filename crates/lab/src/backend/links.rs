//! Runs over emulated links in wall-clock time, with the engine and its driver at both ends.
//!
//! Each engine has a TUN device in the namespace of its host. The kernel forwards packets between that
//! device and the links. As in the simulator, losses depend on the number of the packet, and keys and ports
//! come from the random streams of the stacks.

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
/// Number of the client's routing table for path 0, and of the rule that selects this table. The other
/// paths have the next numbers. Any number works except 253 to 255, which the kernel uses itself.
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

/// Creates the engines' devices of client and server, and the routes over each path.
pub(crate) fn open_devices(fixture: &Fixture, paths: usize) -> Result<(Tun, Tun), Error> {
    let device = |host| {
        let create = || Tun::create(DEVICE).map_err(io::Error::other);
        netns::run_inside(&fixture.namespace(host)?, create).map_err(run_error)
    };
    let devices = (device(CLIENT)?, device(SERVER)?);
    // The MTU is the maximum, so that super-segments fit. The queue is longer than any burst of an engine:
    // a loss here would not be a loss of the emulated links. 4000 packets is a guess.
    let up = format!("link set {DEVICE} mtu 65535 txqueuelen 4000 multicast off up\n");
    let (mut client, mut server) = (up.clone(), up);
    server += &format!("route add {}/32 dev {DEVICE}\n", transfer::SERVER);
    for n in 0..paths {
        let (link, table) = (fixture::link_name(n), FIRST_TABLE + n);
        client += &format!("route add default dev {link} table {table}\n");
        // The second address is for a client that moves during the run.
        for address in [client_addr(n), external_addr(n)] {
            client += &format!(
                "route add {address}/32 dev {DEVICE}\n\
                 rule add from {address}/32 lookup {table} pref {table}\n"
            );
            server += &format!("route add {address}/32 dev {link}\n");
        }
    }
    fixture.testbed.ip(CLIENT, &client).map_err(run_error)?;
    fixture.testbed.ip(SERVER, &server).map_err(run_error)?;
    Ok(devices)
}

/// Drops the packets that an earlier run has left in the device.
pub(crate) fn discard_packets(device: &mut Tun) {
    while let Ok(Some(_)) = device.recv() {}
}

/// Makes one transfer and returns its result.
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

/// Returns the stack of an end of a case: node 0 is the client, and node 1 the server.
fn stack(case: &Case, seed: u64, node: u32, history: Option<&History>) -> Result<Stack, Error> {
    let mut stack = new_stack(&case.strategy, flow::engine(case)?, (seed, node))?;
    if let Some(history) = history {
        history.load(node as usize, &mut stack, Instant::ZERO);
    }
    Ok(stack)
}

/// Returns the stack of an end. Its random numbers are those of node `node` in the simulated world of
/// `seed`, so that keys and ports are the same on both backends.
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

/// Adds the paths to the stacks of client (`opening`) and server (`accepting`), and makes the server
/// listen.
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

/// Returns the result of a thread, or passes on the thread's panic.
pub(crate) fn join_thread<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    let result = thread.join();
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

type EndDriver<'a> = Driver<&'a mut Tun, End<'a>, Wake<'a>>;

/// Runs an end until the connections of both ends have ended, or until the deadline. Calls `start` first,
/// within the end's thread.
fn run_end<'a>(
    driver: &mut EndDriver<'a>,
    start: impl FnOnce(&mut EndDriver<'a>) -> Result<(), Error>,
) -> Result<(), Error> {
    become_realtime(ENDPOINT_PRIORITY);
    let shared = driver.core.shared;
    let _release_peer = Leaving(shared);
    start(driver)?;
    // The driver also stops when something is written to this eventfd. Nothing is ever written to it.
    let never = new_eventfd()?;
    let ended = driver.run(never.as_fd(), |driver| {
        let timed_out = driver.clock().now() >= shared.deadline;
        shared.finished.load(Ordering::Acquire) >= 2 || timed_out || fixture::interrupted()
    });
    ended.map_err(run_error)
}

/// A guard that stops the other end when this end returns or panics. Without it the other end would wait
/// until the deadline.
struct Leaving<'a>(&'a Shared<'a>);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        // Counts both connections as ended, so that the other end stops.
        self.0.finished.store(2, Ordering::Release);
        self.0.wake_ends();
    }
}

/// The state that both ends share.
#[derive(Debug)]
struct Shared<'a> {
    /// Number of paths.
    paths: usize,
    case: &'a Case,
    deadline: Instant,
    /// Number of ends that have a subflow on every path.
    warm: AtomicUsize,
    /// Number of ends whose connection has ended.
    finished: AtomicUsize,
    /// Eventfds that wake client and server when `warm` or `finished` changes.
    wake: [OwnedFd; 2],
}

impl Shared<'_> {
    /// Adds one to a number of ends, and wakes both ends.
    fn count(&self, ends: &AtomicUsize) {
        ends.fetch_add(1, Ordering::AcqRel);
        self.wake_ends();
    }

    fn wake_ends(&self) {
        for wake in &self.wake {
            // The write fails only if the eventfd's counter is full. A full counter wakes the end anyway.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }
}

/// One end of the transfer.
#[derive(Debug)]
struct End<'a> {
    shared: &'a Shared<'a>,
    /// The stream for the next connection; `None` after a connection took it.
    waiting: Option<Stream>,
    /// The open connection and its stream.
    open: Option<(ConnId, Stream)>,
    /// The stream of the connection that has ended.
    ended: Option<Stream>,
    /// The start of the flow completion time.
    started: Instant,
    /// See [`RunResult::arrivals`].
    arrivals: ReceivedBytes,
    /// See [`RunResult::outage_rto`].
    outage_rto: Duration,
    /// True if [`Shared::warm`] counts this end.
    warm: bool,
    /// The next time at which the driver wakes up without packets.
    next_check: Instant,
    /// Checks the bytes that the stream reads. It sees no packets, because the driver has no tap.
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

    /// Opens the client's connection, which starts the flow completion time.
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

    /// Lets the stream read and write, and records the values that a case with an outage needs.
    fn pump(&mut self, now: Instant, stack: &mut Stack) {
        if let Some((conn, stream)) = &mut self.open {
            stream.pump(now, *conn, stack, &mut self.oracle);
            if let Some(outage) = self.shared.case.outage {
                let time = now.saturating_since(self.started);
                self.arrivals.record(time, stream.received);
                // The timeout is read only until the outage starts.
                if now < Instant::ZERO + outage.from {
                    self.outage_rto = flow::outage_rto(self.shared.case, stack, *conn);
                }
            }
            if let Some(violation) = self.oracle.take().first() {
                panic!("{violation}");
            }
        }
    }

    /// Counts this end as warm when it has a subflow on every path.
    fn count_if_warm(&mut self, stack: &Stack) {
        let Some((conn, _)) = &self.open else { return };
        let subflows = stack.subflows(*conn).into_iter();
        let established = subflows.filter(|subflow| subflow.established).count();
        if !self.warm && established >= self.shared.paths {
            self.warm = true;
            self.shared.count(&self.shared.warm);
        }
    }

    /// Starts a transfer that waits for warm subflows, once both ends have a subflow on every path.
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
            // The call fails only for an unknown connection, and this connection is open.
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
                // The call fails only for an unknown connection, and this connection was just accepted.
                let _ = stack.set_flow_size(now, conn, stream.flow_size);
                self.open = Some((conn, stream));
                self.pump(now, stack);
            }
            Event::Connected { .. } | Event::Readable { .. } | Event::Writable { .. } => {
                self.pump(now, stack);
            }
            Event::SubflowEstablished { .. } => self.count_if_warm(stack),
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

    /// Returns the time of the next check. Without this timeout the driver would notice the deadline only
    /// when a packet arrives.
    fn next_timeout(&self) -> Option<Instant> {
        Some(self.next_check)
    }

    fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        self.next_check = ctx.now + END_CHECK_INTERVAL;
    }
}

/// The event source by which an end learns that a number in [`Shared`] has changed.
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
