//! A simulated network for aggregation from end to end: users with plain TCP behind a box, access links,
//! servers, content hosts.
//!
//! ```text
//! user ── LAN ── box ══ access link ══ router ── server ── content
//!                    ══ access link ══ router ──/      ──/
//! ```
//!
//! Each access link leads to a router, which has a link to every server. For traffic that the box forwards without
//! a server, the router also has a link to every content host. Access links share no bottleneck before a server.
//! Behind a server they share the server's link to the content host.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;

use braid_engine::{ApiError, PathConfig};
use braid_links::Settings;
use braid_links::middlebox::Chain;
use braid_proxy::control::{Answer, Request};
use braid_proxy::{BoxConfig, ConfigError, LinkAddresses, ServerConfig, config, socks};
use braid_secure::keys::PrivateKey;
use braid_wire::Instant;
use ipnet::IpNet;

use crate::gateway::{BoxNode, BoxNodeConfig, DownstreamConfig, ServerNode, ServerNodeConfig};
use crate::host::{Host, HostConfig, tcp_options};
use crate::middlebox::MiddleboxNode;
use crate::router::{Router, all_like};
use crate::traffic::{Preface, Role, Stream};
use crate::transfer::{Direction, PathSettings};
use crate::udp::{UdpFlow, UdpSource};
use crate::world::{LinkId, NodeId, World};

const MTU: u16 = 1500;
/// Port of the first transfer. Each transfer has its own port, because the port tells a content host which stream
/// to serve.
const FIRST_PORT: u16 = 2_000;
/// The interval of virtual time at which [`Aggregation::run`] checks whether the run is done.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The box's own address in the LAN.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 1);

/// Bytes that a SOCKS5 client receives before the stream: the choice of a method (RFC 1928), the verdict on the
/// credentials (RFC 1929), and the reply with an IPv4 address.
const SOCKS_ANSWER: u64 = 2 + 2 + 10;

/// Returns the address of a user's host. Each /24 holds 200 users, whose addresses begin at .10, because
/// [`GATEWAY`] has .1. There are several /24, because one does not hold all users.
pub fn user_addr(user: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, 1 + (user / 200) as u8, 10 + (user % 200) as u8)
}

/// Returns the box's address on an access link.
pub fn link_addr(link: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 10 + link as u8)
}

/// Returns the address of a server.
pub fn server_addr(server: usize) -> Ipv4Addr {
    Ipv4Addr::new(203, 0, 113, 1 + server as u8)
}

/// Returns the address of a content host. Each host has a /24 prefix of its own, because servers measure
/// destinations by prefix.
pub fn content_addr(content: usize) -> Ipv4Addr {
    Ipv4Addr::new(198, 51, 100 + content as u8, 1)
}

/// Returns the key of the box, the same in every run.
fn box_key() -> PrivateKey {
    PrivateKey::from_seed([0xb0; 32])
}

/// Returns the key of a server, the same in every run; each server has a key of its own.
fn server_key(server: usize) -> PrivateKey {
    PrivateKey::from_seed([server as u8; 32])
}

/// Returns the address of the router behind an access link.
fn router_addr(link: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 100 + link as u8)
}

/// The settings of a network. [`AggregationConfig::new`] makes settings with defaults; the caller may change the
/// fields.
#[derive(Debug, Clone)]
pub struct AggregationConfig {
    /// The box's `box.toml`. Its links must match `access`, and its servers `servers`, in the same order; their
    /// addresses are [`link_addr`] and [`server_addr`].
    pub boxed: BoxConfig,
    /// Access links; `up` leads away from the box. At most 90, because the addresses of the routers begin 90 after
    /// those of the links.
    pub access: Vec<PathSettings>,
    /// Servers, at least one.
    pub servers: Vec<ServerSettings>,
    /// The LAN link of each user, at most 10,000; `up` leads away from the user.
    pub users: Vec<PathSettings>,
    /// The number of content hosts, each at its [`content_addr`].
    pub contents: usize,
    /// The settings of the box's sockets towards users.
    pub box_downstream: DownstreamConfig,
}

