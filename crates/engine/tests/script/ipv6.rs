//! The same over IPv6, and mixed families (RFC 8684 section 1.3).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use braid_engine::{ConnectOptions, PathConfig, Protocol};

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
        mtu: 1500,
        backup: false,
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

/// RFC 9293 section 3.7.1: who says nothing of its segment size takes what every host does.
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

/// RFC 8201 section 4: a path never has less than 1280 bytes.
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
