//! Packets of other protocols than TCP and UDP through the tunnel, and ICMP errors about packets in it. All is as
//! without a box.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use braid_testbed::Pattern;
use braid_wire::{ip, udp};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::attacks::{inside, namespace};
use super::fixture::{Ends, Fixture};

/// The addresses of the server in the tunnel.
const SERVER: [&str; 2] = ["10.215.128.1", "fdb7:a1d0:80::1"];
/// The protocols: GRE (RFC 2784) and ESP (RFC 4303).
const GRE: i32 = 47;
const ESP: i32 = 50;
/// The first port of traceroute, where nobody listens.
const TRACEROUTE: u16 = 33_434;
/// Time until a packet is sent again.
const WAIT: Duration = Duration::from_millis(200);
/// Bytes of an ICMP header.
const ICMP_HEADER_LEN: usize = 8;

/// Returns a socket for a protocol on a host. Packets come without the header of IP.
fn raw(bed: &Fixture, host: &str, like: IpAddr, protocol: i32) -> RawSocket {
    let domain = match like {
        IpAddr::V4(_) => Domain::IPV4,
        IpAddr::V6(_) => Domain::IPV6,
    };
    let socket = inside(&namespace(bed, host), || {
        Socket::new(domain, Type::RAW, Some(Protocol::from(protocol)))
    });
    let socket = socket.expect("a raw socket");
    socket.set_read_timeout(Some(WAIT)).expect("a socket");
    RawSocket {
        socket: socket.into(),
        with_header: like.is_ipv4(),
    }
}

/// A raw socket, which the standard library treats like one of UDP.
struct RawSocket {
    socket: UdpSocket,
    /// True if the kernel shows the header of IP too.
    with_header: bool,
}

impl RawSocket {
    fn send(&self, payload: &[u8], to: IpAddr) {
        // Addresses of raw sockets have no port. A packet that has no route now is sent again.
        let _ = self.socket.send_to(payload, SocketAddr::new(to, 0));
    }

    fn receive(&self) -> Option<(IpAddr, Vec<u8>)> {
        let mut buffer = vec![0; 1 << 16];
        let (len, from) = self.socket.recv_from(&mut buffer).ok()?;
        let header_len = match self.with_header {
            true => usize::from(buffer[0] & 0xf) * 4,
            false => 0,
        };
        Some((from.ip(), buffer[header_len..len].to_vec()))
    }
}

/// Returns a packet of a protocol without the header of IP.
fn payload(protocol: i32, len: usize) -> Vec<u8> {
    let mut payload = vec![0; len];
    Pattern::new(len as u64).fill(&mut payload);
    if protocol == GRE {
        // Neither checksum nor key; transparent Ethernet.
        payload[..4].copy_from_slice(&[0, 0, 0x65, 0x58]);
    }
    payload
}

/// Returns all packets to their senders, who all have to come from one address.
fn mirror(socket: &RawSocket, ending: &AtomicBool, expected: IpAddr) {
    while !ending.load(Ordering::Acquire) {
        if let Some((from, payload)) = socket.receive() {
            assert_eq!(from, expected, "it came by the tunnel");
            socket.send(&payload, from);
        }
    }
}

/// Small packets, those that fill 1,500 bytes and may not be fragmented, and those that the sender fragments.
#[test]
#[ignore = "network"]
fn esp_and_gre_go_through_the_tunnel() {
    let mut bed = Fixture::up();
    bed.wait_for_tunnel();
    for (host, header_len) in [
        (Fixture::v4 as fn(&Fixture, &str) -> IpAddr, 20),
        (Fixture::v6, 40),
    ] {
        let (content, server) = (host(&bed, "content"), host(&bed, "server"));
        for protocol in [ESP, GRE] {
            let [mirrored, user] = ["content", "user"].map(|at| raw(&bed, at, content, protocol));
            let ending = AtomicBool::new(false);
            thread::scope(|scope| {
                let _ends = Ends(&ending);
                scope.spawn(|| mirror(&mirrored, &ending, server));
                for len in [100, 1_500 - header_len, 4_000] {
                    let sent = payload(protocol, len);
                    let what = format!("{len} bytes of protocol {protocol} from {content}");
                    bed.wait_for(&what, |_| {
                        user.send(&sent, content);
                        let came = user.receive();
                        came.is_some_and(|(from, came)| from == content && came == sent)
                    });
                }
            });
        }
    }
}

