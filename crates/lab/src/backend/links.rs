//! Measurements over emulated links in wall-clock time, with the engine and its driver at both ends.
//!
//! Each engine has a TUN device in the namespace of its host. The kernel forwards packets between that
//! device and the links. As in the simulator, losses depend on the number of the packet, and keys and ports
//! come from the random streams of the stacks.

use std::io;
use std::mem;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use braid_engine::{Config, ConnId, ConnectOptions, Event, PathConfig, Stack};
use braid_linux::driver::{Clock, Driver};
use braid_linux::sockets::Limits;
use braid_linux::sys::become_realtime;
use braid_linux::tun::{PacketIo, Tun};
use braid_proxy::app::{Core, Ctx};
use braid_sim::oracle::Oracle;
use braid_sim::traffic::{Role, Stream};
use braid_sim::transfer::{REMOTE, SERVER as SERVER_ADDR, client_addr, external_addr};
use braid_sim::world::{START, node_streams};
use braid_testbed::netns;
use braid_wire::Instant;

use super::error::Error;
use super::fixture::{ENDPOINT_PRIORITY, Fixture};
use super::history::Memory;
use super::setup::{CLIENT, FIRST_TABLE, SERVER, Setup, link_name};
use super::tap::{Tap, match_packets};
use super::threads::{END_CHECK_INTERVAL, EndGuard, EndSignal, join_thread};
use super::{Session, flow, streams};
use crate::case::{Case, ReceivedBytes, RunResult};
use crate::session_trace::{SAMPLE_INTERVAL, Samples, SessionScenario, SessionTrace};

/// Name of the engines' devices.
const DEVICE: &str = "engine";
/// Interval at which an end checks the progress of the other end while it waits. A guess, short against the
/// times of a run.
const WAIT_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Namespaces and links, with an engine's device at both ends.
pub(super) struct Links {
    fixture: Fixture,
    /// The devices of client and server.
    devices: [Tun; 2],
    memory: Memory,
}

impl Links {
    /// Creates the engines' devices of client and server, and the routes over each path.
    pub fn open(setup: &Setup<'_>) -> Result<Links, Error> {
        let fixture = Fixture::build(setup)?;
        let device = |host| {
            let create = || Tun::create(DEVICE).map_err(io::Error::other);
            Ok::<_, Error>(netns::run_inside(&fixture.namespace(host)?, create)?)
        };
        let devices = [device(CLIENT)?, device(SERVER)?];
        // The MTU is the maximum, so that super-segments fit. The queue is longer than any burst of an
        // engine: a loss here would not be a loss of the emulated links. 4000 packets is a guess.
        let up = format!("link set {DEVICE} mtu 65535 txqueuelen 4000 multicast off up\n");
        let (mut client, mut server) = (up.clone(), up);
        server += &format!("route add {SERVER_ADDR}/32 dev {DEVICE}\n");
        for n in 0..setup.paths.len() {
            let (link, table) = (link_name(n), FIRST_TABLE + n);
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
        fixture.testbed.ip(CLIENT, &client)?;
        fixture.testbed.ip(SERVER, &server)?;
        Ok(Links {
            fixture,
            devices,
            memory: Memory::default(),
        })
    }
}

impl Session for Links {
    fn run(&mut self, case: &Case, index: u64) -> Result<RunResult, Error> {
        let setup = &Setup::of_case(case, index, flow::engine(case)?);
        let history = self.memory.of(case, index)?;
        let devices = &mut self.devices;
        self.fixture.measure(setup, || {
            let mut stacks = new_stacks(setup)?;
            if let Some(history) = history {
                for (n, stack) in stacks.iter_mut().enumerate() {
                    history.load(n, stack, START);
                }
            }
            run_case(case, setup, emptied(devices), stacks)
        })
    }

    fn trace(&mut self, scenario: &SessionScenario<'_>, seed: u64) -> Result<SessionTrace, Error> {
        let devices = &mut self.devices;
        let setup = &Setup::of_session(scenario, seed);
        self.fixture.measure(setup, || {
            let mut stacks = new_stacks(setup)?;
            if scenario.moves.is_some() {
                scenario.add_second_path(&mut stacks[0], START);
            }
            run_session(scenario, setup, emptied(devices), stacks)
        })
    }

