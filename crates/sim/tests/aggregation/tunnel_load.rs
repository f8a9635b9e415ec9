//! Calls and DNS in the tunnel beside a transfer through the engine over the same links.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use braid_engine::{ConnectOptions, PathConfig, Protocol};
use braid_links::{Loss, QueueLimit};
use braid_proxy::control::{Answer, Request};
use braid_proxy::tunnel_status::{TunnelFlowStatus, TunnelStatus};
use braid_proxy::{BoxConfig, ServerConfig};
use braid_sim::aggregation::{Load, content_addr, link_addr, server_addr, user_addr};
use braid_sim::gateway::{BoxNode, DownstreamConfig, ServerNode, ServerNodeConfig};
use braid_sim::host::{Host, HostConfig, options};
use braid_sim::traffic::Stream;
use braid_sim::transfer::PathSettings;
use braid_sim::udp::UdpHeader;
use braid_sim::{LinkId, Node, NodeId, Packet, Turn, World};
use braid_wire::Instant;

use crate::support::{link, millis, secs};
use crate::tunnel::{Echo, box_settings, gigabit, key, links};

/// The time between packets of a call.
const CALL_GAP: Duration = Duration::from_millis(20);
/// Bytes of the payload of a packet of a call, with which it has 200 bytes.
const CALL_PAYLOAD: usize = 172;
/// Bytes of a DNS query and of its answer.
const QUERY_PAYLOAD: usize = 60;
/// The time in which a transfer comes to its rate.
const WARM_UP: Duration = Duration::from_secs(3);

/// Returns the 99th percentile of times.
fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let at = (times.len() * 99).div_ceil(100).saturating_sub(1);
    times[at]
}

/// 99th percentiles of delays.
#[derive(Debug)]
struct Delays {
    /// The ways of packets of the call, to the server and to the box; empty without a call.
    calls: Vec<Duration>,
    /// The times from query to answer.
    queries: Duration,
}

/// One end of a call, or a host that asks: it sends packets at equal intervals that have their time of sending.
#[derive(Debug)]
pub struct Talker {
    header: UdpHeader,
    gap: Duration,
    payload: usize,
    pub next_at: Option<Instant>,
    /// True for the end that is called: it sends once it has heard the other one, to where that one is.
    answers: bool,
    /// For each packet that came, the time at which it was sent, and its way.
    pub came: Vec<(Instant, Duration)>,
}

impl Talker {
    fn new(from: SocketAddr, to: SocketAddr, gap: Duration, payload: usize) -> Self {
        Talker {
            header: UdpHeader::new(from, to),
            gap,
            payload,
            next_at: None,
            answers: false,
            came: Vec::new(),
        }
    }

    /// Returns the ways of packets that were sent from `start` on.
    fn since(&self, start: Instant) -> Vec<Duration> {
        let sent = self.came.iter().filter(|(at, _)| *at >= start);
        sent.map(|(_, way)| *way).collect()
    }
}

