//! Box and server in virtual time: two stacks, links with nothing but a delay, downstream sockets in memory.

pub mod downstream;
pub mod tls;

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::rc::Rc;

use braid_engine::strategy::FlowSize;
use braid_engine::{Config, ConnId, ConnectOptions, Event, PathConfig, PathId, RxMeta, Stack};
use braid_links::middlebox::{
    Direction, Edit, Middlebox, OptionEdit, Output, Packet, Scope, Target,
};
use braid_proxy::app::{self, Arrival, Core, Ctx, DownstreamId};
use braid_proxy::config::{BoxConfig, Changes, ServerConfig, UserConfig};
use braid_proxy::status::Status;
use braid_proxy::trial::Trial;
use braid_proxy::{BoxCore, Drain as _, LinkAddresses, Notice, ServerCore};
use braid_secure::channel::Versions;
use braid_secure::keys::{PrivateKey, PublicKey};
use braid_wire::{Instant, Rng, ip, tcp};

use downstream::Downstream;

pub const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
/// A second server, preferred where a test sets [`Setup::first_server`].
pub const PREFERRED: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 8);
pub const CONTENT: &str = "198.51.100.1:80";
/// Ranges of test destinations, reserved for documentation (RFC 5737).
const DOCUMENTATION: [&str; 3] = ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"];
/// The wall-clock time at the start.
pub const EPOCH: Duration = Duration::from_secs(1_800_000_000);

/// Returns the box's address on link `n`.
pub fn link_address(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 10 + n)
}

/// Returns the box's key.
pub fn box_key() -> PrivateKey {
    PrivateKey::from_seed([1; 32])
}

/// Returns the key of every server.
pub fn server_key() -> PrivateKey {
    PrivateKey::from_seed([2; 32])
}

/// A host: its stack and its downstream sockets.
pub struct Node {
    pub stack: Stack,
    pub downstream: Downstream,
    /// All connections so far.
    conns: BTreeSet<ConnId>,
}

/// A link between box and server.
#[derive(Clone, Copy)]
pub struct Link {
    pub one_way: Duration,
    /// Drops every packet.
    pub dark: bool,
    /// Share of packets that are lost.
    pub loss: f64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    at: Reverse<Instant>,
    order: Reverse<u64>,
    to_server: bool,
    to_portal: bool,
    packet: Vec<u8>,
    gso_size: u16,
}

/// The process of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Box,
    Server,
}

/// Packets that a TUN device queues for a process that does not read (Linux's default `txqueuelen`).
const DEVICE_QUEUE: usize = 500;

/// A middlebox: gets each packet, and whether it goes towards the server; returns whether it passes.
pub type Tamper = Box<dyn FnMut(bool, &mut Vec<u8>) -> bool>;

/// A captive portal: answers TCP on a link in the server's place; nothing else passes there.
pub struct Portal {
    pub link: usize,
    /// The answer to every connection, before it is closed; `None` stays silent.
    pub says: Option<&'static [u8]>,
    /// Bytes that it received.
    pub heard: usize,
    stack: Stack,
}

pub struct World {
    pub now: Instant,
    pub config: BoxConfig,
    pub boxed: Node,
    pub core: BoxCore,
    pub paths: Vec<PathId>,
    pub server: Option<(Node, ServerCore)>,
    pub server_config: ServerConfig,
    /// The server at [`PREFERRED`].
    pub preferred: Option<(Node, ServerCore)>,
    pub links: Vec<Link>,
    /// A host without a core, at [`Ipv4Addr`] 192.0.2.100.
    pub raw: Stack,
    pub raw_events: Vec<Event>,
    pub notices: Vec<(Instant, Notice)>,
    /// A trial of a host at [`TRIAL`].
    pub trial: Option<Trial>,
    /// The contents for a restarted server.
    pub contents: Downstream,
    /// Packets on the wire with their direction (towards the server), recorded while `Some`.
    pub wire: Option<Vec<(bool, Vec<u8>)>>,
    pub tamper: Option<Tamper>,
    pub portal: Option<Portal>,
    /// Links whose network strips the options of Multipath TCP.
    pub strips: Vec<usize>,
    /// The side whose process stands still.
    still: Option<Side>,
    /// Packets that arrived for that side meanwhile.
    unread: Vec<Flying>,
    flying: BinaryHeap<Flying>,
    order: u64,
    seeds: u64,
    rng: Rng,
}