    fn fixture(&mut self) -> Option<&mut Fixture> {
        Some(&mut self.fixture)
    }
}

/// Discards the packets that an earlier run has left in the devices, and returns the devices.
fn emptied(devices: &mut [Tun; 2]) -> [&mut Tun; 2] {
    for device in devices.iter_mut() {
        while let Ok(Some(_)) = device.recv() {}
    }
    devices.each_mut()
}

/// Returns the stacks of client and server, with their paths, and a server that listens. Their random numbers
/// are those of the nodes in the simulated world of `seed`, so that keys and ports are the same on both
/// backends.
fn new_stacks(setup: &Setup<'_>) -> Result<[Stack; 2], Error> {
    let config = setup.config();
    let stack = |node| {
        let strategy = braid_strategy::factory(config.strategy)?;
        let (_, rng) = node_streams(setup.seed, node);
        Ok::<_, Error>(Stack::new(config.engine.clone(), rng, strategy))
    };
    let (mut client, mut server) = (stack(0)?, stack(1)?);
    for n in 0..config.paths.len() {
        client.add_path(PathConfig::v4(client_addr(n)))?;
    }
    server.add_path(PathConfig::v4(SERVER_ADDR))?;
    server.listen(REMOTE)?;
    Ok([client, server])
}

/// Makes one run of `case` and returns its result.
fn run_case(
    case: &Case,
    setup: &Setup<'_>,
    devices: [&mut Tun; 2],
    stacks: [Stack; 2],
) -> Result<RunResult, Error> {
    let clock = Clock::starting_at(START);
    let [warm, ended] = [(); 2].map(|()| AtomicU8::new(0));
    let mut meters = [1, 2].map(|end| FlowMeter {
        case,
        deadline: START + flow::limit(case),
        end,
        warm: &warm,
        ended: &ended,
        released: None,
        arrivals: ReceivedBytes::default(),
        outage_rto: Duration::ZERO,
    });
    let [client, server] = run_ends(setup, clock, devices, stacks, meters.each_mut())?;
    let [opening, _] = &meters;
    let started = opening.released.unwrap_or(client.core.stream.opened_at);
    let ended = [client.core.ended(), server.core.ended()];
    let [sender, receiver] = flow::sender_first(case.direction, meters);
    Ok(RunResult {
        arrivals: receiver.arrivals,
        outage_rto: sender.outage_rto,
        ..flow::engine_result(case, started, ended, &client.stack)
    })
}

/// Runs the session of `scenario` and returns its trace.
fn run_session(
    scenario: &SessionScenario<'_>,
    setup: &Setup<'_>,
    devices: [&mut Tun; 2],
    stacks: [Stack; 2],
) -> Result<SessionTrace, Error> {
    let clock = Clock::starting_at(START);
    let paths = scenario.paths.len();
    let mut taps = devices.map(|device| Tap::new(clock, device, paths));
    if let Role::Send(sends) = &scenario.sends {
        let (count, options) = (scenario.samples(), setup.config().options());
        let observed = streams::run(sends, count, (clock, options), taps.each_mut(), stacks)?;
        let packets = match_packets(&taps[1].seen, &taps[0].seen);
        let no_stream = Stream::default();
        return Ok(SessionTrace {
            messages: observed.messages,
            written: observed.written,
            ..SessionTrace::new(packets, observed.samples, [&no_stream, &no_stream])
        });
    }
    let mut samplers = [Some(scenario), None].map(|moving| Sampler {
        moving,
        samples: Samples::default(),
        count: scenario.samples(),
        next: START + SAMPLE_INTERVAL,
    });
    let ends = run_ends(setup, clock, taps.each_mut(), stacks, samplers.each_mut())?;
    // In a session the server sends and the client reads.
    let [reads, sends] = ends.map(|driver| driver.core.stream);
    let packets = match_packets(&taps[1].seen, &taps[0].seen);
    let samples = samplers.map(|sampler| sampler.samples);
    Ok(SessionTrace::new(packets, samples, [&reads, &sends]))
}

/// The driver of one end.
type EndDriver<P> = Driver<P, End, ()>;

/// Runs client and server, each in a thread of its own, until their meters have measured, and returns their
/// drivers.
fn run_ends<P: PacketIo + Send, M: Meter + Send>(
    setup: &Setup<'_>,
    clock: Clock,
    [client, server]: [P; 2],
    [opening, accepting]: [Stack; 2],
    [client_meter, server_meter]: [&mut M; 2],
) -> Result<[EndDriver<P>; 2], Error> {
    let [reads, sends] = &setup.streams;
    let driver = |device, stack, stream: &Stream| {
        let end = End::new(stream.clone());
        Driver::new(clock, device, stack, end, (), Limits::default())
    };
    let mut client = driver(client, opening, reads)?;
    let mut server = driver(server, accepting, sends)?;
    let over = EndSignal::default();
    thread::scope(|scope| {
        let serving = scope.spawn(|| run_end(&mut server, None, server_meter, &over));
        let options = Some(setup.config().options());
        let asking = scope.spawn(|| run_end(&mut client, options, client_meter, &over));
        join_thread(asking).and(join_thread(serving))
    })?;
    Ok([client, server])
}

/// Runs an end in its own thread until its meter has measured, or until `over`. First opens a connection, if
/// there are `options`.
fn run_end<P: PacketIo>(
    driver: &mut EndDriver<P>,
    options: Option<ConnectOptions>,
    meter: &mut impl Meter,
    over: &EndSignal,
) -> Result<(), Error> {
    become_realtime(ENDPOINT_PRIORITY);
    let failed = EndGuard(over);
    if let Some(options) = options {
        let now = driver.clock().now();
        let conn = driver.stack.connect(now, options)?;
        driver.core.begin(now, conn);
    }
    driver.run_until(None, |driver| {
        let now = driver.clock().now();
        meter.observe(now, &mut driver.core, &mut driver.stack) || over.check().is_err()
    })?;
    // This end has not failed, so the other may go on.
    mem::forget(failed);
    Ok(())
}

/// One end of the connection.
#[derive(Debug)]
struct End {
    stream: Stream,
    /// The stream's connection, once it is open.
    conn: Option<ConnId>,
    /// The time at which the driver's loop turns even if no packet arrives, so that the meter observes this end.
    next_check: Instant,
    /// Checks the bytes that the stream reads. It sees no packets, because the driver has no tap.
    oracle: Oracle,
}

impl End {
    fn new(stream: Stream) -> Self {
        End {
            stream,
            conn: None,
            next_check: START,
            oracle: Oracle::new(Config::default()),
        }
    }