impl Node for Talker {
    fn receive(&mut self, turn: &mut Turn<'_>, _: u32, packet: Packet) {
        let Some((header, payload)) = UdpHeader::parse(turn, &packet.bytes) else {
            return;
        };
        let Some(micros) = payload.first_chunk() else {
            return;
        };
        let sent_at = Instant::from_micros(u64::from_be_bytes(*micros));
        self.came
            .push((sent_at, turn.now.saturating_since(sent_at)));
        if self.answers {
            self.header = UdpHeader::new(header.dst, header.src);
            self.next_at.get_or_insert(turn.now);
        }
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        if let Some(at) = self.next_at.filter(|at| *at <= turn.now) {
            let micros = turn.now.as_micros().to_be_bytes();
            let packet = self.header.packet(turn, self.payload, |payload| {
                payload[..8].copy_from_slice(&micros);
            });
            turn.send(0, packet);
            self.next_at = Some(at + self.gap);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.next_at
    }
}

/// A box with two links and three hosts in its LAN, a server, and three hosts behind it.
pub struct Net {
    pub world: World,
    boxed: NodeId,
    server: NodeId,
    pub caller: NodeId,
    pub called: NodeId,
    /// A host in the LAN to which a host behind the server sends more than both links take, once it asks for it.
    opener: NodeId,
    asker: NodeId,
    user: NodeId,
    content: NodeId,
    /// The access links, each with both directions.
    pub links: Vec<(LinkId, LinkId)>,
}

/// Returns the configurations. `second` has settings of the second link, and may have more tables.
fn configs(second: &str) -> (BoxConfig, ServerConfig) {
    let text = format!(
        "lan = \"lan0\"\n[[link]]\ninterface = \"link0\"\n[[link]]\ninterface = \"link1\"\n{second}\n\
         [server]\naddress = \"{}\"\nkey = \"{}\"\n",
        server_addr(0),
        key(100).public()
    );
    let boxed = BoxConfig::with_key("box.toml", &text, key(1)).unwrap();
    let text = format!(
        "listen = \"{}\"\nallow = [\"198.51.100.0/24\", \"198.51.101.0/24\", \"198.51.102.0/24\", \"198.51.103.0/24\"]\n\
         [[user]]\nname = \"user\"\nkey = \"{}\"\n",
        server_addr(0),
        key(1).public()
    );
    let server = ServerConfig::with_key("server.toml", &text, key(100)).unwrap();
    (boxed, server)
}

fn host(world: &mut World, addr: Ipv4Addr) -> NodeId {
    let config = HostConfig {
        engine: DownstreamConfig::default().engine,
        ..HostConfig::new(vec![PathConfig::v4(addr)])
    };
    world.add(|rng| Host::new(config, rng))
}

impl Net {
    fn new(access: Vec<PathSettings>) -> Net {
        Net::with_second_link(access, "")
    }

    pub fn with_second_link(access: Vec<PathSettings>, second: &str) -> Net {
        let mut world = World::new(1);
        let (box_config, server_config) = configs(second);
        let settings = box_settings(box_config, 4);
        let boxed = world.add(|rng| BoxNode::new(settings, rng));
        let routes = (0..2).map(|n| (IpAddr::V4(link_addr(n)), n as u32));
        let contents = (0..4).map(|n| (IpAddr::V4(content_addr(n)), 2 + n as u32));
        let settings = ServerNodeConfig {
            config: server_config,
            routes: routes.chain(contents).collect(),
            downstream: DownstreamConfig::default(),
            clock_ahead: Duration::ZERO,
            tunnel: true,
        };
        let server = world.add(|rng| ServerNode::new(settings, rng));
        let access = access.into_iter();
        let links = access.map(|path| world.connect(boxed, server, path.up, path.down));
        let links = links.collect();
        let socket = |addr, port| SocketAddr::from((addr, port));
        let (near, far) = (socket(user_addr(0), 5_000), socket(content_addr(0), 7_000));
        let caller = world.add(|_| Talker::new(near, far, CALL_GAP, CALL_PAYLOAD));
        let called = world.add(|_| Talker {
            answers: true,
            ..Talker::new(far, near, CALL_GAP, CALL_PAYLOAD)
        });
        let (from, to) = (socket(user_addr(1), 5_353), socket(content_addr(1), 53));
        let asker = world.add(|_| Talker::new(from, to, millis(70), QUERY_PAYLOAD));
        let resolver = world.add(|_| Echo::default());
        // 43 Mbit/s. The other end opens the flow.
        let (near, far) = (socket(user_addr(3), 5_001), socket(content_addr(3), 7_001));
        let opener = world.add(|_| Talker::new(near, far, secs(1), CALL_PAYLOAD));
        let flooder = world.add(|_| Talker {
            answers: true,
            ..Talker::new(far, near, Duration::from_micros(250), 1_340)
        });
        let user = host(&mut world, user_addr(2));
        let content = host(&mut world, content_addr(2));
        let wire = gigabit();
        for (from, to) in [
            (boxed, caller),
            (boxed, asker),
            (boxed, user),
            (boxed, opener),
            (server, called),
            (server, resolver),
            (server, content),
            (server, flooder),
        ] {
            world.connect(from, to, wire.up.clone(), wire.down.clone());
        }
        world.with_node(server, ServerNode::start).unwrap();
        world.with_node(boxed, BoxNode::start).unwrap();
        Net {
            world,
            boxed,
            server,
            caller,
            called,
            opener,
            asker,
            user,
            content,
            links,
        }
    }

    /// Starts a call and DNS queries.
    pub fn talk(&mut self, calls: bool, query_gap: Duration) {
        let start = |talker: &mut Talker, now| talker.next_at = Some(now);
        if calls {
            self.world.with_node(self.caller, start);
        }
        let ask = |talker: &mut Talker, now| {
            (talker.gap, talker.next_at) = (query_gap, Some(now));
        };
        self.world.with_node(self.asker, ask);
    }