/// Changes to the two configuration files.
#[derive(Default, Clone, Copy)]
pub struct Setup<'a> {
    /// Lines above the links.
    pub boxed: &'a str,
    /// Most idle connections of the box.
    pub warm: usize,
    /// Lines after `interface` of the last link.
    pub last_link: &'a str,
    /// Address of a preferred server.
    pub first_server: Option<&'a str>,
    /// Lines above the user.
    pub server: &'a str,
    /// The server's user, where this is not the box.
    pub user: Option<PublicKey>,
    /// The box's connections are plaintext.
    pub clear: bool,
    /// The protocol versions of box and server, where they differ from this release's.
    pub versions: Option<[Versions; 2]>,
    /// Changes to the stacks' settings.
    pub tweak: Option<fn(&mut Config)>,
}

/// Returns the TCP payload of a packet.
pub fn payload(packet: &[u8]) -> &[u8] {
    let (_, segment) = ip::Repr::parse(packet).unwrap();
    let segment = tcp::Packet::new(segment).unwrap();
    let len = segment.payload().len();
    &packet[packet.len() - len..]
}

const RAW: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 100);
pub const TRIAL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 101);

fn stack(mut config: Config, seed: u64, setup: &Setup<'_>) -> Stack {
    config.memory = 64 << 20;
    if let Some(tweak) = setup.tweak {
        tweak(&mut config);
    }
    let strategy = || braid_strategy::by_name("minrtt").unwrap();
    Stack::new(config, Rng::for_component(1, seed), Box::new(strategy))
}

fn configs(links: usize, setup: &Setup<'_>) -> (BoxConfig, ServerConfig) {
    let tables: Vec<String> = (0..links)
        .map(|i| format!("[[link]]\ninterface = \"wan{i}\"\n"))
        .collect();
    let key = server_key().public();
    let protection = if setup.clear { "none" } else { "tls" };
    let key = format!("key = \"{key}\"\nprotection = \"{protection}\"");
    let first = setup
        .first_server
        .map(|a| format!("[[server]]\naddress = \"{a}\"\n{key}\n"));
    let text = format!(
        "lan = \"lan0\"\nexpert.idle_pool_size = {}\n{}\n{}{}\n{}[[server]]\naddress = \"{SERVER}\"\n{key}\n",
        setup.warm,
        setup.boxed,
        tables.concat(),
        setup.last_link,
        first.unwrap_or_default(),
    );
    let mut config = BoxConfig::with_key("box.toml", &text, box_key()).unwrap();
    let user = setup.user.unwrap_or(box_key().public());
    let insists = setup.server.contains("unprotected");
    let unprotected = if insists { "" } else { "unprotected = true\n" };
    let text = format!(
        "{unprotected}listen = \"{SERVER}\"\n{}\n[[user]]\nname = \"box\"\nkey = \"{user}\"\n",
        setup.server
    );
    let mut server_config = ServerConfig::with_key("server.toml", &text, server_key()).unwrap();
    for range in DOCUMENTATION {
        server_config.allow.push(range.parse().unwrap());
    }
    if let Some(versions) = setup.versions {
        [config.versions, server_config.versions] = versions;
    }
    (config, server_config)
}

