//! Super-segments through TUN devices, forwarding, address translation and a link.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::time::Instant;

use braid_engine::{PathId, RxMeta, Transmit, TxChecksum};
use braid_linux::net::InstanceNames;
use braid_linux::nft::{self, BoxRules, Hop, Mapping, Rules, Ruleset, ServerRules, ShortcutRules};
use braid_linux::selftest::{self, Verdict};
use braid_linux::sys::bind_packet_socket;
use braid_linux::tun::{PacketIo, Tun};
use braid_proxy::config::{MptcpHosts, Quic};
use braid_secure::Families;
use braid_testbed::netns;
use braid_wire::icmp::{self, Kind, TcpError, verify_v6_checksum};
use braid_wire::{Seq32, ip, tcp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Socket, Type};

use crate::support::{TIMEOUT, World, wait_for};

const PORT: u16 = 1080;
const CLIENT_PORT: u16 = 20_000;

/// A packet as its receiver sees it.
struct Received {
    packet: Vec<u8>,
    meta: RxMeta,
}

impl Received {
    fn ip(&self) -> ip::Repr {
        ip::Repr::parse(&self.packet).unwrap().0
    }

    fn segment(&self) -> (tcp::Repr, &[u8]) {
        let (_, segment) = ip::Repr::parse(&self.packet).unwrap();
        tcp::Repr::parse(segment).unwrap()
    }

    fn checksum_holds(&self) -> bool {
        let (ip, segment) = ip::Repr::parse(&self.packet).unwrap();
        tcp::verify_checksum(ip.src, ip.dst, segment)
    }
}

struct Segment<'a> {
    from: (IpAddr, u16),
    to: (IpAddr, u16),
    flags: tcp::Flags,
    payload: &'a [u8],
    gso_size: u16,
    offload: bool,
}

/// Returns the headers of a segment. If the checksum is left to the device, it holds the sum over the
/// pseudo-header.
fn headers(segment: &Segment<'_>) -> Vec<u8> {
    let repr = tcp::Repr {
        src_port: segment.from.1,
        dst_port: segment.to.1,
        seq: Seq32(1),
        ack: Seq32(1),
        flags: segment.flags,
        window: 500,
        options: tcp::Options::default(),
    };
    let packet = ip::Repr {
        src: segment.from.0,
        dst: segment.to.0,
        protocol: ip::PROTO_TCP,
        payload_len: tcp::HEADER_LEN + segment.payload.len(),
        hop_limit: 64,
        traffic_class: 0,
    };
    let ip_len = packet.header_len();
    let mut header = vec![0; ip_len + tcp::HEADER_LEN];
    packet.emit(&mut header);
    let (src, dst) = (segment.from.0, segment.to.0);
    let tcp_header = &mut header[ip_len..];
    repr.emit(tcp_header);
    if segment.offload {
        tcp::fill_partial_checksum(src, dst, tcp_header, segment.payload.len());
    } else {
        tcp::fill_checksum(src, dst, tcp_header, &[segment.payload]);
    }
    header
}

fn send(tun: &mut Tun, segment: &Segment<'_>) {
    let header = headers(segment);
    let checksum = match segment.offload {
        true => TxChecksum::Partial {
            start: (header.len() - tcp::HEADER_LEN) as u16,
            offset: 16,
        },
        false => TxChecksum::Done,
    };
    // In parts, as the engine's buffers deliver it.
    let (a, b) = segment.payload.split_at(segment.payload.len() / 3);
    transmit(tun, &header, [a, b], segment.gso_size, checksum);
}

fn transmit(
    tun: &mut Tun,
    header: &[u8],
    payload: [&[u8]; 2],
    gso_size: u16,
    checksum: TxChecksum,
) {
    tun.send(&Transmit {
        path: PathId(0),
        header,
        payload: payload.into_iter().collect(),
        gso_size,
        checksum,
        v6: header[0] >> 4 == 6,
        info: None,
    })
    .unwrap();
}

/// Returns the next TCP packet; others (neighbour discovery, multicast reports) are skipped.
fn receive(tun: &mut Tun) -> Option<Received> {
    receive_if(tun, |ip, _| ip.protocol == ip::PROTO_TCP)
}