    /// Starts the flow of the tunnel that is faster than both links.
    fn flood(&mut self) {
        let start = |talker: &mut Talker, now| talker.next_at = Some(now);
        self.world.with_node(self.opener, start);
    }

    /// Starts a transfer between the user and the content host.
    fn transfer(&mut self, load: Load) {
        let [user_role, content_role] = load.roles();
        let remote = SocketAddr::from((content_addr(2), 2_000));
        let options = ConnectOptions {
            protocol: Protocol::Tcp,
            ..options(remote)
        };
        self.world
            .serve(self.content, remote, Stream::new(content_role))
            .unwrap();
        self.world
            .open(self.user, options, Stream::new(user_role))
            .unwrap();
    }

    /// Returns the bytes that the transfer has moved.
    fn moved(&self) -> u64 {
        let received = |node: NodeId| {
            let host: &Host = self.world.node(node);
            host.open_streams().map(|(_, s)| s.received).sum::<u64>()
        };
        received(self.user).max(received(self.content))
    }

    /// Runs for `window`, and measures what is sent in it.
    fn measure(&mut self, window: Duration) -> Delays {
        let start = self.world.now();
        self.world.advance(window);
        let p99_at = |node: NodeId| {
            let talker: &Talker = self.world.node(node);
            talker.next_at?;
            let ways = talker.since(start);
            let expected = window.as_micros() / talker.gap.as_micros();
            // The last ones are on their way.
            assert!(
                ways.len() as u128 + 6 >= expected,
                "{} of {expected}",
                ways.len()
            );
            Some(p99(ways))
        };
        Delays {
            calls: [self.called, self.caller]
                .iter()
                .filter_map(|n| p99_at(*n))
                .collect(),
            queries: p99_at(self.asker).unwrap(),
        }
    }

    pub fn at_server(&mut self) -> TunnelStatus {
        let ask = |node: &mut ServerNode, now| node.ask(now, Request::Status);
        tunnel_of(self.world.with_node(self.server, ask))
    }

