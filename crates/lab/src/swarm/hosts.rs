//! The simulated world of a scenario without a box: a client, a server and the paths between them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use braid_engine::strategy::FlowSize;
use braid_engine::{ApiError, CloseReason, Config, ConnectOptions, PathConfig, PathId, Protocol};
use braid_links::{Change, Rate, Schedule, Settings};
use braid_sim::aggregation::Load;
use braid_sim::middlebox::MiddleboxNode;
use braid_sim::router::{Router, all_like};
use braid_sim::traffic::{Role, Stream};
use braid_sim::transfer::PathSettings;
use braid_sim::world::START;
use braid_sim::{Host, HostConfig, LinkId, NodeId, World};

use super::draw::{HostScenario, Path, external_addr};
use super::expect::{self, Ends};
use super::figures::Figures;
use super::scenario::{End, Flow, Notice, Opener, Scenario, Step, steps};

const SERVER_V4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1);
/// Port of the first flow at the server. Each later flow has the next port.
const FIRST_PORT: u16 = 4000;
/// Simulated time after the last action within which all connections must end. A connection that is still
/// open at the end of this time hangs. The slowest link takes two minutes for the largest flow without
/// loss, and several times as long at the highest loss rate.
const RUN_LIMIT: Duration = Duration::from_secs(3_600);

/// A scenario in progress.
struct ScenarioRun {
    scenario: HostScenario,
    world: World,
    server: NodeId,
    /// The client, and the hosts that share its paths.
    openers: BTreeMap<Opener, NodeId>,
    links: Vec<LinkId>,
    /// True for each flow that could be opened.
    opened: Vec<bool>,
}

impl Scenario for HostScenario {
    fn simulate(self: Box<Self>, seed: u64) -> Result<Figures, String> {
        let mut run = ScenarioRun::new(seed, *self);
        run.run()?;
        run.check()
    }
}

impl ScenarioRun {
    /// Builds the world of `scenario`, at its start.
    fn new(seed: u64, scenario: HostScenario) -> Self {
        let mut world = World::new(seed);
        let paths = scenario.paths.iter().map(|p| p.config).collect();
        let client = host_config(&scenario.client, paths);
        let client = world.add(|rng| Host::new(client, rng));
        let server_path = PathConfig {
            v6: Some(SERVER_V6),
            ..PathConfig::v4(SERVER_V4)
        };
        let mut server = host_config(&scenario.server, vec![server_path]);
        for (n, path) in scenario.paths.iter().enumerate() {
            let others = [external_addr(n), neighbour_addr(n)].map(IpAddr::V4);
            let outside = addresses(&path.config).chain(others);
            server.routes.extend(outside.map(|addr| (addr, n as u32)));
        }
        let mut run = ScenarioRun {
            server: world.add(|rng| Host::new(server, rng)),
            world,
            openers: BTreeMap::from([(Opener::Client, client)]),
            links: Vec::new(),
            opened: vec![false; scenario.flows.len()],
            scenario,
        };
        for n in 0..run.scenario.paths.len() {
            run.build_path(n);
        }
        run
    }

    /// Builds path `n` between client and server.
    fn build_path(&mut self, n: usize) {
        let world = &mut self.world;
        let path = &mut self.scenario.paths[n];
        // The nodes on the path, from the client to the last one before the server.
        let mut nodes = vec![self.openers[&Opener::Client]];
        let neighbour = path.shared.then(|| {
            nodes.push(world.add(|_| router(n, path)));
            let config = vec![PathConfig::v4(neighbour_addr(n))];
            let config = host_config(&self.scenario.client, config);
            world.add(|rng| Host::new(config, rng))
        });
        let middleboxes = path.middleboxes.take();
        nodes.extend(middleboxes.map(|chain| world.add(|_| MiddleboxNode::new(chain))));
        for pair in nodes.windows(2) {
            world.connect(pair[0], pair[1], lan_settings(), lan_settings());
        }
        let PathSettings { up, down } = path.settings.clone();
        let (up, down) = world.connect(nodes[nodes.len() - 1], self.server, up, down);
        let changes = |direction: fn(&PathSettings) -> &Settings| {
            Schedule::new(path.changes.iter().map(|(at, settings)| Change {
                at: *at,
                settings: direction(settings).clone(),
            }))
        };
        world.schedule(up, changes(|settings| &settings.up));
        world.schedule(down, changes(|settings| &settings.down));
        self.links.extend([up, down]);
        if let Some(neighbour) = neighbour {
            world.connect(nodes[1], neighbour, lan_settings(), lan_settings());
            self.openers.insert(Opener::Neighbour(n), neighbour);
        }
    }

