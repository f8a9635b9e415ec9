//! Addresses that come and go: ADD_ADDR and REMOVE_ADDR (RFC 8684 section 3.4), the C flag (section
//! 3.1), address ids (section 3.2) and MP_PRIO (section 3.3.8).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use braid_engine::{Config, Event, PathConfig, PathId, Protocol, SubflowCloseReason};
use braid_wire::mptcp::{AddAddr, Join, MptcpOption, RemoveAddr};
use braid_wire::tcp::Flags;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::capable::fell_back;
use crate::harness::{At, PEER_KEY, PORT, Script, config, join_hmac, token_idsn};
use crate::join::{join_syn_ack, joined, third_ack};
use crate::mid_handshake::unknown;
use crate::segment::{Mp, Seg, ack, dack, data, hex, rst_ack, syn, syn_ack};

const V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7);

/// Returns ADD_ADDR with its HMAC, the sender's key first: the last 64 bits (RFC 8684 section 3.4.1).
fn announcement(keys: (u64, u64), mut add: AddAddr) -> MptcpOption {
    let key = [keys.0.to_be_bytes(), keys.1.to_be_bytes()].concat();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    let addr = match add.addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    };
    let port = add.port.unwrap_or(0).to_be_bytes();
    mac.update(&[&[add.address_id], &addr[..], &port].concat());
    let hmac: [u8; 32] = mac.finalize().into_bytes().into();
    add.hmac = Some(u64::from_be_bytes(hmac[24..].try_into().unwrap()));
    MptcpOption::AddAddr(add)
}

pub fn add(address_id: u8, addr: impl Into<IpAddr>, port: Option<u16>) -> AddAddr {
    AddAddr {
        address_id,
        addr: addr.into(),
        port,
        hmac: None,
    }
}

/// Returns ADD_ADDR as the peer announces it.
pub fn announced(s: &Script, add: AddAddr) -> MptcpOption {
    announcement((PEER_KEY, s.key.unwrap()), add)
}

/// Returns ADD_ADDR as the stack announces it.
fn announces(s: &Script, add: AddAddr) -> MptcpOption {
    announcement((s.key.unwrap(), PEER_KEY), add)
}

pub fn removed(ids: &[u8]) -> MptcpOption {
    MptcpOption::RemoveAddr(RemoveAddr::new(ids).unwrap())
}

fn prio(backup: bool) -> MptcpOption {
    MptcpOption::Prio { backup }
}

/// Returns the next segment of the stack, which must leave now.
fn next(s: &mut Script) -> Seg {
    s.advance(s.now);
    let (at, seg) = s.take().expect("nothing was sent");
    assert_eq!(at, s.now);
    seg
}

/// Returns the statistics: ADD_ADDR sent and received, REMOVE_ADDR sent and received.
fn counted(s: &Script) -> [u32; 4] {
    let told = s.stack.conn_stats(s.id()).unwrap().addresses;
    [
        told.add_addr_sent,
        told.add_addr_received,
        told.remove_addr_sent,
        told.remove_addr_received,
    ]
}

fn live(s: &Script) -> usize {
    let subflows = s.stack.subflows(s.id());
    subflows.iter().filter(|s| s.established).count()
}

// --- the accepting side

/// A server with three addresses, the last of both families; it announces the public addresses of the two
/// others. The connection arrives at the first one.
fn server() -> Script {
    let second = PathConfig::v4(Ipv4Addr::new(10, 0, 8, 1));
    let third = PathConfig {
        v6: Some(V6),
        ..PathConfig::v4(Ipv4Addr::new(10, 0, 7, 1))
    };
    let first = PathConfig::v4(Ipv4Addr::new(10, 0, 9, 1));
    let mut s = Script::new(config(), &[first, second, third]);
    for host in [9, 8] {
        let listen = SocketAddr::from(([10, 0, host, 1], PORT));
        s.stack.listen(listen).unwrap();
    }
    let at = |n, port| SocketAddr::from(([192, 0, 2, n], port));
    s.stack.announce(PathId(0), at(9, PORT)).unwrap();
    s.stack.announce(PathId(1), at(8, PORT)).unwrap();
    s.stack.announce(PathId(2), (V6, 99).into()).unwrap();
    s.peer(1);
    send!(s, 0, syn().raw(&[30, 4, 1, 1]));
    recv!(s => 0, s.capable(syn_ack()));
    send!(s, 10, s.third_ack());
    s
}