    pub fn at_box(&mut self) -> TunnelStatus {
        let ask = |node: &mut BoxNode, now| node.ask(now, Request::Status);
        tunnel_of(self.world.with_node(self.boxed, ask))
    }
}

fn tunnel_of(answer: Option<Answer>) -> TunnelStatus {
    match answer {
        Some(Answer::Status(status)) => status.tunnel.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_large_flow_is_listed_with_its_bytes_and_both_links() {
    let mut net = Net::new(links());
    net.world.advance(secs(2));
    // 22 Mbit/s, which neither link has alone.
    let (gap, payload, packet) = (Duration::from_micros(500), 1_340, 1_368);
    let start = |talker: &mut Talker, now| {
        (talker.gap, talker.payload, talker.next_at) = (gap, payload, Some(now));
    };
    net.world.with_node(net.caller, start);
    net.world.advance(secs(10));
    for node in [net.caller, net.called] {
        let stop = |talker: &mut Talker, _| {
            (talker.next_at, talker.answers) = (None, false);
        };
        net.world.with_node(node, stop);
    }
    net.world.advance(secs(1));
    let came = |node| net.world.node::<Talker>(node).came.len() as u64;
    let (up, down) = (came(net.called) * packet, came(net.caller) * 200);
    assert!(up >= 10 * 2_000 * packet * 9 / 10, "{up}");
    let (boxed, server) = (net.at_box(), net.at_server());
    let of_call = |status: &TunnelStatus| -> TunnelFlowStatus {
        let to = "198.51.100.1:7000";
        let flow = status.flows.iter().find(|flow| flow.destination == to);
        flow.unwrap_or_else(|| panic!("{status:?}")).clone()
    };
    assert_eq!((boxed.flows_total, boxed.flows.len()), (1, 1));
    assert_eq!((server.flows_total, server.sessions[0].flows), (1, 1));
    let (at_box, at_server) = (of_call(&boxed), of_call(&server));
    let source = format!("{}:5000", boxed.sessions[0].v4.unwrap());
    for flow in [&at_box, &at_server] {
        assert_eq!((&flow.source, flow.protocol.as_str()), (&source, "udp"));
        assert!((10.0..12.0).contains(&flow.age_s), "{flow:?}");
        assert!((0.9..1.1).contains(&flow.idle_s), "{flow:?}");
        assert_eq!(flow.steering.as_deref(), Some("aggregate"));
        assert_eq!(flow.urgency, Some(3));
    }
    assert_eq!(
        (at_box.user, at_server.user),
        (None, Some("user".to_owned()))
    );
    // What an end receives is exact; what it sends may be lost on the way.
    assert_eq!((at_box.bytes_down, at_server.bytes_up), (down, up));
    assert!(
        (up..up + up / 50).contains(&at_box.bytes_up),
        "{}",
        at_box.bytes_up
    );
    assert_eq!(at_server.bytes_down, down);
    let names = |paths: &[braid_proxy::tunnel_status::TunnelFlowPathStatus]| {
        paths.iter().map(|p| p.name.clone()).collect::<Vec<_>>()
    };
    let mut sorted = at_box.paths.clone();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(names(&sorted), ["link0", "link1"]);
    assert!(sorted.iter().all(|p| p.share > 0.1), "{sorted:?}");
    let sent: u64 = sorted.iter().map(|p| p.bytes_sent).sum();
    assert!(sent >= at_box.bytes_up);
    assert!((sorted.iter().map(|p| p.share).sum::<f64>() - 1.0).abs() < 1e-9);
}

/// The limits of links hold for the tunnel as for connections: neither end sends over a link that is kept for an outage.
#[test]
fn backup_and_metered_links_carry_flows_only_in_an_outage() {
    for second in ["backup = true", "metered = true"] {
        let mut net = Net::with_second_link(links(), second);
        net.world.advance(secs(2));
        // 22 Mbit/s each way, which the first link does not have alone.
        let start = |talker: &mut Talker, now| {
            (talker.gap, talker.payload) = (Duration::from_micros(500), 1_340);
            talker.next_at = (!talker.answers).then_some(now);
        };
        net.world.with_node(net.caller, start);
        net.world.with_node(net.called, start);
        net.world.advance(secs(3));
        let bytes_over = |status: &TunnelStatus, name: &str| {
            let paths = status.flows.iter().flat_map(|flow| &flow.paths);
            let over = paths.filter(|path| path.name == name);
            over.map(|p| p.bytes_sent + p.bytes_received).sum::<u64>()
        };
        let (boxed, server) = (net.at_box(), net.at_server());
        assert!(bytes_over(&boxed, "link0") > 10_000_000, "{second}");
        assert_eq!(bytes_over(&boxed, "link1"), 0, "{second}");
        let of_server = &server.sessions[0].paths;
        assert_eq!(server.flows[0].paths.len(), 1, "{second}: {of_server:?}");
        if second.starts_with("metered") {
            // Not even a probe.
            let path = boxed.sessions[0].paths.iter().find(|p| p.name == "link1");
            assert!(path.is_none_or(|p| p.datagrams_sent == 0), "{path:?}");
        }
        let off = |node: &mut BoxNode, now| node.set_carrier(now, 0, false);
        net.world.with_node(net.boxed, off);
        net.world.advance(secs(2));
        assert!(bytes_over(&net.at_box(), "link1") > 1_000_000, "{second}");
    }
}

/// The tunnel starts with the rates that connections have measured, and the reverse.
#[test]
fn connections_and_the_tunnel_learn_from_each_other() {
    let access = vec![link(60, 20), link(30, 30)];
    let rates = [60e6, 30e6];
    let mut net = Net::new(access);
    net.world.advance(secs(2));
    net.transfer(Load::Down(10_000_000));
    net.world.advance(secs(4));
    net.talk(true, millis(70));
    net.world.advance(secs(1));
    let paths = net.at_server().sessions[0].paths.clone();
    for (path, rate) in paths.iter().zip(rates) {
        // A path of which nothing is known is taken to carry a first flight each round trip: 18 Mbit/s.
        let known = path.rate.unwrap();
        assert!((0.6 * rate..1.2 * rate).contains(&known), "{path:?}");
    }
    let record = |net: &Net, n: usize| {
        let boxed: &BoxNode = net.world.node(net.boxed);
        let path = boxed.path(n).unwrap();
        let mut records = boxed.stack().unwrap().records();
        let record = records.find(|(_, of, _)| *of == path);
        record.map_or(0.0, |(.., record)| record.delivery_rate as f64 * 8.0)
    };
    let start = |talker: &mut Talker, now| {
        (talker.gap, talker.payload) = (Duration::from_micros(110), 1_340);
        talker.next_at = Some(now);
    };
    net.world.with_node(net.caller, start);
    net.world.advance(secs(4));
    for (n, rate) in rates.into_iter().enumerate() {
        let known = record(&net, n);
        assert!(
            (0.75 * rate..1.2 * rate).contains(&known),
            "link {n}: {known}"
        );
    }
}

/// The rate of an upload beside a large flow in the tunnel is a part of the path's. A call does not change it.
#[test]
fn records_beside_a_large_flow_are_lower_bounds() {
    for (payload, gap, is_lower_bound) in [
        (CALL_PAYLOAD, CALL_GAP, false),
        (1_340, Duration::from_micros(500), true),
    ] {
        let mut net = Net::new(vec![link(20, 20), link(20, 30)]);
        net.world.advance(secs(2));
        let start = |talker: &mut Talker, now| {
            (talker.gap, talker.payload, talker.next_at) = (gap, payload, Some(now));
        };
        net.world.with_node(net.caller, start);
        net.transfer(Load::Up(100_000_000));
        net.world.advance(secs(6));
        let boxed: &BoxNode = net.world.node(net.boxed);
        let records: Vec<_> = boxed.stack().unwrap().records().collect();
        assert_eq!(records.len(), 2);
        for (.., record) in records {
            assert_eq!(
                record.is_lower_bound, is_lower_bound,
                "{payload}: {record:?}"
            );
        }
    }
}

/// A large flow in the tunnel and a download each get a part of both links.
#[test]
fn neither_a_large_flow_nor_a_download_starves() {
    let mut net = Net::new(links());
    net.world.advance(secs(2));
    net.talk(true, millis(70));
    let flood = |talker: &mut Talker, _| {
        // 43 Mbit/s for 30 Mbit/s.
        (talker.gap, talker.payload) = (Duration::from_micros(250), 1_340);
    };
    net.world.with_node(net.called, flood);
    net.transfer(Load::Down(200_000_000));
    net.world.advance(secs(4));
    let moved = |net: &Net| {
        let caller: &Talker = net.world.node(net.caller);
        [net.moved(), caller.came.len() as u64 * 1_368]
    };
    let before = moved(&net);
    net.world.advance(secs(8));
    let after = moved(&net);
    let shares = [0, 1].map(|i| (after[i] - before[i]) as f64 * 8.0 / 8.0 / 30e6);
    assert!(shares.iter().all(|share| *share > 0.15), "{shares:?}");
    assert!(shares.iter().sum::<f64>() > 0.88, "{shares:?}");
}

/// A flow that gives way to a call of the tunnel does not take what it leaves for what the links can carry.
#[test]
fn a_large_flow_beside_a_call_keeps_the_links_full() {
    let mut net = Net::new(links());
    net.world.advance(secs(2));
    net.talk(true, millis(70));
    net.world.advance(secs(1));
    let idle = net.measure(secs(6));
    net.flood();
    net.world.advance(secs(30));
    let start = net.world.now();
    let loaded = net.measure(secs(10));
    let opener: &Talker = net.world.node(net.opener);
    let share = opener.since(start).len() as f64 * 1_368.0 * 8.0 / 30e6 / 10.0;
    let figures = format!("idle {idle:?}, loaded {loaded:?}; {share:.3} of the rate");
    println!("{figures}");
    assert!(share >= 0.88, "{figures}");
    for (idle, loaded) in idle.calls.into_iter().zip(loaded.calls) {
        assert!(loaded <= idle + millis(15), "{figures}");
    }
}

/// A transfer beside what is delayed by it.
struct Case {
    name: &'static str,
    access: Vec<PathSettings>,
    /// True if the transfer goes up.
    up: bool,
    /// True if there is a call beside the look-ups.
    calls: bool,
    /// True if a flow of the tunnel that is faster than both links comes down beside the transfer.
    floods: bool,
    /// The factor within which queries are answered beside the load, on the time on idle links.
    max_queries: f64,
    /// The time between DNS queries.
    query_gap: Duration,
    /// The time over which delays are measured.
    window: Duration,
}

impl Case {
    fn new(name: &'static str, access: Vec<PathSettings>) -> Self {
        Case {
            name,
            access,
            up: false,
            calls: true,
            floods: false,
            max_queries: 1.2,
            query_gap: millis(70),
            window: secs(6),
        }
    }

    /// Asserts that the call comes at most 15 ms later than on idle links, and answers within `max_queries` times their
    /// time, while the links stay full.
    #[track_caller]
    fn check(self) {
        let rates = self
            .access
            .iter()
            .map(|path| path.down.rate.mean().unwrap());
        let rate = rates.sum::<f64>() / 8.0;
        let mut net = Net::new(self.access);
        net.world.advance(secs(2));
        net.talk(self.calls, self.query_gap);
        net.world.advance(secs(1));
        let idle = net.measure(self.window);
        let size = rate as u64 * 60;
        net.transfer(if self.up {
            Load::Up(size)
        } else {
            Load::Down(size)
        });
        if self.floods {
            net.flood();
        }
        net.world.advance(WARM_UP);
        let (before, flood_start) = (net.moved(), net.world.now());
        let loaded = net.measure(self.window);
        let opener: &Talker = net.world.node(net.opener);
        let flooded = opener.since(flood_start).len() as f64 * 1_368.0;
        let whole = rate * self.window.as_secs_f64();
        let moved = (net.moved() - before) as f64;
        let (share, flood_share) = (moved / whole, flooded / whole);
        let figures = format!(
            "{}: p99 idle {idle:?}, loaded {loaded:?}; transfer {share:.3} of the rate, flood {flood_share:.3}",
            self.name
        );
        println!("{figures}");
        for (idle, loaded) in idle.calls.into_iter().zip(loaded.calls) {
            assert!(loaded <= idle + millis(15), "{figures}");
        }
        assert!(
            loaded.queries <= idle.queries.mul_f64(self.max_queries),
            "{figures}"
        );
        // Headers take 6 %, and losses halve windows.
        assert!(share + flood_share >= 0.85, "{figures}");
        let shares = [share, flood_share];
        assert!(
            !self.floods || shares.iter().all(|share| *share > 0.15),
            "{figures}"
        );
        assert_eq!(net.at_box().state, "up");
        let loaded = net.at_box().drops;
        assert!(loaded.values().all(|drops| *drops == 0), "{loaded:?}");
    }
}

#[test]
fn a_call_and_look_ups_pass_a_download() {
    Case::new("20 and 10 Mbit/s, down", links()).check();
}

#[test]
fn a_call_and_look_ups_pass_a_download_and_a_large_flow_of_the_tunnel() {
    Case {
        floods: true,
        // Each side counts bytes of the other that were sent up to 10 ms ago, and both fill the same gap.
        max_queries: 1.45,
        window: secs(20),
        ..Case::new("20 and 10 Mbit/s, down, beside a flood", links())
    }
    .check();
}

#[test]
fn a_call_and_look_ups_pass_an_upload() {
    Case {
        up: true,
        ..Case::new("20 and 10 Mbit/s, up", links())
    }
    .check();
}

#[test]
fn a_call_and_look_ups_pass_a_download_over_equal_links() {
    Case::new("50 Mbit/s twice, down", vec![link(50, 20); 2]).check();
}

#[test]
fn rare_look_ups_pass_a_download() {
    Case {
        calls: false,
        query_gap: millis(900),
        window: secs(18),
        ..Case::new("20 and 10 Mbit/s, rare look-ups", links())
    }
    .check();
}

/// Deep queues, which a loss-based congestion control fills.
#[test]
fn a_call_and_look_ups_pass_a_download_over_deep_queues() {
    let deep = |mbit: u64, rtt_ms| {
        let mut path = link(mbit, rtt_ms);
        let half_a_second = QueueLimit::Bytes(mbit * 1_000_000 / 16);
        (path.up.queue, path.down.queue) = (half_a_second, half_a_second);
        path
    };
    Case::new(
        "20 and 10 Mbit/s, queues of 500 ms",
        vec![deep(20, 30), deep(10, 70)],
    )
    .check();
}

#[test]
fn a_call_and_look_ups_pass_a_download_over_lossy_links() {
    let lossy = |mut path: PathSettings| {
        path.down.loss = Loss::Uniform(0.005);
        path
    };
    Case::new(
        "20 and 10 Mbit/s, 0.5 % lost",
        links().into_iter().map(lossy).collect(),
    )
    .check();
}