/// The settings of a server and of its links.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// The server's `server.toml`.
    pub config: ServerConfig,
    /// The links from the router behind each access link (`up` leads to the server). If the list is shorter than
    /// the list of access links, the missing links are gigabit links without delay or loss.
    pub from_access: Vec<PathSettings>,
    /// Cross traffic on the link from the server to the router behind each access link. The router drops the cross
    /// traffic, so it loads this link only. Access links past the end of the list have no cross traffic.
    pub cross: Vec<UdpFlow>,
    /// The link to each content host; `up` leads to the host.
    pub to_content: PathSettings,
    /// The links to the first content hosts, where they differ from `to_content`.
    pub to_first_contents: Vec<PathSettings>,
    /// The settings of the server's sockets towards content hosts.
    pub downstream: DownstreamConfig,
    /// The time by which the server's wall clock is ahead of the box's. The clocks matter, because a server
    /// compares the time in a handshake with its own.
    pub clock_ahead: Duration,
}

impl AggregationConfig {
    /// Makes a network of a user, a box with these access links, a server and a content host. All other
    /// links have 1 Gbit/s and no delay or loss.
    ///
    /// # Errors
    /// Fails if `access` is empty, or has more links than a box may have.
    pub fn new(access: Vec<PathSettings>) -> Result<Self, ConfigError> {
        let mut config = AggregationConfig {
            boxed: box_config(access.len(), 1)?,
            access,
            servers: Vec::new(),
            users: vec![gigabit()],
            contents: 1,
            box_downstream: DownstreamConfig::default(),
        };
        config.set_servers(1)?;
        Ok(config)
    }

    /// Replaces the servers by `count` servers like the one of [`new`](Self::new), here and in the box's
    /// configuration.
    ///
    /// # Errors
    /// Fails if `count` is zero, or more servers than a box may have.
    pub fn set_servers(&mut self, count: usize) -> Result<(), ConfigError> {
        self.boxed.servers = box_config(self.access.len(), count)?.servers;
        let server = |n| {
            // Content hosts have addresses for documentation (RFC 5737). A server refuses these destinations
            // unless `allow` names them.
            let text = format!(
                "listen = \"{}\"\nallow = \"198.51.100.0/24\"\n[[user]]\nname = \"box\"\nkey = \"{}\"\n",
                server_addr(n),
                box_key().public()
            );
            Ok(ServerSettings {
                config: ServerConfig::with_key("server.toml", &text, server_key(n))?,
                from_access: Vec::new(),
                cross: Vec::new(),
                to_content: gigabit(),
                to_first_contents: Vec::new(),
                downstream: DownstreamConfig::default(),
                clock_ahead: Duration::ZERO,
            })
        };
        self.servers = (0..count).map(server).collect::<Result<_, _>>()?;
        Ok(())
    }
}

fn box_config(links: usize, servers: usize) -> Result<BoxConfig, ConfigError> {
    let links = (0..links).map(|n| format!("[[link]]\ninterface = \"wan{n}\"\n"));
    let servers = (0..servers).map(|n| {
        let (addr, key) = (server_addr(n), server_key(n).public());
        format!("[[server]]\naddress = \"{addr}\"\nkey = \"{key}\"\n")
    });
    let tables: String = links.chain(servers).collect();
    let text = format!("lan = \"lan0\"\n{tables}");
    BoxConfig::with_key("box.toml", &text, box_key())
}

/// Returns a link that is no bottleneck: 1 Gbit/s in both directions, without delay or loss.
fn gigabit() -> PathSettings {
    let settings = Settings {
        rate: braid_links::Rate::bits_per_second(1_000_000_000),
        ..Settings::default()
    };
    PathSettings::both(settings)
}