fn second() -> AddAddr {
    add(3, Ipv4Addr::new(192, 0, 2, 8), None)
}

fn third() -> AddAddr {
    add(6, V6, Some(99))
}

/// Everything except the address that the connection came to is announced, all at once, and again until it
/// is echoed: RFC 8684 section 3.4.1.
// Conforms: 8684-3.4.1-4, 8684-3.4.1-7
#[test]
fn a_server_announces_its_other_addresses() {
    let mut s = server();
    recv!(s => 10, ack(1, 1).opt(announces(s, second())).dss(dack(0)));
    recv!(s => 10, ack(1, 1).opt(announces(s, third())).dss(dack(0)));
    // One is echoed, the other repeated by the subflow's timer: 10 ms + 200 ms, then twice that.
    send!(s, 20, ack(1, 1).opt(MptcpOption::AddAddr(second())));
    recv!(s => 220, ack(1, 1).opt(announces(s, third())).dss(dack(0)));
    recv!(s => 640, ack(1, 1).opt(announces(s, third())).dss(dack(0)));
    send!(s, 650, ack(1, 1).opt(MptcpOption::AddAddr(third())));
    quiet!(s, 9_000);
}

/// With timestamps on both sides an IPv6 address with a port fills the header: the timestamp is left out,
/// and the DATA_ACK follows.
#[test]
fn a_long_announcement_stands_alone() {
    let mut s = Script::new(config(), &[]);
    let first = PathConfig::v4(Ipv4Addr::new(10, 0, 9, 1));
    s.stack.add_path(first).unwrap();
    let second = PathConfig {
        v6: Some(V6),
        ..PathConfig::v4(Ipv4Addr::new(10, 0, 7, 1))
    };
    s.stack.add_path(second).unwrap();
    s.stack.listen(([10, 0, 9, 1], PORT).into()).unwrap();
    s.stack.announce(PathId(1), (V6, 99).into()).unwrap();
    s.peer(1);
    send!(s, 0, syn().ts(0, 0).raw(&[30, 4, 1, 1]));
    recv!(s => 0, s.capable(syn_ack()).ts(0, 0));
    send!(s, 10, s.third_ack().ts(10, 0));
    let mut got = next(&mut s);
    assert_eq!((got.ts.take(), got.mptcp.len()), (None, 1), "{got:?}");
    assert_eq!(got.mptcp[0], Mp::Other(announces(&s, add(4, V6, Some(99)))));
    recv!(s, 10, ack(1, 1).ts(10, 10).dss(dack(0)));
    quiet!(s, 100);
}

// Conforms: 8684-3.4.1-4
#[test]
fn an_announcement_that_is_not_echoed_is_given_up() {
    let mut s = server();
    let mut times = Vec::new();
    s.advance(braid_wire::Instant::from_millis(60_000));
    while let Some((at, seg)) = s.take() {
        if seg.mptcp[0] == Mp::Other(announces(&s, second())) {
            times.push(at.as_millis());
        }
    }
    assert_eq!(times, [10, 220, 640, 1_480, 3_160]);
}

/// A signal that could not be heard during an outage is sent when the outage is over.
#[test]
fn an_announcement_outlives_the_dark() {
    let mut s = server();
    s.skip(10);
    s.write("x");
    s.skip(30_000);
    send!(s, 30_000, ack(1, 2).dss(dack(1)));
    let want = Mp::Other(announces(&s, second()));
    s.advance(braid_wire::Instant::from_millis(40_000));
    let mut said = false;
    while let Some((_, seg)) = s.take() {
        said |= seg.mptcp[0] == want;
    }
    assert!(said, "not said again");
}

/// During an outage pending signals set no timer.
#[test]
fn the_dark_has_no_timers() {
    let mut s = server();
    s.skip(10);
    s.stack.set_path_up(s.now, PathId(0), false);
    s.skip(1_000);
    let soonest = s.now + core::time::Duration::from_secs(5);
    assert!(s.stack.next_timeout().is_none_or(|at| at > soonest));
    s.stack.set_path_up(s.now, PathId(0), true);
    send!(s, 1_001, ack(1, 1));
    let again = announces(&s, second());
    recv!(s, 1_001, ack(1, 1).opt(again).dss(dack(0)));
}

