//! Many clients with tiny flows at one server.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use braid_engine::strategy::FlowSize;
use braid_engine::{Config, ConnectOptions, PathConfig};
use braid_sim::node::{Node, Packet, Turn};
use braid_sim::traffic::{Role, Stream};
use braid_sim::transfer::{REMOTE, REQUEST, SERVER};
use braid_sim::world::NodeId;
use braid_sim::{Host, HostConfig, World};
use braid_wire::Instant;
use rustix::time::{ClockId, clock_gettime};

use crate::backend::{Error, run_error};
use crate::experiments::sweep;

/// Number of clients, each with one flow.
const CLIENTS: u32 = 500;
/// Payload of each flow, bytes.
const FLOW_BYTES: u64 = 4 << 10;
/// Time between the starts of two clients: all start within 10 s.
const START_INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which the server's subflows are counted. It divides [`START_INTERVAL`].
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum wait for the end of all flows after the last client's start. A guess; only a flow that stalls
/// takes so long.
const FLOW_TIMEOUT: Duration = Duration::from_secs(120);

/// Name of the processor time. It is the only value that differs between runs with the same seed.
pub const CPU_TIME: &str = "processor time per flow, µs";

/// A host that measures its own processor time.
struct Timed {
    host: Host,
    cpu: Duration,
}

impl Timed {
    /// Calls `act` and adds its processor time.
    fn timed(&mut self, act: impl FnOnce(&mut Host)) {
        let thread_time = || {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        let before = thread_time();
        act(&mut self.host);
        self.cpu += thread_time().saturating_sub(before);
    }
}

impl Node for Timed {
    fn receive(&mut self, turn: &mut Turn<'_>, iface: u32, packet: Packet) {
        self.timed(|host| host.receive(turn, iface, packet));
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        self.timed(|host| host.wake(turn));
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.host.next_timeout()
    }
}

/// Runs all clients, and returns the work and state that they cause at the server, each value with its name.
/// Clients start one after another, and each has two paths of its own, so that no client slows another down.
pub fn measure(seed: u64, strategy: &str) -> Result<Vec<(&'static str, f64)>, Error> {
    let mut world = World::new(seed);
    let (server, clients) = build(&mut world, strategy)?;
    let (mut most_subflows, mut subflow_seconds) = (0.0, 0.0);
    let mut sample = |world: &World| {
        let host = &world.node::<Timed>(server).host;
        let conns = host.open_streams().map(|(conn, _)| conn);
        let subflows: usize = conns.map(|conn| host.stack().subflows(conn).len()).sum();
        most_subflows = f64::max(most_subflows, subflows as f64);
        subflow_seconds += subflows as f64 * SAMPLE_INTERVAL.as_secs_f64();
    };
    for client in clients {
        let options = ConnectOptions {
            flow_size: FlowSize::Declared(FLOW_BYTES),
            ..ConnectOptions::new(REMOTE, factory(strategy)?())
        };
        let stream = stream(Role::Fetch { request: REQUEST });
        world.open(client, options, stream).map_err(run_error)?;
        for _ in 0..START_INTERVAL.as_millis() / SAMPLE_INTERVAL.as_millis() {
            world.advance(SAMPLE_INTERVAL);
            sample(&world);
        }
    }
    let end = world.now() + FLOW_TIMEOUT;
    let ended = |world: &World| world.node::<Timed>(server).host.finished().len();
    while ended(&world) < CLIENTS as usize && world.now() < end {
        world.advance(SAMPLE_INTERVAL);
        sample(&world);
    }
    let Timed { host, cpu } = world.node(server);
    let finished = host.finished().iter();
    let closed = finished.clone().filter(|stream| stream.closed.is_some());
    if closed.count() < CLIENTS as usize {
        let seconds = FLOW_TIMEOUT.as_secs();
        return Err(Error::Run(format!(
            "not all of {CLIENTS} flows ended within {seconds} s"
        )));
    }
    let reports = finished.filter_map(|stream| stream.report.as_ref());
    let paths = reports.flat_map(|report| &report.paths);
    let subflows: u32 = paths.map(|path| path.subflows).sum();
    let stats = host.stack().stats();
    let packets = (stats.packets_in + stats.packets_out) as f64;
    let flows = f64::from(CLIENTS);
    Ok(vec![
        // Half-open subflows count.
        ("subflows per flow", f64::from(subflows) / flows),
        ("packets per flow in and out", packets / flows),
        ("most subflows at a time", most_subflows),
        (
            "seconds that subflows were kept, per flow",
            subflow_seconds / flows,
        ),
        (CPU_TIME, cpu.as_secs_f64() * 1e6 / flows),
    ])
}

/// Returns a stream of a known size.
fn stream(role: Role) -> Stream {
    let mut stream = Stream::new(role);
    stream.flow_size = FlowSize::Declared(FLOW_BYTES);
    stream
}

fn factory(strategy: &str) -> Result<braid_engine::StrategyFactory, Error> {
    braid_strategy::factory(strategy).map_err(|e| Error::Usage(e.to_string()))
}

/// Returns the address of a client on one of its paths.
fn address(client: u32, path: usize) -> Ipv4Addr {
    let [_, _, high, low] = client.to_be_bytes();
    Ipv4Addr::new(10, path as u8, high, low)
}

/// Builds the server and all clients, and lets the server answer. Returns the node of the server, and the
/// nodes of the clients.
fn build(world: &mut World, strategy: &str) -> Result<(NodeId, Vec<NodeId>), Error> {
    let paths = sweep::case(super::UNLIKE)?.paths;
    let specs = paths.specs();
    // Nodes get interfaces in the order in which they are connected below: client by client, path by path.
    let mut routes: Vec<(IpAddr, u32)> = Vec::new();
    for client in 0..CLIENTS {
        for path in 0..specs.len() {
            routes.push((address(client, path).into(), routes.len() as u32));
        }
    }
    let config = |paths, routes| {
        Ok::<_, Error>(HostConfig {
            engine: Config::default(),
            paths,
            routes,
            strategy: factory(strategy)?,
        })
    };
    let at_server = config(vec![PathConfig::v4(SERVER)], routes)?;
    let server = world.add(|rng| Timed {
        host: Host::new(at_server, rng),
        cpu: Duration::ZERO,
    });
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let own = (0..specs.len()).map(|path| PathConfig::v4(address(client, path)));
        let config = config(own.collect(), Vec::new())?;
        clients.push(world.add(|rng| Host::new(config, rng)));
    }
    for client in &clients {
        for spec in specs {
            // 50 packets, the queue of the other cases of fsa-6a.
            let settings = spec.settings(50);
            world.connect(*client, server, settings.clone(), settings);
        }
    }
    let answer = stream(Role::Answer {
        request: REQUEST,
        size: FLOW_BYTES,
    });
    let serve = |server: &mut Timed, _| server.host.serve(REMOTE, answer);
    world.with_node(server, serve).map_err(run_error)?;
    Ok((server, clients))
}