/// A change of the network in the course of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// An access link changes its settings. The box gets no notice, just as it gets none of a change in a
    /// provider's network.
    Access {
        /// The link.
        link: usize,
        /// The new settings.
        settings: Box<PathSettings>,
    },
    /// An access link gets or loses its carrier, as when a cable is plugged in or pulled out. The box gets a
    /// notice at once. A link without carrier delivers nothing.
    Carrier {
        /// The link.
        link: usize,
        /// True if the link gets its carrier, false if it loses its carrier.
        up: bool,
    },
    /// The links between a server and the routers behind the access links change their settings. Neither box
    /// nor server gets a notice.
    ServerLinks {
        /// The server.
        server: usize,
        /// The new settings, one for each access link.
        settings: Vec<PathSettings>,
    },
    /// A server loses power and all its state.
    KillServer(usize),
    /// A server starts again.
    StartServer(usize),
    /// The box loses power.
    KillBox,
    /// The box starts again.
    StartBox,
}

/// The traffic of a user's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// The user sends a request and receives an answer of this many bytes.
    Down(u64),
    /// The user sends this many bytes.
    Up(u64),
    /// The user sends bytes and ends its direction, then receives an answer.
    Post {
        /// Bytes that the user sends.
        sends: u64,
        /// Bytes of the answer.
        answer: u64,
    },
}

impl Load {
    /// Returns the role of the user and the role of the content host.
    pub fn roles(self) -> [Role; 2] {
        match self {
            Load::Down(size) => Direction::Down.roles(size),
            Load::Up(size) => Direction::Up.roles(size),
            Load::Post { sends, answer } => {
                [Role::Upload { size: sends }, Role::Reply { size: answer }]
            }
        }
    }
}

/// A user's connection, numbered from 0 in the order of opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransferId(u32);

impl TransferId {
    /// Returns the label by which user and content host find their stream. The label is the connection's number
    /// plus 1, because the label 0 stands for a stream without a label.
    fn label(self) -> u32 {
        self.0 + 1
    }
}

/// The hosts at the ends of a user's connection.
#[derive(Debug, Clone, Copy)]
struct TransferEnds {
    user: NodeId,
    /// The content host; `None` if the caller chose another destination.
    content: Option<NodeId>,
}

/// The network of an [`AggregationConfig`] in a world.
#[derive(Debug)]
pub struct Aggregation {
    /// The world.
    pub world: World,
    /// The box, a [`BoxNode`].
    pub boxed: NodeId,
    /// Users, each a [`Host`].
    pub users: Vec<NodeId>,
    /// Servers, each a [`ServerNode`].
    pub servers: Vec<NodeId>,
    /// Content hosts, each a [`Host`].
    pub contents: Vec<NodeId>,
    /// Access links: (up, down).
    pub access: Vec<(LinkId, LinkId)>,
    /// The [`MiddleboxNode`] with the middleboxes of an access link, if the network has one.
    pub middlebox: Option<NodeId>,
    /// LAN links of the users: (up, down).
    pub lan: Vec<(LinkId, LinkId)>,
    /// The links of each server to the router behind each access link: (up, down).
    pub server_links: Vec<Vec<(LinkId, LinkId)>>,
    /// The settings that each access link has while it has its carrier.
    settings_with_carrier: Vec<PathSettings>,
    transfers: Vec<TransferEnds>,
    /// The scheduled actions by time, and at equal times by order of scheduling.
    schedule: BTreeMap<(Instant, u64), Action>,
    /// The number of actions scheduled so far.
    scheduled: u64,
}

impl Aggregation {
    /// Builds the network in a world of `seed`. The box takes a while to reach its servers; call
    /// [`run_until_intercepting`](Self::run_until_intercepting) before opening connections.
    ///
    /// # Errors
    /// Fails as [`braid_engine::Stack::listen`] does.
    pub fn new(seed: u64, config: &AggregationConfig) -> Result<Self, ApiError> {
        Self::with_middlebox(seed, config, None)
    }

