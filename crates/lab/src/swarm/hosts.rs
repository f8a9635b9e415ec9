//! The simulated world of a scenario without a box: a client, a server and the paths between them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use braid_engine::strategy::FlowSize;
use braid_engine::{CloseReason, Config, ConnectOptions, PathConfig, PathId, Protocol};
use braid_links::middlebox::{
    Chain, Direction as PacketDirection, Edit, Merge, Nat, NatConfig, OptionEdit, Scope,
    SequenceShift, Split, Target,
};
use braid_links::{Change, Rate, Schedule, Settings};
use braid_sim::middlebox::MiddleboxNode;
use braid_sim::router::{Router, all_like};
use braid_sim::traffic::{Role, Stream};
use braid_sim::transfer::Direction;
use braid_sim::world::START;
use braid_sim::{Host, HostConfig, LinkId, NodeId, World};

use super::draw::{End, Flow, HostScenario, MiddleboxSpec, Notice, Opener, Path};
use super::figures::Figures;

const SERVER_V4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1);
/// Port of the first flow at the server. Each later flow has the next port.
const FIRST_PORT: u16 = 4000;
/// Bytes of a request.
const REQUEST_SIZE: u64 = 100;
/// Simulated time after the last action within which all connections must end. A connection that is still
/// open at the end of this time hangs. The slowest link takes two minutes for the largest flow without
/// loss, and several times as long at the highest loss rate.
const RUN_LIMIT: Duration = Duration::from_secs(3_600);

/// A scenario in progress.
pub struct ScenarioRun<'a> {
    scenario: &'a HostScenario,
    world: World,
    client: NodeId,
    server: NodeId,
    /// The host that shares each path, if there is one.
    neighbours: Vec<Option<NodeId>>,
    links: Vec<LinkId>,
    /// True for each flow that could be opened.
    opened: Vec<bool>,
}

/// An action on the hosts at a certain time.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// Opens the flow.
    Open(usize),
    /// Resets the flow from one end.
    Abort(usize, End),
    /// Makes an end stop reading (true) or resume it (false).
    Pause(usize, End, bool),
    /// Tells the client's engine about a path.
    Notice(Notice),
}

impl<'a> ScenarioRun<'a> {
    /// Builds the world of `scenario`, at its start.
    pub fn new(seed: u64, scenario: &'a HostScenario) -> Result<Self, String> {
        let mut world = World::new(seed);
        let paths = scenario.paths.iter().map(|p| p.config).collect();
        let client = host(&mut world, &scenario.client, paths, Vec::new());
        let routes = scenario.paths.iter().enumerate().flat_map(|(n, path)| {
            let outside = addresses_at_server(n, path)
                .into_iter()
                .chain(addresses(&neighbour_path(n)));
            outside.map(move |addr| (addr, n as u32))
        });
        let server_path = path_config(Some(SERVER_V4), Some(SERVER_V6));
        let server = host(
            &mut world,
            &scenario.server,
            vec![server_path],
            routes.collect(),
        );
        let mut run = ScenarioRun {
            scenario,
            world,
            client,
            server,
            neighbours: Vec::new(),
            links: Vec::new(),
            opened: vec![false; scenario.flows.len()],
        };
        for (n, path) in scenario.paths.iter().enumerate() {
            run.build_path(seed, n, path);
        }
        run.serve()?;
        Ok(run)
    }