/// Returns the next packet for whose header and payload `wanted` returns true.
fn receive_if(tun: &mut Tun, wanted: impl Fn(&ip::Repr, &[u8]) -> bool) -> Option<Received> {
    let deadline = Instant::now() + TIMEOUT;
    while let Some(left) = deadline.checked_duration_since(Instant::now()) {
        while let Some((packet, meta)) = tun.recv().unwrap() {
            let packet = packet.parts().concat();
            if ip::Repr::parse(&packet).is_ok_and(|(ip, payload)| wanted(&ip, payload)) {
                return Some(Received { packet, meta });
            }
        }
        let mut fds = [PollFd::from_borrowed_fd(tun.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::try_from(left).unwrap())).unwrap();
    }
    None
}

/// A box and a server, each with a TUN device and its rules, on one link.
struct Ends {
    world: World,
    client: Tun,
    server: Tun,
}

const CLIENT: [&str; 2] = ["10.215.77.2", "fdb7:a1d0:77::2"];
const INNER: [&str; 2] = ["10.215.78.2", "fdb7:a1d0:78::2"];
const PUBLIC: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
const LINK: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The address translation of packets between TUN device and link of the box.
#[derive(Debug, Clone, Copy)]
enum Translation {
    /// Routed, and masqueraded by connection tracking.
    Masqueraded,
    /// Routed, and translated without state, as packets that the shortcut leaves out.
    Stateless,
    /// By the shortcut.
    Shortcut,
}

const TRANSLATIONS: [Translation; 3] = [
    Translation::Masqueraded,
    Translation::Stateless,
    Translation::Shortcut,
];

impl Ends {
    fn new(translation: Translation) -> Ends {
        // Shown if the test fails.
        println!("{translation:?}");
        let world = World::new(&["box", "server"]);
        world.veth(
            ("box", "wan", "192.0.2.1/24 2001:db8::1/64"),
            ("server", "eth", "192.0.2.2/24 2001:db8::2/64"),
        );
        let client = tun(&world, "box", "10.215.77.1/24 fdb7:a1d0:77::1/64");
        let server = tun(&world, "server", "10.215.78.1/24 fdb7:a1d0:78::1/64");
        match translation {
            Translation::Masqueraded => {
                apply(&world, "box", Rules::Box(box_rules(None)));
                // As the box sets it: a subflow's window says little about what its peer may send.
                world.sh(
                    "box",
                    "echo 1 >/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal",
                );
            }
            Translation::Stateless => {
                let rules = shortcut(&[]);
                world.inside("box", || rules.apply()).unwrap();
                // Packets then go as fragments and tagged frames do.
                world.sh("box", "nft delete chain netdev braid-shortcut in0");
            }
            Translation::Shortcut => {
                let on_link = Hop {
                    network: None,
                    gateway: None,
                };
                let rules = shortcut(&[on_link]);
                world.inside("box", || rules.apply()).unwrap();
                world.sh("box", DO_NOT_ROUTE);
            }
        }
        let mapping = |i: usize| Mapping {
            public: (addr(PUBLIC[i]), PORT).into(),
            inner: addr(INNER[i]),
        };
        let rules = Rules::Server(ServerRules {
            tun: "tun".to_owned(),
            mappings: vec![mapping(0), mapping(1)],
            tunnel: None,
        });
        apply(&world, "server", rules);
        Ends {
            world,
            client,
            server,
        }
    }

    /// Exchanges a SYN and its answer, so that connection tracking knows the flow.
    fn open(&mut self, family: usize) -> (IpAddr, u16) {
        let from = (addr(CLIENT[family]), CLIENT_PORT);
        let to = (addr(PUBLIC[family]), PORT);
        send(
            &mut self.client,
            &Segment {
                from,
                to,
                flags: tcp::Flags::SYN,
                payload: &[],
                gso_size: 0,
                offload: true,
            },
        );
        let syn = receive(&mut self.server).expect("the SYN arrives");
        assert_eq!(syn.ip().src, addr(LINK[family]), "translated");
        assert_eq!(syn.ip().dst, addr(INNER[family]), "translated");
        let peer = (syn.ip().src, syn.segment().0.src_port);
        let from = (addr(INNER[family]), PORT);
        send(
            &mut self.server,
            &Segment {
                from,
                to: peer,
                flags: tcp::Flags::SYN | tcp::Flags::ACK,
                payload: &[],
                gso_size: 0,
                offload: true,
            },
        );
        let answer = receive(&mut self.client).expect("the answer arrives");
        assert_eq!(answer.ip().src, addr(PUBLIC[family]), "translated back");
        assert_eq!(answer.ip().dst, addr(CLIENT[family]), "translated back too");
        peer
    }
}