    /// Builds the network with a chain of middleboxes between an access link (its number is given) and its
    /// router. The box is on their inner side.
    ///
    /// # Errors
    /// Fails as [`new`](Self::new) does.
    pub fn with_middlebox(
        seed: u64,
        config: &AggregationConfig,
        middlebox: Option<(usize, Chain)>,
    ) -> Result<Self, ApiError> {
        let mut world = World::new(seed);
        let boxed = add_box(&mut world, config);
        let mut add = |count, add_one: fn(&mut World, &AggregationConfig, usize) -> NodeId| {
            let added = (0..count).map(|n| add_one(&mut world, config, n));
            added.collect::<Vec<_>>()
        };
        let users = add(config.users.len(), add_user);
        let routers = add(config.access.len(), add_router);
        let servers = add(config.servers.len(), add_server);
        let contents = add(config.contents, add_content);
        let mut access_ends = routers.clone();
        let middlebox = middlebox.map(|(link, chain)| {
            access_ends[link] = world.add(|_| MiddleboxNode::new(chain));
            (access_ends[link], routers[link])
        });
        // `connect` numbers the interfaces of a node in the order of its calls. The routes of the nodes rely on
        // the order access links, LAN, servers, content hosts.
        let access = access_ends.iter().zip(&config.access);
        let access = access.map(|(node, path)| connect(&mut world, boxed, *node, path));
        let access = access.collect();
        if let Some((node, router)) = middlebox {
            connect(&mut world, node, router, &gigabit());
        }
        let lan = users.iter().zip(&config.users);
        let lan = lan.map(|(user, path)| connect(&mut world, *user, boxed, path));
        let lan = lan.collect();
        let ends = (&routers[..], &contents[..]);
        let server_links = config.servers.iter().zip(&servers).enumerate();
        let server_links = server_links
            .map(|(n, (settings, server))| connect_server(&mut world, settings, n, *server, ends));
        let server_links = server_links.collect();
        for router in &routers {
            for content in &contents {
                connect(&mut world, *router, *content, &gigabit());
            }
        }
        for server in &servers {
            world.with_node(*server, ServerNode::start)?;
        }
        world.with_node(boxed, BoxNode::start)?;
        Ok(Aggregation {
            world,
            boxed,
            users,
            servers,
            contents,
            access,
            middlebox: middlebox.map(|(node, _)| node),
            lan,
            server_links,
            settings_with_carrier: config.access.clone(),
            transfers: Vec::new(),
            schedule: BTreeMap::new(),
            scheduled: 0,
        })
    }

    /// Runs until the box intercepts connections. Returns false if the box does not intercept within 10 s; without
    /// a reachable server it never does.
    pub fn run_until_intercepting(&mut self) -> bool {
        let boxed = self.boxed;
        self.world.run(Duration::from_secs(10), |world| {
            let core = world.node::<BoxNode>(boxed).core();
            core.is_some_and(|core| core.wants_interception())
        })
    }

    /// Opens a connection of a user to a content host.
    ///
    /// # Errors
    /// Fails if ports or connections have run out.
    pub fn open(
        &mut self,
        user: usize,
        content: usize,
        load: Load,
    ) -> Result<TransferId, ApiError> {
        let [user_role, content_role] = load.roles();
        let id = TransferId(self.transfers.len() as u32);
        let port = u16::try_from(u32::from(FIRST_PORT) + id.0);
        let port = port.map_err(|_| ApiError::LimitReached)?;
        let addr = SocketAddr::from((content_addr(content), port));
        let mut content_stream = Stream::new(content_role);
        content_stream.label = id.label();
        let node = self.contents[content];
        self.world.serve(node, addr, content_stream)?;
        self.open_to(user, addr, user_role)?;
        self.transfers[id.0 as usize].content = Some(node);
        Ok(id)
    }

    /// Opens a connection of a user to the host at `remote`.
    ///
    /// # Errors
    /// Fails as [`Host::open`] does.
    pub fn open_to(
        &mut self,
        user: usize,
        remote: SocketAddr,
        role: Role,
    ) -> Result<TransferId, ApiError> {
        self.open_stream(user, remote, Stream::new(role))
    }

