//! Changes of a path, a peer's address or the connection during a handshake.

use core::net::Ipv4Addr;

use braid_engine::{CloseReason, Event, PathId, Protocol};
use braid_wire::Instant;
use braid_wire::mptcp::{MptcpOption, ResetReason};
use braid_wire::tcp::Flags;

use crate::addresses::{add, announced, removed};
use crate::close::closed;
use crate::early_joins::{self, opened_by};
use crate::harness::{At, Script, config};
use crate::join::{self, join_syn_ack, joining, third_ack};
use crate::segment::{Seg, ack, dack, data, rst, rst_ack, syn, syn_ack};
use crate::strategy::single;

/// Sets a path up or down, and lets the resulting segments leave.
fn set_up(s: &mut Script, path: u8, up: bool) {
    s.stack.set_path_up(s.now, PathId(path), up);
    s.write("");
}

/// A SYN that opens a connection on flow `n`.
fn opening(n: usize) -> Seg {
    syn().on(n).ws(None).raw(&[30, 4, 1, 1])
}

/// Checks that nothing leaves on flow `n` up to a time.
fn silent(s: &mut Script, n: usize, until: i32) {
    s.advance(until.at());
    while let Some((_, seg)) = s.take() {
        assert_ne!(seg.flow, n, "{seg:?}");
    }
}

/// An opened connection that joins from its second path, on flow 1: only the SYN has left, or the third ACK
/// too.
fn joins(answered: bool) -> (Script, u32) {
    let mut s = Script::opened(config(), 2);
    let nonce = join::opened(&mut s);
    if answered {
        send!(s, 22, join_syn_ack(&s, nonce, false));
        recv!(s => 22, third_ack(s, nonce));
    }
    (s, nonce)
}

/// Returns whether a FIN has left on the initial subflow.
fn has_ended(s: &mut Script) -> bool {
    let mut ended = false;
    while let Some((_, seg)) = s.take() {
        ended |= seg.flow == 0 && seg.flags.contains(Flags::FIN);
    }
    ended
}

// --- the opening SYN

/// The SYN is repeated as soon as the path is back, with MP_CAPABLE: silence meanwhile does not show that
/// the network drops it.
// Conforms: 8684-3.1-12
#[test]
fn the_opening_goes_on_when_its_path_is_back() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, opening(0));
    s.skip(100);
    set_up(&mut s, 0, false);
    s.skip(3_500);
    set_up(&mut s, 0, true);
    recv!(s, 3_500, opening(0));
    recv!(s, 4_500, opening(0));
    recv!(s, 6_500, syn().ws(None));
}

/// The SYN moves to a link that is up without waiting for its timer. This does not count as an unanswered
/// SYN either.
#[test]
fn the_opening_moves_when_its_path_goes_down() {
    let mut s = Script::client(config(), 2, Protocol::Mptcp);
    recv!(s, 0, opening(0));
    s.skip(100);
    set_up(&mut s, 0, false);
    recv!(s, 100, opening(1));
    s.skip(150);
    set_up(&mut s, 0, true);
    quiet!(s, 150);
    set_up(&mut s, 1, false);
    recv!(s, 150, opening(2));
    set_up(&mut s, 0, false);
    quiet!(s, 200);
    set_up(&mut s, 1, true);
    recv!(s, 200, opening(3));
}

/// The third ACK may have been lost on the way down: it is repeated, with a probe behind it, since a third
/// ACK need not be answered. The answer to the probe shows that the path works.
#[test]
fn the_third_ack_goes_again_when_the_path_is_back() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    s.skip(0);
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    set_up(&mut s, 0, false);
    s.skip(3_500);
    set_up(&mut s, 0, true);
    recv!(s => 3_500, s.stack_keys(ack(1, 1)));
    recv!(s => 3_500, s.stack_keys(ack(0, 1)));
    send!(s, 3_510, ack(1, 1).win(512).dss(dack(0)));
    s.write("hello");
    recv!(s, 3_510, data(1, 1, "hello").dss(dack(0).map(0, 1, 5)));
}

// --- joins

/// By the third ACK the peer has joined, so the address is withdrawn. After only a SYN the peer has no
/// subflow yet.
// Conforms: 8684-3.4.2-9
#[test]
fn the_address_of_a_join_that_is_not_answered_yet_is_withdrawn() {
    for answered in [false, true] {
        let (mut s, _) = joins(answered);
        set_up(&mut s, 1, false);
        if answered {
            recv!(s, s.now, ack(1, 1).opt(removed(&[3])).dss(dack(0)));
        }
        quiet!(s, s.now);
    }
}

