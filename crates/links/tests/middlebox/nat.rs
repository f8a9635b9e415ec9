//! Tests of the NAT.

use core::net::Ipv4Addr;
use core::time::Duration;

use braid_links::middlebox::{Direction, Nat, NatConfig, Packet};
use braid_wire::icmp::{self, Kind, TcpError};
use braid_wire::tcp::Flags;
use braid_wire::{Instant, ip, udp};
use proptest::prelude::*;

use crate::segment::{Seg, T0, abuse, addr, inbound, outbound, process, through};

const EXTERNAL: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
const IN: Direction = Direction::Inbound;
const OUT: Direction = Direction::Outbound;

fn config() -> NatConfig {
    NatConfig::new(EXTERNAL)
}

fn syn() -> Seg {
    Seg::data(1, "").flags(Flags::SYN)
}

/// Passes `seg` at `now`, and returns the segment that leaves, if any.
fn at(nat: &mut Nat, now: Instant, direction: Direction, seg: &Seg) -> Option<Seg> {
    let out = process(nat, now, direction, seg.packet());
    assert!(out.len() <= 1);
    out.first().map(|(_, packet)| Seg::read(packet))
}

fn ms(at: u64) -> Instant {
    T0 + Duration::from_millis(at)
}

#[test]
fn a_connection_there_and_back() {
    let mut nat = Nat::new(config());
    let out = outbound(&mut nat, &syn());
    assert_eq!(out, syn().ends("203.0.113.5:4000", "192.0.2.1:80"));
    let answer = syn().ends("192.0.2.1:80", "203.0.113.5:4000");
    let into = inbound(&mut nat, &answer);
    assert_eq!(into, answer.ends("192.0.2.1:80", "10.0.0.2:4000"));
    // Another host with the same port gets the next external port. A port below 1024 is not preserved.
    let other = syn().ends("10.0.0.3:4000", "192.0.2.1:80");
    assert_eq!(outbound(&mut nat, &other).src, addr("203.0.113.5:4001"));
    let low = syn().ends("10.0.0.3:40", "192.0.2.1:80");
    assert_eq!(outbound(&mut nat, &low).src, addr("203.0.113.5:1024"));
    assert_eq!((nat.mappings(), nat.counters().mapped), (3, 3));
    assert_eq!(nat.counters().translated, 4);
}

#[test]
fn only_the_answering_endpoint_gets_in() {
    let mut nat = Nat::new(config());
    outbound(&mut nat, &syn());
    for (src, dst) in [
        ("192.0.2.1:81", "203.0.113.5:4000"),
        ("192.0.2.2:80", "203.0.113.5:4000"),
        ("192.0.2.1:80", "203.0.113.5:4001"),
        ("192.0.2.1:80", "203.0.113.6:4000"),
    ] {
        let unrelated = Seg::data(1, "x").ends(src, dst);
        assert_eq!(through(&mut nat, IN, &unrelated), []);
    }
    assert_eq!(nat.counters().unknown, 4);
}

#[test]
fn mappings_expire_by_the_state_of_the_connection() {
    let mut nat = Nat::new(NatConfig {
        established: Duration::from_millis(100),
        transitory: Duration::from_millis(10),
        adopts: false,
        ..config()
    });
    let data = Seg::data(2, "x");
    let answer = data.clone().ends("192.0.2.1:80", "203.0.113.5:4000");
    // Without an answer the mapping lasts for 10 ms.
    assert!(at(&mut nat, ms(0), OUT, &syn()).is_some());
    assert!(at(&mut nat, ms(10), OUT, &data).is_none());
    assert_eq!(nat.counters().unknown, 1);
    // After an answer it lasts for 100 ms after each packet, in either direction.
    assert!(at(&mut nat, ms(20), OUT, &syn()).is_some());
    assert!(at(&mut nat, ms(25), IN, &answer).is_some());
    assert!(at(&mut nat, ms(124), OUT, &data).is_some());
    assert!(at(&mut nat, ms(223), IN, &answer).is_some());
    // The FIN of one end does not end the connection. After both FINs the mapping lasts for 10 ms after each
    // packet.
    let fin = Flags::ACK | Flags::FIN;
    assert!(at(&mut nat, ms(300), OUT, &data.clone().flags(fin)).is_some());
    assert!(at(&mut nat, ms(399), IN, &answer.clone().flags(fin)).is_some());
    assert!(at(&mut nat, ms(408), OUT, &data).is_some());
    assert!(at(&mut nat, ms(418), IN, &answer).is_none());
    // The outside resets a new connection from the same ports.
    assert!(at(&mut nat, ms(500), OUT, &syn()).is_some());
    assert!(at(&mut nat, ms(501), IN, &answer.clone().flags(Flags::RST)).is_some());
    assert!(at(&mut nat, ms(511), IN, &answer).is_none());
    assert_eq!(nat.mappings(), 0);
    // A SYN on the ports of an ended connection begins a new one, which lasts for 100 ms.
    assert!(at(&mut nat, ms(600), OUT, &syn()).is_some());
    assert!(at(&mut nat, ms(601), IN, &answer.clone().flags(fin)).is_some());
    assert!(at(&mut nat, ms(602), OUT, &data.flags(fin)).is_some());
    assert!(at(&mut nat, ms(603), OUT, &syn()).is_some());
    assert!(at(&mut nat, ms(702), IN, &answer).is_some());
}

