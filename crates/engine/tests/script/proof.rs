//! Joins that a secret of the application authenticates, and an attacker who has only the keys of MPTCP.

use core::net::Ipv4Addr;

use braid_engine::{Config, Event, JoinAuth, Protocol};
use braid_wire::mptcp::{AddAddr, Join, MptcpOption};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::addresses::{add, announced};
use crate::harness::{At, PEER_KEY, Script, config, join_hmac, mapped, token_idsn};
use crate::join;
use crate::segment::{Mp, Seg, ack, dack, data, hex, rst_ack, syn, syn_ack};

const SECRET: [u8; 32] = [0x5e; 32];
/// A nonce of the peer that proves nothing.
const NONCE: u32 = 0x0102_0304;

/// The HMACs that a host with the keys can make: with the secret, or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Keys,
    Secret,
}

/// Returns HMAC-SHA256 with both keys, the sender's first, and the secret behind them.
fn with_secret(keys: (u64, u64), message: &[u8]) -> [u8; 32] {
    let key = [&keys.0.to_be_bytes()[..], &keys.1.to_be_bytes(), &SECRET].concat();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(message);
    mac.finalize().into_bytes().into()
}

fn hmac(by: By, keys: (u64, u64), nonces: (u32, u32)) -> [u8; 32] {
    match by {
        By::Keys => join_hmac(keys, nonces),
        By::Secret => {
            let message = [nonces.0.to_be_bytes(), nonces.1.to_be_bytes()].concat();
            with_secret(keys, &message)
        }
    }
}

/// Returns the nonce of the sender's join of this number.
fn numbered(keys: (u64, u64), number: u64) -> u32 {
    let message = [&b"join SYN"[..], &number.to_be_bytes()].concat();
    let hmac = with_secret(keys, &message);
    u32::from_be_bytes([number as u8, hmac[0], hmac[1], hmac[2]])
}

/// Returns the keys in the order of the peer's segments.
fn theirs(s: &Script) -> (u64, u64) {
    (PEER_KEY, s.key.unwrap())
}

fn ours(s: &Script) -> (u64, u64) {
    (s.key.unwrap(), PEER_KEY)
}

fn refused(s: &Script) -> (u64, usize) {
    let told = s.count(|e| matches!(e, Event::JoinForged { .. }));
    (s.stack.stats().joins_forged, told)
}

fn established(s: &Script) -> usize {
    s.count(|e| matches!(e, Event::SubflowEstablished { .. }))
}

fn closed(s: &Script) -> bool {
    s.saw(|e| matches!(e, Event::Closed { .. }))
}

/// An accepted connection whose joins are authenticated by the secret.
fn accepted(config: Config) -> Script {
    let mut s = Script::accepted(config);
    s.set_join_auth(JoinAuth::Secret(SECRET));
    s
}

fn join_syn(s: &Script, nonce: u32) -> Seg {
    let (token, _) = token_idsn(s.key.unwrap());
    let (token, nonce) = (token.to_be_bytes(), nonce.to_be_bytes());
    let flow = s.flows.len() - 1;
    let join = [&[30, 12, 0x10, 7], &token[..], &nonce].concat();
    syn().on(flow).raw(&join)
}

/// Returns the next segment of the stack, which must leave now.
fn next(s: &mut Script) -> Seg {
    s.advance(s.now);
    let (at, got) = s.take().expect("nothing was sent");
    assert_eq!(at, s.now);
    got
}

/// Makes the peer join from a further address; returns the nonce of the answer, whose HMAC must match `by`.
fn begin(s: &mut Script, at: i32, nonce: u32, by: By) -> u32 {
    s.peer(2);
    send!(s, at, join_syn(s, nonce));
    let got = next(s);
    let [
        Mp::Other(MptcpOption::Join(Join::SynAck {
            hmac: got,
            nonce: own,
            ..
        })),
    ] = got.mptcp[..]
    else {
        panic!("no MP_JOIN in {got:?}");
    };
    let expected = hmac(by, ours(s), (own, nonce));
    assert_eq!(got.to_be_bytes(), expected[..8]);
    own
}

/// Returns the peer's third ACK of a join on `flow`.
fn join_ack(s: &Script, by: By, nonces: (u32, u32), flow: usize) -> Seg {
    let hmac = hmac(by, theirs(s), nonces);
    let join = [&[30, 24, 0x10, 0], &hmac[..20]].concat();
    ack(1, 1).on(flow).win(512).raw(&join)
}