/// A join that was under way begins anew as soon as the path is back, and the old one is abandoned.
#[test]
fn a_join_begins_anew_when_its_path_is_back() {
    for (answered, back) in [(false, 1_500), (true, 1_500), (false, 23), (true, 23)] {
        let (mut s, nonce) = joins(answered);
        set_up(&mut s, 1, false);
        silent(&mut s, 1, back);
        set_up(&mut s, 1, true);
        let (at, seg) = s.take().expect("no join");
        assert_eq!((at, seg.flow, seg.flags), (back.at(), 2, Flags::SYN));
        Script::join_syn(&seg.mptcp[0]);
        // A peer that still has the old one learns that it is gone.
        let late = match answered {
            true => ack(1, 1).on(1).dss(dack(0)),
            false => join_syn_ack(&s, nonce, false),
        };
        send!(s, back + 1, late);
        let (_, reset) = s.take().expect("no answer");
        assert!(reset.flags.contains(Flags::RST), "{reset:?}");
        assert!(!s.saw(|e| matches!(e, Event::SubflowClosed { .. })));
    }
}

/// The same holds for an early join: a path that went down is no refusal.
#[test]
fn an_early_join_begins_anew_when_its_path_is_back() {
    let mut s = early_joins::opened(None);
    s.advance(12.at());
    early_joins::join(&mut s);
    set_up(&mut s, 1, false);
    s.skip(13);
    set_up(&mut s, 1, true);
    let (at, _) = early_joins::join(&mut s);
    assert_eq!(at, 13.0);
}

/// The connection goes on, and the join is tried again when the peer is known to be ready for it.
#[test]
fn an_early_join_that_is_reset_ends_nothing_else() {
    let mut s = early_joins::opened(None);
    s.advance(12.at());
    let (_, nonce) = early_joins::join(&mut s);
    send!(s, 16, join_syn_ack(&s, nonce, false));
    send!(s, 18, rst_ack(1, 1).on(1));
    quiet!(s, 19);
    assert_eq!(closed(&s), None);
    send!(s, 20, ack(1, 1).win(512).dss(dack(0)));
    assert_eq!(early_joins::join(&mut s).0, 20.0);
}

/// An announced address that the peer withdraws during a join is given up at once.
// Conforms: 8684-3.4.2-3
#[test]
fn a_join_of_a_withdrawn_address_is_given_up() {
    let mut s = Script::opened(config(), 1);
    let other = Ipv4Addr::new(10, 0, 8, 1);
    send!(s, 21, ack(1, 1).opt(announced(&s, add(5, other, None))));
    let mut join = None;
    while let Some((_, seg)) = s.take() {
        join = join.or((seg.flags == Flags::SYN).then_some(seg));
    }
    let (_, nonce) = Script::join_syn(&join.expect("no join").mptcp[0]);
    let mut answer = join_syn_ack(&s, nonce, false);
    answer.raw.as_mut().expect("MP_JOIN")[3] = 5;
    send!(s, 22, answer);
    recv!(s => 22, third_ack(s, nonce));
    send!(s, 23, ack(1, 1).opt(removed(&[5])));
    quiet!(s, 9_000);
}

/// MP_FASTCLOSE ends the connection even on a subflow whose third ACK never came.
// Conforms: 8684-3.5-3
#[test]
fn fastclose_on_a_join_that_is_not_through() {
    for ours in [false, true] {
        let (mut s, _) = joining(config(), false);
        let receiver_key = s.key.unwrap() ^ u64::from(!ours);
        let close = MptcpOption::FastClose { receiver_key };
        send!(s, 25, rst_ack(1, 1).on(1).opt(close));
        assert_eq!(closed(&s), ours.then_some(CloseReason::Reset));
    }
}

// --- paths that are left

/// A join that is not complete when its path is left is not continued.
#[test]
fn an_early_join_ends_with_its_path() {
    for answered in [false, true] {
        let mut s = early_joins::opened(None);
        s.advance(12.at());
        let (_, nonce) = early_joins::join(&mut s);
        if answered {
            send!(s, 13, join_syn_ack(&s, nonce, false));
        }
        s.stack.leave_path(s.now, PathId(1));
        send!(s, 20, ack(1, 1).win(512).dss(dack(0)));
        silent(&mut s, 1, 9_000);
    }
}

