//! Keepalive: subflows that fall silent, paths that carry packets again, peers that are gone.

use braid_engine::{
    ApiError, CloseReason, Config, ConnectOptions, Event, PathConfig, PathId, Protocol,
};
use braid_wire::Instant;
use braid_wire::mptcp::{Join, MptcpOption};
use braid_wire::tcp::Flags;

use crate::harness::{PEER_KEY, PORT, Script, config, join_hmac, mapped};
use crate::join::{complete, joined};
use crate::segment::{Mp, Seg, ack, dack, hex, rst_ack, syn, syn_ack};
use crate::strategy::strategy;

const SECOND: u64 = 1_000;

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

/// Returns the segments that the stack has sent by `until`, with the times in milliseconds.
fn sent(s: &mut Script, until: u64) -> Vec<(u64, Seg)> {
    s.advance(at(until));
    let next = || s.take().map(|(at, seg)| (at.as_millis(), seg));
    core::iter::from_fn(next).collect()
}

/// Returns whether `seg` is a probe on a subflow on which the stack sent no byte: below the window, without
/// payload.
fn is_probe(seg: &Seg, flow: usize) -> bool {
    seg.flow == flow && seg.flags == Flags::ACK && seg.seq == 0 && seg.payload.is_empty()
}

fn probe_times(sent: &[(u64, Seg)], flow: usize) -> Vec<u64> {
    let probed = sent.iter().filter(|(_, seg)| is_probe(seg, flow));
    probed.map(|(at, _)| *at).collect()
}

fn timed_out(s: &Script) -> bool {
    s.saw(|e| {
        matches!(
            e,
            Event::Closed {
                reason: CloseReason::TimedOut,
                ..
            }
        )
    })
}

/// The settings with the default user timeout.
fn patient() -> Config {
    Config {
        user_timeout: Config::default().user_timeout,
        ..config()
    }
}

/// A connection only receives, on the first of its two subflows: the silent second one is probed after 10
/// s, and opened anew if nobody answers or the peer does not know it.
#[test]
fn a_receiver_asks_on_a_silent_subflow() {
    for refused in [true, false] {
        let mut s = joined();
        let (mut n, mut all) = (0, Vec::new());
        for time in (SECOND..17 * SECOND).step_by(500) {
            all.extend(sent(&mut s, time));
            if refused && all.iter().any(|(_, seg)| is_probe(seg, 1)) {
                send!(s, at(time), rst_ack(1, 1).on(1));
                break;
            }
            send!(s, at(time), mapped(n, 0, "x").win(512));
            n += 1;
            s.read();
        }
        let until = s.now.as_millis() + 10;
        all.extend(sent(&mut s, until));
        let probed = probe_times(&all, 1);
        assert!(refused || probed.len() == 4, "{probed:?}");
        assert_eq!(probed[0], 10_024);
        assert!(probe_times(&all, 0).is_empty());
        let again = all.iter().rev().find(|(_, seg)| seg.flags == Flags::SYN);
        let (_, again) = again.expect("not opened again");
        assert_eq!(again.flow, 2, "another port");
        assert_eq!(s.flows[2].stack.ip(), s.flows[1].stack.ip());
    }
}

/// NATs forget a connection after a minute: the end that opened a subflow probes before, with time for a
/// second probe, and not all subflows probe at the same time. The other end waits longer.
#[test]
fn an_idle_subflow_is_asked_within_a_minute() {
    let mut s = joined();
    let first = sent(&mut s, 10_100);
    for flow in [0, 1] {
        assert_eq!(probe_times(&first, flow).len(), 1, "after it moved data");
        send!(s, at(10_100), ack(1, 1).on(flow).win(512).dss(dack(0)));
    }
    let probed = sent(&mut s, 64 * SECOND);
    let probed = [0, 1].map(|flow| probe_times(&probed, flow)[0]);
    for at in probed {
        assert!((57_100..=63_100).contains(&at), "{probed:?}");
    }
    assert_ne!(probed[0], probed[1]);

    let mut s = Script::accepted(config());
    sent(&mut s, 10_100);
    send!(s, at(10_100), ack(1, 1).win(512).dss(dack(0)));
    assert!(sent(&mut s, 130_000).is_empty());
    assert_eq!(
        probe_times(&sent(&mut s, 131_000), 0),
        [131_000],
        "at a full second"
    );
}