fn server_node(
    address: Ipv4Addr,
    config: &ServerConfig,
    contents: &Downstream,
    seed: u64,
    setup: &Setup<'_>,
) -> Node {
    let mut stack = stack(config.engine(), seed, setup);
    let path = stack.add_path(PathConfig::v4(address)).unwrap();
    stack.set_path_up(Instant::ZERO, path, true);
    stack.listen(SocketAddr::from((address, 1080))).unwrap();
    let downstream = Downstream {
        contents: contents.contents.clone(),
        names: contents.names.clone(),
        ..Downstream::default()
    };
    Node {
        stack,
        downstream,
        conns: BTreeSet::new(),
    }
}

impl World {
    /// Creates a box with `links` links (10 ms and 25 ms one way, …) and a server; nothing has run yet.
    pub fn new(links: usize, setup: Setup<'_>) -> World {
        let (config, server_config) = configs(links, &setup);
        let now = Instant::from_millis(1_000);
        let strategy = || braid_strategy::by_name("minrtt").unwrap();
        let mut boxed = Node {
            stack: stack(config.engine(), 1, &setup),
            downstream: Downstream::default(),
            conns: BTreeSet::new(),
        };
        let mut core = BoxCore::new(&config, Rng::for_component(1, 2), Box::new(strategy));
        core.set_wall_clock(now, EPOCH);
        let paths = (0..links)
            .map(|i| {
                let addresses = LinkAddresses {
                    v4: Some(link_address(i as u8)),
                    v6: None,
                    mtu: 1500,
                };
                core.add_link(now, i, addresses, &mut boxed.stack).unwrap()
            })
            .collect();
        let contents = Downstream::default();
        let node = server_node(SERVER, &server_config, &contents, 3, &setup);
        let mut server = ServerCore::new(&server_config);
        server.set_wall_clock(now, EPOCH);
        let mut raw = stack(Config::default(), 4, &setup);
        let path = raw.add_path(PathConfig::v4(RAW)).unwrap();
        raw.set_path_up(now, path, true);
        let delays = (0..links).map(|i| Link {
            one_way: Duration::from_millis(10 + 15 * i as u64),
            dark: false,
            loss: 0.0,
        });
        World {
            now,
            config,
            boxed,
            core,
            paths,
            server: Some((node, server)),
            server_config,
            preferred: None,
            links: delays.collect(),
            raw,
            raw_events: Vec::new(),
            notices: Vec::new(),
            trial: None,
            contents,
            wire: None,
            tamper: None,
            portal: None,
            strips: Vec::new(),
            still: None,
            unread: Vec::new(),
            flying: BinaryHeap::new(),
            order: 0,
            seeds: 10,
            rng: Rng::for_component(1, 5),
        }
    }

    /// Creates a world with all links up.
    pub fn up(links: usize, setup: Setup<'_>) -> World {
        let mut world = World::new(links, setup);
        for i in 0..links {
            world.set_link(i, true);
        }
        world
    }

    /// Creates a world in which the first probes are answered.
    pub fn ready(links: usize, setup: Setup<'_>) -> World {
        let mut world = World::up(links, setup);
        world.run_for(Duration::from_millis(500));
        assert!(world.core.wants_interception(), "the server was found");
        world
    }

    /// Creates a world whose box has had a connection, and so has a ticket for the next.
    pub fn met(links: usize, setup: Setup<'_>) -> World {
        let mut world = World::ready(links, setup);
        let greeter = "198.51.100.250:80";
        world.content(greeter, downstream::Content::Sends(b"x".to_vec(), true));
        let user = world.open(greeter, &[], true);
        world.run_until(|w| w.user(user).closed);
        world.run_for(Duration::from_millis(500));
        world
    }

    pub fn set_link(&mut self, link: usize, up: bool) {
        let path = self.paths[link];
        self.core
            .set_link_up(self.now, path, up, &mut self.boxed.stack);
    }