/// The initial subflow is kept as long as the connection depends on it, and not longer, unless its path is
/// in use again by then.
// Conforms: 8684-3.4.2-8
#[test]
fn the_initial_subflow_ends_with_its_path_when_it_is_confirmed() {
    for back in [false, true] {
        let mut s = early_joins::opened(None);
        s.stack.leave_path(s.now, PathId(0));
        s.stack.set_path_up(s.now, PathId(0), back);
        s.skip(19);
        send!(s, 20, ack(1, 1).win(512).dss(dack(0)));
        s.advance(100.at());
        assert_eq!(has_ended(&mut s), !back);
    }
}

/// The same holds for an accepted connection.
// Conforms: 8684-3.4.2-8
#[test]
fn an_accepted_subflow_ends_with_its_path_when_it_is_through() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().raw(&[30, 4, 1, 1]));
    recv!(s => 0, s.capable(syn_ack()));
    s.stack.leave_path(s.now, PathId(0));
    send!(s, 10, s.third_ack());
    assert!(has_ended(&mut s));
}

/// A connection whose strategy wants one subflow, which the peer resets at 100 ms.
fn bereft() -> Script {
    let mut s = opened_by(single(), None);
    send!(s, 20, ack(1, 1).win(512).dss(dack(0)));
    quiet!(s, 99);
    send!(s, 100, rst(1));
    s
}

/// Returns the answer of a peer that does not know the connection to the SYN of a join.
pub fn unknown() -> Seg {
    rst_ack(0, 1).opt(MptcpOption::Reset {
        transient: false,
        reason: ResetReason::MptcpSpecific,
    })
}

/// Takes the SYN of a join that leaves at `at` ms on flow `flow`, and answers it by `answer`.
fn refused(s: &mut Script, at: i32, flow: usize, answer: Seg) {
    s.advance(Instant::from_millis(at as u64));
    let (left, got) = s.take().expect("no join");
    assert_eq!((left.as_millis(), got.flow), (at as u64, flow));
    Script::join_syn(&got.mptcp[0]);
    send!(s, at + 1, answer.on(flow));
}

/// Without a subflow the connection would hang until it times out.
#[test]
fn a_connection_without_a_subflow_gets_one_whatever_the_strategy_says() {
    let mut s = bereft();
    s.write("hello");
    let (_, got) = s.take().expect("no join");
    let (_, nonce) = Script::join_syn(&got.mptcp[0]);
    send!(s, 110, join_syn_ack(&s, nonce, false));
    recv!(s => 110, third_ack(s, nonce));
    send!(s, 120, ack(1, 1).on(1).win(512).dss(dack(0)));
    recv!(s, 120, data(1, 1, "hello").on(1).dss(dack(0).map(0, 1, 5)));
}

/// A restarted server knows nothing of the connection: the user need not wait for a timeout.
#[test]
fn a_connection_ends_when_every_path_is_refused() {
    let mut s = bereft();
    refused(&mut s, 100, 1, unknown());
    assert_eq!(closed(&s), None);
    refused(&mut s, 101, 2, unknown());
    assert_eq!(closed(&s), Some(CloseReason::Reset));
}

/// The rules that lead to the server are gone for 2 s, and its kernel answers in its place.
#[test]
fn resets_that_know_nothing_of_the_connection_are_outlived() {
    let mut s = bereft();
    let (mut joins, mut due) = (0, Vec::new());
    while closed(&s).is_none() {
        let next = s.stack.next_timeout().expect("another join");
        s.advance(next.max(s.now));
        due.extend(core::iter::from_fn(|| s.take()));
        while let Some((_, syn)) = due.pop() {
            assert_eq!(syn.flags, Flags::SYN);
            joins += 1;
            send!(s, s.now, rst_ack(0, 1).on(syn.flow));
            due.extend(core::iter::from_fn(|| s.take()));
        }
    }
    // About four on each of two paths.
    assert!((8..=10).contains(&joins), "{joins}");
    let now = s.now.as_millis();
    assert!((2_300..3_000).contains(&now), "{now} ms");
    assert_eq!(closed(&s), Some(CloseReason::Reset));
}