const ROUTE: &str =
    "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding";
const DO_NOT_ROUTE: &str =
    "echo 0 >/proc/sys/net/ipv4/ip_forward; echo 0 >/proc/sys/net/ipv6/conf/all/forwarding";

fn servers() -> Vec<SocketAddr> {
    PUBLIC.map(|a| (addr(a), PORT).into()).to_vec()
}

fn box_rules(ports: Option<RangeInclusive<u16>>) -> BoxRules {
    BoxRules {
        lan: vec!["lan".to_owned()],
        links: vec!["wan".to_owned()],
        tun: "tun".to_owned(),
        intercept_port: 1,
        intercept_v6: true,
        families: Families::BOTH,
        bypass: Vec::new(),
        reached: Vec::new(),
        servers: servers(),
        ports,
        private: Vec::new(),
        quic: Quic::Forward,
        mptcp_hosts: MptcpHosts::Forward,
        tunnel: None,
    }
}

fn shortcut(hops: &[Hop]) -> ShortcutRules {
    let link = |family: usize| nft::ShortcutLink {
        interface: "wan".to_owned(),
        index: 0,
        inner: addr(CLIENT[family]),
        public: addr(LINK[family]),
        hops: hops.to_vec(),
    };
    ShortcutRules {
        tun: "tun".to_owned(),
        // The rules are loaded once, and only a reload compares it.
        tun_index: 0,
        ports: 10_000..=32_767,
        servers: servers(),
        links: vec![link(0), link(1)],
    }
}

fn tun(world: &World, ns: &str, addresses: &str) -> Tun {
    let tun = netns::run_inside(&world.name(ns), || {
        Tun::create("tun").map_err(std::io::Error::other)
    })
    .unwrap();
    for address in addresses.split_whitespace() {
        world.ip(ns, &format!("addr add {address} dev tun nodad"));
    }
    world.ip(ns, "link set tun up mtu 65535");
    world.sh(ns, ROUTE);
    tun
}

fn apply(world: &World, ns: &str, rules: Rules) {
    let ruleset = Ruleset {
        rules,
        record: Vec::new(),
    };
    world
        .inside(ns, || ruleset.apply(&InstanceNames::of_tun("tun")))
        .unwrap();
}

fn payload() -> Vec<u8> {
    (0..50_000u32).map(|i| (i * 31 % 253) as u8).collect()
}

#[test]
#[ignore = "network"]
fn super_segments_pass_whole_in_both_directions() {
    for translation in TRANSLATIONS {
        super_segments_pass_whole(Ends::new(translation));
    }
}

fn super_segments_pass_whole(mut ends: Ends) {
    let payload = payload();
    for family in [0, 1] {
        let peer = ends.open(family);
        let forth = Segment {
            from: (addr(CLIENT[family]), CLIENT_PORT),
            to: (addr(PUBLIC[family]), PORT),
            flags: tcp::Flags::ACK,
            payload: &payload,
            gso_size: 1_400,
            offload: true,
        };
        send(&mut ends.client, &forth);
        let back = Segment {
            from: (addr(INNER[family]), PORT),
            to: peer,
            ..forth
        };
        let arrived = receive(&mut ends.server).unwrap();
        send(&mut ends.server, &back);
        for received in [arrived, receive(&mut ends.client).unwrap()] {
            assert_eq!(received.segment().1, payload);
            assert_eq!(received.meta.gso_size, 1_400);
            assert!(received.meta.checksum_ok);
        }
    }
}

#[test]
#[ignore = "network"]
fn checksums_hold_where_the_link_cuts_super_segments() {
    for translation in TRANSLATIONS {
        super_segments_are_cut(Ends::new(translation));
    }
}

fn super_segments_are_cut(mut ends: Ends) {
    for (ns, device) in [("box", "wan"), ("server", "eth")] {
        ends.world.sh(
            ns,
            &format!("ethtool -K {device} tx off gso off tso off gro off"),
        );
    }
    let payload = payload();
    for family in [0, 1] {
        let peer = ends.open(family);
        let forth = Segment {
            from: (addr(CLIENT[family]), CLIENT_PORT),
            to: (addr(PUBLIC[family]), PORT),
            flags: tcp::Flags::ACK,
            payload: &payload,
            gso_size: 1_400,
            offload: true,
        };
        send(&mut ends.client, &forth);
        assert_cut(&mut ends.server, &payload);
        let back = Segment {
            from: (addr(INNER[family]), PORT),
            to: peer,
            ..forth
        };
        send(&mut ends.server, &back);
        assert_cut(&mut ends.client, &payload);
    }
}