/// A connection is idle on two subflows: one is probed, the other rests. Data written then leaves over the
/// first; the other is probed and used again.
#[test]
fn one_subflow_keeps_an_idle_connection() {
    let mut s = joined();
    let mut probed = [0, 0];
    for time in (SECOND..600 * SECOND).step_by(1_000) {
        let now = sent(&mut s, time + 100);
        for flow in [0, 1] {
            if !probe_times(&now, flow).is_empty() {
                probed[flow] += 1;
                send!(s, at(time + 100), ack(1, 1).on(flow).win(512).dss(dack(0)));
                // No timer remains of the action that the probe was to be followed by.
                let next = s.stack.next_timeout().expect("the next probe");
                let wait = next.saturating_since(at(time + 100)).as_secs();
                assert!(time < 120 * SECOND || wait >= 46, "{wait} s at {time} ms");
            }
        }
    }
    let (probed_flow, other) = if probed[0] > probed[1] {
        (0, 1)
    } else {
        (1, 0)
    };
    assert_eq!(probed[other], 1, "when it had moved data: {probed:?}");
    assert!((12..=16).contains(&probed[probed_flow]), "{probed:?}");
    s.write("hello");
    let now = sent(&mut s, 599 * SECOND + 110);
    let payload = |flow: usize| {
        now.iter()
            .any(|(_, seg)| seg.flow == flow && !seg.payload.is_empty())
    };
    assert!(payload(probed_flow) && !payload(other), "{now:?}");
    assert_eq!(probe_times(&now, other).len(), 1);
}

/// The peer's own probe shows that it is alive.
#[test]
fn a_question_of_the_peer_is_a_sign_of_life() {
    let mut s = Script::accepted(config());
    for time in (5..200).step_by(5) {
        send!(s, at(time * SECOND), ack(0, 1).win(512).dss(dack(0)));
        recv!(s, at(time * SECOND), ack(1, 1).dss(dack(0)));
    }
}

/// Unanswered probes become rare.
#[test]
fn unanswered_questions_become_rare() {
    let mut s = Script::accepted(patient());
    let probed = probe_times(&sent(&mut s, 15 * 60 * SECOND), 0);
    assert!(!timed_out(&s));
    assert!(probed.len() < 80, "{}", probed.len());
    s.advance(at(15 * 60 * SECOND + 15 * SECOND));
    assert!(timed_out(&s));
}

/// A connection on one path, on which nothing is answered any more.
fn deaf() -> (Script, u64) {
    let mut s = Script::opened(config(), 1);
    sent(&mut s, 1_000);
    s.write("hello");
    let syns = sent(&mut s, 3_500);
    let join = syns.iter().find(|(_, seg)| seg.flags == Flags::SYN);
    let (joined_at, join) = join.expect("no fresh subflow").clone();
    assert_eq!(join.flow, 1);
    let Mp::Other(MptcpOption::Join(Join::Syn { .. })) = join.mptcp[0] else {
        panic!("no MP_JOIN: {join:?}");
    };
    assert_eq!(s.flows[1].stack.ip(), s.flows[0].stack.ip());
    assert_ne!(s.flows[1].stack.port(), s.flows[0].stack.port());
    (s, joined_at)
}