/// At most two acknowledgements in a row are sent only for options (RFC 8684 section 3): further addresses
/// wait for an answer or a pause, and each has its turn.
// Conforms: 8684-3-2
#[test]
fn addresses_are_told_two_at_a_time() {
    let paths: Vec<_> = (1..7)
        .map(|host| PathConfig::v4(Ipv4Addr::new(10, 0, 9, host)))
        .collect();
    let mut s = Script::new(config(), &paths);
    s.stack.listen(([10, 0, 9, 1], PORT).into()).unwrap();
    for n in 1..6 {
        let at = SocketAddr::from(([192, 0, 2, n], PORT));
        s.stack.announce(PathId(n), at).unwrap();
    }
    s.peer(1);
    send!(s, 0, syn().raw(&[30, 4, 1, 1]));
    recv!(s => 0, s.capable(syn_ack()));
    send!(s, 10, s.third_ack());
    let told = |s: &mut Script, n: u8| {
        let add = add(2 * n + 1, Ipv4Addr::new(192, 0, 2, n), None);
        recv!(s => s.now, ack(1, 1).opt(announces(s, add)).dss(dack(0)));
        add
    };
    told(&mut s, 1);
    let second = told(&mut s, 2);
    quiet!(s, 19);
    send!(s, 20, ack(1, 1).opt(MptcpOption::AddAddr(second)));
    told(&mut s, 3);
    told(&mut s, 4);
    quiet!(s, 219);
    s.advance(braid_wire::Instant::from_millis(230));
    told(&mut s, 5);
}

/// The SYN/ACK of a join carries the id of the joined address, not the peer's id (RFC 8684 section 3.2): 0
/// for the address of the initial subflow, otherwise the announced id.
// Conforms: 8684-3.2-4, 8684-3.2-5, 8684-3.2-16, 8684-3.4.1-8
#[test]
fn the_answer_to_a_join_bears_our_own_id() {
    for (host, id) in [(9, 0), (8, 3)] {
        let mut s = server();
        s.skip(20);
        let to = SocketAddr::from(([10, 0, host, 1], PORT));
        let flow = s.flow(to, ([10, 0, 2, 2], 5_001).into());
        let (token, _) = token_idsn(s.key.unwrap());
        let join = [&[30, 12, 0x10, 7], &token.to_be_bytes()[..], &[1; 4]].concat();
        send!(s, 20, syn().on(flow).raw(&join));
        let got = next(&mut s);
        let [Mp::Other(MptcpOption::Join(Join::SynAck { address_id, .. }))] = got.mptcp[..] else {
            panic!("no MP_JOIN: {got:?}");
        };
        assert_eq!(address_id, id);
    }
}

/// An announced address that goes away is withdrawn, with others in one list; when it comes back it is
/// announced again (RFC 8684 section 3.4.2).
// Conforms: 8684-3.4.2-9
#[test]
fn a_server_withdraws_what_goes_away() {
    let mut s = server();
    s.skip(20);
    for add in [second(), third()] {
        send!(s, 20, ack(1, 1).opt(MptcpOption::AddAddr(add)));
    }
    s.stack.leave_path(s.now, PathId(1));
    s.stack.leave_path(s.now, PathId(2));
    s.write("");
    recv!(s, 20, ack(1, 1).opt(removed(&[3, 6])).dss(dack(0)));
    recv!(s, 230, ack(1, 1).opt(removed(&[3, 6])).dss(dack(0)));
    quiet!(s, 5_000);
    s.stack.set_path_up(s.now, PathId(1), true);
    s.write("");
    recv!(s => 5_000, ack(1, 1).opt(announces(s, second())).dss(dack(0)));
    assert_eq!(counted(&s), [3, 0, 2, 0], "no echoes; both ids together");
}

/// C flag: a peer that was asked not to join the initial address is refused there (RFC 8684 section 3.1).
#[test]
fn a_server_may_deny_joins_to_its_initial_address() {
    let config = Config {
        deny_join_initial: true,
        ..config()
    };
    let mut s = Script::server(config);
    s.peer(1);
    send!(s, 0, syn().raw(&[30, 4, 1, 1]));
    let got = next(&mut s);
    assert_eq!(got.raw.unwrap()[..4], [30, 12, 1, 0x21]);
    send!(s, 10, s.third_ack());
    recv!(s, 10, ack(1, 1).dss(dack(0)));
    s.peer(2);
    let (token, _) = token_idsn(s.key.unwrap());
    let join = [&[30, 12, 0x10, 7], &token.to_be_bytes()[..], &[1; 4]].concat();
    send!(s, 20, syn().on(1).raw(&join));
    recv!(s, 20, rst_ack(0, 1).on(1).raw(&hex("1e 04 80 01")));
}

