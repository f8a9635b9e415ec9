//! MP_FASTCLOSE is repeated until the peer answers (RFC 8684 section 3.5).

use braid_engine::{ApiError, CloseReason, ConnectOptions, Event, PathId};
use braid_wire::mptcp::MptcpOption;
use braid_wire::tcp::Flags;

use crate::close::closed;
use crate::harness::{At as _, PEER_KEY, Script, config};
use crate::join;
use crate::segment::{Seg, ack, dack, data, rst, rst_ack, syn};
use crate::strategy::strategy;

/// Returns the option with the peer's key.
fn option() -> Vec<u8> {
    [&[30, 12, 0x70, 0], &PEER_KEY.to_be_bytes()[..]].concat()
}

fn is_fast_close(seg: &Seg) -> bool {
    seg.raw.as_deref() == Some(&option()[..])
        || seg
            .mptcp
            .iter()
            .any(|o| format!("{o:?}").contains("FastClose"))
}

/// Returns everything sent so far: time, subflow and whether as RST; each segment is an MP_FASTCLOSE.
fn sent(s: &mut Script) -> Vec<(u64, usize, bool)> {
    let mut all = Vec::new();
    while let Some((at, seg)) = s.take() {
        assert!(is_fast_close(&seg), "{seg:?}");
        all.push((at.as_millis(), seg.flow, seg.flags.contains(Flags::RST)));
    }
    all
}

/// A connection that was aborted at 10 ms, and its first RST.
fn aborted() -> Script {
    let mut s = Script::accepted(config());
    s.abort();
    recv!(s, 10, rst_ack(1, 1).raw(&option()));
    s
}

/// The RST is lost. A peer that has the connection answers the repeat by RST, and so does one that has
/// forgotten it; this ends the repeats.
// Conforms: 8684-3.5-5
#[test]
fn it_is_repeated_until_the_peer_answers_by_rst() {
    let mut s = aborted();
    assert_eq!(s.stack.connections(), 1);
    recv!(s, 220, ack(1, 1).raw(&option()));
    recv!(s, 430, ack(1, 1).raw(&option()));
    send!(s, 440, rst(1));
    assert_eq!(s.stack.connections(), 0);
    quiet!(s, 20_000);
    assert_eq!(closed(&s), Some(CloseReason::Aborted));
}

/// A peer that is gone gets repeats for 2 s, and a RST at last.
// Conforms: 8684-3.5-6, 8684-3.5-7
#[test]
fn repeats_end_after_two_seconds_with_a_rst() {
    let mut s = aborted();
    s.advance(2_010.at());
    let expected = [
        (220, 0, false),
        (430, 0, false),
        (640, 0, false),
        (850, 0, false),
        (1_060, 0, false),
        (1_270, 0, false),
        (1_480, 0, false),
        (1_690, 0, false),
        (1_900, 0, false),
        (2_010, 0, true),
    ];
    assert_eq!(sent(&mut s), expected);
    assert_eq!(s.stack.connections(), 0);
    assert_eq!(s.stack.buffered(), 0);
    quiet!(s, 20_000);
}

/// Segments that the peer still sends are answered by RST, besides the repeats.
#[test]
fn a_peer_that_goes_on_sending_is_answered_at_once() {
    let mut s = aborted();
    send!(s, 100, ack(1, 1));
    recv!(s, 100, rst_ack(1, 1).raw(&option()));
    recv!(s, 220, ack(1, 1).raw(&option()));
    send!(s, 230, rst(1));
    quiet!(s, 20_000);
}