    /// Runs to the end of all connections.
    ///
    /// # Errors
    /// A connection could not be opened, or does not end; the error describes the hosts.
    fn run(&mut self) -> Result<(), String> {
        for (at, step) in steps(&self.scenario.flows, &self.scenario.notices) {
            let now = self.world.now().saturating_since(START);
            self.world.advance(at.saturating_sub(now));
            self.take(step)?;
        }
        // Checks only every 500 ms of simulated time, because a check costs more than the simulation of a
        // packet.
        let start = self.world.now();
        while self.hosts().any(|host| host.stack().connections() > 0) {
            if self.world.now().saturating_since(start) > RUN_LIMIT {
                return Err(format!("hangs: {}", self.describe_open()));
            }
            self.world.advance(Duration::from_millis(500));
        }
        Ok(())
    }

    fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Open(n) => return self.open(n),
            Step::Abort(n, end) => {
                let abort = |host: &mut Host, now| host.abort_labelled(now, n as u32);
                self.world.with_node(self.end(n, end), abort);
            }
            Step::Pause(n, end, paused) => {
                let pause = |host: &mut Host, now| host.pause(now, n as u32, paused);
                self.world.with_node(self.end(n, end), pause);
            }
            Step::Notice(Notice { path, up, .. }) => {
                let client = self.openers[&Opener::Client];
                self.world.with_node(client, |client: &mut Host, now| {
                    client.stack_mut().set_path_up(now, PathId(path), up);
                });
            }
        }
        Ok(())
    }

    /// Opens flow `n`. The server listens at a separate port for it.
    fn open(&mut self, n: usize) -> Result<(), String> {
        let flow = &self.scenario.flows[n];
        let failed = |e: ApiError| format!("flow {n} does not open: {e}");
        let [opener, listener] = flow.load.roles();
        let port = FIRST_PORT + n as u16;
        let v4 = SocketAddr::from((SERVER_V4, port));
        let v6 = SocketAddr::from((SERVER_V6, port));
        for remote in [v4, v6] {
            let stream = stream(listener.clone(), n);
            let served = self.world.serve(self.server, remote, stream);
            served.map_err(failed)?;
        }
        let strategy = braid_strategy::by_name(flow.strategy).expect("a drawn strategy");
        let options = ConnectOptions {
            remote_alt: Some(v6),
            path: flow.path.map(PathId),
            protocol: flow.protocol,
            flow_size: match flow.load {
                Load::Down(size) | Load::Up(size) if flow.declared => FlowSize::Declared(size),
                _ => FlowSize::Unknown,
            },
            ..ConnectOptions::new(v4, strategy)
        };
        let host = self.end(n, End::Opener);
        match self.world.open(host, options, stream(opener, n)) {
            Ok(_) => self.opened[n] = true,
            // A host cannot open a connection if it was told that the flow's path, or every path, is down.
            Err(ApiError::NoUsablePath) if self.is_reported_down(flow) => {}
            Err(e) => return Err(failed(e)),
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

    /// Returns the host at an end of flow `n`.
    fn end(&self, n: usize, end: End) -> NodeId {
        match end {
            End::Server => self.server,
            End::Opener => self.openers[&self.scenario.flows[n].opener],
        }
    }

    fn hosts(&self) -> impl Iterator<Item = &Host> {
        let all = self.openers.values().chain([&self.server]);
        all.map(|host| self.world.host(*host))
    }

    /// Describes the connections that still exist, for debugging.
    fn describe_open(&self) -> String {
        let mut text = String::new();
        for host in self.hosts() {
            for (conn, stream) in host.open_streams() {
                let subflows = host.stack().subflows(conn);
                text.push_str(&format!("\n{stream:?}\n{subflows:#?}"));
            }
            text.push_str(&format!("\n{:?}", host.stack()));
        }
        text
    }

    /// Returns the ends of flow `n`, if it could be opened. An end has a stream if the opener opened the flow, or
    /// the server accepted it.
    fn ends(&self, n: usize) -> Option<Ends<'_>> {
        // With TCP Fast Open at both ends, a duplicated SYN with payload opens a connection that has no
        // opener (RFC 7413, section 6.1). A host may then have two streams of the flow. The flow's own
        // stream is the finished one, or else the one with more bytes. Otherwise it is the last one.
        let HostScenario { client, server, .. } = &self.scenario;
        let may_have_duplicate = client.fast_open && server.fast_open;
        let progress = |stream: &&Stream| {
            let finished = matches!(stream.closed, Some((_, CloseReason::Finished)));
            may_have_duplicate.then(|| (finished, stream.sent + stream.received))
        };
        let find = |end: End| {
            let finished = self.world.host(self.end(n, end)).finished().iter();
            let of_flow = finished.filter(|stream| stream.label == n as u32);
            of_flow.max_by_key(progress)
        };
        let ends = [find(End::Opener), find(End::Server)];
        self.opened[n].then(|| self.scenario.flows[n].ends(ends))
    }

    /// Checks the ends of all connections and the memory of all hosts.
    fn check(&self) -> Result<Figures, String> {
        let (scenario, ends) = (&self.scenario, |n| self.ends(n));
        let explain = |flow: &Flow, ends: &Ends<'_>| expect::explain(scenario, flow, ends);
        let mut figures = expect::check(&scenario.flows, ends, explain)?;
        let bytes: usize = self.hosts().map(|host| host.stack().buffered()).sum();
        if bytes > 0 {
            return Err(format!(
                "buffers hold {bytes} bytes after the last connection"
            ));
        }
        let fast_opened = self.hosts().map(|host| host.stack().stats().fast_opened);
        figures.fast_opened = fast_opened.sum();
        figures.record(&self.world, self.links.iter().copied());
        Ok(figures)
    }
}