#[test]
fn a_lenient_nat_adopts_connections_after_a_restart() {
    let data = Seg::data(2, "x");
    let mut strict = Nat::new(NatConfig {
        adopts: false,
        ..config()
    });
    let mut lenient = Nat::new(NatConfig {
        preserves_ports: false,
        ..config()
    });
    for nat in [&mut strict, &mut lenient] {
        assert!(at(nat, T0, OUT, &syn()).is_some());
        nat.forget();
    }
    assert_eq!(at(&mut strict, T0, OUT, &data), None);
    // The port was 1024 before. For the peer, a segment from another port belongs to another connection.
    let adopted = at(&mut lenient, T0, OUT, &data).unwrap();
    assert_eq!(adopted.src, addr("203.0.113.5:1025"));
    lenient.rebind(Ipv4Addr::new(203, 0, 113, 9));
    let moved = at(&mut lenient, T0, OUT, &data).unwrap();
    assert_eq!(moved.src, addr("203.0.113.9:1026"));
    let old = data.ends("192.0.2.1:80", "203.0.113.5:1025");
    assert_eq!(at(&mut lenient, T0, IN, &old), None);
    let reset = Seg::data(2, "")
        .flags(Flags::RST)
        .ends("10.0.0.9:5000", "192.0.2.1:80");
    assert_eq!(
        at(&mut lenient, T0, OUT, &reset),
        None,
        "the end of nothing"
    );
}

#[test]
fn a_full_table_refuses_flows_until_a_mapping_expires() {
    let mut nat = Nat::new(NatConfig {
        capacity: 3,
        transitory: Duration::from_millis(10),
        ..config()
    });
    let syn = |host: u8| syn().ends(&format!("10.0.0.{host}:4000"), "192.0.2.1:80");
    for host in 1..=3 {
        assert!(at(&mut nat, ms(u64::from(host)), OUT, &syn(host)).is_some());
    }
    assert_eq!(at(&mut nat, ms(5), OUT, &syn(4)), None);
    assert_eq!(nat.counters().full, 1);
    assert!(
        at(&mut nat, ms(5), OUT, &syn(3)).is_some(),
        "the flow has a mapping"
    );
    assert!(at(&mut nat, ms(12), OUT, &syn(4)).is_some());
    assert_eq!(nat.mappings(), 2, "those of hosts 1 and 2 have expired");
}

/// Returns a UDP datagram in an IP packet, with or without a checksum.
fn datagram(src: &str, dst: &str, has_checksum: bool) -> Packet {
    let (src, dst) = (addr(src), addr(dst));
    let repr = ip::Repr {
        src: src.ip(),
        dst: dst.ip(),
        protocol: ip::PROTO_UDP,
        payload_len: 11,
        hop_limit: 64,
        traffic_class: 0,
    };
    let mut bytes = vec![0; 31];
    repr.emit(&mut bytes);
    let header = udp::Repr {
        src_port: src.port(),
        dst_port: dst.port(),
        payload_len: 3,
    };
    header.emit(&mut bytes[20..]);
    bytes[28..].copy_from_slice(b"abc");
    if has_checksum {
        udp::fill_checksum(src.ip(), dst.ip(), &mut bytes[20..]);
    }
    Packet::new(bytes)
}

#[test]
fn udp_with_and_without_a_checksum() {
    for has_checksum in [true, false] {
        let mut nat = Nat::new(NatConfig {
            udp: Duration::from_millis(10),
            ..config()
        });
        let sent = datagram("10.0.0.2:4000", "192.0.2.1:53", has_checksum);
        let expected = datagram("203.0.113.5:4000", "192.0.2.1:53", has_checksum);
        assert_eq!(process(&mut nat, ms(0), OUT, sent), [(OUT, expected)]);
        let answer = datagram("192.0.2.1:53", "203.0.113.5:4000", has_checksum);
        let expected = datagram("192.0.2.1:53", "10.0.0.2:4000", has_checksum);
        assert_eq!(
            process(&mut nat, ms(9), IN, answer.clone()),
            [(IN, expected)]
        );
        assert_eq!(process(&mut nat, ms(19), IN, answer), [], "too late");
        // TCP from the same ports is independent.
        assert_eq!(outbound(&mut nat, &syn()).src, addr("203.0.113.5:4000"));
    }
}

/// A computed checksum of zero is sent as all ones, because zero means that there is no checksum (RFC 768).
#[test]
fn an_adjusted_udp_checksum_is_never_zero() {
    let from = |host: &str, port: u16| datagram(&format!("{host}:{port}"), "192.0.2.1:53", true);
    let sums_to_zero = |port: &u16| from("203.0.113.5", *port).bytes[26..28] == [0xff; 2];
    let port = (1024..=u16::MAX)
        .find(sums_to_zero)
        .expect("the sum of one port is zero");
    let mut nat = Nat::new(config());
    let sent = from("10.0.0.2", port);
    let expected = from("203.0.113.5", port);
    assert_eq!(process(&mut nat, T0, OUT, sent), [(OUT, expected)]);
}