    /// Builds path `n` between client and server.
    fn build_path(&mut self, seed: u64, n: usize, path: &Path) {
        let mut inside = self.client;
        let mut router_and_neighbour = None;
        if path.shared {
            // The router's interfaces have numbers in the order of the calls of `connect` below: 0 leads to the
            // client, 1 towards the server, 2 to the neighbour.
            let routes = addresses(&path.config).into_iter().map(|addr| (addr, 0));
            let neighbour = neighbour_path(n);
            let others = addresses(&neighbour).into_iter().map(|addr| (addr, 2));
            let any = [SERVER_V4.into(), SERVER_V6.into()].map(|addr| (all_like(addr), 1));
            let router = routes
                .chain(others)
                .fold(Router::new(), |r, (addr, i)| r.route(addr, i));
            let router = any
                .into_iter()
                .fold(router, |r, (all, iface)| r.route(all, iface));
            let router = self.world.add(|_| router);
            self.world
                .connect(inside, router, lan_settings(), lan_settings());
            inside = router;
            let config = &self.scenario.client;
            let host = host(&mut self.world, config, vec![neighbour], Vec::new());
            router_and_neighbour = Some((router, host));
        }
        let mut outer = self.server;
        if !path.middleboxes.is_empty() {
            let boxes = path.middleboxes.iter();
            let chain = boxes.fold(Chain::new(), |chain, m| {
                add_middlebox(chain, *m, seed, n, path)
            });
            outer = self.world.add(|_| MiddleboxNode::new(chain));
            self.world
                .connect(inside, outer, lan_settings(), lan_settings());
            inside = std::mem::replace(&mut outer, self.server);
        }
        let (up, down) = self
            .world
            .connect(inside, outer, path.up.clone(), path.down.clone());
        let changes = |pick: fn(&(Duration, Settings, Settings)) -> &Settings| {
            Schedule::new(path.changes.iter().map(|change| Change {
                at: change.0,
                settings: pick(change).clone(),
            }))
        };
        self.world.schedule(up, changes(|c| &c.1));
        self.world.schedule(down, changes(|c| &c.2));
        self.links.extend([up, down]);
        if let Some((router, neighbour)) = router_and_neighbour {
            self.world
                .connect(router, neighbour, lan_settings(), lan_settings());
        }
        self.neighbours
            .push(router_and_neighbour.map(|(_, neighbour)| neighbour));
    }

    /// Makes the server listen for each flow at a separate port.
    fn serve(&mut self) -> Result<(), String> {
        for (n, flow) in self.scenario.flows.iter().enumerate() {
            let role = match flow.direction {
                Direction::Down => Role::Answer {
                    request: REQUEST_SIZE,
                    size: flow.size,
                },
                Direction::Up => Role::Sink,
            };
            for remote in remotes(n) {
                let served = self.world.with_node(self.server, |server: &mut Host, _| {
                    server.serve(remote, stream(role.clone(), n))
                });
                served.map_err(|e| format!("cannot listen on {remote}: {e}"))?;
            }
        }
        Ok(())
    }

    /// Runs to the end of all connections.
    ///
    /// # Errors
    /// A connection could not be opened, or does not end; the error describes the hosts.
    pub fn run(&mut self) -> Result<(), String> {
        for (at, action) in self.actions() {
            let now = self.world.now().saturating_since(START);
            self.world.advance(at.saturating_sub(now));
            self.act(action)?;
        }
        let hosts: Vec<NodeId> = self.hosts().collect();
        let idle = |world: &World| {
            hosts
                .iter()
                .all(|host| world.node::<Host>(*host).stack().connections() == 0)
        };
        // Checks only every 500 ms of simulated time, because a check costs more than the simulation of a
        // packet.
        let start = self.world.now();
        while !idle(&self.world) {
            if self.world.now().saturating_since(start) > RUN_LIMIT {
                return Err(format!("hangs: {}", self.describe_open()));
            }
            self.world.advance(Duration::from_millis(500));
        }
        Ok(())
    }

    /// Returns the actions in order of time.
    fn actions(&self) -> Vec<(Duration, Action)> {
        let mut actions = Vec::new();
        for (n, flow) in self.scenario.flows.iter().enumerate() {
            actions.push((flow.at, Action::Open(n)));
            if let Some((end, after)) = flow.abort {
                actions.push((flow.at + after, Action::Abort(n, end)));
            }
            if let Some((end, after, length)) = flow.pause {
                let from = flow.at + after;
                actions.push((from, Action::Pause(n, end, true)));
                actions.push((from + length, Action::Pause(n, end, false)));
            }
        }
        let notices = self.scenario.notices.iter();
        actions.extend(notices.map(|notice| (notice.at, Action::Notice(*notice))));
        actions.sort_by_key(|(at, _)| *at);
        actions
    }

    fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Open(n) => return self.open(n),
            Action::Abort(n, end) => {
                let host = self.end(n, end);
                self.world.with_node(host, |host: &mut Host, now| {
                    host.abort_labelled(now, n as u32);
                });
            }
            Action::Pause(n, end, paused) => {
                let host = self.end(n, end);
                self.world.with_node(host, |host: &mut Host, now| {
                    host.pause(now, n as u32, paused);
                });
            }
            Action::Notice(Notice { path, up, .. }) => {
                self.world.with_node(self.client, |client: &mut Host, now| {
                    client.stack_mut().set_path_up(now, PathId(path), up);
                });
            }
        }
        Ok(())
    }

    fn open(&mut self, n: usize) -> Result<(), String> {
        let flow = &self.scenario.flows[n];
        let role = match flow.direction {
            Direction::Down => Role::Fetch {
                request: REQUEST_SIZE,
            },
            Direction::Up => Role::Upload { size: flow.size },
        };
        let [v4, v6] = remotes(n);
        let strategy = braid_strategy::by_name(flow.strategy).map_err(|e| e.to_string())?;
        let options = ConnectOptions {
            remote_alt: Some(v6),
            path: flow.path.map(PathId),
            protocol: flow.protocol,
            flow_size: match flow.declared {
                true => FlowSize::Declared(flow.size),
                false => FlowSize::Unknown,
            },
            ..ConnectOptions::new(v4, strategy)
        };
        let host = self.opener(flow);
        let opened = self.world.with_node(host, |host: &mut Host, now| {
            host.open(now, options, stream(role, n))
        });
        match opened {
            Ok(_) => self.opened[n] = true,
            // A host cannot open a connection if it was told that the flow's path, or every path, is down.
            Err(braid_engine::ApiError::NoUsablePath) if self.is_reported_down(flow) => {}
            Err(e) => return Err(format!("flow {n} does not open: {e}")),
        }
        Ok(())
    }

    /// Returns whether the opener was told that the flow's path, or every path, is down.
    fn is_reported_down(&self, flow: &Flow) -> bool {
        let down = |path: u8| {
            let mut notices = self.scenario.notices.iter();
            let last = notices.rfind(|s| s.path == path && s.at <= flow.at);
            flow.opener == Opener::Client && last.is_some_and(|s| !s.up)
        };
        match (flow.path, flow.protocol) {
            (Some(path), Protocol::Tcp) => down(path),
            _ => (0..self.scenario.paths.len() as u8).all(down),
        }
    }

    fn opener(&self, flow: &Flow) -> NodeId {
        match flow.opener {
            Opener::Client => self.client,
            Opener::Neighbour(path) => self.neighbours[path].unwrap_or(self.client),
        }
    }

    fn end(&self, n: usize, end: End) -> NodeId {
        match end {
            End::Opener => self.opener(&self.scenario.flows[n]),
            End::Server => self.server,
        }
    }

    fn hosts(&self) -> impl Iterator<Item = NodeId> {
        let neighbours = self.neighbours.iter().flatten().copied();
        [self.client, self.server].into_iter().chain(neighbours)
    }

    /// Describes the connections that still exist, for debugging.
    fn describe_open(&self) -> String {
        let mut text = String::new();
        for host in self.hosts() {
            let host = self.world.node::<Host>(host);
            for (conn, stream) in host.open_streams() {
                let subflows = host.stack().subflows(conn);
                text.push_str(&format!("\n{stream:?}\n{subflows:#?}"));
            }
            text.push_str(&format!("\n{:?}", host.stack()));
        }
        text
    }

    /// Returns the finished streams of flow `n` at the opener, if it opened the flow, and at the server, if
    /// it accepted the flow.
    pub fn ends(&self, n: usize) -> (Option<&Stream>, Option<&Stream>) {
        // With TCP Fast Open at both ends, a duplicated SYN with payload opens a connection that has no
        // opener (RFC 7413, section 6.1). A host may then have two streams of the flow. The flow's own
        // stream is the finished one, or else the one with more bytes.
        let HostScenario { client, server, .. } = &self.scenario;
        let may_have_duplicate = client.fast_open && server.fast_open;
        let progress = |stream: &&Stream| {
            let finished = stream
                .closed
                .is_some_and(|(_, why)| why == CloseReason::Finished);
            (finished, stream.sent + stream.received)
        };
        let find = |host: NodeId| {
            let finished = self.world.node::<Host>(host).finished().iter();
            let mut of_flow = finished.filter(|stream| stream.label == n as u32);
            match may_have_duplicate {
                true => of_flow.max_by_key(progress),
                false => of_flow.next_back(),
            }
        };
        (
            find(self.opener(&self.scenario.flows[n])),
            find(self.server),
        )
    }

    /// Returns whether flow `n` could be opened.
    pub fn opened(&self, n: usize) -> bool {
        self.opened[n]
    }

    /// Returns the number of payload bytes that hosts still hold.
    pub fn buffered(&self) -> usize {
        self.hosts()
            .map(|host| self.world.node::<Host>(host).stack().buffered())
            .sum()
    }

    /// Adds the traffic of the world to `figures`.
    pub fn record(&self, figures: &mut Figures) {
        let hosts = self.hosts().map(|host| self.world.node::<Host>(host));
        figures.fast_opened = hosts.map(|host| host.stack().stats().fast_opened).sum();
        figures.record(&self.world, self.links.iter().copied());
    }
}