const REFUSED: &str = "1e 04 80 01";

// --- the accepting side

#[test]
fn the_keys_alone_let_nobody_in() {
    let mut s = accepted(config());
    let nonce = begin(&mut s, 20, NONCE, By::Secret);
    send!(s, 30, join_ack(&s, By::Keys, (NONCE, nonce), 1));
    recv!(s, 30, rst_ack(1, 1).on(1).raw(&hex(REFUSED)));
    assert_eq!(refused(&s), (1, 1));
    // Data behind it does not come from the peer.
    send!(s, 31, data(1, 1, "evil").on(1).dss(dack(0).map(0, 1, 4)));
    s.skip(32);
    assert_eq!((established(&s), s.read()), (1, vec![]));
    // The connection goes on.
    s.write("x");
    recv!(s, 32, data(1, 1, "x").dss(dack(0).map(0, 1, 1)));
    send!(s, 42, mapped(0, 1, "y"));
    assert_eq!(s.read(), b"y");
}

#[test]
fn the_secret_lets_the_peer_in() {
    let mut s = accepted(config());
    let nonce = begin(&mut s, 20, NONCE, By::Secret);
    send!(s, 30, join_ack(&s, By::Secret, (NONCE, nonce), 1));
    recv!(s, 30, ack(1, 1).on(1).dss(dack(0)));
    assert_eq!((established(&s), refused(&s)), (2, (0, 0)));
}

/// Before it has proved its origin, a join acknowledges nothing, delivers nothing and ends nothing.
#[test]
fn a_join_that_has_not_proved_itself_says_nothing() {
    let mut s = accepted(config());
    s.write("abc");
    recv!(s, 10, data(1, 1, "abc").dss(dack(0).map(0, 1, 3)));
    begin(&mut s, 11, NONCE, By::Secret);
    send!(s, 12, ack(1, 1).on(1).win(512).dss(dack(3)));
    send!(s, 13, data(1, 1, "evil").on(1).dss(dack(3).map(0, 1, 4)));
    send!(s, 14, data(1, 1, "").on(1).dss(dack(3).map(0, 0, 1).fin()));
    quiet!(s, 15);
    let stats = s.stack.conn_stats(s.id()).unwrap();
    assert_eq!((stats.snd_una, stats.rcv_nxt), (0, 0));
    let receiver_key = s.key.unwrap();
    let fastclose = MptcpOption::FastClose { receiver_key };
    send!(s, 16, ack(1, 1).on(1).opt(fastclose));
    assert!(!closed(&s));
    s.skip(16);
    // On a RST, MP_FASTCLOSE ends only the join.
    begin(&mut s, 17, NONCE, By::Secret);
    send!(s, 18, rst_ack(1, 1).on(2).opt(fastclose));
    quiet!(s, 18);
    assert!(!closed(&s));
    // With the keys alone it ends the connection (RFC 8684 section 3.5).
    s.set_join_auth(JoinAuth::Keys);
    begin(&mut s, 19, NONCE, By::Keys);
    send!(s, 20, rst_ack(1, 1).on(3).opt(fastclose));
    assert!(closed(&s));
}

/// On an established subflow, MP_FASTCLOSE has to hit the sequence number, which an attacker with the keys
/// can only guess. A peer whose last data was lost learns the number (RFC 5961 section 3).
#[test]
fn fastclose_beside_the_sequence_number_ends_nothing() {
    let mut s = accepted(config());
    let receiver_key = s.key.unwrap();
    let fastclose = MptcpOption::FastClose { receiver_key };
    send!(s, 20, ack(100, 1).opt(fastclose));
    recv!(s, 20, ack(1, 1).dss(dack(0)));
    assert!(!closed(&s));
    send!(s, 30, ack(1, 1).opt(fastclose));
    assert!(closed(&s));
}

/// The application does not know its peer yet: a third ACK is verified when it comes again.
#[test]
fn a_third_ack_waits_for_the_application() {
    for by in [By::Keys, By::Secret] {
        let mut s = Script::accepted(config());
        s.set_join_auth(JoinAuth::Pending);
        let nonce = begin(&mut s, 20, NONCE, By::Keys);
        send!(s, 30, join_ack(&s, by, (NONCE, nonce), 1));
        quiet!(s, 31);
        s.set_join_auth(JoinAuth::Secret(SECRET));
        send!(s, 40, join_ack(&s, by, (NONCE, nonce), 1));
        match by {
            By::Keys => recv!(s, 40, rst_ack(1, 1).on(1).raw(&hex(REFUSED))),
            By::Secret => recv!(s, 40, ack(1, 1).on(1).dss(dack(0))),
        }
    }
}

