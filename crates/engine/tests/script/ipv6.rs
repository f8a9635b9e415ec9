//! The protocol over IPv6, and mixed families (RFC 8684 section 1.3).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use braid_engine::{ConnectOptions, PathConfig, PathId, Protocol};
use braid_wire::tcp::Flags;

use crate::harness::{PORT, Script, config};
use crate::segment::{Seg, ack, dack, data, hex, syn, syn_ack};
use crate::strategy::strategy;

fn v6(n: u16, host: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, n, 0, 0, 0, host)
}

fn path(v4: Option<Ipv4Addr>, v6: Option<Ipv6Addr>) -> PathConfig {
    PathConfig {
        v4,
        v6,
        ..PathConfig::default()
    }
}

fn opened(paths: &[PathConfig], remote: SocketAddr, alt: Option<SocketAddr>) -> Script {
    let mut s = Script::new(config(), paths);
    let options = ConnectOptions {
        remote_alt: alt,
        ..ConnectOptions::new(remote, strategy())
    };
    s.conn = Some(s.stack.connect(s.now, options).unwrap());
    s.write("");
    recv!(s, 0, syn().ws(None).mss(1440).raw(&hex("1e 04 01 01")));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535).mss(1440));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    send!(s, 19, ack(1, 1).win(512).dss(dack(0)));
    s.advance(braid_wire::Instant::from_millis(20));
    s
}

fn remote() -> SocketAddr {
    (v6(9, 1), PORT).into()
}

#[test]
fn a_connection() {
    let mut s = opened(&[path(None, Some(v6(0, 2)))], remote(), None);
    s.write([0; 3000]);
    // 1500 - 40 - 20 - 20.
    recv!(s, 20, data(1, 1, [0; 1420]).dss(dack(0).map(0, 1, 1420)));
    recv!(
        s,
        20,
        data(1421, 1, [0; 1420]).dss(dack(0).map(1420, 1421, 1420))
    );
    recv!(
        s,
        20,
        data(2841, 1, [0; 160]).dss(dack(0).map(2840, 2841, 160))
    );
    send!(s, 30, data(1, 3001, "six").dss(dack(3000).map(0, 1, 3)));
    recv!(s, 30, ack(3001, 4).dss(dack(3)));
    assert_eq!(s.read(), b"six");
}

/// RFC 9293 section 3.7.1: for a peer without MSS option the default applies, which every host accepts.
// Conforms: 9293-3.7.1-1
#[test]
fn a_peer_without_a_segment_size() {
    let v4 = SocketAddr::from(([10, 0, 9, 1], PORT));
    for (remote, ours, theirs) in [(remote(), 1440, 1220), (v4, 1460, 536)] {
        let both = path(Some(Ipv4Addr::new(10, 0, 0, 2)), Some(v6(0, 2)));
        let mut s = Script::new(config(), &[both]);
        s.connect(remote, Protocol::Tcp);
        recv!(s, 0, syn().ws(None).mss(ours));
        let silent = Seg {
            mss: None,
            ..syn_ack().win(65_535)
        };
        send!(s, 10, silent);
        recv!(s, 10, ack(1, 1));
        s.write(vec![0; theirs + 100]);
        recv!(s, 10, data(1, 1, vec![0; theirs]).gso(0));
        recv!(s, 10, data(theirs as u64 + 1, 1, [0; 100]));
    }
}

/// RFC 8201 section 4: a path never has an MTU below 1280 bytes.
#[test]
fn packet_too_big() {
    for (mtu, first) in [(1400, 1320), (100, 1200)] {
        let mut s = opened(&[path(None, Some(v6(0, 2)))], remote(), None);
        s.write([0; 1420]);
        recv!(s, 20, data(1, 1, [0; 1420]).dss(dack(0).map(0, 1, 1420)));
        let icmp = s.icmp(0, (2, 0, mtu), 1);
        s.inject(22, &icmp);
        let map = dack(0).map(0, 1, 1420);
        recv!(s, 22, data(1, 1, vec![0; first]).dss(map));
        recv!(
            s,
            22,
            data(first as u64 + 1, 1, vec![0; 1420 - first]).dss(map)
        );
    }
}

/// RFC 4443 section 2.3: the checksum covers the addresses.
#[test]
fn packet_too_big_with_a_wrong_checksum() {
    let mut s = opened(&[path(None, Some(v6(0, 2)))], remote(), None);
    s.write([0; 1420]);
    recv!(s, 20, data(1, 1, [0; 1420]).dss(dack(0).map(0, 1, 1420)));
    let mut icmp = s.icmp(0, (2, 0, 1300), 1);
    icmp[42] ^= 1;
    s.inject(22, &icmp);
    quiet!(s, 25);
    assert_eq!(s.stack.stats().bad_checksum, 1);
}

#[test]
fn unreachable() {
    let mut s = Script::new(config(), &[path(None, Some(v6(0, 2)))]);
    s.connect(remote(), Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).mss(1440).raw(&hex("1e 04 01 01")));
    let icmp = s.icmp(0, (1, 4, 0), 0);
    s.inject(5, &icmp);
    s.advance(braid_wire::Instant::from_millis(6));
    assert_eq!(s.stack.connections(), 0);
}