/// Returns the bytes (read, written) of the opener and of the server at the end of a complete `flow`.
pub fn expected_bytes(flow: &Flow) -> [(u64, u64); 2] {
    match flow.direction {
        Direction::Down => [(flow.size, REQUEST_SIZE), (REQUEST_SIZE, flow.size)],
        Direction::Up => [(0, flow.size), (flow.size, 0)],
    }
}

/// Returns the server's port of a flow.
fn port(flow: usize) -> u16 {
    FIRST_PORT + flow as u16
}

/// Returns the server's addresses of a flow, IPv4 and IPv6.
fn remotes(flow: usize) -> [SocketAddr; 2] {
    let port = port(flow);
    [(SERVER_V4, port).into(), (SERVER_V6, port).into()]
}

/// Returns the stream of one end of flow `n`.
fn stream(role: Role, n: usize) -> Stream {
    let mut stream = Stream::new(role);
    stream.label = n as u32;
    stream
}

fn host(
    world: &mut World,
    engine: &Config,
    paths: Vec<PathConfig>,
    routes: Vec<(IpAddr, u32)>,
) -> NodeId {
    let config = HostConfig {
        engine: engine.clone(),
        paths,
        routes,
        strategy: Box::new(|| Box::new(braid_strategy::MinRtt)),
    };
    world.add(|rng| Host::new(config, rng))
}

fn path_config(v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>) -> PathConfig {
    PathConfig {
        v4,
        v6,
        ..PathConfig::default()
    }
}

/// Returns the only path of the host that shares path `n`.
fn neighbour_path(n: usize) -> PathConfig {
    path_config(Some(Ipv4Addr::new(10, 2, n as u8, 2)), None)
}

fn addresses(path: &PathConfig) -> Vec<IpAddr> {
    let v4 = path.v4.map(IpAddr::V4);
    v4.into_iter().chain(path.v6.map(IpAddr::V6)).collect()
}

/// Returns the external address of the NAT of path `n`, which all hosts behind it share.
fn external(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, n as u8, 2)
}

/// Returns the client's addresses on path `n` as the server sees them.
fn addresses_at_server(n: usize, path: &Path) -> Vec<IpAddr> {
    let mut all = addresses(&path.config);
    all.push(external(n).into());
    all
}

/// Returns the settings of the links inside a site, which are no bottleneck and lose no packets.
fn lan_settings() -> Settings {
    Settings {
        rate: Rate::bits_per_second(1_000_000_000),
        delay: Duration::from_micros(50),
        ..Settings::default()
    }
}

/// Adds a middlebox of path `n` to a chain.
fn add_middlebox(
    chain: Chain,
    middlebox: MiddleboxSpec,
    seed: u64,
    n: usize,
    path: &Path,
) -> Chain {
    match middlebox {
        // The NAT translates IPv4 only.
        MiddleboxSpec::Nat if path.config.v4.is_none() => chain,
        MiddleboxSpec::Nat => chain.and(Nat::new(NatConfig::new(external(n)))),
        MiddleboxSpec::Shift(false) => chain.and(SequenceShift::new(seed)),
        MiddleboxSpec::Shift(true) => chain.and(SequenceShift::new(seed).forgetting_sack()),
        MiddleboxSpec::Split(mss) => chain.and(Split::new(mss)),
        MiddleboxSpec::Merge(max_len, hold, keep) => chain.and(Merge::new(max_len, hold, keep)),
        MiddleboxSpec::Lack(kind) => {
            let edit = OptionEdit::new(Target::Kind(kind), Scope::Syn, Edit::Remove);
            chain.and(edit)
        }
        MiddleboxSpec::Options(scope, edit, since, only) => {
            let edit = OptionEdit::new(Target::MPTCP, scope, edit).since(START + since);
            chain.and(match only {
                None => edit,
                Some(true) => edit.only(PacketDirection::Outbound),
                Some(false) => edit.only(PacketDirection::Inbound),
            })
        }
    }
}