// --- the opening side

/// An announced address is acknowledged by its echo and joined: from a path without a subflow, or else from
/// one that has one.
// Conforms: 8684-3.4.1-3
#[test]
fn an_announced_address_is_joined() {
    let other = Ipv4Addr::new(10, 0, 8, 1);
    let mapped = other.to_ipv6_mapped();
    for (said, port, expected) in [
        (IpAddr::from(other), None, PORT),
        (IpAddr::from(other), Some(99), 99),
        // Linux writes an IPv4-mapped endpoint so.
        (IpAddr::from(mapped), None, PORT),
    ] {
        let mut s = Script::opened(config(), 1);
        let option = announced(&s, add(5, said, port));
        send!(s, 30, ack(1, 1).opt(option));
        let echo = MptcpOption::AddAddr(add(5, said, port));
        let mut sent = Vec::new();
        while let Some((_, seg)) = s.take() {
            sent.push(seg);
        }
        let echoes = |seg: &&Seg| seg.mptcp.first() == Some(&Mp::Other(echo));
        assert_eq!(sent.iter().filter(echoes).count(), 1, "{sent:?}");
        let join = sent.iter().find(|seg| seg.flags == Flags::SYN);
        let join = join.expect("no join");
        Script::join_syn(&join.mptcp[0]);
        assert_eq!(s.flows[join.flow].peer, SocketAddr::from((other, expected)));
        // A repeat is echoed again, and not joined twice.
        send!(s, 40, ack(1, 1).opt(announced(&s, add(5, said, port))));
        recv!(s, 40, ack(1, 1).opt(echo).dss(dack(0)));
        quiet!(s, 41);
    }
}

/// Only the peer knows both keys.
// Conforms: 8684-3.4.1-1
#[test]
fn an_announcement_without_proof_is_ignored() {
    let mut s = Script::opened(config(), 1);
    let forged = announces(&s, add(5, Ipv4Addr::new(10, 0, 8, 1), None));
    send!(s, 30, ack(1, 1).opt(forged));
    quiet!(s, 5_000);
    assert_eq!(counted(&s), [0; 4]);
}

/// An address that no host can have is echoed and not joined.
#[test]
fn an_address_that_is_no_host_s_is_not_joined() {
    let bad = [
        add(5, Ipv4Addr::LOCALHOST, None),
        add(5, Ipv4Addr::LOCALHOST.to_ipv6_mapped(), None),
        add(5, Ipv4Addr::BROADCAST, None),
        add(5, Ipv4Addr::new(224, 0, 0, 1), None),
        add(5, Ipv4Addr::new(169, 254, 0, 1), None),
        add(5, Ipv4Addr::UNSPECIFIED, None),
        add(5, Ipv4Addr::new(10, 0, 8, 1), Some(0)),
    ];
    let mut s = Script::opened(config(), 1);
    for add in bad {
        send!(s, 30, ack(1, 1).opt(announced(&s, add)));
        recv!(s, 30, ack(1, 1).opt(MptcpOption::AddAddr(add)).dss(dack(0)));
        quiet!(s, 30);
    }
    quiet!(s, 5_000);
}

/// A peer cannot cause SYNs at will, neither by many addresses nor by one address that comes and goes.
#[test]
fn a_peer_cannot_ask_for_syns_without_end() {
    let mut s = Script::opened(config(), 1);
    let mut syns = 0;
    for n in 0..200_u8 {
        let other = add(5, Ipv4Addr::new(10, 1, n, 1), None);
        send!(s, 30, ack(1, 1).opt(announced(&s, other)));
        while let Some((_, seg)) = s.take() {
            syns += u32::from(seg.flags == Flags::SYN);
        }
        send!(s, 30, ack(1, 1).opt(removed(&[5])));
        while let Some((_, seg)) = s.take() {
            syns += u32::from(seg.flags == Flags::SYN);
        }
    }
    assert_eq!(syns, 8);
}

/// Several addresses are announced at once, one of a family that no path has.
#[test]
fn announcements_may_come_together() {
    let mut s = Script::opened(config(), 1);
    let (one, two) = (Ipv4Addr::new(10, 0, 8, 1), Ipv4Addr::new(10, 0, 7, 1));
    let mut joined = Vec::new();
    for add in [add(5, one, None), add(6, V6, None), add(7, two, None)] {
        send!(s, 30, ack(1, 1).opt(announced(&s, add)));
        while let Some((_, seg)) = s.take() {
            match seg.flags == Flags::SYN {
                true => joined.push(s.flows[seg.flow].peer.ip()),
                false => assert_eq!(seg.mptcp[0], Mp::Other(MptcpOption::AddAddr(add))),
            }
        }
    }
    assert_eq!(joined, [IpAddr::from(one), IpAddr::from(two)]);
}