    /// Sets the behaviour of a destination.
    pub fn content(&mut self, addr: &str, content: downstream::Content) {
        let addr = addr.parse().unwrap();
        self.contents.contents.insert(addr, content.clone());
        let servers = self.server.iter_mut().chain(&mut self.preferred);
        for (node, _) in servers {
            node.downstream.contents.insert(addr, content.clone());
        }
    }

    /// Connects a user.
    pub fn open(&mut self, destination: &str, sends: &[u8], ends: bool) -> DownstreamId {
        let to = (Arrival::Intercepted, destination.parse().unwrap());
        self.boxed.downstream.open(to, sends.to_vec(), ends)
    }

    /// Connects a SOCKS client to the box.
    pub fn knock(&mut self, sends: &[u8]) -> DownstreamId {
        let to = (Arrival::Addressed, "192.168.1.1:1080".parse().unwrap());
        self.boxed.downstream.open(to, sends.to_vec(), false)
    }

    /// Returns the flow sizes of the connections at the server.
    pub fn sizes_at_server(&self) -> Vec<FlowSize> {
        let (node, _) = self.server.as_ref().unwrap();
        let stats = node.conns.iter().filter_map(|c| node.stack.conn_stats(*c));
        stats.map(|s| s.flow_size).collect()
    }

    pub fn user(&self, id: DownstreamId) -> &downstream::Stream {
        self.boxed.downstream.stream(id)
    }

    pub fn server(&self) -> &ServerCore {
        &self.server.as_ref().unwrap().1
    }

    pub fn server_downstream(&mut self) -> &mut Downstream {
        &mut self.server.as_mut().unwrap().0.downstream
    }

    /// Returns the only open downstream stream of the server.
    pub fn only_content(&mut self) -> DownstreamId {
        let streams = &self.server_downstream().streams;
        assert_eq!(streams.len(), 1);
        *streams.keys().next().unwrap()
    }

    /// Kills the server: all its state is gone.
    pub fn kill_server(&mut self) {
        self.server = None;
    }

    /// Stops the process of one side for a time, as SIGSTOP does. Its timers wait, as do the events of users and
    /// destinations, and as many packets as its device queues.
    pub fn stand_still(&mut self, side: Side, time: Duration) {
        self.still = Some(side);
        self.run_for(time);
        self.still = None;
        for flying in core::mem::take(&mut self.unread) {
            self.deliver(&flying);
        }
        self.serve_timers();
    }

    pub fn start_server(&mut self) {
        self.seeds += 1;
        let setup = Setup::default();
        let (config, seed) = (&self.server_config, self.seeds);
        let node = server_node(SERVER, config, &self.contents, seed, &setup);
        let mut core = ServerCore::new(&self.server_config);
        let wall = EPOCH + self.now.saturating_since(Instant::from_millis(1_000));
        core.set_wall_clock(self.now, wall);
        self.server = Some((node, core));
    }

    /// Starts the server at [`PREFERRED`], with the key and users of the other one.
    pub fn start_preferred(&mut self) {
        let setup = Setup::default();
        let node = server_node(PREFERRED, &self.server_config, &self.contents, 7, &setup);
        let mut core = ServerCore::new(&self.server_config);
        core.set_wall_clock(self.now, EPOCH);
        self.preferred = Some((node, core));
    }

    /// Reloads the server with other users.
    pub fn set_users(&mut self, users: &[(&str, PublicKey)]) {
        let user = |(name, key): &(&str, PublicKey)| UserConfig {
            name: (*name).to_owned(),
            key: *key,
        };
        self.server_config.users = users.iter().map(user).collect();
        let (node, core) = self.server.as_mut().unwrap();
        core.reload(&mut node.ctx(self.now), &self.server_config);
    }

    /// Reloads the box with its configuration after `edit`; returns the changes, and the paths of removed links.
    pub fn reload_box(&mut self, edit: impl FnOnce(&mut BoxConfig)) -> (Changes, Vec<PathId>) {
        let mut new = self.config.clone();
        edit(&mut new);
        let changes = self.config.reload(new);
        let left = self
            .core
            .reload(&mut self.boxed.ctx(self.now), &self.config);
        (changes, left)
    }

