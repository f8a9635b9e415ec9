//! Many clients with tiny flows at one server.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use braid_engine::strategy::FlowSize;
use braid_engine::{Config, ConnectOptions, PathConfig};
use braid_sim::traffic::{Role, Stream};
use braid_sim::transfer::{REMOTE, REQUEST, SERVER};
use braid_sim::world::NodeId;
use braid_sim::{Host, HostConfig, World};

use crate::arm::Error;
use crate::paths::Paths;

const CLIENTS: u32 = 500;
/// Payload of each flow.
const SIZE: u64 = 4 << 10;
/// Between one client's start and the next one's.
const GAP: Duration = Duration::from_millis(20);
/// How often the server is looked at.
const LOOK: Duration = Duration::from_millis(10);
const LIMIT: Duration = Duration::from_secs(120);

/// What the server had to do.
#[derive(Debug, Default)]
pub struct Load {
    /// Subflows, half-open ones included, per flow.
    pub subflows: f64,
    /// Packets received and sent, per flow.
    pub packets: f64,
    /// Most subflows at a time: the state that is kept.
    pub most_subflows: f64,
    /// How long subflows were kept, s, per flow.
    pub subflow_seconds: f64,
}

impl Load {
    /// Lets the clients come one after the other, each over two paths of its own.
    pub fn measure(seed: u64, strategy: &str) -> Result<Load, Error> {
        let mut world = World::new(seed);
        let (server, clients) = build(&mut world, strategy)?;
        let mut load = Load::default();
        let mut look = |world: &World| {
            let host = world.host(server);
            let conns = host.open_streams().map(|(conn, _)| conn);
            let subflows: usize = conns.map(|conn| host.stack().subflows(conn).len()).sum();
            load.most_subflows = load.most_subflows.max(subflows as f64);
            load.subflow_seconds += subflows as f64 * LOOK.as_secs_f64();
        };
        for client in clients {
            let options = ConnectOptions {
                flow_size: FlowSize::Declared(SIZE),
                ..ConnectOptions::new(REMOTE, factory(strategy)?())
            };
            let mut stream = Stream::new(Role::Fetch { request: REQUEST });
            stream.flow_size = FlowSize::Declared(SIZE);
            let opened = world.open(client, options, stream);
            opened.map_err(|e| Error::Run(format!("a connection does not open: {e}")))?;
            for _ in 0..GAP.as_millis() / LOOK.as_millis() {
                world.advance(LOOK);
                look(&world);
            }
        }
        let end = world.now() + LIMIT;
        while world.host(server).finished().len() < CLIENTS as usize && world.now() < end {
            world.advance(LOOK);
            look(&world);
        }
        let host = world.host(server);
        let done = host
            .finished()
            .iter()
            .filter(|stream| stream.closed.is_some());
        let each = f64::from(CLIENTS);
        if done.count() < CLIENTS as usize {
            return Err(Error::Run(format!("not all of {CLIENTS} flows ended")));
        }
        let reports = host
            .finished()
            .iter()
            .filter_map(|stream| stream.report.as_ref());
        let subflows = reports
            .flat_map(|report| &report.paths)
            .map(|path| path.subflows);
        load.subflows = f64::from(subflows.sum::<u32>()) / each;
        let stats = host.stack().stats();
        load.packets = (stats.packets_in + stats.packets_out) as f64 / each;
        load.subflow_seconds /= each;
        Ok(load)
    }
}

fn factory(strategy: &str) -> Result<braid_engine::StrategyFactory, Error> {
    braid_strategy::factory(strategy).map_err(|e| Error::Usage(e.to_string()))
}

/// Address of a client on one of its paths.
fn address(client: u32, path: usize) -> Ipv4Addr {
    let [_, _, high, low] = client.to_be_bytes();
    Ipv4Addr::new(10, path as u8, high, low)
}

fn build(world: &mut World, strategy: &str) -> Result<(NodeId, Vec<NodeId>), Error> {
    let paths: Paths = super::UNLIKE
        .parse()
        .map_err(|e: crate::paths::PathError| Error::Usage(e.to_string()))?;
    let specs = paths.specs();
    let mut routes: Vec<(IpAddr, u32)> = Vec::new();
    for client in 0..CLIENTS {
        for path in 0..specs.len() {
            routes.push((address(client, path).into(), routes.len() as u32));
        }
    }
    let mut host = |paths, routes| {
        let config = HostConfig {
            engine: Config::default(),
            paths,
            routes,
            strategy: factory(strategy)?,
        };
        Ok::<_, Error>(world.add(|rng| Host::new(config, rng)))
    };
    let server = host(vec![PathConfig::v4(SERVER)], routes)?;
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let own = (0..specs.len()).map(|path| PathConfig::v4(address(client, path)));
        clients.push(host(own.collect(), Vec::new())?);
    }
    for client in &clients {
        for spec in specs {
            let settings = spec.settings(50);
            world.connect(*client, server, settings.clone(), settings);
        }
    }
    let mut answer = Stream::new(Role::Answer {
        request: REQUEST,
        size: SIZE,
    });
    answer.flow_size = FlowSize::Declared(SIZE);
    world
        .serve(server, REMOTE, answer)
        .map_err(|e| Error::Run(e.to_string()))?;
    Ok((server, clients))
}