    /// Returns the stream if its connection has ended.
    fn ended(&self) -> Option<&Stream> {
        Some(&self.stream).filter(|stream| stream.closed.is_some())
    }

    /// Gives the stream to the connection.
    fn begin(&mut self, now: Instant, conn: ConnId) {
        self.conn = Some(conn);
        self.stream.open(now);
    }

    /// Starts a transfer that has waited for warm subflows.
    fn release(&mut self, now: Instant, stack: &mut Stack) {
        self.stream.awaiting_release = false;
        if let Some(conn) = self.conn {
            // The call fails only for an unknown connection, and this connection is open.
            let _ = stack.begin_flow(now, conn);
        }
        self.declare_size(now, stack);
        self.pump(now, stack);
    }

    fn declare_size(&self, now: Instant, stack: &mut Stack) {
        if let Some(conn) = self.conn {
            // The call fails only for an unknown connection, and this connection is open.
            let _ = stack.set_flow_size(now, conn, self.stream.flow_size);
        }
    }

    /// Lets the stream read and write.
    fn pump(&mut self, now: Instant, stack: &mut Stack) {
        if let Some(conn) = self.conn
            && self.stream.closed.is_none()
        {
            self.stream.pump(now, conn, stack, &mut self.oracle);
            if let Some(violation) = self.oracle.take().first() {
                panic!("{violation}");
            }
        }
    }
}

impl Core for End {
    fn on_engine_event(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        match event {
            Event::Accepted { conn, .. } if self.conn.is_none() => {
                self.begin(ctx.now, conn);
                self.declare_size(ctx.now, ctx.stack);
            }
            Event::Closed { conn, reason } if self.conn == Some(conn) => {
                self.stream.closed = Some((ctx.now, reason));
                self.stream.report = ctx.stack.conn_stats(conn);
            }
            _ => {}
        }
        self.pump(ctx.now, ctx.stack);
    }

