//! The packet path of the tunnel: sockets, packet devices, routes and rules. The cores at both ends have nothing but a
//! tunnel with keys that are known in advance.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io::Read as _, io::Write as _, mem};

use braid_engine::{Event, Stack};
use braid_linux::driver::{Clock, Context, Driver, Host};
use braid_linux::net::link::{LinkSpec, NextHop};
use braid_linux::net::links::Links;
use braid_linux::net::sysctl::Sysctl;
use braid_linux::net::{InstanceNames, cleanup};
use braid_linux::nft::{BoxRules, BoxTunnel, Rules, ServerRules, ServerTunnel};
use braid_linux::run::Device;
use braid_linux::sockets::Limits;
use braid_linux::sys::cut_sent_datagrams;
use braid_linux::tun::{PacketTun, Tun};
use braid_linux::tunnel::Counters;
use braid_proxy::app::{Core, Ctx, TunnelTransmit};
use braid_proxy::config::{MptcpHosts, Quic, TunConfig};
use braid_secure::Families;
use braid_testbed::netns;
use braid_tunnel::{Config, FlowPolicy, PathConfig, PathId, Role, Secrets, SessionId, Tunnel};
use braid_wire::{Instant, Rng};
use rustix::event::{EventfdFlags, eventfd};

use crate::support::{TIMEOUT, World, wait_for};

const MTU: u16 = 1_500;
const PORT: u16 = 1080;
const LISTEN: [&str; 2] = ["192.0.1.2", "2001:db8:2::2"];
/// The addresses of the box in the tunnel.
const INNER: [&str; 2] = ["100.64.0.2", "fd64::2"];
/// The addresses of the server in the tunnel, with the ranges of the boxes' addresses.
const POOLS: [&str; 2] = ["100.64.0.1/16", "fd64::1/64"];
pub const WEB: [&str; 2] = ["11.0.0.7", "2001:db8:b::7"];
pub const BYPASSED: [&str; 2] = ["11.0.0.8", "2001:db8:b::8"];
/// A host of a private network behind the server, which the server refuses.
pub const PRIVATE: &str = "192.168.99.1";
/// The addresses by which the web host sees packets that came through the tunnel: those of the server.
pub const SERVER_SEEN: [&str; 2] = ["11.0.0.1", "2001:db8:b::1"];
/// The addresses by which the web host sees packets that were forwarded over the first link: those of the box.
pub const BOX_SEEN: [&str; 2] = ["192.0.1.1", "2001:db8:1::1"];

/// A user, a box with two links, a server, which is also a router, and a host that answers with the address of the
/// peer.
pub fn world() -> World {
    let world = World::new(&["user", "box", "server", "web"]);
    world.veth(
        ("user", "eth", "192.168.7.2/24 fd00:7::2/64"),
        ("box", "lan", "192.168.7.1/24 fd00:7::1/64"),
    );
    for n in [1, 2] {
        let addresses = |host| format!("192.0.{n}.{host}/24 2001:db8:{n}::{host}/64");
        world.veth(
            ("box", &format!("wan{n}"), &addresses(1)),
            ("server", &format!("eth{n}"), &addresses(2)),
        );
        for (family, via) in [
            ("-4", format!("192.0.{n}.2")),
            ("-6", format!("2001:db8:{n}::2")),
        ] {
            let route = format!("{family} route add default via {via} dev wan{n} metric {n}");
            world.ip("box", &route);
        }
    }
    world.veth(
        ("server", "out", "11.0.0.1/24 2001:db8:b::1/64"),
        ("web", "eth", "11.0.0.7/24 2001:db8:b::7/64"),
    );
    let beside = BYPASSED.into_iter().zip(WEB).chain([(PRIVATE, WEB[0])]);
    for (address, via) in beside {
        world.ip("web", &format!("addr add {address} dev lo"));
        world.ip("server", &format!("route add {address} via {via}"));
    }
    for (ns, via) in [("user", ["192.168.7.1", "fd00:7::1"]), ("web", SERVER_SEEN)] {
        world.ip(ns, &format!("route add default via {}", via[0]));
        world.ip(ns, &format!("-6 route add default via {}", via[1]));
    }
    // The server is also a router for what the box forwards. For `out` it is so only as a server of the tunnel.
    for (setting, value) in [
        ("ipv4/conf/eth1/forwarding", 1),
        ("ipv4/conf/eth2/forwarding", 1),
        ("ipv4/conf/out/forwarding", 0),
        ("ipv6/conf/all/forwarding", 1),
    ] {
        world.sh("server", &format!("echo {value} >/proc/sys/net/{setting}"));
    }
    serve_web(&world);
    world
}

