//! The tunnel: UDP of a host in the LAN through box and server.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use braid_engine::PathConfig;
use braid_proxy::control::{Answer, Request};
use braid_proxy::status::Status;
use braid_proxy::tunnel_status::TunnelStatus;
use braid_proxy::{BoxConfig, LinkAddresses, ServerConfig};
use braid_secure::keys::PrivateKey;
use braid_sim::aggregation::{GATEWAY, content_addr, link_addr, server_addr, user_addr};
use braid_sim::gateway::{BoxNode, BoxNodeConfig, DownstreamConfig, ServerNode, ServerNodeConfig};
use braid_sim::tap::PacketEvent;
use braid_sim::transfer::PathSettings;
use braid_sim::udp::UdpHeader;
use braid_sim::{LinkId, Node, NodeId, Packet, Tap, Turn, World};
use braid_wire::{Instant, ip};

use crate::support::{dark, link, millis, secs};

/// The address of a host that is neither box nor server.
const STRANGER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 200);
/// The longest time without an answer when a link dies: 250 ms until both ends use the other one, whose round trip is
/// 40 ms longer.
pub const LONGEST_GAP: Duration = Duration::from_millis(290);
/// The time between datagrams of the caller.
pub const GAP: Duration = Duration::from_millis(20);

/// A host that sends numbered datagrams to an echo server, one every [`GAP`].
#[derive(Debug)]
pub struct Caller {
    header: UdpHeader,
    pub next_at: Option<Instant>,
    sent: u64,
    /// The time at which the answer to each number came.
    pub answered: BTreeMap<u64, Instant>,
    repeated: u64,
}

impl Caller {
    pub fn new() -> Self {
        let from = SocketAddr::from((user_addr(0), 5_000));
        let to = SocketAddr::from((content_addr(0), 7_000));
        Caller {
            header: UdpHeader::new(from, to),
            next_at: None,
            sent: 0,
            answered: BTreeMap::new(),
            repeated: 0,
        }
    }
}

impl Node for Caller {
    fn receive(&mut self, turn: &mut Turn<'_>, _: u32, packet: Packet) {
        if let Some((_, payload)) = UdpHeader::parse(turn, &packet.bytes)
            && let Some(number) = payload.first_chunk()
        {
            let number = u64::from_be_bytes(*number);
            let is_new = self.answered.insert(number, turn.now).is_none();
            self.repeated += u64::from(!is_new);
        }
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        if let Some(at) = self.next_at.filter(|at| *at <= turn.now) {
            let number = self.sent.to_be_bytes();
            let packet = self.header.packet(turn, 200, |payload| {
                payload[..8].copy_from_slice(&number);
            });
            turn.send(0, packet);
            self.sent += 1;
            self.next_at = Some(at + GAP);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.next_at
    }
}

/// A host that sends every datagram back.
#[derive(Debug, Default)]
pub struct Echo {
    /// The sources of datagrams, and their numbers.
    pub sources: BTreeMap<SocketAddr, u64>,
}

impl Node for Echo {
    fn receive(&mut self, turn: &mut Turn<'_>, iface: u32, packet: Packet) {
        let Some((header, payload)) = UdpHeader::parse(turn, &packet.bytes) else {
            return;
        };
        *self.sources.entry(header.src).or_default() += 1;
        let payload = payload.to_vec();
        let answer = UdpHeader::new(header.dst, header.src);
        let answer = answer.packet(turn, payload.len(), |to| to.copy_from_slice(&payload));
        turn.send(iface, answer);
    }
}

/// A host that sends what it is given, and counts what it gets.
#[derive(Debug, Default)]
struct Stranger {
    to_send: Vec<Vec<u8>>,
    bytes_sent: usize,
    bytes_received: usize,
}

impl Node for Stranger {
    fn receive(&mut self, _: &mut Turn<'_>, _: u32, packet: Packet) {
        self.bytes_received += packet.bytes.len();
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        let from = SocketAddr::from((STRANGER, 9));
        let to = SocketAddr::from((server_addr(0), 1080));
        for payload in self.to_send.drain(..) {
            let fill = |bytes: &mut [u8]| bytes.copy_from_slice(&payload);
            let packet = UdpHeader::new(from, to).packet(turn, payload.len(), fill);
            self.bytes_sent += packet.bytes.len();
            turn.send(0, packet);
        }
    }
}

/// The packets that a [`Filter`] drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Drops {
    #[default]
    Nothing,
    Udp,
    /// UDP from the box.
    UdpUp,
    Tcp,
    All,
}

