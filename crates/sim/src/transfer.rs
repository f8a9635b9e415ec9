//! The topology that most simulations use: a client and a server, a link for each path between them, and one
//! transfer.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::io::{BufWriter, Write};

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
/// The address at which the server listens. Wireshark decodes port 50000 as no application protocol.
pub const REMOTE: SocketAddr = SocketAddr::new(IpAddr::V4(SERVER), 50_000);
/// Bytes of the request for a download; a guess at a short HTTP request.
pub const REQUEST: u64 = 100;

/// Returns the client's address on a path.
pub fn client_addr(path: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, path as u8, 2)
}

/// Returns an address that a NAT on a path may use. The server has a route to this address over the path.
pub fn external_addr(path: usize) -> Ipv4Addr {
    Ipv4Addr::new(203, 0, 113, path as u8 + 1)
}

/// The direction of the payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// The client sends a request, and the server sends the payload.
    Down,
    /// The client sends the payload.
    Up,
}

impl Direction {
    /// Returns the roles of client and server in a transfer of `size` bytes.
    pub(crate) fn roles(self, size: u64) -> [Role; 2] {
        let request = REQUEST;
        match self {
            Direction::Down => [Role::Fetch { request }, Role::Answer { request, size }],
            Direction::Up => [Role::Upload { size }, Role::Sink],
        }
    }
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
    /// Makes a path with the same settings in both directions.
    pub fn both(settings: Settings) -> Self {
        PathSettings {
            up: settings.clone(),
            down: settings,
        }
    }
}

/// The settings of a transfer.
#[derive(Debug, Clone)]
pub struct TransferConfig<'a> {
    /// Paths, at least one and at most 254: the number of a path is an octet of addresses.
    pub paths: &'a [PathSettings],
    /// Payload bytes.
    pub size: u64,
    /// The direction of the payload.
    pub direction: Direction,
    /// Settings of both engines.
    pub engine: Config,
    /// Protocol of the connection.
    pub protocol: Protocol,
    /// Path of the initial subflow; `None` means the first path.
    pub initial_path: Option<PathId>,
    /// Name of the strategy of both ends; it must exist.
    pub strategy: &'a str,
    /// True if both ends declare the flow's size to their strategies.
    pub declared: bool,
    /// True if the client writes only its first byte until [`Host::release`]. The first byte establishes the
    /// connection.
    pub awaiting_release: bool,
}

impl<'a> TransferConfig<'a> {
    /// Makes a transfer over MPTCP with the defaults of engine and strategies.
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
            awaiting_release: false,
        }
    }

    /// Returns the options with which the client connects.
    ///
    /// # Panics
    /// Panics if there is no such strategy.
    pub fn options(&self) -> ConnectOptions {
        ConnectOptions {
            path: self.initial_path,
            protocol: self.protocol,
            flow_size: match self.awaiting_release {
                // A connection that is opened in advance, like those of an idle pool, does not know its flow yet.
                true => FlowSize::Predicted(u64::MAX),
                false => self.flow_size(),
            },
            ..ConnectOptions::new(REMOTE, strategy_of(self.strategy)())
        }
    }

    /// Returns the client's stream.
    pub fn client_stream(&self) -> Stream {
        let [role, _] = self.direction.roles(self.size);
        let mut stream = Stream::new(role);
        stream.awaiting_release = self.awaiting_release;
        stream.flow_size = self.flow_size();
        stream
    }

    /// Returns the server's stream.
    pub fn server_stream(&self) -> Stream {
        let [_, role] = self.direction.roles(self.size);
        let mut stream = Stream::new(role);
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

/// A world with a client that has an address on each path, a server with one address, and one transfer.
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
    /// After [`through`](Self::through), the middlebox of each path. After [`shared`](Self::shared), the router at
    /// the client's end of each path. Otherwise empty.
    pub boxes: Vec<NodeId>,
}

impl Transfer {
    /// Builds the world of `seed` and opens the connection.
    ///
    /// # Errors
    /// Fails as [`open`](Self::open) does.
    pub fn start(seed: u64, config: &TransferConfig<'_>) -> Result<Self, ApiError> {
        let mut transfer = Transfer::build(seed, config);
        transfer.open(config)?;
        Ok(transfer)
    }

    /// Builds the world of `seed` without a connection. Captures and logs that are added before
    /// [`open`](Self::open) therefore see every packet.
    ///
    /// # Panics
    /// Panics if there is no such strategy.
    pub fn build(seed: u64, config: &TransferConfig<'_>) -> Self {
        Transfer::through(seed, config, [])
    }