    /// Adds link number `link` of the box's configuration, up at once, at path `place` if given; packets take
    /// `one_way` each way.
    pub fn plug_in(&mut self, link: usize, one_way: Duration, place: Option<PathId>) -> PathId {
        let at = place.map_or(self.links.len(), |path| usize::from(path.0));
        let addresses = LinkAddresses {
            v4: Some(link_address(at as u8)),
            v6: None,
            mtu: 1500,
        };
        let new = Link {
            one_way,
            dark: false,
            loss: 0.0,
        };
        let (now, stack) = (self.now, &mut self.boxed.stack);
        let path = if let Some(path) = place {
            self.links[at] = new;
            self.core
                .replace_link(now, path, (link, addresses), stack)
                .unwrap()
        } else {
            self.links.push(new);
            let path = self.core.add_link(now, link, addresses, stack).unwrap();
            self.paths.push(path);
            path
        };
        self.core.set_link_up(now, path, true, stack);
        path
    }

    /// Removes the path of a removed link from the box.
    pub fn remove_path(&mut self, path: PathId) {
        self.core.remove_path(self.now, path, &mut self.boxed.stack);
    }

    /// Returns the status of the box.
    pub fn box_status(&self) -> Status {
        self.core.status(self.now, &self.boxed.stack)
    }

    /// Returns the status of the server.
    pub fn server_status(&self) -> Status {
        let (node, core) = self.server.as_ref().unwrap();
        core.status(self.now, &node.stack)
    }

    /// Starts the graceful stop of the server; see [`Drain`].
    pub fn drain_server(&mut self) {
        let (node, core) = self.server.as_mut().unwrap();
        core.drain(&mut node.ctx(self.now));
    }

    /// Ends the server's remaining connections.
    pub fn close_server(&mut self) {
        let (node, _) = self.server.as_mut().unwrap();
        node.stack.close(self.now);
    }

    /// Returns the number of connections of the server's engine.
    pub fn server_conns(&self) -> usize {
        let (node, _) = self.server.as_ref().unwrap();
        node.stack.connections()
    }

    pub fn drain_box(&mut self) {
        self.core.drain(&mut self.boxed.ctx(self.now));
    }

    pub fn close_box(&mut self) {
        self.boxed.stack.close(self.now);
    }

    /// Returns the wall-clock time, milliseconds since 1970-01-01 UTC.
    pub fn unix_ms(&self) -> u64 {
        let since = EPOCH + self.now.saturating_since(Instant::from_millis(1_000));
        since.as_millis() as u64
    }

    /// Returns the box's first flight for a user who sends `says`, in a world of one link. None of it reaches the
    /// server, and the user leaves.
    pub fn hold_first_flight(&mut self, says: &[u8]) -> Vec<u8> {
        let flight = Rc::new(RefCell::new(Vec::new()));
        let (held, mut first) = (Rc::clone(&flight), None);
        self.tamper = Some(Box::new(move |to_server, packet| {
            let payload = payload(packet);
            if !to_server || payload.is_empty() {
                return true;
            }
            let (_, segment) = ip::Repr::parse(packet).unwrap();
            let seq = tcp::Packet::new(segment).unwrap().seq().0;
            let at = seq.wrapping_sub(*first.get_or_insert(seq));
            let mut held = held.borrow_mut();
            // Skip retransmissions.
            if at as usize == held.len() {
                held.extend_from_slice(payload);
            }
            false
        }));
        let user = self.open(CONTENT, says, false);
        self.run_for(Duration::from_millis(100));
        self.boxed.downstream.break_stream(user);
        self.run_for(Duration::from_millis(100));
        self.tamper = None;
        flight.take()
    }

