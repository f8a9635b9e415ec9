//! Interception of the local network's connections.

use std::collections::BTreeMap;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use braid_linux::net::link::{LinkSpec, NextHop};
use braid_linux::net::links::Links;
use braid_linux::net::sysctl::Sysctl;
use braid_linux::nft::{BoxRules, Rules};
use braid_linux::run::Device;
use braid_linux::sockets::{Limits, Sockets};
use braid_proxy::app::{
    Arrival, DownstreamError, DownstreamEvent, DownstreamId, DownstreamSockets,
};
use braid_proxy::config::{MptcpHosts, Quic, TunConfig};
use braid_secure::Families;
use braid_testbed::netns;
use rustix::event::{Timespec, epoll};

use crate::support::{TIMEOUT, World, wait_for};

const WEB: [&str; 2] = ["198.51.100.7", "2001:db8:7::7"];
const BYPASSED: [&str; 2] = ["198.51.100.8", "2001:db8:7::8"];
/// The addresses at which the box itself listens for its local network.
const OWN: [&str; 2] = ["192.168.7.1:1080", "[fd00:7::1]:1080"];

/// A user, a box with a local network and one link, and a host that answers "direct" on port 80.
pub struct Net {
    pub world: World,
}

impl Net {
    pub fn new() -> Net {
        let world = World::new(&["user", "box", "web"]);
        world.veth(
            ("user", "eth", "192.168.7.2/24 fd00:7::2/64"),
            ("box", "lan", "192.168.7.1/24 fd00:7::1/64"),
        );
        world.veth(
            ("box", "wan", "192.0.2.1/24 2001:db8::1/64"),
            ("web", "eth", "192.0.2.2/24 2001:db8::2/64"),
        );
        for (ns, via) in [
            ("user", ["192.168.7.1", "fd00:7::1"]),
            ("box", ["192.0.2.2", "2001:db8::2"]),
        ] {
            world.ip(ns, &format!("route add default via {}", via[0]));
            world.ip(ns, &format!("-6 route add default via {}", via[1]));
        }
        for address in WEB.iter().chain(&BYPASSED) {
            world.ip("web", &format!("addr add {address} dev lo"));
        }
        world.inside("web", || {
            for any in ["0.0.0.0", "::"] {
                let addr = SocketAddr::new(any.parse().unwrap(), 80);
                let listener = listen_only(addr);
                thread::spawn(move || {
                    for stream in listener.incoming() {
                        let _ = stream.and_then(|mut s| s.write_all(b"direct"));
                    }
                });
            }
        });
        Net { world }
    }

    /// Returns the text that a user gets who connects to `to`.
    pub fn fetch(&self, to: &str) -> String {
        let to = SocketAddr::new(to.parse().unwrap(), 80);
        self.world.inside("user", || {
            let mut stream = TcpStream::connect_timeout(&to, TIMEOUT).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            read_all(&mut stream)
        })
    }
}

fn read_all(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Returns a listener of one address family, so that both can have the port.
fn listen_only(addr: SocketAddr) -> TcpListener {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};
    let family = if addr.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let fd = socket(family, SocketType::STREAM, None).unwrap();
    if addr.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true).unwrap();
    }
    bind(&fd, &addr).unwrap();
    listen(&fd, 128).unwrap();
    TcpListener::from(fd)
}

enum Ask {
    /// Opens or closes interception; answered once that is done.
    Interception(bool),
    /// End without cleaning up, as a killed process does.
    Die,
    /// End in order.
    End,
}