fn assert_cut(tun: &mut Tun, payload: &[u8]) {
    let mut data = Vec::new();
    while data.len() < payload.len() {
        let received = receive(tun).unwrap_or_else(|| panic!("nothing after {} bytes", data.len()));
        assert_eq!(received.meta.gso_size, 0);
        assert!(received.checksum_holds(), "after {} bytes", data.len());
        assert!(received.segment().1.len() <= 1_400);
        data.extend_from_slice(received.segment().1);
    }
    assert_eq!(data, payload);
}

#[test]
#[ignore = "network"]
fn a_complete_checksum_is_kept_and_not_trusted() {
    for translation in TRANSLATIONS {
        a_complete_checksum_is_kept(Ends::new(translation));
    }
}

fn a_complete_checksum_is_kept(mut ends: Ends) {
    for family in [0, 1] {
        ends.open(family);
        let payload = &payload()[..1_000];
        send(
            &mut ends.client,
            &Segment {
                from: (addr(CLIENT[family]), CLIENT_PORT),
                to: (addr(PUBLIC[family]), PORT),
                flags: tcp::Flags::ACK,
                payload,
                gso_size: 0,
                offload: false,
            },
        );
        let received = receive(&mut ends.server).unwrap();
        assert!(received.checksum_holds());
        assert!(!received.meta.checksum_ok);
        assert_eq!(received.segment().1, payload);
    }
}

/// Some access networks tag frames with a priority and no VLAN.
#[test]
#[ignore = "network"]
fn frames_with_a_priority_tag_arrive_whole() {
    const TAG: [u8; 4] = [0x81, 0, 0xe0, 0];
    let mut ends = Ends::new(Translation::Shortcut);
    ends.world.sh("box", ROUTE);
    for family in [0, 1] {
        ends.open(family);
        let payload = &payload()[..1_000];
        let headers = headers(&Segment {
            from: (addr(PUBLIC[family]), PORT),
            to: (addr(LINK[family]), CLIENT_PORT),
            flags: tcp::Flags::ACK,
            payload,
            gso_size: 0,
            offload: false,
        });
        let device = |ns: &str, name: &str| {
            let text = ends.world.ip(ns, &format!("-j link show dev {name}"));
            let device = &serde_json::from_str::<serde_json::Value>(&text).unwrap()[0];
            let mac = device["address"].as_str().unwrap().split(':');
            let mac: Vec<u8> = mac.map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
            (device["ifindex"].as_u64().unwrap() as u32, mac)
        };
        let ((_, to), (from, own)) = (device("box", "wan"), device("server", "eth"));
        let ether_type = [[0x08, 0x00], [0x86, 0xdd]][family];
        let frame = [&to[..], &own, &TAG, &ether_type, &headers, payload].concat();
        let sent = ends.world.inside("server", || {
            let raw = Socket::new(Domain::PACKET, Type::RAW, None)?;
            bind_packet_socket(raw.as_fd(), 0, from)?;
            raw.send(&frame)
        });
        assert_eq!(sent.unwrap(), frame.len());
        let received = receive(&mut ends.client).expect("it arrives");
        assert_eq!(received.ip().dst, addr(CLIENT[family]));
        assert_eq!(received.segment().1, payload);
        assert!(received.checksum_holds());
    }
}