    fn next_timeout(&self) -> Option<Instant> {
        let is_open = self.conn.is_some() && self.stream.closed.is_none();
        let stream = self.stream.next_timeout().filter(|_| is_open);
        stream.into_iter().chain([self.next_check]).min()
    }

    fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        self.next_check = ctx.now + END_CHECK_INTERVAL;
        self.pump(ctx.now, ctx.stack);
    }
}

/// Measures at one end.
trait Meter {
    /// Observes the end after a turn of its driver's loop. Returns whether the measurement is over. A meter that
    /// changes the end or its stack sets [`End::next_check`] to `now` or earlier: the next turn then follows at once.
    fn observe(&mut self, now: Instant, end: &mut End, stack: &mut Stack) -> bool;
}

/// Measures the flow of a case at one end.
#[derive(Debug)]
struct FlowMeter<'a> {
    case: &'a Case,
    deadline: Instant,
    /// The bit of this end in `warm` and `ended`.
    end: u8,
    /// The ends that have a subflow on every path.
    warm: &'a AtomicU8,
    /// The ends whose connection has ended.
    ended: &'a AtomicU8,
    /// The start of a transfer that has waited for warm subflows.
    released: Option<Instant>,
    /// See [`RunResult::arrivals`].
    arrivals: ReceivedBytes,
    /// See [`RunResult::outage_rto`].
    outage_rto: Duration,
}

/// The bits of both ends.
const BOTH_ENDS: u8 = 1 | 2;

impl Meter for FlowMeter<'_> {
    fn observe(&mut self, now: Instant, end: &mut End, stack: &mut Stack) -> bool {
        let Some(conn) = end.conn else {
            return now >= self.deadline;
        };
        if let Some(outage) = self.case.outage {
            let time = now.saturating_since(self.released.unwrap_or(START));
            self.arrivals.record(time, end.stream.received);
            // The result is the timeout at the start of the outage, which the outage itself would raise.
            if now < START + outage.from && end.ended().is_none() {
                self.outage_rto = flow::outage_rto(self.case, stack, conn);
            }
        }
        let is_counted = self.warm.load(Ordering::Acquire) & self.end != 0;
        if self.case.warm_subflows && !is_counted && flow::is_warm(self.case, stack, conn) {
            self.warm.fetch_or(self.end, Ordering::AcqRel);
        }
        if end.stream.awaiting_release {
            end.next_check = now + WAIT_CHECK_INTERVAL;
            if self.warm.load(Ordering::Acquire) == BOTH_ENDS {
                self.released = Some(now);
                end.release(now, stack);
                end.next_check = now;
            }
        }
        if end.ended().is_some() {
            self.ended.fetch_or(self.end, Ordering::AcqRel);
            end.next_check = now + WAIT_CHECK_INTERVAL;
        }
        self.ended.load(Ordering::Acquire) == BOTH_ENDS || now >= self.deadline
    }
}

/// Samples an end of a session.
#[derive(Debug)]
struct Sampler<'a> {
    /// The scenario of a client, which may move.
    moving: Option<&'a SessionScenario<'a>>,
    samples: Samples,
    /// Number of samples of the session. An end that was late takes all missed samples at once.
    count: usize,
    /// The time of the next sample.
    next: Instant,
}

impl Meter for Sampler<'_> {
    fn observe(&mut self, now: Instant, end: &mut End, stack: &mut Stack) -> bool {
        // Set before the samples are taken: if one is due, the time has passed and the next turn follows at once,
        // as the trait asks of a meter that moves the client.
        end.next_check = self.next;
        while now >= self.next && self.samples.len() < self.count {
            self.samples.take(end.stream.received, end.conn, stack);
            self.next += SAMPLE_INTERVAL;
            if let Some(scenario) = self.moving {
                scenario.move_client(stack, now, self.samples.len());
            }
        }
        self.samples.len() >= self.count
    }
}