/// The box's side of interception, on a thread inside its namespace. It tells each user the destination and
/// the DSCP of the connection, and echoes the rest.
pub struct Interception {
    /// The box's namespace.
    namespace: String,
    send_request: Sender<Ask>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Interception {
    pub fn start(net: &Net, quic: Quic) -> Interception {
        Interception::start_with(net, (quic, MptcpHosts::Forward))
    }

    fn start_with(net: &Net, policies: (Quic, MptcpHosts)) -> Interception {
        let (send_request, requests) = mpsc::channel();
        let (says_done, done) = mpsc::channel();
        let namespace = net.world.name("box");
        let name = namespace.clone();
        let thread = thread::spawn(move || {
            netns::enter(&name).unwrap();
            serve(policies, &requests, &says_done);
        });
        let interception = Interception {
            namespace,
            send_request,
            done,
            thread: Some(thread),
        };
        interception.set(true);
        interception
    }

    fn set(&self, open: bool) {
        self.send_request.send(Ask::Interception(open)).unwrap();
        self.done.recv().expect("the interception goes on");
        if !open {
            // All listeners but the box's own.
            self.wait_until_closed(&["-Htln", "sport", "!=", "1080"]);
        }
    }

    /// Waits until the box has no listener that `filter` selects, and, after the thread has ended, no TUN device.
    ///
    /// A command that another test starts at the same time is a fork of this process until it becomes another
    /// program. Until then it holds all sockets and devices open.
    fn wait_until_closed(&self, filter: &[&str]) {
        let left = || {
            let listeners = output(&self.namespace, "ss", filter);
            if self.thread.is_some() {
                return listeners;
            }
            let devices = ["-o", "link", "show", "type", "tun"];
            listeners + &output(&self.namespace, "ip", &devices)
        };
        wait_for("sockets and devices are closed", left, || {
            left().is_empty().then_some(())
        });
    }

    pub fn die(self) {
        self.finish(Ask::Die);
    }

    pub fn end(self) {
        self.finish(Ask::End);
    }

    fn finish(mut self, ask: Ask) {
        self.send_request.send(ask).unwrap();
        self.thread.take().unwrap().join().unwrap();
        self.wait_until_closed(&["-Hltx"]);
    }
}

fn output(namespace: &str, program: &str, arguments: &[&str]) -> String {
    let mut command = netns::command(namespace, program).unwrap();
    let output = command.args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).unwrap()
}

impl Drop for Interception {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // The thread may have failed; the test has noticed, or does not depend on it.
            let _ = self.send_request.send(Ask::End);
            let _ = thread.join();
        }
    }
}

/// Returns the link of path `n`.
pub fn wan(config: &TunConfig, n: u8) -> LinkSpec {
    LinkSpec {
        interface: "wan".to_owned(),
        v4: NextHop::Auto,
        v6: NextHop::Auto,
        sources: vec![config.path_v4(n).into(), config.path_v6(n).into()],
        targets: Vec::new(),
        exclusive: true,
    }
}

pub fn tun_config() -> TunConfig {
    TunConfig {
        name: "braid0".to_owned(),
        v4: "10.215.77.0/24".parse().unwrap(),
        v6: "fdb7:a1d0:77::/64".parse().unwrap(),
    }
}

fn serve((quic, mptcp_hosts): (Quic, MptcpHosts), send_request: &Receiver<Ask>, done: &Sender<()>) {
    let config = tun_config();
    let (tun, mut device) = Device::open(&config).unwrap();
    let spec = wan(&config, 0);
    let lan = ["lan".to_owned()];
    let mut links = Links::new(device.instance_names(), vec![spec]).unwrap();
    let settings = [
        Sysctl::new("net/ipv6/conf/all/forwarding", 1),
        Sysctl::new("net/ipv4/conf/lan/forwarding", 1),
        Sysctl::new("net/ipv4/conf/wan/forwarding", 1),
        Sysctl::new("net/netfilter/nf_conntrack_tcp_be_liberal", 1),
    ];
    device.apply_settings(&settings, true).unwrap();
    links.install(&lan).unwrap();
    links.forward_over(0);
    let servers = ["203.0.113.9:1080".parse().unwrap()];
    let ports = links.install_shortcut(&config.name, &servers, vec![1_500]);

    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let mut sockets = Sockets::new(epoll.try_clone().unwrap(), Limits::default()).unwrap();
    let port = sockets.reserve_intercept_port(true).unwrap();
    device
        .apply_rules(Rules::Box(BoxRules {
            lan: lan.to_vec(),
            links: vec!["wan".to_owned()],
            tun: config.name.clone(),
            intercept_port: port,
            intercept_v6: true,
            families: Families::BOTH,
            bypass: BYPASSED
                .map(|a| a.parse::<IpAddr>().unwrap().into())
                .to_vec(),
            reached: Vec::new(),
            servers: servers.to_vec(),
            ports: Some(ports.unwrap()),
            private: OWN.map(|a| a.parse().unwrap()).to_vec(),
            quic,
            mptcp_hosts,
            tunnel: None,
        }))
        .unwrap();
    for addr in OWN {
        sockets.listen(addr.parse().unwrap()).unwrap();
    }
    let mut echo = Echo::default();
    loop {
        match send_request.try_recv() {
            Ok(Ask::Interception(open)) => {
                sockets.set_intercepting(open).unwrap();
                done.send(()).unwrap();
            }
            Ok(Ask::Die) => {
                drop((tun, sockets));
                std::mem::forget(device);
                return;
            }
            Ok(Ask::End) => return,
            Err(_) => {}
        }
        echo.turn(&epoll, &mut sockets);
    }
}

/// A core that tells each user the destination, then echoes.
#[derive(Default)]
struct Echo {
    greetings: BTreeMap<DownstreamId, String>,
}