    /// Opens a connection of a user to `destination` through the SOCKS5 server of the box, with `hints` as the
    /// SOCKS5 user name. The setting `socks` of the box must name [`GATEWAY`] and the default port.
    ///
    /// # Errors
    /// Fails as [`Host::open`] does.
    pub fn open_by_box(
        &mut self,
        user: usize,
        destination: SocketAddr,
        hints: &str,
        role: Role,
    ) -> Result<TransferId, ApiError> {
        let request = [
            socks::sign_in(hints.as_bytes(), &[]),
            socks::request(None, &destination.into()),
        ];
        let mut stream = Stream::new(role);
        stream.preface = Preface::new(request.concat(), SOCKS_ANSWER);
        let gateway = SocketAddr::from((GATEWAY, config::DEFAULT_PORT));
        self.open_stream(user, gateway, stream)
    }

    fn transfer_ids(&self) -> impl Iterator<Item = TransferId> {
        (0..self.transfers.len() as u32).map(TransferId)
    }

    fn open_stream(
        &mut self,
        user: usize,
        remote: SocketAddr,
        mut stream: Stream,
    ) -> Result<TransferId, ApiError> {
        let id = TransferId(self.transfers.len() as u32);
        let user = self.users[user];
        stream.label = id.label();
        self.world.open(user, tcp_options(remote), stream)?;
        let content = None;
        self.transfers.push(TransferEnds { user, content });
        Ok(id)
    }

    /// Pauses the user's reads of a connection, or resumes them.
    pub fn pause(&mut self, id: TransferId, paused: bool) {
        let pause = |host: &mut Host, now| host.pause(now, id.label(), paused);
        self.world
            .with_node(self.transfers[id.0 as usize].user, pause);
    }

    /// Resets a connection from the user's end.
    pub fn abort(&mut self, id: TransferId) {
        let abort = |host: &mut Host, now| host.abort_labelled(now, id.label());
        self.world
            .with_node(self.transfers[id.0 as usize].user, abort);
    }

    /// Returns the user's end of a connection.
    ///
    /// # Panics
    /// Panics if the connection is not of this network.
    pub fn at_user(&self, id: TransferId) -> &Stream {
        let user = self.transfers[id.0 as usize].user;
        let stream = self.world.host(user).labelled(id.label());
        stream.expect("a host keeps the streams it opened")
    }

    /// Returns the content host's end of a connection, if the connection reached it.
    pub fn at_content(&self, id: TransferId) -> Option<&Stream> {
        let content = self.transfers[id.0 as usize].content?;
        self.world.host(content).labelled(id.label())
    }

    /// Returns the time from the user's SYN until the receiver has the last byte and the end of the stream.
    /// Returns `None` before the end has arrived.
    pub fn duration(&self, id: TransferId) -> Option<Duration> {
        let user = self.at_user(id);
        let receiver = match user.role {
            Role::Upload { .. } => self.at_content(id)?,
            _ => user,
        };
        Some(receiver.complete_at?.saturating_since(user.opened_at))
    }

    /// Returns the payload bytes that all users have received so far.
    pub fn received(&self) -> u64 {
        let streams = self.transfer_ids().map(|id| self.at_user(id).received);
        streams.sum()
    }

    /// Returns the box.
    pub fn box_node(&self) -> &BoxNode {
        self.world.node(self.boxed)
    }

    /// Returns a server.
    pub fn server_node(&self, server: usize) -> &ServerNode {
        self.world.node(self.servers[server])
    }

    /// Sends the box a request, as its control socket would. Returns `None` while the box is off.
    pub fn ask(&mut self, request: Request) -> Option<Answer> {
        let ask = |node: &mut BoxNode, now| node.ask(now, request);
        self.world.with_node(self.boxed, ask)
    }

