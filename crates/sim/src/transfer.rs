//! The commonest topology: a client and a server joined by one link a path, and one transfer.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::io::{self, BufWriter, Write};

use braid_engine::strategy::FlowSize;
use braid_engine::{ApiError, Config, ConnId, ConnectOptions, PathConfig, PathId, Protocol};
use braid_links::Settings;
use braid_links::middlebox::Chain;

use crate::background::{Background, End};
use crate::capture::Capture;
use crate::host::{Host, HostConfig, strategy_of};
use crate::log::{Log, Reader};
use crate::middlebox::MiddleboxNode;
use crate::traffic::{Role, Stream};
use crate::world::{LinkId, NodeId, World};

/// The server's address.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 255, 1);
/// Where the server listens; no dissector of Wireshark claims the port.
pub const REMOTE: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER), 50_000);
/// Bytes of the request that asks for a download.
pub const REQUEST: u64 = 100;

/// The client's address on a path.
pub fn client_addr(path: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, path as u8, 2)
}

/// An address that the server knows to be on a path too: for a NAT there.
pub fn external_addr(path: usize) -> Ipv4Addr {
    Ipv4Addr::new(203, 0, 113, path as u8 + 1)
}

/// Which way the payload goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The client asks, the server sends.
    Down,
    /// The client sends.
    Up,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Down => "down",
            Direction::Up => "up",
        })
    }
}

/// A path: one link with its two directions.
#[derive(Debug, Clone, PartialEq)]
pub struct PathSettings {
    /// From client to server.
    pub up: Settings,
    /// From server to client.
    pub down: Settings,
}

impl PathSettings {
    /// A path that is alike in both directions.
    pub fn both(settings: Settings) -> Self {
        PathSettings {
            up: settings.clone(),
            down: settings,
        }
    }
}

/// What is transferred, and how.
#[derive(Debug, Clone)]
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
    /// Name of the strategy of both ends, one that exists.
    pub strategy: &'a str,
    /// Both ends are told the flow's size in advance.
    pub declared: bool,
    /// The client writes no more than a byte until [`Host::release`].
    pub held: bool,
}

impl<'a> TransferConfig<'a> {
    /// A transfer over MPTCP with the defaults of engine and strategies.
    pub fn new(paths: &'a [PathSettings], size: u64, direction: Direction) -> Self {
        TransferConfig {
            paths,
            size,
            direction,
            engine: Config::default(),
            protocol: Protocol::Mptcp,
            initial_path: None,
            strategy: braid_strategy::DEFAULT,
            declared: false,
            held: false,
        }
    }

    /// How the client connects.
    ///
    /// # Panics
    /// If there is no such strategy.
    pub fn options(&self) -> ConnectOptions {
        ConnectOptions {
            path: self.initial_path,
            protocol: self.protocol,
            flow_size: match self.held {
                // What will be asked of the connection is not known yet.
                true => FlowSize::Predicted(u64::MAX),
                false => self.flow_size(),
            },
            ..ConnectOptions::new(REMOTE, strategy_of(self.strategy)())
        }
    }

    /// What the client does.
    pub fn asks(&self) -> Stream {
        let mut stream = Stream::new(match self.direction {
            Direction::Down => Role::Fetch { request: REQUEST },
            Direction::Up => Role::Upload { size: self.size },
        });
        stream.held = self.held;
        stream.flow_size = self.flow_size();
        stream
    }

    /// What the server does.
    pub fn answers(&self) -> Stream {
        let mut stream = Stream::new(match self.direction {
            Direction::Down => Role::Answer {
                request: REQUEST,
                size: self.size,
            },
            Direction::Up => Role::Sink,
        });
        stream.flow_size = self.flow_size();
        stream
    }

    fn flow_size(&self) -> FlowSize {
        match self.declared {
            true => FlowSize::Declared(self.size),
            false => FlowSize::Unknown,
        }
    }
}

/// A world with a client that has an address on each path, a server with one address, and one
/// transfer under way.
#[derive(Debug)]
pub struct Transfer {
    /// The world.
    pub world: World,
    /// The client, node 0.
    pub client: NodeId,
    /// The server, node 1.
    pub server: NodeId,
    /// The links of each path: (up, down).
    pub links: Vec<(LinkId, LinkId)>,
    /// The middleboxes of each path, or the routers at the client's end, where there are any.
    pub boxes: Vec<NodeId>,
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
    ///
    /// # Panics
    /// If there is no such strategy.
    pub fn build(seed: u64, config: &TransferConfig<'_>) -> Self {
        Transfer::through(seed, config, [])
    }