/// Answers each datagram with the address of its sender and the datagram, and each connection with the address.
fn serve_web(world: &World) {
    for address in WEB.into_iter().chain(BYPASSED) {
        let addr = SocketAddr::new(address.parse().unwrap(), 7);
        let (socket, listener) = world.inside("web", || {
            (
                UdpSocket::bind(addr).unwrap(),
                TcpListener::bind(addr).unwrap(),
            )
        });
        thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let mut answer = format!("{} ", from.ip()).into_bytes();
                answer.extend_from_slice(&buffer[..len]);
                let _ = socket.send_to(&answer, from);
            }
        });
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let peer = stream.peer_addr().unwrap();
                let _ = stream.write_all(peer.ip().to_string().as_bytes());
            }
        });
    }
}

/// A flow of datagrams from the user to a host.
pub struct Flow {
    socket: UdpSocket,
    /// Number of datagrams sent.
    pub asked: u32,
}

impl Flow {
    pub fn to(world: &World, host: &str) -> Flow {
        let to = SocketAddr::new(host.parse().unwrap(), 7);
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = world.inside("user", || UdpSocket::bind(any).unwrap());
        socket.connect(to).unwrap();
        let interval = Duration::from_millis(20);
        socket.set_read_timeout(Some(interval)).unwrap();
        Flow { socket, asked: 0 }
    }

    /// Sends datagrams of `len` bytes until one is answered, and returns by which address the host saw the sender.
    pub fn ask(&mut self, len: usize) -> IpAddr {
        let mut answer = vec![0; len + 64];
        let asked = &mut self.asked;
        wait_for("a datagram is answered", String::new, || {
            *asked += 1;
            let mut question = vec![b'.'; len];
            question[..4].copy_from_slice(&asked.to_be_bytes());
            // An ICMP error about an earlier datagram may be reported here.
            let _ = self.socket.send(&question);
            let found = self.socket.recv(&mut answer).ok()?;
            let space = answer.iter().position(|byte| *byte == b' ')?;
            let is_same = answer[space + 5..found] == question[4..];
            assert!(is_same, "a datagram was altered");
            let from = String::from_utf8(answer[..space].to_vec()).unwrap();
            Some(from.parse().unwrap())
        })
    }

    /// Sends bursts of datagrams of `len` bytes, as QUIC does, until all of `count` are answered.
    pub fn ask_burst(&mut self, len: usize, count: usize) {
        let question =
            |number: usize| -> Vec<u8> { (0..len).map(|i| (i * 7 + number) as u8).collect() };
        let burst: Vec<u8> = (0..count).flat_map(question).collect();
        let mut missing: Vec<Vec<u8>> = (0..count).map(question).collect();
        let mut answer = vec![0; len + 64];
        wait_for("a burst is answered", String::new, || {
            cut_sent_datagrams(self.socket.as_fd(), len as u16).unwrap();
            let _ = self.socket.send(&burst);
            while !missing.is_empty() {
                let found = self.socket.recv(&mut answer).ok()?;
                let space = answer.iter().position(|byte| *byte == b' ')?;
                missing.retain(|question| *question != answer[space + 1..found]);
            }
            Some(())
        });
        cut_sent_datagrams(self.socket.as_fd(), 0).unwrap();
    }

    /// Asks until the host sees the sender by `address`.
    pub fn ask_until(&mut self, address: &str) {
        let address: IpAddr = address.parse().unwrap();
        wait_for(
            "the host sees another address",
            || format!("not {address}"),
            || (self.ask(100) == address).then_some(()),
        );
    }
}