/// If the peer answers on no subflow, a NAT may have forgotten them: a fresh one is opened from another
/// port, and replaces the deaf one.
#[test]
fn a_deaf_connection_opens_a_fresh_subflow() {
    let (mut s, joined_at) = deaf();
    assert!(joined_at < 3_000, "{joined_at}");
    let again = sent(&mut s, 6_000);
    let syn = again.iter().rfind(|(_, seg)| seg.flags == Flags::SYN);
    let nonce = match syn.expect("not repeated").1.mptcp[0] {
        Mp::Other(MptcpOption::Join(Join::Syn { nonce, .. })) => nonce,
        ref other => panic!("{other:?}"),
    };
    const NONCE: u32 = 0x0102_0304;
    let hmac = join_hmac((PEER_KEY, s.key.unwrap()), (NONCE, nonce));
    let option = [&[30, 16, 0x10, 3], &hmac[..8], &NONCE.to_be_bytes()].concat();
    send!(s, at(6_000), syn_ack().on(1).win(65_535).raw(&option));
    sent(&mut s, 6_010);
    send!(s, at(6_010), ack(1, 1).on(1).win(512).dss(dack(0)));
    let all = sent(&mut s, 6_020);
    let data = all.iter().find(|(_, seg)| seg.payload == b"hello");
    assert_eq!(data.expect("not sent on it").1.flow, 1, "{all:?}");
    let reset = all.iter().find(|(_, seg)| seg.flags.contains(Flags::RST));
    assert_eq!(reset.expect("the old one is left").1.flow, 0);
    assert_eq!(s.stack.subflows(s.id()).len(), 1);
}

/// The path was only dark: the subflow goes on, and none is opened beside it.
#[test]
fn a_subflow_that_is_heard_again_is_not_replaced() {
    let (mut s, _) = deaf();
    sent(&mut s, 5_000);
    assert_eq!(s.stack.subflows(s.id()).len(), 2);
    send!(s, at(5_000), ack(1, 6).win(512).dss(dack(5)));
    assert_eq!(s.stack.subflows(s.id()).len(), 1);
    assert!(sent(&mut s, 12_000).is_empty());
}

/// A path carries packets again: the SYN of a join that was in vain leaves at once.
#[test]
fn a_path_that_is_back_is_joined_at_once() {
    let mut s = Script::opened(config(), 2);
    let syns = |sent: Vec<(u64, Seg)>| -> Vec<u64> {
        let syns = sent.into_iter().filter(|(_, seg)| seg.flags == Flags::SYN);
        syns.map(|(at, _)| at).collect()
    };
    let before = syns(sent(&mut s, 9_000));
    assert!(before.len() >= 3, "{before:?}");
    s.stack.revalidate_path(s.now, PathId(1));
    s.write("");
    assert_eq!(syns(sent(&mut s, 9_000)), [9_000]);
}

/// Data that was sent in vain and waits for its timer leaves at once.
#[test]
fn a_path_that_is_back_is_sent_to_at_once() {
    let mut s = Script::accepted(patient());
    s.write("lost");
    sent(&mut s, 60 * SECOND);
    s.stack.revalidate_path(s.now, PathId(0));
    s.write("");
    let again = sent(&mut s, 60 * SECOND + 1);
    assert!(
        again.iter().any(|(_, seg)| seg.payload == b"lost"),
        "{again:?}"
    );
}

/// A silent peer is waited for as long as in regular TCP.
// Conforms: 9293-3.8.3-1
#[test]
fn an_outage_of_minutes_is_outlived() {
    for paths in [1, 2] {
        let mut s = Script::opened(patient(), paths);
        s.write("hello");
        sent(&mut s, 14 * 60 * SECOND);
        assert!(!timed_out(&s), "{paths}");
        assert_eq!(s.stack.connections(), 1);
        sent(&mut s, 16 * 60 * SECOND);
        assert!(timed_out(&s), "{paths}");
    }
    // Regular TCP sends on the same subflow for as long.
    let mut s = Script::tcp(patient(), syn(), ack(1, 1).win(512));
    s.write("hello");
    let all = sent(&mut s, 14 * 60 * SECOND);
    assert!(!timed_out(&s));
    assert!(all.iter().all(|(_, seg)| !seg.flags.contains(Flags::RST)));
    assert!(all.last().is_some_and(|(at, _)| *at > 13 * 60 * SECOND));
    sent(&mut s, 16 * 60 * SECOND);
    assert!(timed_out(&s));
}