/// ADD_ADDR shows that the peer has our key, so the third ACK arrived: joins follow as after a DATA_ACK.
#[test]
fn an_announcement_confirms_the_connection() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    s.skip(0);
    s.key = None;
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    let add = add(5, Ipv4Addr::new(10, 0, 8, 1), None);
    send!(s, 20, ack(1, 1).win(512).opt(announced(&s, add)));
    let join = next(&mut s);
    Script::join_syn(&join.mptcp[0]);
    recv!(s, 20, ack(1, 1).opt(MptcpOption::AddAddr(add)).dss(dack(0)));
}

/// C flag: RFC 8684 section 3.1. A second path goes to the announced address and to no other.
// Conforms: 8684-3.1-6
#[test]
fn what_is_denied_is_joined_elsewhere() {
    let mut s = Script::client(config(), 2, Protocol::Mptcp);
    s.skip(0);
    let denies = [&[30, 12, 1, 0x21], &PEER_KEY.to_be_bytes()[..]].concat();
    send!(s, 10, syn_ack().win(65_535).raw(&denies));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    send!(s, 20, ack(1, 1).win(512).dss(dack(0)));
    quiet!(s, 5_000);
    let other = Ipv4Addr::new(10, 0, 8, 1);
    let option = announced(&s, add(5, other, None));
    send!(s, 5_000, ack(1, 1).opt(option));
    let mut joins = Vec::new();
    while let Some((_, seg)) = s.take() {
        if seg.flags == Flags::SYN {
            let flow = s.flows[seg.flow];
            joins.push((flow.stack.ip(), flow.peer.ip()));
        }
    }
    assert_eq!(joins, [([10, 0, 1, 2].into(), other.into())]);
}

/// An address that does not answer is no reason to leave a path without a subflow, nor a failing path to
/// leave an address without one.
#[test]
fn a_path_tries_the_address_that_failed_least() {
    let mut s = Script::opened(config(), 2);
    s.advance(s.now);
    let (_, first) = s.take().expect("no join");
    assert_eq!(s.flows[first.flow].peer.ip(), IpAddr::from([10, 0, 9, 1]));
    let option = announced(&s, add(5, Ipv4Addr::new(10, 0, 8, 1), None));
    send!(s, 30, ack(1, 1).opt(option));
    s.skip(31);
    send!(s, 32, rst_ack(0, 1).on(1));
    s.advance(braid_wire::Instant::from_millis(3_000));
    // The announced address has a subflow from the first path by then; now it is the second path's turn.
    let seen = |s: &Script, path: u8, host: u8| {
        let ends = |f: &crate::harness::Flow| (f.stack.ip(), f.peer.ip());
        let wanted = ([10, 0, path, 2].into(), [10, 0, host, 1].into());
        s.flows.iter().any(|f| ends(f) == wanted)
    };
    assert!(seen(&s, 1, 8) && seen(&s, 1, 9), "{:?}", s.flows);
}

// --- addresses that go

/// An address without a port means the port of the subflow on which it is announced.
// Conforms: 8684-3.4.1-5
#[test]
fn an_announcement_on_a_subflow_of_another_port() {
    let join = |s: &mut Script| {
        let sent = core::iter::from_fn(|| s.take().map(|(_, seg)| seg));
        let join = sent.filter(|seg| seg.flags == Flags::SYN).last();
        let join = join.expect("no join");
        let (_, nonce) = Script::join_syn(&join.mptcp[0]);
        (s.flows[join.flow].peer, nonce)
    };
    let mut s = Script::opened(config(), 1);
    let [second, third] = [8, 7].map(|host| Ipv4Addr::new(10, 0, host, 1));
    let option = announced(&s, add(5, second, Some(99)));
    send!(s, 30, ack(1, 1).opt(option));
    let (to, nonce) = join(&mut s);
    assert_eq!(to, SocketAddr::from((second, 99)));
    send!(s, 40, join_syn_ack(&s, nonce, false));
    recv!(s => 40, third_ack(s, nonce));
    send!(s, 50, ack(1, 1).on(1).win(512).dss(dack(0)));
    let option = announced(&s, add(6, third, None));
    send!(s, 60, ack(1, 1).on(1).opt(option));
    assert_eq!(join(&mut s).0, SocketAddr::from((third, 99)));
}