/// Returns the stream of one end of flow `n`.
fn stream(role: Role, n: usize) -> Stream {
    let mut stream = Stream::new(role);
    stream.label = n as u32;
    stream
}

fn host_config(engine: &Config, paths: Vec<PathConfig>) -> HostConfig {
    HostConfig {
        engine: engine.clone(),
        strategy: Box::new(|| Box::new(braid_strategy::MinRtt)),
        ..HostConfig::new(paths)
    }
}

/// Returns the router through which the client and its neighbour share path `n`. Its interfaces have numbers in
/// the order in which [`ScenarioRun::build_path`] connects them: 0 leads to the client, 1 towards the server, 2 to
/// the neighbour.
fn router(n: usize, path: &Path) -> Router {
    let mut router = Router::new();
    for addr in addresses(&path.config) {
        router = router.route(addr, 0);
    }
    for server in [SERVER_V4.into(), SERVER_V6.into()] {
        router = router.route(all_like(server), 1);
    }
    router.route(IpAddr::V4(neighbour_addr(n)), 2)
}

fn addresses(path: &PathConfig) -> impl Iterator<Item = IpAddr> + use<> {
    let addresses = [path.v4.map(IpAddr::V4), path.v6.map(IpAddr::V6)];
    addresses.into_iter().flatten()
}

/// Returns the address of the host that shares path `n`.
fn neighbour_addr(n: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 2, n as u8, 2)
}

/// Returns the settings of the links inside a site, which are no bottleneck and lose no packets.
fn lan_settings() -> Settings {
    Settings {
        rate: Rate::bits_per_second(1_000_000_000),
        delay: Duration::from_micros(50),
        ..Settings::default()
    }
}