/// A peer that resets the last subflow is alive: it opens another one soon, or has lost the connection.
#[test]
fn a_connection_that_its_opener_has_left_ends_soon() {
    let mut s = Script::accepted(patient());
    send!(s, 20, rst_ack(1, 1));
    sent(&mut s, 29 * SECOND);
    assert!(!timed_out(&s));
    sent(&mut s, 31 * SECOND);
    assert!(timed_out(&s));
    // The peer comes back.
    let mut s = Script::accepted(patient());
    complete(&mut s, 20);
    send!(s, 30, rst_ack(1, 1));
    sent(&mut s, 60 * SECOND);
    assert!(!timed_out(&s));
}

/// If there is no room for another connection, the one whose peer has been silent longest ends, but none
/// that is heard, or was a moment ago.
#[test]
fn silent_connections_make_room_for_others() {
    let mut s = Script::accepted(patient());
    s.write("lost");
    sent(&mut s, 29 * SECOND);
    assert_eq!(s.stack.reclaim(s.now, None), None);
    sent(&mut s, 31 * SECOND);
    let id = s.id();
    assert_eq!(s.stack.reclaim(s.now, Some(7)), None);
    sent(&mut s, 32 * SECOND);
    assert_eq!(s.stack.reclaim(s.now, None), Some(id));
    s.stack.acknowledge(s.now, id).ok();
    sent(&mut s, 34 * SECOND);
    assert!(s.saw(|e| matches!(
        e,
        Event::Closed {
            reason: CloseReason::NoResources,
            ..
        }
    )));
    assert_eq!(s.stack.connections(), 0);
    assert_eq!(s.stack.stats().reclaimed, 1);

    let mut s = Script::accepted(patient());
    sent(&mut s, 60 * SECOND);
    send!(s, at(60 * SECOND), mapped(0, 0, "x"));
    sent(&mut s, 65 * SECOND);
    assert_eq!(s.stack.reclaim(s.now, None), None, "it is heard");
}

/// Connections that hold memory end if others find little.
#[test]
fn silent_connections_give_memory_back() {
    let mut s = Script::server(Config {
        memory: 1 << 20,
        ..patient()
    });
    s.peer(1);
    send!(s, 0, syn().raw(&hex("1e 04 01 01")));
    recv!(s => 0, s.capable(syn_ack()));
    send!(s, 10, s.third_ack());
    recv!(s, 10, ack(1, 1).dss(dack(0)));
    // A write that nobody reads, and as many connections of our own as use up the rest.
    s.write([0; 100_000]);
    let hungry = |s: &mut Script| {
        let to = ([10, 0, 3, 2], PORT).into();
        let options = ConnectOptions {
            protocol: Protocol::Tcp,
            ..ConnectOptions::new(to, strategy())
        };
        let id = s.stack.connect(s.now, options).unwrap();
        while s.stack.write(s.now, id, &[0; 32 << 10]).unwrap() > 0 {}
    };
    sent(&mut s, 31 * SECOND);
    for _ in 0..8 {
        hungry(&mut s);
    }
    sent(&mut s, 32 * SECOND);
    assert_eq!(s.stack.stats().reclaimed, 1);
}

#[test]
fn a_stack_has_256_paths_at_most() {
    let mut s = Script::new(config(), &[]);
    let path = |n: u32| PathConfig::v4((0x0a00_0001 + n).into());
    for n in 0..256 {
        assert_eq!(s.stack.add_path(path(n)), Ok(PathId(n as u8)));
    }
    assert_eq!(s.stack.add_path(path(256)), Err(ApiError::TooManyPaths));
    assert_eq!(s.stack.path_totals().len(), 256);
}