/// The peer opens a second subflow to `to`, on flow 1.
fn join_at(s: &mut Script, to: SocketAddr, at: i32) {
    let flow = s.flow(to, ([10, 0, 2, 2], 5_001).into());
    let (token, _) = token_idsn(s.key.unwrap());
    let nonce = 1_u32;
    let join = [
        &[30, 12, 0x10, 7],
        &token.to_be_bytes()[..],
        &nonce.to_be_bytes(),
    ]
    .concat();
    send!(s, at, syn().on(flow).raw(&join));
    let got = next(s);
    let [Mp::Other(MptcpOption::Join(Join::SynAck { nonce: theirs, .. }))] = got.mptcp[..] else {
        panic!("no MP_JOIN: {got:?}");
    };
    let hmac = join_hmac((PEER_KEY, s.key.unwrap()), (nonce, theirs));
    let proof = [&[30, 24, 0x10, 0], &hmac[..20]].concat();
    send!(s, at + 1, ack(1, 1).on(flow).win(512).raw(&proof));
    recv!(s, at + 1, ack(1, 1).on(flow).dss(dack(0)));
}

/// A path's link fails and comes back at the side that accepts joins. The peer no longer joins a withdrawn
/// address of id 0 until it is announced, so that id is withdrawn only if its address is announced later.
#[test]
fn the_initial_address_is_withdrawn_only_to_be_announced_again() {
    for told in [true, false] {
        let paths = [9, 8].map(|host| PathConfig::v4(Ipv4Addr::new(10, 0, host, 1)));
        let mut s = Script::new(config(), &paths);
        let home = SocketAddr::from(([10, 0, 9, 1], PORT));
        s.stack.listen(home).unwrap();
        let other = SocketAddr::from(([10, 0, 8, 1], PORT));
        s.stack.listen(other).unwrap();
        if told {
            s.stack.announce(PathId(0), home).unwrap();
        }
        s.peer(1);
        send!(s, 0, syn().raw(&[30, 4, 1, 1]));
        recv!(s => 0, s.capable(syn_ack()));
        send!(s, 10, s.third_ack());
        recv!(s, 10, ack(1, 1).dss(dack(0)));
        join_at(&mut s, other, 20);
        s.stack.set_path_up(s.now, PathId(0), false);
        s.write("");
        let withdrawn = |s: &mut Script| {
            let mut sent = Vec::new();
            while let Some((_, seg)) = s.take() {
                sent.extend(seg.mptcp);
            }
            (sent.contains(&Mp::Other(removed(&[0]))), sent)
        };
        assert_eq!(withdrawn(&mut s).0, told);
        s.stack.set_path_up(s.now, PathId(0), true);
        s.write("");
        let again = announces(&s, add(0, Ipv4Addr::new(10, 0, 9, 1), None));
        assert_eq!(withdrawn(&mut s).1.contains(&Mp::Other(again)), told);
    }
}

fn joined_id(s: &Script) -> usize {
    s.stack.subflows(s.id()).len()
}

/// The peer withdraws the address of a subflow (id 3 in its SYN/ACK): its data moves elsewhere at once, and
/// if the subflow does not answer it is closed (RFC 8684 section 3.4.2).
// Conforms: 8684-3.4.2-5
#[test]
fn a_withdrawn_subflow_is_left_and_closed() {
    let mut s = joined();
    s.write("fast");
    recv!(s, 24, data(1, 1, "fast").on(1).dss(dack(0).map(0, 1, 4)));
    send!(s, 25, ack(1, 1).opt(removed(&[9, 3])));
    let mut sent = Vec::new();
    s.advance(braid_wire::Instant::from_millis(26));
    while let Some((_, seg)) = s.take() {
        sent.push(seg);
    }
    let again = |seg: &Seg| seg.flow == 0 && seg.payload == b"fast";
    assert!(sent.iter().any(again), "{sent:?}");
    send!(s, 30, ack(1, 5).dss(dack(4)));
    s.skip(3_500);
    assert!(s.saw(|e| matches!(
        e,
        Event::SubflowClosed {
            reason: SubflowCloseReason::PathRemoved,
            path: PathId(1),
            ..
        }
    )));
    assert!(s.stack.is_mptcp(s.id()).is_some());
}