pub fn seen(world: &World, host: &str) -> IpAddr {
    Flow::to(world, host).ask(100)
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A core that has one end of a tunnel. Its paths are the sockets.
struct Carrier(Tunnel);

impl Carrier {
    fn new(role: Role) -> Carrier {
        let session = SessionId([0x2a, 1, 2, 3, 4, 5, 6, 7]);
        let rng = Rng::for_component(33, role as u64);
        let mut tunnel = Tunnel::new(Config::default(), role, session, rng);
        let secrets = Secrets {
            of_box: [1; 32],
            of_server: [2; 32],
        };
        assert!(tunnel.install_keys(Instant::ZERO, 0, &secrets));
        for (path, address) in (0..).zip(LISTEN).filter(|_| role == Role::Box) {
            let remote = SocketAddr::new(ip(address), PORT);
            let mtu = MTU.into();
            assert!(tunnel.add_path(Instant::ZERO, PathId(path), PathConfig { remote, mtu }));
        }
        Carrier(tunnel)
    }
}

impl Core for Carrier {
    fn on_engine_event(&mut self, _: &mut Ctx<'_>, _: Event) {}

    fn next_timeout(&self) -> Option<Instant> {
        self.0.next_timeout()
    }

    fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        self.0.handle_timeout(ctx.now);
    }

    fn on_datagram(&mut self, now: Instant, path: PathId, remote: SocketAddr, datagram: &mut [u8]) {
        let from_link = braid_tunnel::Header::parse(datagram).unwrap();
        assert_eq!(from_link.path, path, "each link has its own server address");
        self.0.receive(now, remote, datagram).unwrap();
    }

    fn on_packet(&mut self, now: Instant, packet: &[u8]) {
        // A full queue drops packets, as a router does.
        let _ = self.0.send(now, FlowPolicy::default(), packet);
    }

    fn poll_datagram(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<TunnelTransmit> {
        self.0.poll_transmit(now, buf)
    }

    fn poll_packet(&mut self) -> Option<&[u8]> {
        self.0.poll_delivery()
    }
}

/// The links of an end, which follow the kernel's state.
struct Machine {
    links: Links,
    device: Device,
}

impl Host<Carrier> for Machine {
    fn sources(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        vec![(self.links.fd(), 0)]
    }

    fn on_ready(&mut self, _: u32, _: &mut Context<'_, Carrier>) {
        if self.links.has_news() {
            self.links.refresh(true).unwrap();
        }
    }
}

type End = Driver<Tun, Carrier, Machine>;

fn driver(
    role: Role,
    (tun, packet_device): (Tun, PacketTun),
    (links, device): (Links, Device),
) -> End {
    let strategy = || braid_strategy::factory(braid_strategy::DEFAULT).unwrap();
    let engine = braid_engine::Config::default();
    let stack = Stack::new(engine, Rng::for_component(33, 9), strategy());
    let host = Machine { links, device };
    let (core, limits) = (Carrier::new(role), Limits::default());
    let mut driver = Driver::new(Clock::new(), tun, stack, core, host, limits).unwrap();
    driver.tunnel.set_device(packet_device).unwrap();
    driver
}

fn tun_config(v4: &str, v6: &str) -> TunConfig {
    TunConfig {
        name: "braid0".to_owned(),
        v4: v4.parse().unwrap(),
        v6: v6.parse().unwrap(),
    }
}

fn spec(interface: String, sources: Vec<IpAddr>, exclusive: bool) -> LinkSpec {
    LinkSpec {
        interface,
        v4: NextHop::Auto,
        v6: NextHop::Auto,
        sources,
        targets: Vec::new(),
        exclusive,
    }
}

fn settings(interfaces: &[&str]) -> Vec<Sysctl> {
    let mut settings = vec![Sysctl::new("net/ipv6/conf/all/forwarding", 1)];
    for interface in interfaces {
        let key = |name| format!("net/ipv4/conf/{interface}/{name}");
        settings.push(Sysctl::new(key("forwarding"), 1));
        settings.push(Sysctl::new(key("rp_filter"), 2));
    }
    settings
}

/// Sets up the box's end.
fn box_end() -> End {
    let config = tun_config("10.215.77.0/24", "fdb7:a1d0:77::/64");
    let (tun, mut device) = Device::open(&config).unwrap();
    let packet_device = device.open_tunnel().unwrap();
    let addresses = [(ip(INNER[0]), 32), (ip(INNER[1]), 128)];
    device.change_tunnel(MTU, &addresses).unwrap();
    let specs = (0..2).map(|n| {
        let sources = vec![config.path_v4(n).into(), config.path_v6(n).into()];
        spec(format!("wan{}", n + 1), sources, true)
    });
    let mut links = Links::new(device.instance_names(), specs.collect()).unwrap();
    links.carry_tunnel();
    device
        .apply_settings(&settings(&["lan", "wan1", "wan2"]), true)
        .unwrap();
    links.install(&["lan".to_owned()]).unwrap();
    links.forward_over(0);
    let mut driver = driver(Role::Box, (tun, packet_device), (links, device));
    let instance_names = driver.host.device.instance_names();
    for path in 0..2 {
        driver
            .tunnel
            .add_link(PathId(path), instance_names.socket_mark(path));
    }
    driver
}

fn set_open(driver: &mut End, open: bool) {
    let Machine { links, device } = &mut driver.host;
    let name = device.instance_names().tunnel_device();
    let tunnel = BoxTunnel {
        device: name,
        v4: true,
        v6: true,
    };
    let rules = Rules::Box(BoxRules {
        lan: vec!["lan".to_owned()],
        links: vec!["wan1".to_owned(), "wan2".to_owned()],
        tun: "braid0".to_owned(),
        // Nothing listens there, so connections are forwarded.
        intercept_port: 1081,
        intercept_v6: true,
        families: Families::BOTH,
        bypass: BYPASSED.map(|a| ip(a).into()).to_vec(),
        reached: Vec::new(),
        servers: Vec::new(),
        ports: None,
        private: Vec::new(),
        quic: Quic::Forward,
        mptcp_hosts: MptcpHosts::Forward,
        tunnel: open.then_some(tunnel),
    });
    device.apply_rules(rules).unwrap();
    links.set_tunnel((open, open), false);
}

/// Sets up the server's end.
fn server_end() -> End {
    let config = tun_config("10.215.78.0/24", "fdb7:a1d0:78::/64");
    let (tun, mut device) = Device::open(&config).unwrap();
    let packet_device = device.open_tunnel().unwrap();
    let own: Vec<ipnet::IpNet> = POOLS.map(|pool| pool.parse().unwrap()).to_vec();
    let addresses: Vec<_> = own
        .iter()
        .map(|net| (net.addr(), net.prefix_len()))
        .collect();
    device.change_tunnel(MTU, &addresses).unwrap();
    let sources = [config.path_v4(0).into(), config.path_v6(1).into()];
    let specs = (1..).zip(sources);
    let specs = specs.map(|(n, source)| spec(format!("eth{n}"), vec![source], false));
    let mut links = Links::new(device.instance_names(), specs.collect()).unwrap();
    links.carry_tunnel();
    device.apply_settings(&settings(&["out"]), true).unwrap();
    links.install(&[]).unwrap();
    let tunnel = ServerTunnel {
        device: device.instance_names().tunnel_device(),
        v4: "100.64.0.0/16".parse().unwrap(),
        v6: "fd64::/64".parse().unwrap(),
    };
    let rules = Rules::Server(ServerRules {
        tun: config.name,
        mappings: Vec::new(),
        tunnel: Some(tunnel),
    });
    device.apply_rules(rules).unwrap();
    let mut driver = driver(Role::Server, (tun, packet_device), (links, device));
    let instance_names = driver.host.device.instance_names();
    for (path, listen) in (0..).zip(LISTEN) {
        let addr = SocketAddr::new(ip(listen), PORT);
        let mark = instance_names.socket_mark(path);
        driver.tunnel.listen(PathId(path), addr, mark).unwrap();
    }
    driver
}

enum Ask {
    /// Opens or closes the tunnel for the local network.
    Open(bool),
    /// End without cleaning up, as a killed process does.
    Die,
    /// End in order.
    End,
}

/// One end on a thread inside its namespace.
struct Running {
    requests: Sender<Ask>,
    wake: Arc<OwnedFd>,
    done: Receiver<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(world: &World, namespace: &str, set_up: fn() -> End) -> Running {
        let (requests, asked) = mpsc::channel();
        let (says_done, done) = mpsc::channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let (name, woken) = (world.name(namespace), wake.clone());
        let thread = thread::spawn(move || {
            netns::enter(&name).unwrap();
            let mut driver = set_up();
            says_done.send(driver.tunnel.counters()).unwrap();
            loop {
                driver.run(woken.as_fd(), |_| false).unwrap();
                rustix::io::read(&*woken, &mut [0; 8][..]).unwrap();
                match asked.recv().unwrap() {
                    Ask::Open(open) => set_open(&mut driver, open),
                    Ask::Die => {
                        let Machine { links, device } = driver.host;
                        mem::forget((links, device));
                        return;
                    }
                    Ask::End => return,
                }
                says_done.send(driver.tunnel.counters()).unwrap();
            }
        });
        done.recv_timeout(TIMEOUT).expect("it is set up");
        let thread = Some(thread);
        Running {
            requests,
            wake,
            done,
            thread,
        }
    }

    fn ask(&self, ask: Ask) {
        self.requests.send(ask).unwrap();
        rustix::io::write(&*self.wake, &1u64.to_ne_bytes()).unwrap();
    }

    /// Opens or closes the tunnel, and returns the counters.
    fn set_open(&self, open: bool) -> Counters {
        self.ask(Ask::Open(open));
        self.done.recv_timeout(TIMEOUT).expect("it goes on")
    }

    fn die(mut self) {
        self.ask(Ask::Die);
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.ask(Ask::End);
            let _ = thread.join();
        }
    }
}

/// Starts both ends, with the tunnel open.
fn start(world: &World) -> [Running; 2] {
    let server = Running::start(world, "server", server_end);
    let gateway = Running::start(world, "box", box_end);
    gateway.set_open(true);
    // The first datagrams prove the addresses of the paths.
    for (host, by) in WEB.into_iter().zip(SERVER_SEEN) {
        Flow::to(world, host).ask_until(by);
    }
    [gateway, server]
}

/// Checks that packets of the sizes and kinds that users send go through the tunnel.
pub fn check_packets(world: &World) {
    for (family, host) in WEB.into_iter().enumerate() {
        let by = ip(SERVER_SEEN[family]);
        assert_eq!(seen(world, host), by);
        // Fragments of a large datagram.
        assert_eq!(Flow::to(world, host).ask(9_000), by);
        // A packet of 1,500 bytes that must not be fragmented, and one that is.
        let largest = [1_472, 1_452][family];
        world.sh(
            "user",
            &format!("ping -c 1 -W 10 -M do -s {largest} {host}"),
        );
        world.sh("user", &format!("ping -c 1 -W 10 -s 5000 {host}"));
    }
}

#[test]
#[ignore = "network"]
fn what_is_not_tcp_goes_through_the_tunnel() {
    let world = world();
    let [gateway, _server] = start(&world);
    check_packets(&world);
    for (family, host) in WEB.into_iter().enumerate() {
        assert_eq!(seen(&world, BYPASSED[family]), ip(BOX_SEEN[family]));
        let to = SocketAddr::new(ip(host), 7);
        let mut text = String::new();
        let mut stream = world.inside("user", || TcpStream::connect_timeout(&to, TIMEOUT).unwrap());
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(text, BOX_SEEN[family], "connections stay on a link");
    }
    let counters = gateway.set_open(true);
    assert_eq!(counters.tx_packets_refused, 0, "{counters:?}");
    assert!(
        counters.rx_packets > 0 && counters.tx_datagrams >= counters.rx_packets,
        "{counters:?}"
    );
}

#[test]
#[ignore = "network"]
fn bursts_pass_with_few_system_calls_and_as_they_were() {
    let world = world();
    let [gateway, _server] = start(&world);
    for host in WEB {
        let before = gateway.set_open(true);
        Flow::to(&world, host).ask_burst(1_200, 40);
        let after = gateway.set_open(true);
        let packets = after.rx_packets - before.rx_packets;
        let reads = after.rx_reads - before.rx_reads;
        assert!(
            packets >= 40 && packets >= reads + 39,
            "{before:?} {after:?}"
        );
        let datagrams = after.tx_datagrams - before.tx_datagrams;
        let runs = after.tx_runs - before.tx_runs;
        assert!(datagrams > runs * 2, "{before:?} {after:?}");
        assert_eq!(after.tx_packets_refused, 0, "{after:?}");
    }
}

#[test]
#[ignore = "network"]
fn routers_answer_through_the_tunnel() {
    let world = world();
    let _ends = start(&world);
    check_routers(&world, ["100.64.0.1", "fd64::1"]);
}

/// Checks that the second router on the way is the server, which answers by these addresses.
pub fn check_routers(world: &World, routers: [&str; 2]) {
    for (host, router) in WEB.into_iter().zip(routers) {
        let ping = format!("ping -c 1 -W 10 -t 2 {host}");
        let output = world.try_sh("user", &ping);
        let text = String::from_utf8_lossy(&output.stdout).to_lowercase();
        assert!(text.contains("exceeded"), "{text}");
        assert!(text.contains(&format!("from {router}")), "{text}");
    }
}

#[test]
#[ignore = "network"]
fn the_local_network_is_forwarded_while_the_tunnel_is_down() {
    let world = world();
    let [gateway, _server] = start(&world);
    let mut flows = WEB.map(|host| Flow::to(&world, host));
    let mut check = |by: [&str; 2]| {
        for (flow, by) in flows.iter_mut().zip(by) {
            flow.ask_until(by);
        }
        for (host, by) in WEB.into_iter().zip(by) {
            assert_eq!(seen(&world, host), ip(by));
        }
    };
    check(SERVER_SEEN);
    gateway.set_open(false);
    check(BOX_SEEN);
    gateway.set_open(true);
    // Flows that began while the tunnel was down go through it too.
    check(SERVER_SEEN);
    // Rules and routes of a killed process stay, and its device vanishes.
    gateway.die();
    for (host, by) in WEB.into_iter().zip(BOX_SEEN) {
        Flow::to(&world, host).ask_until(by);
    }
    let instance_names = InstanceNames::of_tun("braid0");
    world
        .inside("box", || cleanup::cleanup(&instance_names, &[]))
        .unwrap();
    let left = world.sh("box", "nft list ruleset; ip rule; ip -6 rule; ip link");
    assert!(!left.contains("braid") && !left.contains("0xb1"), "{left}");
}

/// The kernel removes all routes of a device with its last address. It refuses IPv6 addresses where IPv6 is off.
#[test]
#[ignore = "network"]
fn addresses_of_the_packet_device_change_without_a_gap() {
    let world = World::new(&["box"]);
    world.inside("box", || {
        let config = tun_config("10.215.77.0/24", "fdb7:a1d0:77::/64");
        let (_tun, mut device) = Device::open(&config).unwrap();
        let _packets = device.open_tunnel().unwrap();
        let [first, second, v6] = ["100.64.0.2", "100.64.0.3", "fd64::2"].map(ip);
        assert!(device.change_tunnel(MTU, &[(first, 32)]).unwrap());
        world.ip("box", "route add default dev braid0t table 77");
        assert!(device.change_tunnel(MTU, &[(second, 32)]).unwrap());
        let looks = "ip route show table 77; ip -4 -brief address show dev braid0t";
        let found = world.sh("box", looks);
        assert!(found.contains("default dev braid0t"), "{found}");
        assert!(
            found.contains("100.64.0.3") && !found.contains("100.64.0.2"),
            "{found}"
        );
        world.sh(
            "box",
            "echo 1 >/proc/sys/net/ipv6/conf/braid0t/disable_ipv6",
        );
        let both = [(second, 32), (v6, 128)];
        assert!(device.change_tunnel(MTU, &both).unwrap());
        assert!(
            !device.change_tunnel(MTU, &both).unwrap(),
            "nothing is asked twice"
        );
        assert_eq!(device.tunnel_families(), (true, false));
    });
}

#[test]
#[ignore = "network"]
fn a_flow_outlives_each_link() {
    let world = world();
    let _ends = start(&world);
    let mut flows = WEB.map(|host| Flow::to(&world, host));
    for dead in ["wan1", "wan2"] {
        world.ip("box", &format!("link set {dead} down"));
        for (flow, by) in flows.iter_mut().zip(SERVER_SEEN) {
            for _ in 0..20 {
                assert_eq!(flow.ask(500), ip(by), "{dead} is down");
            }
        }
        // IPv6 addresses vanish with a link that goes down.
        world.ip("box", &format!("link set {dead} up"));
        if dead == "wan1" {
            world.ip("box", "addr add 2001:db8:1::1/64 dev wan1 nodad");
            let carries = || world.carried("box", "wan1")[0];
            let before = carries();
            wait_for(
                "the link carries again",
                || carries().to_string(),
                || {
                    assert_eq!(flows[0].ask(500), ip(SERVER_SEEN[0]));
                    (carries() > before + 2_000).then_some(())
                },
            );
        }
    }
}

#[test]
#[ignore = "network"]
fn a_box_reaches_neither_other_boxes_nor_the_server() {
    let world = world();
    let _ends = start(&world);
    let given = || world.carried("server", "braid0t")[1];
    let before = given();
    // An answer would be there at once, and so would a packet that the server turned around.
    for address in ["100.64.0.3", "fd64::3", "100.64.0.1", "fd64::1", LISTEN[0]] {
        let output = world.try_sh("user", &format!("ping -c 2 -i 0.2 -W 1 -s 1000 {address}"));
        assert!(!output.status.success(), "{address}");
    }
    // The kernel itself reports its multicast groups (RFC 3810) in small packets.
    assert!(given() < before + 1_000, "nothing came back");
    assert_eq!(seen(&world, WEB[0]), ip(SERVER_SEEN[0]), "the tunnel works");
}