    /// Builds the world with these chains of middleboxes: chain `n` is on path `n`. A link with 1 ms of delay
    /// leads from the client to each chain.
    ///
    /// # Panics
    /// Panics if there is no such strategy.
    pub fn through(
        seed: u64,
        config: &TransferConfig<'_>,
        chains: impl IntoIterator<Item = Chain>,
    ) -> Self {
        let mut transfer = Transfer::unconnected(seed, config);
        let (client, server) = (transfer.client, transfer.server);
        let client_link = Settings {
            delay: Duration::from_millis(1),
            ..Settings::default()
        };
        let mut chains = chains.into_iter();
        let world = &mut transfer.world;
        for path in config.paths {
            let mut near_end = client;
            if let Some(chain) = chains.next() {
                near_end = world.add(|_| MiddleboxNode::new(chain));
                transfer.boxes.push(near_end);
                world.connect(client, near_end, client_link.clone(), client_link.clone());
            }
            let link = world.connect(near_end, server, path.up.clone(), path.down.clone());
            transfer.links.push(link);
        }
        transfer
    }

    /// Builds the world with background traffic on each path's link. The traffic begins at once. It enters and
    /// leaves the link at the routers at its two ends.
    ///
    /// # Errors
    /// Fails as [`start`](Self::start) does.
    ///
    /// # Panics
    /// Panics if there is no such strategy.
    pub fn shared(
        seed: u64,
        config: &TransferConfig<'_>,
        background: &Background,
    ) -> Result<Self, ApiError> {
        let mut transfer = Transfer::unconnected(seed, config);
        let world = &mut transfer.world;
        for (n, path) in config.paths.iter().enumerate() {
            let at_client = world.add(|_| End::Client.router(n, client_addr(n)));
            let at_server = world.add(|_| End::Server.router(n, SERVER));
            let ideal = Settings::default;
            world.connect(transfer.client, at_client, ideal(), ideal());
            // `End::router` expects its host on interface 0 and the link on interface 1, so both hosts are
            // connected before the link.
            world.connect(at_server, transfer.server, ideal(), ideal());
            let link = world.connect(at_client, at_server, path.up.clone(), path.down.clone());
            transfer.links.push(link);
            transfer.boxes.push(at_client);
            let mut ends = [(End::Server, at_server), (End::Client, at_client)];
            if config.direction == Direction::Up {
                ends.reverse();
            }
            background.start(world, n, ends, &config.engine)?;
        }
        Ok(transfer)
    }

    /// Builds the two hosts without links.
    fn unconnected(seed: u64, config: &TransferConfig<'_>) -> Self {
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
    /// Fails as [`braid_engine::Stack::connect`] does: the initial path does not exist.
    pub fn open(&mut self, config: &TransferConfig<'_>) -> Result<ConnId, ApiError> {
        self.open_with(
            config.options(),
            config.client_stream(),
            config.server_stream(),
        )
    }

    /// Opens a connection with options and streams that differ from the configured ones.
    ///
    /// # Errors
    /// Fails as [`open`](Self::open) does.
    pub fn open_with(
        &mut self,
        options: ConnectOptions,
        client_stream: Stream,
        server_stream: Stream,
    ) -> Result<ConnId, ApiError> {
        self.world.serve(self.server, REMOTE, server_stream)?;
        self.world.open(self.client, options, client_stream)
    }

    /// Captures the packets at the client or the server. Call this before [`open`](Self::open).
    pub fn capture(&mut self, end: NodeId, out: Box<dyn Write + Send>) -> Capture {
        let capture = Capture::new(out);
        let name = self.name(end);
        capture.node(&mut self.world, end, name);
        capture
    }

    /// Logs the transfer. Call this before [`open`](Self::open).
    pub fn log(&mut self, out: Box<dyn Write + Send>) -> Log {
        self.read(Box::new(BufWriter::new(out)))
    }

    /// Hands the records of a log to `reader`.
    pub fn read(&mut self, reader: Box<dyn Reader>) -> Log {
        let hosts = self.ends().map(|end| (end, self.name(end)));
        Log::read(&mut self.world, &hosts, reader)
    }

    /// Returns client and server.
    pub fn ends(&self) -> [NodeId; 2] {
        [self.client, self.server]
    }

    /// Returns the name of an end.
    pub fn name(&self, end: NodeId) -> &'static str {
        match end == self.client {
            true => "client",
            false => "server",
        }
    }

    /// Returns the stream of the first closed connection at the client, and the one at the server.
    pub fn ended(&self) -> [Option<&Stream>; 2] {
        self.ends()
            .map(|end| self.world.host(end).finished().first())
    }

    /// Returns the receiver of the payload.
    pub fn receiver(&self, direction: Direction) -> NodeId {
        match direction {
            Direction::Down => self.client,
            Direction::Up => self.server,
        }
    }

    /// Runs until both ends have reported the end of the connection; returns false if that takes longer
    /// than `limit`.
    pub fn run(&mut self, limit: Duration) -> bool {
        let ends = self.ends();
        self.world.run(limit, |w| {
            ends.iter().all(|end| !w.host(*end).finished().is_empty())
        })
    }
}