/// Anybody can send REMOVE_ADDR: a subflow on which the peer answers stays.
// Conforms: 8684-3.4.2-1, 8684-3.4.2-2
#[test]
fn a_subflow_that_answers_is_not_closed() {
    let mut s = joined();
    send!(s, 25, ack(1, 1).opt(removed(&[3])));
    // Its keepalive.
    recv!(s, 25, ack(0, 1).on(1).dss(dack(0)));
    send!(s, 27, ack(1, 1).on(1).win(512).dss(dack(0)));
    quiet!(s, 5_000);
    assert_eq!((joined_id(&s), live(&s)), (2, 2));
}

/// Id 0 is the initial subflow (RFC 8684 section 3.4.2).
// Conforms: 8684-3.2-5
#[test]
fn the_initial_address_may_be_withdrawn() {
    let mut s = joined();
    send!(s, 25, ack(1, 1).on(1).opt(removed(&[0])));
    recv!(s, 25, ack(0, 1).dss(dack(0)));
    s.skip(6_000);
    let subflows = s.stack.subflows(s.id());
    assert_eq!(subflows.len(), 1, "{subflows:?}");
    assert_eq!(subflows[0].path, PathId(1));
}

/// A withdrawn address is not joined any more.
// Conforms: 8684-3.4.2-3
#[test]
fn a_withdrawn_address_is_not_joined_again() {
    let mut s = Script::opened(config(), 1);
    let other = Ipv4Addr::new(10, 0, 8, 1);
    let option = announced(&s, add(5, other, None));
    send!(s, 30, ack(1, 1).opt(option));
    s.skip(40);
    send!(s, 40, ack(1, 1).opt(removed(&[5])));
    quiet!(s, 10_000);
    assert_eq!(counted(&s), [0, 1, 0, 1]);
}

/// After a link goes down, the peer is told the id of its address on another link, twice, and no more once
/// the link is back.
// Conforms: 8684-3.4.2-9
#[test]
fn the_address_of_a_link_that_goes_down_is_withdrawn() {
    let mut s = joined();
    s.stack.set_path_up(s.now, PathId(1), false);
    s.write("");
    recv!(s, 24, ack(1, 1).opt(removed(&[3])).dss(dack(0)));
    s.stack.set_path_up(s.now, PathId(1), true);
    s.write("");
    while let Some((_, seg)) = s.take() {
        assert_eq!(seg.flow, 1, "{seg:?}");
    }
    send!(s, 26, ack(1, 1).on(1).win(512).dss(dack(0)));
    quiet!(s, 5_000);
}

/// A link has a new address: a subflow that only receives probes its peer, and a refused subflow is opened
/// anew.
#[test]
fn subflows_of_a_revalidated_path_are_probed() {
    let mut s = joined();
    s.stack.revalidate_path(s.now, PathId(1));
    s.write("");
    recv!(s, 24, ack(0, 1).on(1).dss(dack(0)));
    send!(s, 54, rst_ack(1, 1).on(1));
    s.skip(1_000);
    let opened = |s: &Script| s.stack.subflows(s.id()).iter().any(|f| f.path == PathId(1));
    assert!(opened(&s), "not tried again");
}

/// The probe may be lost, as between two addresses: it is repeated at growing intervals. An unanswered
/// subflow ends if there is another, and is opened anew.
#[test]
fn a_path_is_probed_until_it_answers_or_is_given_up() {
    for answered in [true, false] {
        let mut s = joined();
        s.stack.revalidate_path(s.now, PathId(1));
        s.write("");
        for at in [24, 250, 700] {
            recv!(s, at, ack(0, 1).on(1).dss(dack(0)));
        }
        if answered {
            send!(s, 720, ack(1, 1).on(1).win(512).dss(dack(0)));
            quiet!(s, 9_000);
            continue;
        }
        recv!(s, 1550, ack(0, 1).on(1).dss(dack(0)));
        s.advance(5_000.at());
        let (_, reset) = s.take().expect("not given up");
        assert_eq!((reset.flow, reset.flags), (1, Flags::RST | Flags::ACK));
        let (_, again) = s.take().expect("not opened again");
        assert_eq!(again.flags, Flags::SYN);
    }
}

/// Unanswered probes do not end the only subflow.
#[test]
fn a_revalidation_does_not_end_the_last_subflow() {
    let mut s = Script::accepted(config());
    s.stack.revalidate_path(s.now, PathId(0));
    s.write("");
    s.advance(9_000.at());
    let asked: Vec<Seg> = core::iter::from_fn(|| s.take().map(|(_, seg)| seg)).collect();
    assert_eq!(asked.len(), 4);
    assert!(asked.iter().all(|seg| ack(0, 1).dss(dack(0)).matches(seg)));
}