/// A node between a box (interface 0) and a server that drops what it is told to.
#[derive(Debug, Default)]
pub struct Filter {
    pub drops: Drops,
}

impl Node for Filter {
    fn receive(&mut self, turn: &mut Turn<'_>, iface: u32, packet: Packet) {
        let view = ip::Packet::new(&packet.bytes[..]).unwrap();
        let is_udp = view.next_header() == ip::PROTO_UDP;
        let drops = match self.drops {
            Drops::Nothing => false,
            Drops::Udp => is_udp,
            Drops::UdpUp => is_udp && iface == 0,
            Drops::Tcp => !is_udp,
            Drops::All => true,
        };
        if !drops {
            turn.send(1 - iface, packet);
        }
    }
}

/// The payloads of datagrams that were sent on a link.
#[derive(Debug, Default)]
struct Recorder(Vec<Vec<u8>>);

impl Tap for Recorder {
    fn on_packet(&mut self, _: Instant, _: LinkId, event: PacketEvent, packet: &Packet) {
        let view = ip::Packet::new(&packet.bytes[..]).unwrap();
        if event == PacketEvent::Sent && view.next_header() == ip::PROTO_UDP {
            self.0.push(view.payload()[8..].to_vec());
        }
    }
}

/// A box with a host in its LAN, two links, a server and an echo server.
struct Net {
    world: World,
    boxed: NodeId,
    server: NodeId,
    caller: NodeId,
    echo: NodeId,
    stranger: NodeId,
    filters: Vec<NodeId>,
    links: Vec<(LinkId, LinkId)>,
    server_config: ServerConfig,
}

pub fn links() -> Vec<PathSettings> {
    vec![link(20, 30), link(10, 70)]
}

pub fn key(n: u8) -> PrivateKey {
    PrivateKey::from_seed([n; 32])
}

fn server_config(extra: &str, users: &[u8]) -> ServerConfig {
    let users = users.iter().map(|n| {
        format!(
            "[[user]]\nname = \"user{n}\"\nkey = \"{}\"\n",
            key(*n).public()
        )
    });
    let text = format!(
        "listen = \"{}\"\nallow = \"198.51.100.0/24\"\n{extra}\n{}",
        server_addr(0),
        users.collect::<String>()
    );
    ServerConfig::with_key("server.toml", &text, key(100)).unwrap()
}

fn box_config(extra: &str) -> BoxConfig {
    let text = format!(
        "lan = \"lan0\"\n{extra}\n[[link]]\ninterface = \"link0\"\n[[link]]\ninterface = \"link1\"\n\
         [server]\naddress = \"{}\"\nkey = \"{}\"\n",
        server_addr(0),
        key(100).public()
    );
    BoxConfig::with_key("box.toml", &text, key(1)).unwrap()
}

/// Returns a box with a tunnel, two links, and so many hosts in its LAN.
pub fn box_settings(config: BoxConfig, hosts: usize) -> BoxNodeConfig {
    let addresses = |n| LinkAddresses {
        v4: Some(link_addr(n)),
        v6: None,
        mtu: 1500,
    };
    BoxNodeConfig {
        config,
        links: (0..2).map(addresses).collect(),
        lan: (0..hosts).map(|n| IpAddr::V4(user_addr(n))).collect(),
        gateway: PathConfig::v4(GATEWAY),
        downstream: DownstreamConfig::default(),
        tunnel: true,
    }
}

/// Returns a fast link. Its queue takes a burst of hundreds of packets.
pub fn gigabit() -> PathSettings {
    link(1_000, 2)
}