/// An application sets the secret too late: subflows that the keys have let in end.
#[test]
fn a_subflow_of_before_ends() {
    let mut s = Script::accepted(config());
    let nonce = begin(&mut s, 20, NONCE, By::Keys);
    send!(s, 30, join_ack(&s, By::Keys, (NONCE, nonce), 1));
    recv!(s, 30, ack(1, 1).on(1).dss(dack(0)));
    s.set_join_auth(JoinAuth::Pending);
    recv!(s, 30, rst_ack(1, 1).on(1).raw(&hex(REFUSED)));
    s.write("x");
    recv!(s, 30, data(1, 1, "x").dss(dack(0).map(0, 1, 1)));
}

/// An attacker who knows the token takes all places by SYNs. The peer's join, whose nonce proves the
/// secret, gets one of them; the same SYN from elsewhere does not.
#[test]
fn syns_alone_keep_no_join_out() {
    let three = Config {
        max_subflows: 3,
        ..config()
    };
    let mut s = accepted(three);
    begin(&mut s, 20, NONCE, By::Secret);
    begin(&mut s, 21, NONCE, By::Secret);
    s.peer(3);
    send!(s, 22, join_syn(&s, NONCE));
    recv!(s, 22, rst_ack(0, 1).on(3).raw(&hex(REFUSED)));
    let shows = numbered(theirs(&s), 0);
    let nonce = begin(&mut s, 23, shows, By::Secret);
    s.peer(4);
    send!(s, 24, join_syn(&s, shows));
    recv!(s, 24, rst_ack(0, 1).on(5).raw(&hex(REFUSED)));
    send!(s, 25, join_ack(&s, By::Secret, (shows, nonce), 4));
    recv!(s, 25, ack(1, 1).on(4).dss(dack(0)));
    // An established subflow, or one that proves the secret, is never replaced.
    let second = numbered(theirs(&s), 1);
    begin(&mut s, 26, second, By::Secret);
    s.peer(5);
    let third = numbered(theirs(&s), 2);
    send!(s, 27, join_syn(&s, third));
    recv!(s, 27, rst_ack(0, 1).on(7).raw(&hex(REFUSED)));
    assert_eq!((established(&s), s.stack.stats().joins_refused), (2, 3));
}

// --- the opening side

/// An opened connection of two paths whose join's SYN has left, before or after the secret was `known`.
fn opened(known: bool) -> (Script, u32) {
    let mut s = Script::client(config(), 2, Protocol::Mptcp);
    s.set_join_auth(JoinAuth::Pending);
    recv!(s, 0, syn().ws(None).raw(&[30, 4, 1, 1]));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    if known {
        s.set_join_auth(JoinAuth::Secret(SECRET));
    }
    send!(s, 19, ack(1, 1).win(512).dss(dack(0)));
    s.advance(20.at());
    let got = next(&mut s);
    assert_eq!(got.flow, 1);
    let (_, nonce) = Script::join_syn(&got.mptcp[0]);
    (s, nonce)
}

/// Returns the peer's answer to the join.
fn join_syn_ack(s: &Script, by: By, nonce: u32) -> Seg {
    let hmac = hmac(by, theirs(s), (NONCE, nonce));
    let join = [&[30, 16, 0x10, 3], &hmac[..8], &NONCE.to_be_bytes()].concat();
    syn_ack().on(1).win(65_535).raw(&join)
}

fn third_ack(s: &Script, nonce: u32) -> Seg {
    let hmac = hmac(By::Secret, ours(s), (nonce, NONCE));
    let join = [&[30, 24, 0x10, 0], &hmac[..20]].concat();
    ack(1, 1).on(1).raw(&join)
}

#[test]
fn an_opener_proves_itself() {
    let (mut s, nonce) = opened(true);
    assert_eq!(nonce, numbered(ours(&s), 0));
    send!(s, 22, join_syn_ack(&s, By::Secret, nonce));
    recv!(s => 22, third_ack(s, nonce));
    send!(s, 24, ack(1, 1).on(1).win(512).dss(dack(0)));
    assert_eq!(established(&s), 2);
}