    /// Connects the host without a core to the server.
    pub fn raw_connect(&mut self) -> ConnId {
        let strategy = braid_strategy::by_name("minrtt").unwrap();
        let options = ConnectOptions::new(SocketAddr::from((SERVER, 1080)), strategy);
        let conn = self.raw.connect(self.now, options).unwrap();
        self.run_for(Duration::from_millis(100));
        conn
    }

    /// Returns the bytes that have arrived at the host without a core.
    pub fn raw_read(&mut self, conn: ConnId) -> Vec<u8> {
        let mut got = Vec::new();
        loop {
            let read = self.raw.read_with(self.now, conn, |bufs| {
                let all: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
                got.extend_from_slice(&all);
                Ok::<_, braid_engine::ApiError>(all.len())
            });
            if !matches!(read, Ok(1..)) {
                return got;
            }
        }
    }

    pub fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        self.run_to(end, |_| false);
    }

    /// Runs until `done`, at most for a virtual minute.
    pub fn run_until(&mut self, done: impl FnMut(&mut World) -> bool) {
        let end = self.now + Duration::from_secs(60);
        assert!(self.run_to(end, done), "nothing happened for a minute");
    }

    fn run_to(&mut self, end: Instant, mut done: impl FnMut(&mut World) -> bool) -> bool {
        let (mut steps, mut since) = (0, self.now);
        loop {
            steps += 1;
            if self.now.saturating_since(since) > Duration::from_millis(100) {
                (steps, since) = (0, self.now);
            }
            assert!(steps < 100_000, "time stands still: {:?}", self.times());
            self.settle();
            if done(self) {
                return true;
            }
            match self.next() {
                Some(next) if next <= end => self.now = next.max(self.now),
                _ => {
                    self.now = end;
                    return false;
                }
            }
            self.expire();
        }
    }

    fn next(&self) -> Option<Instant> {
        self.times().into_iter().flatten().min()
    }

    /// Returns the times at which packets, the host without a core, box and server are due.
    fn times(&self) -> Vec<Option<Instant>> {
        let mut times = vec![self.flying.peek().map(|f| f.at.0), self.raw.next_timeout()];
        times.extend(self.portal.as_ref().map(|p| p.stack.next_timeout()));
        times.push(self.trial.as_ref().and_then(Trial::next_timeout));
        if self.still != Some(Side::Box) {
            times.push(self.boxed.stack.next_timeout());
            times.push(self.core.next_timeout());
        }
        if let Some((node, core)) = &self.server
            && self.still != Some(Side::Server)
        {
            times.push(node.stack.next_timeout());
            times.push(core.next_timeout());
        }
        if let Some((node, core)) = &self.preferred {
            times.extend([node.stack.next_timeout(), core.next_timeout()]);
        }
        times
    }

    fn expire(&mut self) {
        let now = self.now;
        while self.flying.peek().is_some_and(|f| f.at.0 <= now) {
            let flying = self.flying.pop().unwrap();
            let side = if flying.to_server {
                Side::Server
            } else {
                Side::Box
            };
            if self.still != Some(side) {
                self.deliver(&flying);
            } else if self.unread.len() < DEVICE_QUEUE {
                self.unread.push(flying);
            }
        }
        if self.raw.next_timeout().is_some_and(|at| at <= now) {
            self.raw.handle_timeout(now);
        }
        if let Some(portal) = &mut self.portal
            && portal.stack.next_timeout().is_some_and(|at| at <= now)
        {
            portal.stack.handle_timeout(now);
        }
        let due = |trial: &&mut Trial| trial.next_timeout().is_some_and(|at| at <= now);
        if let Some(trial) = self.trial.as_mut().filter(due) {
            trial.handle_timeout(now);
        }
        self.serve_timers();
    }

    fn deliver(&mut self, flying: &Flying) {
        let meta = RxMeta {
            checksum_ok: true,
            gso_size: flying.gso_size,
        };
        let (now, packet) = (self.now, &flying.packet);
        if flying.to_portal {
            if let Some(portal) = &mut self.portal {
                portal.stack.receive(now, packet, meta);
            }
            return;
        }
        let (header, _) = ip::Repr::parse(packet).unwrap();
        if flying.to_server {
            let server = match header.dst == IpAddr::V4(PREFERRED) {
                true => &mut self.preferred,
                false => &mut self.server,
            };
            if let Some((node, _)) = server {
                node.stack.receive(now, packet, meta);
            }
            return;
        }
        if header.dst == IpAddr::V4(RAW) {
            self.raw.receive(now, packet, meta);
        } else if let (Some(trial), true) = (&mut self.trial, header.dst == IpAddr::V4(TRIAL)) {
            trial.receive(now, packet);
        } else {
            self.boxed.stack.receive(now, packet, meta);
        }
    }

    fn serve_timers(&mut self) {
        let now = self.now;
        if self.still != Some(Side::Box) {
            app::serve_timers(&mut self.core, &mut self.boxed.ctx(now));
        }
        if let Some((node, core)) = &mut self.server
            && self.still != Some(Side::Server)
        {
            app::serve_timers(core, &mut node.ctx(now));
        }
        if let Some((node, core)) = &mut self.preferred {
            app::serve_timers(core, &mut node.ctx(now));
        }
    }

    /// Processes events and packets until there are none.
    fn settle(&mut self) {
        let now = self.now;
        let mut sent = Vec::new();
        if self.still != Some(Side::Box) {
            turn(now, &mut self.core, &mut self.boxed, &mut sent);
        }
        self.fly(&mut sent, true);
        if let Some((node, core)) = &mut self.server
            && self.still != Some(Side::Server)
        {
            turn(now, core, node, &mut sent);
        }
        if let Some((node, core)) = &mut self.preferred {
            turn(now, core, node, &mut sent);
        }
        self.fly(&mut sent, false);
        while let Some(event) = self.raw.poll_event() {
            self.raw_events.push(event);
        }
        drain(now, &mut self.raw, &mut sent);
        if let Some(trial) = &mut self.trial {
            sent.extend(core::iter::from_fn(|| Some((trial.poll_transmit(now)?, 0))));
        }
        self.fly(&mut sent, true);
        if let Some(mut portal) = self.portal.take() {
            portal.serve(now, &mut sent);
            let link = portal.link;
            self.portal = Some(portal);
            let one_way = self.links[link].one_way;
            for (packet, gso_size) in sent.drain(..) {
                self.launch(one_way, (packet, gso_size), (false, false));
            }
        }
        while let Some(notice) = self.core.poll_notice() {
            self.notices.push((now, notice));
        }
    }

    fn fly(&mut self, sent: &mut Vec<(Vec<u8>, u16)>, to_server: bool) {
        for (mut packet, gso_size) in sent.drain(..) {
            let tamper = self.tamper.as_mut();
            if tamper.is_some_and(|tamper| !tamper(to_server, &mut packet)) {
                continue;
            }
            let (header, _) = ip::Repr::parse(&packet).unwrap();
            let inner = if to_server { header.src } else { header.dst };
            let link = (0..self.links.len()).find(|i| inner == link_address(*i as u8));
            let now = self.now;
            let to_portal = self.portal.as_ref().filter(|p| link == Some(p.link));
            let to_portal = match to_portal {
                // The server's own packets do not pass the portal.
                Some(_) if !to_server => continue,
                Some(_) => {
                    packet = strip(now, packet);
                    true
                }
                None => false,
            };
            if link.is_some_and(|link| self.strips.contains(&link)) {
                packet = strip(now, packet);
            }
            let link = link.map(|i| self.links[i]);
            if let Some(wire) = &mut self.wire {
                wire.push((to_server, packet.clone()));
            }
            let there = self.preferred.is_some() && header.dst == IpAddr::V4(PREFERRED);
            if to_server && header.dst != IpAddr::V4(SERVER) && !there {
                continue;
            }
            if link.is_some_and(|l| l.dark || self.rng.chance(l.loss)) {
                continue;
            }
            let one_way = link.map_or(Duration::from_millis(5), |l| l.one_way);
            self.launch(one_way, (packet, gso_size), (to_server, to_portal));
        }
    }

    fn launch(
        &mut self,
        one_way: Duration,
        (packet, gso_size): (Vec<u8>, u16),
        (to_server, to_portal): (bool, bool),
    ) {
        self.order += 1;
        self.flying.push(Flying {
            at: Reverse(self.now + one_way),
            order: Reverse(self.order),
            to_server,
            to_portal,
            packet,
            gso_size,
        });
    }

    /// Puts a captive portal on a link.
    pub fn put_portal(&mut self, link: usize, says: Option<&'static [u8]>) {
        let mut stack = stack(Config::default(), 6, &Setup::default());
        let path = stack.add_path(PathConfig::v4(SERVER)).unwrap();
        stack.set_path_up(self.now, path, true);
        stack.listen(SocketAddr::from((SERVER, 1080))).unwrap();
        self.portal = Some(Portal {
            link,
            says,
            heard: 0,
            stack,
        });
    }
}