impl Echo {
    fn turn(&mut self, epoll: &impl AsFd, sockets: &mut Sockets) {
        let mut ready = Vec::with_capacity(64);
        let wait = Timespec::try_from(Duration::from_millis(5)).unwrap();
        let room = rustix::buffer::spare_capacity(&mut ready);
        epoll::wait(epoll, room, Some(&wait)).unwrap();
        for event in &ready {
            sockets.on_ready(event.data.u64(), event.flags);
        }
        while let Some(event) = sockets.next_event() {
            self.answer(sockets, event);
        }
    }

    fn answer(&mut self, sockets: &mut Sockets, event: DownstreamEvent) {
        match event {
            DownstreamEvent::Accepted {
                id,
                destination,
                arrival,
                dscp,
                ..
            } => {
                let arrival = match arrival {
                    Arrival::Intercepted => "intercepted",
                    Arrival::Addressed => "addressed",
                };
                let mark = match dscp {
                    0 => String::new(),
                    dscp => format!("with {dscp} "),
                };
                let text = format!("{arrival} {destination} {mark}");
                self.greetings.insert(id, text);
            }
            DownstreamEvent::Writable { id } => self.greet(sockets, id),
            DownstreamEvent::Readable { id } => {
                // The user's first bytes may be there as soon as there is room for the greeting.
                self.greet(sockets, id);
                echo(sockets, id);
            }
            DownstreamEvent::Broken { id } => sockets.reset(id),
            other => panic!("{other:?}"),
        }
    }

    fn greet(&mut self, sockets: &mut Sockets, id: DownstreamId) {
        if let Some(text) = self.greetings.remove(&id) {
            write(sockets, id, text.as_bytes());
        }
    }
}

fn echo(sockets: &mut Sockets, id: DownstreamId) {
    loop {
        let mut buffer = [0; 1024];
        match sockets.read(id, &mut [IoSliceMut::new(&mut buffer)]) {
            Ok(0) => return sockets.close(id),
            Ok(n) => write(sockets, id, &buffer[..n]),
            Err(DownstreamError::WouldBlock) => return,
            Err(DownstreamError::Broken) => return sockets.reset(id),
        }
    }
}

fn write(sockets: &mut Sockets, id: DownstreamId, bytes: &[u8]) {
    assert_eq!(sockets.write(id, &[IoSlice::new(bytes)]), Ok(bytes.len()));
}

#[test]
#[ignore = "network"]
fn connections_are_taken_in_but_those_to_be_bypassed() {
    let net = Net::new();
    let _interception = Interception::start(&net, Quic::Forward);
    assert_eq!(net.fetch(WEB[0]), "intercepted 198.51.100.7:80 ");
    assert_eq!(net.fetch(WEB[1]), "intercepted [2001:db8:7::7]:80 ");
    for address in BYPASSED {
        assert_eq!(net.fetch(address), "direct", "{address}");
    }
}

#[test]
#[ignore = "network"]
fn the_mark_of_a_users_syn_is_seen() {
    use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
    let net = Net::new();
    let _interception = Interception::start(&net, Quic::Forward);
    // EF (RFC 3246) and CS1 (RFC 2474).
    for (tos, dscp) in [(46 << 2, 46), (8 << 2, 8)] {
        let texts = net.world.inside("user", || {
            let v4 = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
            sockopt::set_ip_tos(&v4, tos).unwrap();
            let v6 = socket(AddressFamily::INET6, SocketType::STREAM, None).unwrap();
            sockopt::set_ipv6_tclass(&v6, tos.into()).unwrap();
            let both = [(v4, WEB[0]), (v6, WEB[1])];
            both.map(|(fd, web)| {
                let to = SocketAddr::new(web.parse().unwrap(), 80);
                connect(&fd, &to).unwrap();
                let mut stream = TcpStream::from(fd);
                stream.shutdown(Shutdown::Write).unwrap();
                read_all(&mut stream)
            })
        });
        let expected = ["198.51.100.7:80", "[2001:db8:7::7]:80"];
        assert_eq!(
            texts,
            expected.map(|to| format!("intercepted {to} with {dscp} "))
        );
    }
}

#[test]
#[ignore = "network"]
fn what_the_box_itself_offers_is_for_the_local_network_alone() {
    let net = Net::new();
    let interception = Interception::start(&net, Quic::Forward);
    // The host has routes to these networks, and the box would forward its packets.
    net.world
        .ip("web", "route add 192.168.7.0/24 via 192.0.2.1");
    net.world
        .ip("web", "-6 route add fd00:7::/64 via 2001:db8::1");
    for open in [true, false] {
        interception.set(open);
        for own in OWN {
            let to: SocketAddr = own.parse().unwrap();
            let connect = |timeout| move || TcpStream::connect_timeout(&to, timeout);
            let mut stream = net.world.inside("user", connect(TIMEOUT)).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(read_all(&mut stream), format!("addressed {to} "));
            // A connection would be there at once; the host's SYN gets no answer.
            let soon = Duration::from_secs(1);
            let stranger = net.world.inside("web", connect(soon)).unwrap_err();
            assert_eq!(stranger.kind(), ErrorKind::TimedOut);
        }
    }
}