impl Net {
    fn new(boxed: BoxConfig, server_config: ServerConfig) -> Net {
        let mut world = World::new(1);
        let settings = box_settings(boxed, 1);
        let boxed = world.add(|rng| BoxNode::new(settings, rng));
        let to = |addr: Ipv4Addr, iface| (IpAddr::V4(addr), iface);
        let settings = ServerNodeConfig {
            config: server_config.clone(),
            routes: vec![
                to(link_addr(0), 0),
                to(link_addr(1), 1),
                to(content_addr(0), 2),
                to(STRANGER, 3),
            ],
            downstream: DownstreamConfig::default(),
            clock_ahead: Duration::ZERO,
            tunnel: true,
        };
        let server = world.add(|rng| ServerNode::new(settings, rng));
        let caller = world.add(|_| Caller::new());
        let echo = world.add(|_| Echo::default());
        let stranger = world.add(|_| Stranger::default());
        let filters: Vec<_> = (0..2).map(|_| world.add(|_| Filter::default())).collect();
        let mut links_of = Vec::new();
        for (filter, path) in filters.iter().zip(links()) {
            links_of.push(world.connect(boxed, *filter, path.up, path.down));
            let wire = gigabit();
            world.connect(*filter, server, wire.up, wire.down);
        }
        for (from, to) in [(boxed, caller), (server, echo), (server, stranger)] {
            let wire = gigabit();
            world.connect(from, to, wire.up, wire.down);
        }
        world.with_node(server, ServerNode::start).unwrap();
        world.with_node(boxed, BoxNode::start).unwrap();
        Net {
            world,
            boxed,
            server,
            caller,
            echo,
            stranger,
            filters,
            links: links_of,
            server_config,
        }
    }

    /// Starts a net and a call, and runs until answers come.
    fn calling() -> Net {
        let mut net = Net::new(box_config(""), server_config("", &[1]));
        net.world.advance(secs(2));
        net.call();
        net.world.advance(secs(2));
        assert!(!net.caller().answered.is_empty(), "{:?}", net.at_box());
        net
    }

    fn call(&mut self) {
        let caller = self.caller;
        let start = |caller: &mut Caller, now| caller.next_at = Some(now);
        self.world.with_node(caller, start);
    }

    fn caller(&self) -> &Caller {
        self.world.node(self.caller)
    }