    /// The same with these middleboxes on the paths, each a millisecond before its path's link.
    ///
    /// # Panics
    /// If there is no such strategy.
    pub fn through(
        seed: u64,
        config: &TransferConfig<'_>,
        chains: impl IntoIterator<Item = Chain>,
    ) -> Self {
        let mut transfer = Transfer::unjoined(seed, config);
        let (client, server) = (transfer.client, transfer.server);
        let near = Settings {
            delay: Duration::from_millis(1),
            ..Settings::default()
        };
        let mut chains = chains.into_iter();
        let world = &mut transfer.world;
        for path in config.paths {
            let mut inside = client;
            if let Some(chain) = chains.next() {
                inside = world.add(|_| MiddleboxNode::new(chain));
                transfer.boxes.push(inside);
                world.connect(client, inside, near.clone(), near.clone());
            }
            let link = world.connect(inside, server, path.up.clone(), path.down.clone());
            transfer.links.push(link);
        }
        transfer
    }

    /// The same with others' traffic on each path's link, which begins at once. At both ends of the
    /// link is a router; those at the client's end are the [`boxes`](Self::boxes).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// If there is no such strategy.
    pub fn shared(
        seed: u64,
        config: &TransferConfig<'_>,
        background: &Background,
    ) -> Result<Self, ApiError> {
        let mut transfer = Transfer::unjoined(seed, config);
        let world = &mut transfer.world;
        for (n, path) in config.paths.iter().enumerate() {
            let at_client = world.add(|_| End::Client.router(n, client_addr(n)));
            let at_server = world.add(|_| End::Server.router(n, SERVER));
            let none = Settings::default;
            world.connect(transfer.client, at_client, none(), none());
            // The router there has its host before the link, too.
            world.connect(at_server, transfer.server, none(), none());
            let link = world.connect(at_client, at_server, path.up.clone(), path.down.clone());
            transfer.links.push(link);
            transfer.boxes.push(at_client);
            let mut ends = [(End::Server, at_server), (End::Client, at_client)];
            if config.direction == Direction::Up {
                ends.reverse();
            }
            background.flow(world, n, ends, &config.engine)?;
        }
        Ok(transfer)
    }

    /// The two hosts, and nothing between them.
    fn unjoined(seed: u64, config: &TransferConfig<'_>) -> Self {
        let mut world = World::new(seed);
        let mut host = |paths, routes| {
            let config = HostConfig {
                engine: config.engine.clone(),
                paths,
                routes,
                strategy: strategy_of(config.strategy),
            };
            world.add(|rng| Host::new(config, rng))
        };
        let count = config.paths.len();
        let paths = (0..count).map(|n| PathConfig::v4(client_addr(n)));
        let client = host(paths.collect(), Vec::new());
        let back = (0..count).flat_map(|n| {
            [client_addr(n), external_addr(n)].map(|addr| (IpAddr::V4(addr), n as u32))
        });
        let server = host(vec![PathConfig::v4(SERVER)], back.collect());
        Transfer {
            world,
            client,
            server,
            links: Vec::new(),
            boxes: Vec::new(),
        }
    }

    /// Opens the connection.
    ///
    /// # Errors
    /// As [`braid_engine::Stack::connect`]: the initial path does not exist.
    pub fn open(&mut self, config: &TransferConfig<'_>) -> Result<ConnId, ApiError> {
        self.carry(config.options(), config.asks(), config.answers())
    }

    /// Opens a connection that carries something else.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn carry(
        &mut self,
        options: ConnectOptions,
        asks: Stream,
        answers: Stream,
    ) -> Result<ConnId, ApiError> {
        self.world.serve(self.server, REMOTE, answers)?;
        self.world.open(self.client, options, asks)
    }

    /// Captures what passes at the client or the server, before the connection is opened.
    ///
    /// # Errors
    /// As [`Capture::new`].
    pub fn capture(&mut self, end: NodeId, out: Box<dyn Write + Send>) -> io::Result<Capture> {
        let capture = Capture::new(out)?;
        let name = self.name(end);
        capture.node(&mut self.world, end, name);
        Ok(capture)
    }

    /// Logs the transfer, before the connection is opened.
    pub fn log(&mut self, out: Box<dyn Write + Send>) -> Log {
        self.read(Box::new(BufWriter::new(out)))
    }

    /// Lets `reader` have the records of such a log.
    pub fn read(&mut self, reader: Box<dyn Reader>) -> Log {
        let hosts = self.ends().map(|end| (end, self.name(end)));
        Log::read(&mut self.world, &hosts, reader)
    }

    /// Client and server.
    pub fn ends(&self) -> [NodeId; 2] {
        [self.client, self.server]
    }

    /// What an end is called.
    pub fn name(&self, end: NodeId) -> &'static str {
        match end == self.client {
            true => "client",
            false => "server",
        }
    }

    /// The first stream that ended at the client, and that at the server.
    pub fn ended(&self) -> [Option<&Stream>; 2] {
        self.ends()
            .map(|end| self.world.host(end).finished().first())
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
        let ends = self.ends();
        self.world.run(limit, |w| {
            ends.iter().all(|end| !w.host(*end).finished().is_empty())
        })
    }
}