/// Returns an ICMP error of `router` about `packet`.
fn error(router: &str, kind: Kind, packet: &Packet) -> Packet {
    let mut buf = [0; icmp::MAX_LEN];
    let len = icmp::emit(kind, router.parse().unwrap(), &packet.bytes, &mut buf).unwrap();
    Packet::new(buf[..len].to_vec())
}

#[test]
fn icmp_errors_and_their_quotations_are_translated() {
    let mut nat = Nat::new(config());
    let kind = Kind::PacketTooBig { mtu: 1300 };
    let sent = Seg::data(2, "x").ends("10.0.0.2:40", "192.0.2.1:80");
    let outside = outbound(&mut nat, &sent).packet();
    let report = error("198.51.100.1", kind, &outside);
    let [(IN, packet)] = &process(&mut nat, T0, IN, report)[..] else {
        panic!("one packet inwards");
    };
    let (ip, message) = ip::Repr::parse(&packet.bytes).unwrap();
    assert_eq!(
        (ip.src, ip.dst),
        (addr("198.51.100.1:0").ip(), sent.src.ip())
    );
    let parsed = TcpError::parse(false, message).unwrap();
    assert_eq!(
        (parsed.kind, parsed.src, parsed.dst),
        (kind, sent.src.ip(), sent.dst.ip())
    );
    assert_eq!(
        (parsed.src_port, parsed.dst_port, parsed.seq.0),
        (40, 80, 2)
    );
    let quoted = ip::Packet::new(&message[8..]).unwrap();
    assert!(quoted.checksum_ok());

    // A router on the inside reports an error about a packet from the outside.
    let answer = Seg::data(9, "y").ends("192.0.2.1:80", "203.0.113.5:1024");
    let inside = inbound(&mut nat, &answer).packet();
    let [(OUT, packet)] = &process(&mut nat, T0, OUT, error("10.0.0.1", kind, &inside))[..] else {
        panic!("one packet outwards");
    };
    let (ip, message) = ip::Repr::parse(&packet.bytes).unwrap();
    assert_eq!((ip.src, ip.dst), (EXTERNAL.into(), answer.src.ip()));
    let parsed = TcpError::parse(false, message).unwrap();
    assert_eq!((parsed.dst, parsed.dst_port), (EXTERNAL.into(), 1024));

    // An error about an unknown flow, and an ICMP message that is no error (type 8, an echo request).
    let unmapped = answer.ends("203.0.113.5:9999", "192.0.2.1:80").packet();
    let unknown = nat.counters().unknown;
    assert_eq!(
        process(&mut nat, T0, IN, error("198.51.100.1", kind, &unmapped)),
        []
    );
    assert_eq!(nat.counters().unknown, unknown + 1);
    let mut echo = error("198.51.100.1", kind, &outside);
    echo.bytes[20] = 8;
    assert_eq!(process(&mut nat, T0, IN, echo), []);
    assert_eq!(nat.counters().unsupported, 1);
}

#[test]
fn ipv6_passes() {
    let mut nat = Nat::new(config());
    let seg = Seg::data(1, "x").ends("[2001:db8::1]:4000", "[2001:db8::2]:80");
    assert_eq!(outbound(&mut nat, &seg), seg);
    assert_eq!(inbound(&mut nat, &seg), seg);
}

#[test]
fn corrupted_packets_stay_corrupted() {
    let mut nat = Nat::new(config());
    abuse(&mut nat, &Seg::data(1, "some payload"));
    outbound(&mut nat, &syn());
    abuse(
        &mut nat,
        &Seg::data(1, "some payload").ends("192.0.2.1:80", "203.0.113.5:4000"),
    );
}

proptest! {
    /// For any order of packets the table keeps its bound, and an answer reaches the host that sent the packet. So
    /// no two flows share a port.
    #[test]
    fn answers_reach_the_sender(
        steps in prop::collection::vec((0u8..6, 0u16..4, 0u64..40), 1..80),
        capacity in 1usize..12,
        preserves_ports: bool,
    ) {
        let mut nat = Nat::new(NatConfig {
            capacity,
            preserves_ports,
            transitory: Duration::from_millis(30),
            established: Duration::from_millis(60),
            ..config()
        });
        let mut now = 0;
        for (host, port, wait) in steps {
            now += wait;
            let (src, dst) = (format!("10.0.0.{host}:{}", 2000 + port), "192.0.2.1:80");
            let seg = Seg::data(1, "x").ends(&src, dst);
            let Some(out) = at(&mut nat, ms(now), OUT, &seg) else {
                prop_assert_eq!(nat.mappings(), capacity);
                continue;
            };
            prop_assert!(nat.mappings() <= capacity);
            prop_assert_eq!(out.src.ip(), addr("203.0.113.5:0").ip());
            let back = at(&mut nat, ms(now), IN, &out.clone().back()).unwrap();
            prop_assert_eq!((back.src, back.dst), (addr(dst), addr(&src)));
        }
    }
}