/// An ICMP error about a packet of UDP.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    /// The router or host that reports it.
    by: IpAddr,
    /// True if the packet had passed too many routers; false if nobody listened at its port.
    exceeded: bool,
}

/// Reads an ICMP message about a packet between these addresses.
fn told(by: IpAddr, message: &[u8], from: SocketAddr, to: SocketAddr) -> Option<Told> {
    let kind = *message.first_chunk::<2>()?;
    let exceeded = match (by, kind) {
        (IpAddr::V4(_), [11, 0]) | (IpAddr::V6(_), [3, 0]) => true,
        (IpAddr::V4(_), [3, 3]) | (IpAddr::V6(_), [1, 4]) => false,
        _ => return None,
    };
    let quoted = message.get(ICMP_HEADER_LEN..)?;
    let view = ip::Packet::new(quoted).ok()?;
    let (protocol, rest) = (view.next_header(), view.payload());
    let ports = rest.first_chunk::<4>()?;
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    let ends = [(view.src(), port(0)), (view.dst(), port(2))].map(SocketAddr::from);
    let is_asked = protocol == ip::PROTO_UDP && rest.len() >= udp::HEADER_LEN;
    (is_asked && ends == [from, to]).then_some(Told { by, exceeded })
}

/// The first router is the box, the second the server; then the host says that nobody listens. Each quotes the packet
/// as it was sent, though its addresses were translated on the way.
#[test]
#[ignore = "network"]
fn traceroute_finds_box_and_server() {
    let mut bed = Fixture::up();
    bed.wait_for_tunnel();
    for (host, server) in [Fixture::v4 as fn(&Fixture, &str) -> IpAddr, Fixture::v6]
        .into_iter()
        .zip(SERVER)
    {
        let [user, content, first] = ["user", "content", "box"].map(|name| host(&bed, name));
        let server = server.parse().expect("an address");
        let icmp = match content {
            IpAddr::V4(_) => ip::PROTO_ICMP,
            IpAddr::V6(_) => ip::PROTO_ICMPV6,
        };
        let heard = raw(&bed, "user", content, icmp.into());
        let at = SocketAddr::new(user, 0);
        let probes = inside(&namespace(&bed, "user"), || UdpSocket::bind(at)).expect("a port");
        let from = probes.local_addr().expect("it is bound");
        for (hops, (by, exceeded)) in
            (1u16..).zip([(first, true), (server, true), (content, false)])
        {
            let to = SocketAddr::new(content, TRACEROUTE + hops);
            let limited = match content {
                IpAddr::V4(_) => probes.set_ttl(hops.into()),
                IpAddr::V6(_) => SockRef::from(&probes).set_unicast_hops_v6(hops.into()),
            };
            limited.expect("a number of hops");
            bed.wait_for(&format!("{by} to answer a packet to {to}"), |_| {
                // An earlier answer may be reported here.
                let _ = probes.send_to(b"traceroute", to);
                let answer = heard.receive();
                let told = answer.and_then(|(by, message)| told(by, &message, from, to));
                told == Some(Told { by, exceeded })
            });
        }
    }
}

/// A network behind the server takes packets of 1,400 bytes at most. The user's host learns that.
#[test]
#[ignore = "network"]
fn a_smaller_mtu_behind_the_server_is_reported() {
    const MTU: usize = 1_400;
    let mut bed = Fixture::up();
    bed.wait_for_tunnel();
    for (host, family, header_len) in [
        (Fixture::v4 as fn(&Fixture, &str) -> IpAddr, "-4", 28),
        (Fixture::v6, "-6", 48),
    ] {
        let content = host(&bed, "content").to_string();
        let mtu = MTU.to_string();
        let narrow = [
            family, "route", "add", &content, "dev", "backbone", "mtu", &mtu,
        ];
        bed.run("server", "ip", &narrow);
        let ping = |bed: &Fixture, len: usize| {
            let size = (len - header_len).to_string();
            let line = [
                "-n", "-c", "1", "-W", "1", "-M", "do", "-s", &size, &content,
            ];
            bed.print("user", "ping", &line)
                .replace(' ', "")
                .to_lowercase()
        };
        bed.wait_for("the smaller MTU", |bed| {
            ping(bed, 1_500);
            let learned = ["route", "get", &content];
            bed.print("user", "ip", &learned).contains("mtu 1400")
        });
        bed.wait_for("an answer to a smaller packet", |bed| {
            ping(bed, MTU).contains("1received")
        });
    }
}