/// A path that is down is not probed.
#[test]
fn a_path_that_is_down_is_not_revalidated() {
    let mut s = joined();
    s.stack.set_path_up(s.now, PathId(1), false);
    s.stack.revalidate_path(s.now, PathId(1));
    s.write("");
    s.advance(5_000.at());
    while let Some((_, seg)) = s.take() {
        assert_eq!(seg.flow, 0, "{seg:?}");
    }
}

/// Data that waits long for its next retransmission leaves at once, and takes the place of a probe.
#[test]
fn a_revalidation_hastens_retransmissions() {
    let mut s = Script::accepted(config());
    s.write("lost");
    s.skip(3_000);
    s.stack.revalidate_path(s.now, PathId(0));
    s.write("");
    let next = s.stack.next_timeout().expect("not repeated");
    assert!(next <= s.now + Duration::from_millis(210), "{next:?}");
}

// --- MP_PRIO

/// A path becomes a backup and stops being one: the peer is told on the path's subflow (RFC 8684 section
/// 3.3.8).
// Conforms: 8684-3.3.8-3
#[test]
fn a_path_becomes_a_backup() {
    let mut s = joined();
    s.stack.set_path_backup(s.now, PathId(1), true);
    s.write("");
    recv!(s, 24, ack(1, 1).on(1).opt(prio(true)).dss(dack(0)));
    assert!(s.stack.subflows(s.id())[1].backup);
    // Nothing acknowledges MP_PRIO: it is sent once more, and then no more.
    recv!(s, 234, ack(1, 1).on(1).opt(prio(true)).dss(dack(0)));
    s.skip(2_000);
    s.stack.set_path_backup(s.now, PathId(1), false);
    s.stack.set_path_backup(s.now, PathId(1), false);
    s.write("");
    recv!(s, 2_000, ack(1, 1).on(1).opt(prio(false)).dss(dack(0)));
    assert!(!s.stack.subflows(s.id())[1].backup);
}

/// A backup bit that changes before the join is complete is in the SYN of the next one.
#[test]
fn later_subflows_of_the_path_are_backups_too() {
    let mut s = Script::opened(config(), 1);
    let second = PathConfig::v4(Ipv4Addr::new(10, 0, 1, 2));
    s.stack.add_path(second).unwrap();
    s.stack.set_path_backup(s.now, PathId(1), true);
    s.write("");
    let (_, join) = s.take().expect("no join");
    assert_eq!(join.raw.unwrap()[..3], [30, 12, 0x11]);
}

/// After a fallback no signals are sent, and pending ones set no timer.
#[test]
fn what_is_left_to_say_to_regular_tcp_keeps_nobody_awake() {
    let mut s = server();
    s.skip(10);
    send!(s, 11, data(1, 1, "x"));
    assert!(fell_back(&s).is_some());
    s.skip(5_000);
    let soonest = s.now + core::time::Duration::from_millis(1);
    assert!(s.stack.next_timeout().is_none_or(|at| at > soonest));
}

// --- joins that are refused

/// Refused joins are repeated with growing pauses, and then not until the path changes.
#[test]
fn refused_joins_are_tried_ever_more_seldom_and_given_up() {
    let mut s = Script::opened(config(), 2);
    let mut times = Vec::new();
    let end = braid_wire::Instant::from_millis(600_000);
    while s.now < end {
        while let Some((at, seg)) = s.take() {
            if seg.flags == Flags::SYN {
                times.push(at.as_millis());
                send!(s, s.now, unknown().on(seg.flow));
            } else if seg.flow == 0 {
                send!(s, s.now, ack(1, 1).win(512).dss(dack(0)));
            }
        }
        let at = s.stack.next_timeout().filter(|at| *at <= end);
        s.advance(at.unwrap_or(end));
    }
    assert_eq!(times, [20, 520, 1520, 3520, 7520, 15_520, 31_520, 63_520]);
    s.stack.set_path_up(s.now, PathId(1), false);
    s.stack.set_path_up(s.now, PathId(1), true);
    s.write("");
    let mut again = Vec::new();
    while let Some((_, seg)) = s.take() {
        again.push(seg.flags);
    }
    assert!(again.contains(&Flags::SYN), "not tried again");
}