/// Strips the options of Multipath TCP.
fn strip(now: Instant, packet: Vec<u8>) -> Vec<u8> {
    let mut out = Output::new();
    let mut network = OptionEdit::new(Target::MPTCP, Scope::All, Edit::Remove);
    network.process(now, Direction::Outbound, Packet::new(packet), &mut out);
    out.pop_front()
        .map(|(_, packet)| packet.bytes)
        .unwrap_or_default()
}

impl Portal {
    fn serve(&mut self, now: Instant, sent: &mut Vec<(Vec<u8>, u16)>) {
        while let Some(event) = self.stack.poll_event() {
            let conn = event.conn();
            if !matches!(event, Event::Readable { .. }) {
                continue;
            }
            let read = self.stack.read_with(now, conn, |bufs| {
                Ok::<_, braid_engine::ApiError>(bufs.iter().map(|b| b.len()).sum())
            });
            self.heard += read.unwrap_or(0);
            if let Some(says) = self.says {
                let _ = self.stack.write(now, conn, says);
                let _ = self.stack.shutdown(now, conn);
            }
        }
        drain(now, &mut self.stack, sent);
    }
}

impl Node {
    fn ctx(&mut self, now: Instant) -> Ctx<'_> {
        Ctx {
            now,
            stack: &mut self.stack,
            downstream: &mut self.downstream,
        }
    }
}

/// Processes events as a driver does after each call.
fn turn(now: Instant, core: &mut dyn Core, node: &mut Node, sent: &mut Vec<(Vec<u8>, u16)>) {
    loop {
        let mut idle = true;
        while let Some(event) = node.stack.poll_event() {
            node.conns.insert(event.conn());
            core.on_engine_event(&mut node.ctx(now), event);
            idle = false;
        }
        while let Some(event) = node.downstream.events.pop_front() {
            // A core must get no event of a stream that it has forgotten.
            let gone =
                |id: &DownstreamId| node.downstream.streams.get(id).is_some_and(|s| s.closed);
            if event.ends_id() || !gone(&event.id()) {
                core.on_downstream_event(&mut node.ctx(now), event);
            }
            idle = false;
        }
        if idle {
            break;
        }
    }
    drain(now, &mut node.stack, sent);
}

fn drain(now: Instant, stack: &mut Stack, sent: &mut Vec<(Vec<u8>, u16)>) {
    while let Some(transmit) = stack.poll_transmit(now) {
        let mut packet = transmit.header.to_vec();
        for part in &transmit.payload {
            packet.extend_from_slice(part);
        }
        sent.push((packet, transmit.gso_size));
    }
}