#[test]
#[ignore = "network"]
fn multipath_connections_are_left_to_themselves_or_taken_in() {
    let net = Net::new();
    let fetch = |web: &str| {
        let to = SocketAddr::new(web.parse().unwrap(), 80);
        net.world.inside("user", || {
            let mut stream = mptcp_connect(to);
            stream.shutdown(Shutdown::Write).unwrap();
            read_all(&mut stream)
        })
    };
    let interception = Interception::start(&net, Quic::Forward);
    for web in WEB {
        assert_eq!(fetch(web), "direct", "{web}");
    }
    interception.end();
    let _interception = Interception::start_with(&net, (Quic::Forward, MptcpHosts::Proxy));
    for web in WEB {
        let to = SocketAddr::new(web.parse().unwrap(), 80);
        assert_eq!(fetch(web), format!("intercepted {to} "));
    }
}

fn mptcp_connect(to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, connect, ipproto, socket};
    let family = if to.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let fd = socket(family, SocketType::STREAM, Some(ipproto::MPTCP)).unwrap();
    connect(&fd, &to).unwrap();
    TcpStream::from(fd)
}

#[test]
#[ignore = "network"]
fn a_closed_interception_forwards_and_keeps_what_it_intercepted() {
    let net = Net::new();
    let interception = Interception::start(&net, Quic::Forward);
    let to = SocketAddr::new(WEB[0].parse().unwrap(), 80);
    let mut kept = net.world.inside("user", || TcpStream::connect(to).unwrap());
    kept.write_all(b"one").unwrap();
    interception.set(false);
    for web in WEB {
        assert_eq!(net.fetch(web), "direct");
    }
    interception.set(true);
    assert!(net.fetch(WEB[0]).starts_with("intercepted"));
    kept.write_all(b"two").unwrap();
    kept.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut kept), "intercepted 198.51.100.7:80 onetwo");
}

#[test]
#[ignore = "network"]
fn the_end_of_the_process_resets_its_streams_and_fails_open() {
    let net = Net::new();
    let interception = Interception::start(&net, Quic::Forward);
    let to = SocketAddr::new(WEB[0].parse().unwrap(), 80);
    let mut cut = net.world.inside("user", || TcpStream::connect(to).unwrap());
    let mut greeting = [0; 28];
    cut.read_exact(&mut greeting).unwrap();
    interception.die();
    let error = cut.read(&mut greeting).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    for web in WEB {
        assert_eq!(net.fetch(web), "direct");
    }
}

#[test]
#[ignore = "network"]
fn quic_is_refused_or_forwarded() {
    let net = Net::new();
    // Returns the sender's error if the datagram does not arrive.
    let outcome = |net: &Net, host: &str| {
        let to = SocketAddr::new(host.parse().unwrap(), 443);
        let server = net.world.inside("web", || UdpSocket::bind(to).unwrap());
        let client = net.world.inside("user", || {
            UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap()
        });
        client.connect(to).unwrap();
        client.send(b"hello").unwrap();
        server.set_nonblocking(true).unwrap();
        client.set_nonblocking(true).unwrap();
        let mut buffer = [0; 16];
        let nothing = || "neither happens".to_owned();
        wait_for("QUIC arrives or is refused", nothing, || {
            // The sender first, since it gets an error only if the datagram does not arrive.
            let told = client.recv(&mut buffer).map_err(|error| error.kind());
            match server.recv_from(&mut buffer) {
                // Masqueraded, since the web host has no route to the local network.
                Ok((_, from)) => {
                    assert_eq!(from.ip(), "192.0.2.1".parse::<IpAddr>().unwrap());
                    Some(None)
                }
                Err(_) => match told {
                    Err(ErrorKind::WouldBlock) => None,
                    told => Some(told.err()),
                },
            }
        })
    };
    let interception = Interception::start(&net, Quic::Forward);
    assert_eq!(outcome(&net, WEB[0]), None);
    interception.die();
    let _interception = Interception::start(&net, Quic::Reject);
    assert_eq!(outcome(&net, WEB[0]), Some(ErrorKind::ConnectionRefused));
    assert_eq!(outcome(&net, BYPASSED[0]), None, "its TCP is not joined");
}