    /// Schedules `action` at `delay` from now.
    pub fn after(&mut self, delay: Duration, action: Action) {
        self.scheduled += 1;
        let at = self.world.now() + delay;
        self.schedule.insert((at, self.scheduled), action);
    }

    /// Runs for `time` of virtual time, and carries out the actions scheduled within it.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.world.now() + time;
        while let Some(entry) = self.schedule.first_entry()
            && entry.key().0 <= end
        {
            let ((at, _), action) = entry.remove_entry();
            self.world.advance(at.saturating_since(self.world.now()));
            self.perform(action);
        }
        self.world.advance(end.saturating_since(self.world.now()));
    }

    /// Runs until `done` returns true, but at most for `limit`. Returns the last value of `done`, which is called
    /// every 10 ms of virtual time.
    pub fn run(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.world.now() + limit;
        while !done(self) {
            let left = end.saturating_since(self.world.now());
            if left.is_zero() {
                return false;
            }
            self.run_for(left.min(POLL_INTERVAL));
        }
        true
    }

    /// Runs until every connection is closed at both ends. Returns false if a connection is not closed after
    /// `limit`.
    pub fn finish(&mut self, limit: Duration) -> bool {
        self.run(limit, |net| {
            net.transfer_ids().all(|id| {
                let content = net.at_content(id);
                net.at_user(id).closed.is_some() && content.is_none_or(|s| s.closed.is_some())
            })
        })
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Access { link, settings } => {
                set_links(&mut self.world, self.access[link], &settings);
                self.settings_with_carrier[link] = *settings;
            }
            Action::Carrier { link, up } => {
                let mut settings = self.settings_with_carrier[link].clone();
                // The first `up` of each line is a direction; the second one is true if the direction delivers
                // packets.
                settings.up.up &= up;
                settings.down.up &= up;
                set_links(&mut self.world, self.access[link], &settings);
                let set = |node: &mut BoxNode, now| node.set_carrier(now, link, up);
                self.world.with_node(self.boxed, set);
            }
            Action::ServerLinks { server, settings } => {
                for (links, settings) in self.server_links[server].iter().zip(&settings) {
                    set_links(&mut self.world, *links, settings);
                }
            }
            Action::KillServer(server) => {
                let kill = |node: &mut ServerNode, _| node.kill();
                self.world.with_node(self.servers[server], kill);
            }
            Action::StartServer(server) => {
                let node = self.servers[server];
                let started = self.world.with_node(node, ServerNode::start);
                started.expect("it started before");
            }
            Action::KillBox => self.world.with_node(self.boxed, BoxNode::kill),
            Action::StartBox => {
                let started = self.world.with_node(self.boxed, BoxNode::start);
                started.expect("it started before");
            }
        }
    }
}

fn set_links(world: &mut World, (up, down): (LinkId, LinkId), settings: &PathSettings) {
    world.set_link(up, settings.up.clone());
    world.set_link(down, settings.down.clone());
}

fn connect(world: &mut World, from: NodeId, to: NodeId, path: &PathSettings) -> (LinkId, LinkId) {
    world.connect(from, to, path.up.clone(), path.down.clone())
}

/// Connects a server with the routers and content hosts, and returns its links to the routers.
fn connect_server(
    world: &mut World,
    settings: &ServerSettings,
    number: usize,
    server: NodeId,
    (routers, contents): (&[NodeId], &[NodeId]),
) -> Vec<(LinkId, LinkId)> {
    let mut server_links = Vec::new();
    for (n, router) in routers.iter().enumerate() {
        let path = settings.from_access.get(n).cloned();
        let path = path.unwrap_or_else(gigabit);
        let Some(flow) = settings.cross.get(n) else {
            server_links.push(connect(world, *router, server, &path));
            continue;
        };
        // A junction is a router that merges the packets of a source of cross traffic into those of the server.
        // Its interfaces: 0 to the router behind the access link, 1 to the server, 2 to the source.
        let addr = IpAddr::V4(server_addr(number));
        let junction = Router::new().route(addr, 1).route(all_like(addr), 0);
        let junction = world.add(|_| junction);
        let source = world.add(|rng| UdpSource::new(flow.clone(), rng));
        server_links.push(connect(world, *router, junction, &path));
        connect(world, junction, server, &gigabit());
        connect(world, source, junction, &gigabit());
    }
    for (n, content) in contents.iter().enumerate() {
        let own = settings.to_first_contents.get(n);
        connect(world, server, *content, own.unwrap_or(&settings.to_content));
    }
    server_links
}

