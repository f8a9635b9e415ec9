//! The commonest topology: a client and a server joined by one link a path, and one transfer.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::io::{self, Write};

use braid_engine::strategy::Strategy;
use braid_engine::{ApiError, Config, ConnectOptions, PathConfig, PathId, Protocol};
use braid_links::Settings;

use crate::capture::Capture;
use crate::host::{Host, HostConfig};
use crate::log::Log;
use crate::traffic::{Role, Stream};
use crate::world::{LinkId, NodeId, World};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 255, 1);
/// No dissector of Wireshark claims it.
const PORT: u16 = 50_000;
/// Bytes of the request that asks for a download.
pub const REQUEST: u64 = 100;

/// Which way the payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The client asks, the server sends.
    Down,
    /// The client sends.
    Up,
}

/// A path: one link with its two directions.
#[derive(Debug, Clone, PartialEq)]
pub struct PathSettings {
    /// From client to server.
    pub up: Settings,
    /// From server to client.
    pub down: Settings,
}

/// What is transferred, and how.
pub struct TransferConfig<'a> {
    /// Paths, at least one and at most 254.
    pub paths: &'a [PathSettings],
    /// Payload bytes.
    pub size: u64,
    /// Which way.
    pub direction: Direction,
    /// Settings of both engines.
    pub engine: Config,
    /// Protocol of the connection.
    pub protocol: Protocol,
    /// Path of the initial subflow; `None` takes the first.
    pub initial_path: Option<PathId>,
    /// Scheduler and reinjector of both ends.
    pub strategy: fn() -> Box<dyn Strategy>,
}

/// A world with one transfer under way.
#[derive(Debug)]
pub struct Transfer {
    /// The world.
    pub world: World,
    /// The client.
    pub client: NodeId,
    /// The server.
    pub server: NodeId,
    /// The links of each path: (up, down).
    pub links: Vec<(LinkId, LinkId)>,
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

impl Transfer {
    /// Builds the world of `seed` and opens the connection.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn start(seed: u64, config: &TransferConfig<'_>) -> Result<Self, ApiError> {
        let mut transfer = Transfer::build(seed, config);
        transfer.open(config)?;
        Ok(transfer)
    }

    /// Builds the world of `seed`, in which nothing happens before [`open`](Self::open): what is to
    /// be watched from the first packet on is said in between.
    pub fn build(seed: u64, config: &TransferConfig<'_>) -> Self {
        let mut world = World::new(seed);
        let count = config.paths.len();
        let host = |paths, routes| HostConfig {
            engine: config.engine.clone(),
            paths,
            routes,
            strategy: Box::new(config.strategy),
        };
        let client = host(
            (0..count).map(|n| local(client_addr(n))).collect(),
            Vec::new(),
        );
        let back = (0..count).map(|n| (IpAddr::V4(client_addr(n)), n as u32));
        let server = host(vec![local(SERVER)], back.collect());
        let client = world.add(|rng| Host::new(client, rng));
        let server = world.add(|rng| Host::new(server, rng));
        let links = config
            .paths
            .iter()
            .map(|path| world.connect(client, server, path.up.clone(), path.down.clone()))
            .collect();
        Transfer {
            world,
            client,
            server,
            links,
        }
    }

    /// Opens the connection.
    ///
    /// # Errors
    /// As [`braid_engine::Stack::connect`]: the initial path does not exist.
    pub fn open(&mut self, config: &TransferConfig<'_>) -> Result<(), ApiError> {
        let (asks, answers) = match config.direction {
            Direction::Down => (
                Role::Fetch { request: REQUEST },
                Role::Answer {
                    request: REQUEST,
                    size: config.size,
                },
            ),
            Direction::Up => (Role::Upload { size: config.size }, Role::Sink),
        };
        let addr = SocketAddr::new(IpAddr::V4(SERVER), PORT);
        self.world.with_node(self.server, |host: &mut Host, _| {
            host.serve(addr, Stream::new(answers))
        })?;
        let options = ConnectOptions {
            path: config.initial_path,
            protocol: config.protocol,
            ..ConnectOptions::new(addr, (config.strategy)())
        };
        self.world.with_node(self.client, |host: &mut Host, now| {
            host.open(now, options, Stream::new(asks))
        })?;
        Ok(())
    }

    /// Captures what passes at the client or the server, before the connection is opened.
    ///
    /// # Errors
    /// As [`Capture::new`].
    pub fn capture(&mut self, end: NodeId, out: Box<dyn Write + Send>) -> io::Result<Capture> {
        let capture = Capture::new(out)?;
        let name = if end == self.client {
            "client"
        } else {
            "server"
        };
        capture.node(&mut self.world, end, name);
        Ok(capture)
    }

    /// Logs the transfer, before the connection is opened.
    pub fn log(&mut self, out: Box<dyn Write + Send>) -> Log {
        let hosts = [(self.client, "client"), (self.server, "server")];
        Log::start(&mut self.world, &hosts, out)
    }

    /// The receiver of the payload.
    pub fn receiver(&self, direction: Direction) -> NodeId {
        match direction {
            Direction::Down => self.client,
            Direction::Up => self.server,
        }
    }

    /// Runs until both ends have reported the end of the connection; false if that takes longer
    /// than `limit`.
    pub fn run(&mut self, limit: Duration) -> bool {
        let ends = [self.client, self.server];
        self.world.run(limit, |w| {
            ends.iter()
                .all(|end| !w.node::<Host>(*end).finished().is_empty())
        })
    }
}