    fn status(answer: Option<Answer>) -> Status {
        match answer {
            Some(Answer::Status(status)) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn at_box(&mut self) -> TunnelStatus {
        let ask = |node: &mut BoxNode, now| node.ask(now, Request::Status);
        let status = Net::status(self.world.with_node(self.boxed, ask));
        status.tunnel.unwrap()
    }

    fn at_server(&mut self) -> TunnelStatus {
        let ask = |node: &mut ServerNode, now| node.ask(now, Request::Status);
        let status = Net::status(self.world.with_node(self.server, ask));
        status.tunnel.unwrap()
    }

    /// Makes a link dark, or as it was.
    fn set_link(&mut self, n: usize, works: bool) {
        let path = links()[n].clone();
        let path = if works { path } else { *dark(path) };
        let (up, down) = self.links[n];
        self.world.set_link(up, path.up);
        self.world.set_link(down, path.down);
    }

    fn drop(&mut self, n: usize, drops: Drops) {
        let set = |filter: &mut Filter, _| filter.drops = drops;
        self.world.with_node(self.filters[n], set);
    }

    /// Runs for `time`, and returns the longest time in it without an answer.
    fn longest_gap(&mut self, time: Duration) -> Duration {
        let start = self.world.now();
        self.world.advance(time);
        let end = self.world.now();
        let times = self.caller().answered.values().copied();
        let mut times: Vec<_> = times.filter(|at| *at >= start).collect();
        times.sort_unstable();
        times.insert(0, start);
        times.push(end);
        let gaps = times.windows(2).map(|w| w[1].saturating_since(w[0]));
        gaps.max().unwrap()
    }

    /// Returns the number of datagrams of the call that have no answer.
    fn lost(&self) -> u64 {
        self.caller().sent - self.caller().answered.len() as u64
    }

    fn sources(&self) -> Vec<(SocketAddr, u64)> {
        let echo: &Echo = self.world.node(self.echo);
        echo.sources.iter().map(|(from, n)| (*from, *n)).collect()
    }
}

#[test]
fn udp_of_the_lan_leaves_at_the_server_over_both_links() {
    let mut net = Net::calling();
    assert!(net.longest_gap(secs(5)) < GAP * 3);
    assert_eq!(net.caller().repeated, 0);
    // At most what is on its way: a round trip of 30 ms, at 20 ms a packet.
    assert!(net.lost() <= 3, "{}", net.lost());
    let from = SocketAddr::from((server_addr(0), 5_000));
    assert_eq!(net.sources().len(), 1);
    assert_eq!(net.sources()[0].0, from);
    let (boxed, server) = (net.at_box(), net.at_server());
    assert_eq!((boxed.state.as_str(), server.state.as_str()), ("up", "on"));
    let (own, session) = (&boxed.sessions[0], &server.sessions[0]);
    assert_eq!((own.v4, own.v6), (session.v4, session.v6));
    assert!(own.v4.is_some() && own.v6.is_some());
    assert_eq!(session.user.as_deref(), Some("user1"));
    assert_eq!(own.paths.len(), 2);
    assert_eq!(own.paths[0].name, "link0");
    assert!(
        own.paths
            .iter()
            .all(|p| p.usable && p.datagrams_received > 0)
    );
    // A large flow would use both; a call stays on the faster link.
    assert!(own.paths[0].datagrams_sent > own.paths[1].datagrams_sent);
}

#[test]
fn a_call_survives_the_death_of_either_link() {
    for dying in 0..2 {
        let mut net = Net::calling();
        let before = net.at_box();
        net.set_link(dying, false);
        let gap = net.longest_gap(secs(3));
        assert!(gap <= LONGEST_GAP, "link {dying}: {gap:?}");
        net.set_link(dying, true);
        let gap = net.longest_gap(secs(3));
        assert!(gap <= LONGEST_GAP, "link {dying} is back: {gap:?}");
        let after = net.at_box();
        assert_eq!(after.opened, before.opened, "the session goes on");
        assert_eq!(net.sources().len(), 1, "one address");
        assert_eq!(net.caller().repeated, 0);
    }
}

#[test]
fn a_carrier_that_goes_is_noticed_at_once() {
    let mut net = Net::calling();
    net.set_link(0, false);
    let off = |node: &mut BoxNode, now| node.set_carrier(now, 0, false);
    net.world.with_node(net.boxed, off);
    let gap = net.longest_gap(secs(3));
    assert!(gap <= LONGEST_GAP, "{gap:?}");
    assert!(!net.at_box().sessions[0].paths[0].usable);
}

#[test]
fn a_restarted_server_has_the_session_again_within_seconds() {
    let mut net = Net::calling();
    let before = net.at_box().sessions[0].clone();
    net.world
        .with_node(net.server, |node: &mut ServerNode, _| node.kill());
    net.world.advance(millis(100));
    net.world.with_node(net.server, ServerNode::start).unwrap();
    let gap = net.longest_gap(secs(10));
    assert!(gap <= secs(4), "{gap:?}");
    let after = net.at_box().sessions[0].clone();
    assert_eq!((after.v4, after.v6), (before.v4, before.v6));
    assert_eq!(net.sources().len(), 1, "the call keeps its address");
    assert!(net.at_server().drops["unknown_session"] > 0);
}

#[test]
fn a_server_that_is_away_is_found_again() {
    let mut net = Net::calling();
    net.world
        .with_node(net.server, |node: &mut ServerNode, _| node.kill());
    net.world.advance(secs(60));
    let status = net.at_box();
    assert_eq!(status.state, "down", "{status:?}");
    assert!(status.reason.is_some());
    net.world.with_node(net.server, ServerNode::start).unwrap();
    net.world.advance(secs(5));
    assert_eq!(net.at_box().state, "up");
    assert!(net.longest_gap(secs(2)) < GAP * 3);
}

#[test]
fn a_restarted_box_replaces_its_session() {
    let mut net = Net::calling();
    let before = net.at_server().sessions[0].v4;
    net.world.with_node(net.boxed, BoxNode::kill);
    net.world.with_node(net.boxed, BoxNode::start).unwrap();
    let gap = net.longest_gap(secs(5));
    assert!(gap <= secs(4), "{gap:?}");
    let status = net.at_server();
    assert_eq!((status.sessions_total, status.opened), (1, 2));
    assert_eq!(status.sessions[0].v4, before, "the same address");
}

#[test]
fn a_session_in_use_gets_fresh_keys_and_loses_nothing() {
    let mut net = Net::calling();
    let (before, lost) = (net.at_box(), net.lost());
    let gap = net.longest_gap(secs(600));
    let after = net.at_box();
    assert!(gap < GAP * 3, "{gap:?}");
    assert!(net.lost() <= lost.max(3));
    assert_eq!(after.opened, before.opened);
    // An epoch lasts 240 s.
    assert_eq!(after.rekeyed, before.rekeyed + 2);
    assert_eq!(net.at_server().rekeyed, after.rekeyed);
    // Without use, keys stay as they are.
    net.world
        .with_node(net.caller, |caller: &mut Caller, _| caller.next_at = None);
    net.world.advance(secs(300));
    let idle = net.at_box().rekeyed;
    net.world.advance(secs(1200));
    assert_eq!(net.at_box().rekeyed, idle);
    assert_eq!(
        net.at_server().sessions_total,
        1,
        "kept by what keeps NATs open"
    );
}

#[test]
fn an_idle_tunnel_is_quiet() {
    let mut net = Net::new(box_config(""), server_config("", &[1]));
    net.world.advance(secs(30));
    let sent = |net: &mut Net| {
        let (boxed, server) = (net.at_box(), net.at_server());
        let paths = boxed.sessions[0]
            .paths
            .iter()
            .chain(&server.sessions[0].paths);
        paths.map(|p| p.datagrams_sent).sum::<u64>()
    };
    let before = sent(&mut net);
    net.world.advance(secs(600));
    // At most 6 packets a minute and link, in both directions together.
    let count = sent(&mut net) - before;
    assert!(count <= 6 * 10 * 2, "{count}");
}

#[test]
fn strangers_get_no_answer_and_move_nothing() {
    let mut net = Net::calling();
    let recorder = Arc::new(Mutex::new(Recorder::default()));
    for (up, _) in net.links.clone() {
        net.world.tap(up, Box::new(Arc::clone(&recorder)));
    }
    net.world.advance(secs(1));
    let recorded = core::mem::take(&mut recorder.lock().unwrap().0);
    assert!(recorded.len() > 50);
    let changed = recorded.iter().enumerate().map(|(n, datagram)| {
        let mut datagram = datagram.clone();
        let at = n % datagram.len();
        datagram[at] ^= 1 << (n % 8);
        datagram
    });
    let cut = recorded
        .iter()
        .enumerate()
        .map(|(n, d)| d[..n % d.len()].to_vec());
    let of_nobody = (0..200u8).map(|n| vec![n; 100]);
    let all: Vec<_> = recorded
        .iter()
        .cloned()
        .chain(changed)
        .chain(cut)
        .chain(of_nobody)
        .collect();
    let count = all.len() as u64;
    let drops = |status: TunnelStatus| status.drops.values().sum::<u64>();
    let before = drops(net.at_server());
    let stranger = net.stranger;
    net.world
        .with_node(stranger, |node: &mut Stranger, _| node.to_send = all);
    let gap = net.longest_gap(secs(2));
    assert!(gap < GAP * 3, "{gap:?}");
    let got: &Stranger = net.world.node(stranger);
    assert_eq!(got.bytes_received, 0);
    assert_eq!(drops(net.at_server()) - before, count);
    assert_eq!(net.sources().len(), 1);
}

/// A datagram that an attacker holds back on a link, and then sends from elsewhere as the first, is authentic. Its new
/// address has to prove itself, and gets no more bytes than it sent until then.
#[test]
fn a_session_is_not_moved_by_datagrams_that_were_held_back() {
    let mut net = Net::calling();
    let recorder = Arc::new(Mutex::new(Recorder::default()));
    net.world
        .tap(net.links[0].0, Box::new(Arc::clone(&recorder)));
    net.set_link(0, false);
    net.world.advance(millis(100));
    let held = core::mem::take(&mut recorder.lock().unwrap().0);
    assert!(!held.is_empty());
    let stranger = net.stranger;
    net.world
        .with_node(stranger, |node: &mut Stranger, _| node.to_send = held);
    net.world.advance(secs(1));
    net.set_link(0, true);
    let gap = net.longest_gap(secs(3));
    assert!(gap <= LONGEST_GAP, "{gap:?}");
    let got: &Stranger = net.world.node(stranger);
    assert!(got.bytes_received <= got.bytes_sent, "{got:?}");
    let paths = net.at_box().sessions[0].paths.clone();
    assert!(paths.iter().all(|path| path.usable), "{paths:?}");
}

#[test]
fn a_link_without_udp_is_left_out_and_comes_back() {
    let mut net = Net::new(box_config(""), server_config("", &[1]));
    net.drop(0, Drops::Udp);
    net.world.advance(secs(2));
    net.call();
    net.world.advance(secs(2));
    assert!(net.longest_gap(secs(2)) < GAP * 3);
    assert_eq!(net.at_box().state, "up");
    net.drop(0, Drops::Nothing);
    net.world.advance(secs(5));
    let before = net.at_box().sessions[0].paths[0].datagrams_received;
    net.world.advance(secs(2));
    assert!(net.at_box().sessions[0].paths[0].datagrams_received > before + 10);
}

#[test]
fn without_udp_on_any_link_packets_are_forwarded_and_the_status_says_so() {
    let mut net = Net::new(box_config(""), server_config("", &[1]));
    net.drop(0, Drops::Udp);
    net.drop(1, Drops::Udp);
    net.world.advance(secs(20));
    let status = net.at_box();
    assert_eq!(status.state, "down");
    let reason = "no datagram (UDP) comes back on any link";
    assert_eq!(status.reason.as_deref(), Some(reason));
    net.drop(1, Drops::Nothing);
    net.world.advance(secs(60));
    assert_eq!(net.at_box().state, "up");
}

/// Datagrams of the server that still come prove nothing, so the box forwards, and does not change its mind with each.
#[test]
fn while_no_datagram_of_the_box_arrives_packets_are_forwarded() {
    let mut net = Net::calling();
    for n in 0..2 {
        net.drop(n, Drops::UdpUp);
    }
    let heard = |net: &mut Net| {
        let paths = &net.at_box().sessions[0].paths;
        paths.iter().map(|p| p.datagrams_received).sum::<u64>()
    };
    // What was on its way is there.
    net.world.advance(millis(200));
    let before = heard(&mut net);
    // A few round trips to notice it, and 5 s that an outage is waited out.
    net.world.advance(secs(7));
    for _ in 0..60 {
        net.world.advance(millis(500));
        let status = net.at_box();
        assert_ne!(status.state, "up", "{status:?}");
        let reason = "no datagram (UDP) comes back on any link";
        assert_eq!(status.reason.as_deref(), Some(reason));
    }
    assert!(heard(&mut net) > before, "datagrams of the server come");
    for n in 0..2 {
        net.drop(n, Drops::Nothing);
    }
    net.world.advance(secs(60));
    assert_eq!(net.at_box().state, "up");
    assert!(net.longest_gap(secs(2)) < GAP * 3);
}

#[test]
fn without_a_link_the_status_says_so() {
    let mut net = Net::new(box_config(""), server_config("", &[1]));
    let status = net.at_box();
    assert_eq!((status.state.as_str(), status.reason), ("asking", None));
    net.world.advance(secs(2));
    assert_eq!(net.at_box().state, "up");
    for works in [false, true] {
        for n in 0..2 {
            let set = |node: &mut BoxNode, now| node.set_carrier(now, n, works);
            net.world.with_node(net.boxed, set);
        }
        net.world.advance(secs(3));
        let status = net.at_box();
        let expected = if works {
            ("up", None)
        } else {
            ("down", Some("no link is up"))
        };
        assert_eq!((status.state.as_str(), status.reason.as_deref()), expected);
    }
}

#[test]
fn without_a_tunnel_at_either_end_the_box_has_none() {
    let refuses = server_config("datagrams = \"forward\"", &[1]);
    let mut net = Net::new(box_config(""), refuses);
    net.world.advance(secs(5));
    let status = net.at_box();
    assert_eq!(status.state, "down");
    assert_eq!(
        status.reason.as_deref(),
        Some("the server offers no tunnel")
    );
    assert_eq!(net.at_server().state, "off");
    let wants_none = box_config("datagrams = \"forward\"");
    let mut net = Net::new(wants_none, server_config("", &[1]));
    net.world.advance(secs(5));
    assert_eq!(net.at_box().state, "off");
    assert_eq!(net.at_server().opened, 0);
}

#[test]
fn the_session_of_a_removed_user_ends() {
    let mut net = Net::calling();
    let others = ServerConfig {
        users: server_config("", &[2]).users,
        ..net.server_config.clone()
    };
    let reload = |node: &mut ServerNode, now| node.reload(now, others);
    net.world.with_node(net.server, reload);
    assert_eq!(net.at_server().sessions_total, 0);
    net.world.advance(millis(200));
    let answered = net.caller().answered.len();
    net.world.advance(secs(10));
    assert_eq!(net.caller().answered.len(), answered);
    // The user comes back.
    let config = net.server_config.clone();
    let reload = |node: &mut ServerNode, now| node.reload(now, config);
    net.world.with_node(net.server, reload);
    net.world.advance(secs(60));
    assert!(net.longest_gap(secs(2)) < GAP * 3);
}

#[test]
fn other_users_come_and_the_session_goes_on() {
    let mut net = Net::calling();
    let more = ServerConfig {
        users: server_config("", &[2, 1]).users,
        ..net.server_config.clone()
    };
    let reload = |node: &mut ServerNode, now| node.reload(now, more);
    net.world.with_node(net.server, reload);
    assert!(net.longest_gap(secs(2)) < GAP * 3);
    assert_eq!(net.at_server().sessions[0].user.as_deref(), Some("user1"));
}