/// Adds the box. Its interfaces: one to each router, then one to each user.
fn add_box(world: &mut World, config: &AggregationConfig) -> NodeId {
    let links = (0..config.access.len()).map(|n| LinkAddresses {
        v4: Some(link_addr(n)),
        v6: None,
        mtu: MTU,
    });
    let users = (0..config.users.len()).map(|n| IpAddr::V4(user_addr(n)));
    let settings = BoxNodeConfig {
        config: config.boxed.clone(),
        links: links.collect(),
        lan: users.collect(),
        gateway: PathConfig::v4(GATEWAY),
        downstream: config.box_downstream.clone(),
        tunnel: false,
    };
    world.add(|rng| BoxNode::new(settings, rng))
}

/// Adds a user. The host has one interface, to the box.
fn add_user(world: &mut World, _: &AggregationConfig, user: usize) -> NodeId {
    let host = HostConfig {
        engine: DownstreamConfig::default().engine,
        ..HostConfig::new(vec![PathConfig::v4(user_addr(user))])
    };
    world.add(|rng| Host::new(host, rng))
}

/// Adds a router. Its interfaces: 0 to the box, then one to each server, then one to each content host.
fn add_router(world: &mut World, config: &AggregationConfig, link: usize) -> NodeId {
    let servers = config.servers.len();
    let to_servers = (0..servers).map(|n| (server_addr(n), 1 + n));
    let to_contents = (0..config.contents).map(|n| (content_addr(n), 1 + servers + n));
    let router = Router::new()
        .reports_from(router_addr(link).into())
        .route(IpAddr::V4(link_addr(link)), 0)
        .route(IpNet::new_assert(user_addr(0).into(), 16), 0);
    let router = to_servers
        .chain(to_contents)
        .fold(router, |router, (addr, iface)| {
            router.route(IpAddr::V4(addr), iface as u32)
        });
    world.add(|_| router)
}

/// Adds a server. Its interfaces: one to each router, then one to each content host.
fn add_server(world: &mut World, config: &AggregationConfig, server: usize) -> NodeId {
    let settings = &config.servers[server];
    let links = config.access.len();
    let routers = (0..links).map(|n| (IpAddr::V4(link_addr(n)), n as u32));
    let contents = (0..config.contents).map(|n| (IpAddr::V4(content_addr(n)), (links + n) as u32));
    let settings = ServerNodeConfig {
        config: settings.config.clone(),
        routes: routers.chain(contents).collect(),
        downstream: settings.downstream.clone(),
        clock_ahead: settings.clock_ahead,
        tunnel: false,
    };
    world.add(|rng| ServerNode::new(settings, rng))
}

/// Adds a content host. Its interfaces: one to each server, then one to each router.
fn add_content(world: &mut World, config: &AggregationConfig, content: usize) -> NodeId {
    let servers = config.servers.len();
    let routes = (0..servers).map(|n| (IpAddr::V4(server_addr(n)), n as u32));
    // Packets that the box forwards keep the users' LAN addresses. Every router has a route to the LAN. Answers
    // take the first router, whichever link the box chose.
    let users = (0..config.users.len()).map(|n| (IpAddr::V4(user_addr(n)), servers as u32));
    let host = HostConfig {
        engine: DownstreamConfig::default().engine,
        routes: routes.chain(users).collect(),
        ..HostConfig::new(vec![PathConfig::v4(content_addr(content))])
    };
    world.add(|rng| Host::new(host, rng))
}