/// Each subflow gets repeats until it is answered there, since the network may drop either.
#[test]
fn every_subflow_is_told() {
    let mut s = join::joined();
    let start = s.now.as_millis();
    s.abort();
    let first = sent(&mut s);
    let at_once: Vec<_> = first
        .iter()
        .map(|(at, flow, rst)| (at - start, *flow, *rst))
        .collect();
    assert_eq!(at_once, [(0, 0, true), (0, 1, true)]);
    s.advance((start as i32 + 300).at());
    let repeats = sent(&mut s);
    assert_eq!(repeats.iter().filter(|(.., rst)| *rst).count(), 0);
    assert!(
        [0, 1]
            .iter()
            .all(|flow| repeats.iter().any(|(_, f, _)| f == flow)),
        "{repeats:?}"
    );
    // One subflow is answered: the repeats on the other go on.
    s.send(start as i32 + 300, rst(1));
    s.advance((start as i32 + 2_500).at());
    let rest = sent(&mut s);
    assert!(
        !rest.is_empty() && rest.iter().all(|(_, flow, _)| *flow == 1),
        "{rest:?}"
    );
    assert_eq!(s.stack.connections(), 0);
}

/// A peer that aborts the connection at the same time ends all subflows at once, and gets the RST that it
/// waits for.
#[test]
fn both_close_at_once() {
    let mut s = aborted();
    let receiver_key = s.key.unwrap();
    send!(
        s,
        50,
        ack(1, 1).opt(MptcpOption::FastClose { receiver_key })
    );
    recv!(s, 50, rst_ack(1, 1).raw(&option()));
    quiet!(s, 20_000);
    assert_eq!(s.stack.connections(), 0);
}

/// A peer that reports on one subflow that it closed the connection has closed the others too.
#[test]
fn a_peer_that_has_closed_is_told_no_more() {
    let mut s = join::joined();
    s.abort();
    let _ = sent(&mut s);
    let receiver_key = s.key.unwrap();
    let at = s.now;
    s.send(
        at,
        rst_ack(1, 1).opt(MptcpOption::FastClose { receiver_key }),
    );
    assert_eq!(s.stack.connections(), 0);
    quiet!(s, 20_000);
}

/// The answer to MP_FASTCLOSE is sent once: the peer waits for it, and asks again if it is lost.
#[test]
fn the_answer_is_not_repeated() {
    let mut s = Script::accepted(config());
    let receiver_key = s.key.unwrap();
    send!(
        s,
        20,
        ack(1, 1).opt(MptcpOption::FastClose { receiver_key })
    );
    let (_, answer) = s.take().expect("not answered");
    assert!(answer.flags.contains(Flags::RST));
    quiet!(s, 900);
    assert!(s.saw(|e| matches!(
        e,
        Event::Closed {
            reason: CloseReason::Reset,
            ..
        }
    )));
    quiet!(s, 20_000);
    assert_eq!(s.stack.connections(), 0);
}

/// Nothing is repeated on a link that is down.
#[test]
fn a_dark_path_is_left_alone() {
    let mut s = aborted();
    s.stack.set_path_up(s.now, PathId(0), false);
    quiet!(s, 20_000);
    assert_eq!(s.stack.connections(), 0);
}

/// A stack that closes ends everything it has, and accepts and opens nothing more.
#[test]
fn a_stack_that_closes_takes_nothing_in() {
    let mut s = Script::accepted(config());
    s.stack.close(s.now);
    let peer = s.peer(2);
    s.send(11, syn().on(peer));
    recv!(s, 11, rst_ack(0, 1).on(peer));
    recv!(s, 11, rst_ack(1, 1).raw(&option()));
    assert_eq!(closed(&s), Some(CloseReason::Aborted));
    let to = (core::net::Ipv4Addr::new(10, 0, 0, 9), 80).into();
    let options = ConnectOptions::new(to, strategy());
    assert_eq!(s.stack.connect(s.now, options), Err(ApiError::Closing));
}

/// A stack that stops listening keeps its connections, and refuses new ones, so that peers go elsewhere.
#[test]
fn a_stack_that_listens_no_more_goes_on_with_what_it_has() {
    let mut s = Script::accepted(config());
    s.stack.stop_listening();
    let peer = s.peer(2);
    s.send(11, syn().on(peer));
    recv!(s, 11, rst_ack(0, 1).on(peer));
    s.write("more");
    recv!(s, 11, data(1, 1, "more").dss(dack(0).map(0, 1, 4)));
    assert_eq!(closed(&s), None);
}