/// A peer that was asked after the secret was known must have it.
#[test]
fn an_answer_by_the_keys_alone_is_refused() {
    let (mut s, nonce) = opened(true);
    send!(s, 22, join_syn_ack(&s, By::Keys, nonce));
    recv!(s, 22, rst_ack(1, 1).on(1).raw(&hex(REFUSED)));
    assert_eq!((established(&s), refused(&s)), (1, (1, 1)));
}

/// The answer to an earlier SYN is verified when the secret is known, and not believed before.
#[test]
fn an_early_answer_waits_for_the_secret() {
    for by in [By::Keys, By::Secret] {
        let (mut s, nonce) = opened(false);
        send!(s, 22, join_syn_ack(&s, by, nonce));
        send!(s, 23, data(1, 1, "evil").on(1).dss(dack(0).map(0, 1, 4)));
        send!(s, 24, join_syn_ack(&s, by, nonce));
        quiet!(s, 600);
        assert_eq!((established(&s), s.read()), (1, vec![]));
        s.set_join_auth(JoinAuth::Secret(SECRET));
        recv!(s => 600, third_ack(s, nonce));
        send!(s, 601, ack(1, 1).on(1).win(512).dss(dack(0)));
        assert_eq!((established(&s), refused(&s)), (2, (0, 0)));
    }
    let (mut s, nonce) = opened(false);
    send!(s, 22, join_syn_ack(&s, By::Keys, nonce ^ 1));
    quiet!(s, 30);
    s.set_join_auth(JoinAuth::Secret(SECRET));
    recv!(s, 30, rst_ack(1, 1).on(1).raw(&hex(REFUSED)));
    assert_eq!(refused(&s), (1, 1));
}

/// A peer without the secret is authenticated by the keys, as before.
#[test]
fn a_peer_without_a_secret_is_judged_by_the_keys() {
    let (mut s, nonce) = opened(false);
    send!(s, 22, join_syn_ack(&s, By::Keys, nonce));
    quiet!(s, 30);
    s.set_join_auth(JoinAuth::Keys);
    recv!(s => 30, join::third_ack(s, nonce));
}

/// Returns an address at which the stack is to join, announced by the keys or by the secret.
fn elsewhere(s: &Script, by: By) -> (Ipv4Addr, MptcpOption) {
    let addr = Ipv4Addr::new(203, 0, 113, 66);
    let add = add(9, addr, None);
    let option = match by {
        By::Keys => announced(s, add),
        By::Secret => {
            let message = [&[9][..], &addr.octets(), &[0, 0]].concat();
            let hmac = with_secret(theirs(s), &message);
            let hmac = Some(u64::from_be_bytes(hmac[24..].try_into().unwrap()));
            MptcpOption::AddAddr(AddAddr { hmac, ..add })
        }
    };
    (addr, option)
}

/// Returns whether the stack joins at an address.
fn joins_at(s: &mut Script, addr: Ipv4Addr) -> bool {
    s.skip(s.now);
    s.flows.iter().any(|flow| flow.peer.ip() == addr)
}

#[test]
fn an_address_by_the_keys_alone_is_not_believed() {
    for (by, believed) in [(By::Keys, false), (By::Secret, true)] {
        let (mut s, _) = opened(true);
        let (addr, option) = elsewhere(&s, by);
        send!(s, 30, ack(1, 1).opt(option));
        assert_eq!(joins_at(&mut s, addr), believed, "{by:?}");
    }
}

#[test]
fn an_early_address_waits_for_the_secret() {
    for (by, believed) in [(By::Keys, false), (By::Secret, true)] {
        let (mut s, _) = opened(false);
        let (addr, option) = elsewhere(&s, by);
        send!(s, 30, ack(1, 1).opt(option));
        assert!(!joins_at(&mut s, addr));
        s.set_join_auth(JoinAuth::Secret(SECRET));
        assert_eq!(joins_at(&mut s, addr), believed, "{by:?}");
    }
}

/// An opener with a secret accepts no join whose SYN does not prove it.
#[test]
fn an_opener_gives_no_place_to_strangers() {
    let (mut s, _) = opened(true);
    let to = s.flows[0].stack;
    let stranger = s.flow(to, ([203, 0, 113, 66], 5_000).into());
    send!(s, 30, join_syn(&s, NONCE));
    recv!(s, 30, rst_ack(0, 1).on(stranger).raw(&hex(REFUSED)));
}