/// ICMP errors about translated packets reach the engine, and errors about other packets do not.
#[test]
#[ignore = "network"]
fn errors_about_translated_packets_come_back() {
    let kind = Kind::PacketTooBig { mtu: 1_300 };
    for translation in [Translation::Stateless, Translation::Shortcut] {
        let mut ends = Ends::new(translation);
        for family in [0, 1] {
            let router = addr(INNER[family]);
            for (port, to) in [
                (40_000, (PUBLIC[family], PORT)),
                (CLIENT_PORT, (PUBLIC[family], PORT + 1)),
                (CLIENT_PORT, (INNER[family], PORT)),
                (CLIENT_PORT, (PUBLIC[family], PORT)),
            ] {
                let quoted = headers(&Segment {
                    from: (addr(LINK[family]), port),
                    to: (addr(to.0), to.1),
                    flags: tcp::Flags::ACK,
                    payload: &[],
                    gso_size: 0,
                    offload: false,
                });
                let mut error = [0; icmp::MAX_LEN];
                let len = icmp::emit(kind, router, &quoted, &mut error).unwrap();
                transmit(
                    &mut ends.server,
                    &error[..len],
                    [&[]; 2],
                    0,
                    TxChecksum::Done,
                );
            }
            let v6 = router.is_ipv6();
            let is_error = |_: &ip::Repr, message: &[u8]| TcpError::parse(v6, message).is_ok();
            let received = receive_if(&mut ends.client, is_error).expect("the error arrives");
            let (ip, message) = ip::Repr::parse(&received.packet).unwrap();
            let error = TcpError::parse(v6, message).unwrap();
            assert_eq!((ip.src, ip.dst), (router, addr(CLIENT[family])));
            let from = (error.src, error.src_port);
            assert_eq!(from, (addr(LINK[family]), CLIENT_PORT));
            assert_eq!((error.dst, error.dst_port), (addr(PUBLIC[family]), PORT));
            assert_eq!(error.kind, kind);
            assert!(!v6 || verify_v6_checksum(ip.src, ip.dst, message));
        }
    }
}

/// Connections that a host of the local network opens to a server are not mistaken for the engine's, whatever
/// port the host chose.
#[test]
#[ignore = "network"]
fn hosts_that_speak_to_a_server_get_other_ports() {
    let world = World::new(&["host", "box", "server"]);
    world.veth(
        ("host", "eth", "198.51.100.2/24 2001:db8:1::2/64"),
        ("box", "lan", "198.51.100.1/24 2001:db8:1::1/64"),
    );
    world.veth(
        ("box", "wan", "192.0.2.1/24 2001:db8::1/64"),
        ("server", "eth", "192.0.2.2/24 2001:db8::2/64"),
    );
    world.ip("host", "route add default via 198.51.100.1");
    world.ip("host", "-6 route add default via 2001:db8:1::1");
    let _tun = tun(&world, "box", "10.215.77.1/24 fdb7:a1d0:77::1/64");
    let rules = shortcut(&[]);
    apply(
        &world,
        "box",
        Rules::Box(box_rules(Some(rules.ports.clone()))),
    );
    world.inside("box", || rules.apply()).unwrap();
    for (host, server) in ["198.51.100.2", "2001:db8:1::2"].iter().zip(PUBLIC) {
        let (own, to) = ((addr(host), CLIENT_PORT), (addr(server), PORT));
        let (own, to): (SocketAddr, SocketAddr) = (own.into(), to.into());
        let listener = world.inside("server", || TcpListener::bind(to)).unwrap();
        let connect = || {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
            socket.bind(&own.into())?;
            socket.connect_timeout(&to.into(), TIMEOUT)?;
            io::Result::Ok(socket)
        };
        let _host = world.inside("host", connect).unwrap();
        let (_, from) = listener.accept().unwrap();
        assert!(from.port() > *rules.ports.end(), "{from}");
    }
}

#[test]
#[ignore = "network"]
fn the_self_test_tells_what_passes() {
    let world = World::new(&["a"]);
    let mut tun = tun(&world, "a", "10.215.77.1/24 fdb7:a1d0:77::1/64");
    for (from, to) in [
        ("10.215.77.2", "10.215.77.3"),
        ("fdb7:a1d0:77::2", "fdb7:a1d0:77::3"),
    ] {
        assert_eq!(verdict(&mut tun, (from, to)), Verdict::Whole);
    }
    // Each probe has addresses of its own, since a packet of an earlier one may come late.
    tun.set_offload(braid_linux::tun::Offload::None).unwrap();
    let cut = verdict(&mut tun, ("10.215.77.2", "10.215.77.4"));
    assert_eq!(cut, Verdict::Cut);
    world.sh("a", "echo 0 >/proc/sys/net/ipv4/ip_forward");
    let lost = selftest::probe(&mut tun, addr("10.215.77.2"), addr("10.215.77.5")).unwrap();
    assert_eq!(lost, Verdict::Lost);
}

/// Returns the first verdict of the self-test other than `Lost`, which a busy machine causes too: the
/// self-test waits 300 ms for its packet.
fn verdict(tun: &mut Tun, (from, to): (&str, &str)) -> Verdict {
    let seen = || format!("from {from} to {to} all is lost");
    wait_for("a packet comes back", seen, || {
        let verdict = selftest::probe(tun, addr(from), addr(to)).unwrap();
        (verdict != Verdict::Lost).then_some(verdict)
    })
}