/// A path that has the other family alone joins with it.
#[test]
fn a_join_of_the_other_family() {
    let paths = [
        path(None, Some(v6(0, 2))),
        path(Some(Ipv4Addr::new(10, 0, 1, 2)), None),
    ];
    let alt = SocketAddr::from(([10, 0, 9, 1], PORT));
    let mut s = opened(&paths, remote(), Some(alt));
    s.advance(braid_wire::Instant::from_millis(20));
    let (_, join) = s.take().expect("no join");
    assert_eq!(join.mss, Some(1460));
    Script::join_syn(&join.mptcp[0]);
    assert_eq!(s.flows[join.flow].peer, alt);
    assert_eq!(
        s.flows[join.flow].stack.ip(),
        IpAddr::V4(Ipv4Addr::new(10, 0, 1, 2))
    );
}

/// Returns everything sent at once after a change.
fn sent(s: &mut Script) -> Vec<Seg> {
    s.write("");
    core::iter::from_fn(|| s.take())
        .map(|(_, seg)| seg)
        .collect()
}

/// Returns the addresses of the SYN among segments.
fn syn_of(s: &Script, sent: &[Seg]) -> (SocketAddr, SocketAddr) {
    let syn = sent.iter().find(|seg| seg.flags.contains(Flags::SYN));
    let flow = &s.flows[syn.expect("no SYN").flow];
    (flow.stack, flow.peer)
}

/// A path with both families, and the peer's addresses.
fn dual() -> (PathConfig, SocketAddr, SocketAddr) {
    let both = path(Some(Ipv4Addr::new(10, 0, 0, 2)), Some(v6(0, 2)));
    (both, remote(), SocketAddr::from(([10, 0, 9, 1], PORT)))
}

/// A link that loses the family that a connection runs over and keeps the other.
#[test]
fn a_path_that_loses_a_family_joins_by_the_other() {
    let (both, remote, alt) = dual();
    let mut s = opened(&[both], remote, Some(alt));
    s.stack
        .set_path_addresses(s.now, PathId(0), (both.v4, None));
    let after = sent(&mut s);
    assert!(after[0].flags.contains(Flags::RST), "{after:?}");
    let (own, peer) = syn_of(&s, &after);
    assert_eq!((own.ip(), peer), (both.v4.unwrap().into(), alt));
    assert_eq!(s.stack.connections(), 1);
}

/// A family that comes back is used by new connections.
#[test]
fn a_family_that_comes_back_is_used() {
    let (both, remote, alt) = dual();
    let mut s = Script::new(config(), &[both]);
    for (addresses, expected) in [((both.v4, None), alt), ((both.v4, both.v6), remote)] {
        s.stack.set_path_addresses(s.now, PathId(0), addresses);
        let options = ConnectOptions {
            remote_alt: Some(alt),
            ..ConnectOptions::new(remote, strategy())
        };
        s.conn = Some(s.stack.connect(s.now, options).unwrap());
        let after = sent(&mut s);
        assert_eq!(syn_of(&s, &after).1, expected);
    }
}

#[test]
fn a_connection_whose_family_goes_while_it_opens_opens_by_the_other() {
    let (both, remote, alt) = dual();
    let mut s = Script::new(config(), &[both]);
    let options = ConnectOptions {
        remote_alt: Some(alt),
        ..ConnectOptions::new(remote, strategy())
    };
    s.conn = Some(s.stack.connect(s.now, options).unwrap());
    let first = sent(&mut s);
    assert_eq!(syn_of(&s, &first).1, remote);
    s.stack
        .set_path_addresses(s.now, PathId(0), (both.v4, None));
    let second = sent(&mut s);
    assert_eq!(syn_of(&s, &second).1, alt);
}

/// Regular TCP is bound to its address, and goes on when that is back.
#[test]
fn regular_tcp_waits_for_its_family() {
    let (both, remote, alt) = dual();
    let mut s = Script::new(config(), &[both]);
    let options = ConnectOptions {
        remote_alt: Some(alt),
        protocol: Protocol::Tcp,
        ..ConnectOptions::new(remote, strategy())
    };
    s.conn = Some(s.stack.connect(s.now, options).unwrap());
    s.write("");
    recv!(s, 0, syn().ws(None).mss(1440));
    send!(s, 10, syn_ack().win(65_535).mss(1440));
    recv!(s, 10, ack(1, 1));
    s.stack
        .set_path_addresses(s.now, PathId(0), (both.v4, None));
    assert_eq!(sent(&mut s), []);
    s.stack
        .set_path_addresses(s.now, PathId(0), (both.v4, both.v6));
    assert_ne!(sent(&mut s), [], "nobody asks whether the peer is there");
    send!(s, 20, ack(1, 1));
    s.write("on");
    recv!(s, 20, data(1, 1, "on"));
}
