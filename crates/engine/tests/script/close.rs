//! The end: DATA_FIN and FIN (RFC 8684 section 3.3.3), MP_FASTCLOSE (section 3.5).

use braid_engine::{ApiError, CloseReason, Event};
use braid_wire::Instant;
use braid_wire::mptcp::MptcpOption;
use braid_wire::tcp::Flags;

use crate::harness::{PEER_KEY, Script, config, mapped};
use crate::join;
use crate::segment::{Seg, ack, dack, data, fin, rst, rst_ack, syn, syn_ack};

pub fn closed(s: &Script) -> Option<CloseReason> {
    s.events.iter().find_map(|e| match e {
        Event::Closed { reason, .. } => Some(*reason),
        _ => None,
    })
}

/// Waits until the connection is forgotten and nothing of it is left.
fn gone(s: &mut Script) {
    while s.stack.connections() > 0 {
        let next = s.stack.next_timeout().expect("it stays for ever");
        s.advance(next);
    }
    assert!(s.now.as_millis() < 60_000, "forgotten at {}", s.now);
    assert_eq!(s.stack.buffered(), 0);
}

/// The stack closes first: DATA_FIN with the last data, then the peer, then FIN both ways.
// Conforms: 8684-3.3.3-5
#[test]
fn data_fin_with_the_last_data() {
    let mut s = Script::accepted(config());
    s.stack.write(s.now, s.id(), b"last").unwrap();
    s.shutdown();
    recv!(s, 10, data(1, 1, "last").dss(dack(0).map(0, 1, 5).fin()));
    send!(s, 20, ack(1, 5).dss(dack(5)));
    quiet!(s, 25);
    // In the half-closed state data still arrives.
    send!(s, 30, data(1, 5, "answer").dss(dack(5).map(0, 1, 6)));
    recv!(s, 30, ack(5, 7).dss(dack(6)));
    assert_eq!(s.read(), b"answer");
    send!(s, 40, ack(7, 5).dss(dack(5).map(6, 0, 1).fin()));
    assert!(s.stack.read_finished(s.id()));
    recv!(s, 40, fin(5, 7).dss(dack(7)));
    assert_eq!(closed(&s), Some(CloseReason::Finished));
    send!(s, 50, fin(7, 6).dss(dack(5)));
    recv!(s, 50, ack(6, 8).dss(dack(7)));
    gone(&mut s);
}

/// Every copy of the last byte says that it is the last, whichever arrives first.
#[test]
fn data_fin_with_every_copy_of_the_last_data() {
    let mut s = join::joined();
    s.stack.write(s.now, s.id(), b"last").unwrap();
    s.shutdown();
    let last = |flow| data(1, 1, "last").on(flow).dss(dack(0).map(0, 1, 5).fin());
    recv!(s, 24, last(1));
    send!(s, 26, rst_ack(1, 1).on(1));
    let (_, _join) = s.take().expect("no new join");
    recv!(s, 26, last(0));
}

/// Data sent without DATA_FIN is copied without it: a peer that has the data already may overlook DATA_FIN
/// on the copy (Linux does, and then ignores every later DATA_FIN).
#[test]
fn data_fin_not_with_a_mere_copy() {
    let mut s = join::joined();
    s.write("last");
    recv!(s, 24, data(1, 1, "last").on(1).dss(dack(0).map(0, 1, 4)));
    s.stack.shutdown(s.now, s.id()).unwrap();
    send!(s, 24, rst_ack(1, 1).on(1));
    let (_, _join) = s.take().expect("no new join");
    recv!(s, 24, data(1, 1, "last").dss(dack(0).map(0, 1, 4)));
    recv!(s, 24, ack(5, 1).dss(dack(0).map(4, 0, 1).fin()));
}

/// Linux puts DATA_FIN on every acknowledgement until it has its DATA_ACK, and with timestamps that leaves
/// no room for SACK: the third duplicate shows a loss nevertheless. An acknowledgement of new data on
/// another subflow is no duplicate.
#[test]
fn duplicates_without_room_for_sack() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().mss(1448).ts(1, 0).raw(&[30, 4, 1, 1]));
    recv!(s => 0, s.capable(syn_ack()));
    send!(s, 10, s.third_ack().ts(2, 0));
    recv!(s, 10, ack(1, 1).dss(dack(0)));
    s.write(vec![7; 4 * 1400]);
    s.skip(15);
    let last = |acked| dack(acked).map(0, 0, 1).fin();
    let stuck = |acked| ack(1, 1).win(512).ts(3, 0).dss(last(acked));
    for (at, acked) in [(20, 0), (21, 100), (22, 100), (23, 200)] {
        send!(s, at, stuck(acked));
        s.skip(at);
    }
    assert_eq!(s.stack.subflows(s.id())[0].traffic.bytes_retransmitted, 0);
    send!(s, 24, stuck(200));
    s.skip(24);
    let traffic = s.stack.subflows(s.id())[0].traffic;
    assert!(
        (1..=1448).contains(&traffic.bytes_retransmitted),
        "{traffic:?}"
    );
}

/// The acknowledgement of DATA_FIN is news only once: later segments can be duplicates.
#[test]
fn duplicates_after_data_fin_is_acknowledged() {
    for shut in [false, true] {
        let mut s = Script::server(config());
        s.peer(1);
        send!(s, 0, syn().mss(1448).no_sack().raw(&[30, 4, 1, 1]));
        recv!(s => 0, s.capable(syn_ack().no_sack()));
        send!(s, 10, s.third_ack());
        s.skip(10);
        s.write(vec![7; 4 * 1400]);
        if shut {
            s.shutdown();
        }
        let all = 4 * 1400 + u64::from(shut);
        for at in 20..25 {
            s.skip(at);
            send!(s, at, ack(1, 1).win(512).dss(dack(all)));
        }
        s.skip(25);
        let traffic = s.stack.subflows(s.id())[0].traffic;
        assert!(traffic.bytes_retransmitted > 0, "{shut}: {traffic:?}");
    }
}

/// Without SACK the room for it does not matter: duplicates that a retransmission caused are no second loss
/// (RFC 6582 section 3.2, step 2).
// Conforms: 6582-3.2-1
#[test]
fn without_sack_its_room_does_not_matter() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().mss(1448).no_sack().ts(1, 0).raw(&[30, 4, 1, 1]));
    recv!(s => 0, s.capable(syn_ack().no_sack()));
    send!(s, 10, s.third_ack().ts(2, 0));
    s.skip(10);
    s.write(vec![7; 10 * 1416]);
    let dup = |at: u64, acked| {
        let dss = dack(acked).map(0, 0, 1).fin();
        ack(1, at).win(512).ts(3, 0).dss(dss)
    };
    for at in 20..23 {
        s.skip(at);
        send!(s, at, dup(1, 0));
    }
    s.skip(23);
    let sent = s.stack.subflows(s.id())[0].traffic;
    assert!(sent.bytes_retransmitted > 0, "{sent:?}");
    send!(s, 30, dup(1 + sent.bytes_sent, sent.bytes_sent));
    s.skip(30);
    s.write(vec![8; 6 * 1416]);
    for at in 40..43 {
        s.skip(at);
        send!(s, at, dup(1 + sent.bytes_sent, sent.bytes_sent));
    }
    s.skip(43);
    let after = s.stack.subflows(s.id())[0].traffic;
    assert_eq!(after.bytes_retransmitted, sent.bytes_retransmitted);
}

/// DATA_FIN by itself maps no subflow byte.
// Conforms: 8684-3.3.3-1
#[test]
fn data_fin_alone() {
    let mut s = Script::accepted(config());
    s.write("last");
    recv!(s, 10, data(1, 1, "last").dss(dack(0).map(0, 1, 4)));
    send!(s, 20, ack(1, 5).dss(dack(4)));
    s.shutdown();
    recv!(s, 20, ack(5, 1).dss(dack(0).map(4, 0, 1).fin()));
    send!(s, 30, ack(1, 5).dss(dack(5)));
    quiet!(s, 1000);
    assert_eq!(closed(&s), None);
}

/// DATA_FIN is repeated with backoff until it is acknowledged.
// Conforms: 8684-3.3.3-4
#[test]
fn data_fin_is_retransmitted() {
    let mut s = Script::accepted(config());
    s.shutdown();
    let data_fin = || ack(1, 1).dss(dack(0).map(0, 0, 1).fin());
    recv!(s, 10, data_fin());
    recv!(s, 220, data_fin());
    recv!(s, 640, data_fin());
    send!(s, 650, ack(1, 1).dss(dack(1)));
    quiet!(s, 5000);
}

#[test]
fn the_peer_s_data_fin_is_acknowledged_every_time() {
    let mut s = Script::accepted(config());
    let last = || data(1, 1, "last").dss(dack(0).map(0, 1, 5).fin());
    send!(s, 20, last());
    recv!(s, 20, ack(1, 5).dss(dack(5)));
    send!(s, 40, last());
    recv!(s, 40, ack(1, 5).dss(dack(5)).sack(&[(1, 5)]));
    send!(s, 50, ack(5, 1).dss(dack(0).map(4, 0, 1).fin()));
    recv!(s, 50, ack(1, 5).dss(dack(5)));
    assert_eq!(s.read(), b"last");
    assert!(s.stack.read_finished(s.id()));
    // In the other half-closed state data still leaves.
    s.write("answer");
    recv!(s, 50, data(1, 5, "answer").dss(dack(5).map(0, 1, 6)));
}

/// DATA_FIN overtakes the data before it.
// Conforms: 8684-3.3.3-3
#[test]
fn data_fin_before_the_last_data() {
    let mut s = Script::accepted(config());
    send!(s, 20, ack(1, 1).dss(dack(0).map(4, 0, 1).fin()));
    recv!(s, 20, ack(1, 1).dss(dack(0)));
    assert!(!s.stack.read_finished(s.id()));
    send!(s, 30, mapped(0, 0, "last"));
    recv!(s, 30, ack(1, 5).dss(dack(5)));
    assert_eq!(s.read(), b"last");
    assert!(s.stack.read_finished(s.id()));
}

/// The peer closes its subflow together with its stream; the last DATA_ACK comes after its FIN. Our FIN
/// waits for it, because DATA_FIN may have to be repeated.
#[test]
fn fin_before_the_last_data_ack() {
    let mut s = Script::accepted(config());
    s.shutdown();
    let data_fin = |acked, seen| ack(1, acked).dss(dack(seen).map(0, 0, 1).fin());
    recv!(s, 10, data_fin(1, 0));
    send!(s, 20, fin(1, 1).dss(dack(0).map(0, 0, 1).fin()));
    recv!(s, 20, ack(1, 2).dss(dack(1)));
    recv!(s, 220, data_fin(2, 1));
    send!(s, 230, ack(2, 1).dss(dack(1)));
    recv!(s, 230, fin(1, 2).dss(dack(1)));
    assert_eq!(closed(&s), Some(CloseReason::Finished));
    send!(s, 240, ack(2, 2).dss(dack(1)));
    gone(&mut s);
}

/// The peer has sent everything and closes its direction of the only subflow (RFC 8684 section 3.3.3): data
/// written afterwards still goes out there, then DATA_FIN, then FIN.
#[test]
fn data_leaves_on_a_half_closed_subflow() {
    let mut s = Script::accepted(config());
    send!(s, 20, data(1, 1, "last").dss(dack(0).map(0, 1, 5).fin()));
    recv!(s, 20, ack(1, 5).dss(dack(5)));
    send!(s, 30, fin(5, 1).dss(dack(0)));
    recv!(s, 30, ack(1, 6).dss(dack(5)));
    s.advance(Instant::from_millis(5000));
    s.write("answer");
    recv!(s, 5000, data(1, 6, "answer").dss(dack(5).map(0, 1, 6)));
    send!(s, 5010, ack(6, 7).dss(dack(6)));
    s.shutdown();
    recv!(s, 5010, ack(7, 6).dss(dack(5).map(6, 0, 1).fin()));
    assert_eq!(s.read(), b"last");
    send!(s, 5020, ack(6, 7).dss(dack(7)));
    recv!(s, 5020, fin(7, 6).dss(dack(5)));
    assert_eq!(closed(&s), Some(CloseReason::Finished));
    send!(s, 5030, ack(6, 8).dss(dack(7)));
    gone(&mut s);
}

/// The same holds for several subflows: the peer ends its direction on each of them, and its answer comes
/// on all.
// Conforms: 8684-3.3.3-8
#[test]
fn data_leaves_on_all_half_closed_subflows() {
    let mut s = join::joined();
    send!(s, 30, ack(1, 1).dss(dack(0).map(0, 0, 1).fin()));
    recv!(s, 30, ack(1, 1).dss(dack(1)));
    for flow in [0, 1] {
        send!(s, 31, fin(1, 1).on(flow).dss(dack(0)));
        recv!(s, 31, ack(1, 2).on(flow).dss(dack(1)));
    }
    s.write(vec![7; 40_000]);
    s.advance(Instant::from_millis(100));
    let flows: Vec<usize> = core::iter::from_fn(|| s.take())
        .map(|(_, seg)| seg.flow)
        .collect();
    assert!([0, 1].iter().all(|flow| flows.contains(flow)), "{flows:?}");
}

/// The peer closes first and dropped data at the data level that its subflow had acknowledged: it is sent
/// again.
// Conforms: 8684-3.3.6-2
#[test]
fn dropped_data_is_sent_again_on_a_half_closed_subflow() {
    let mut s = Script::accepted(config());
    s.write("dropped");
    recv!(s, 10, data(1, 1, "dropped").dss(dack(0).map(0, 1, 7)));
    send!(s, 20, ack(1, 8).dss(dack(0).map(0, 0, 1).fin()));
    recv!(s, 20, ack(8, 1).dss(dack(1)));
    send!(s, 21, fin(1, 8).dss(dack(0)));
    recv!(s, 21, ack(8, 2).dss(dack(1)));
    let again = loop {
        let next = s.stack.next_timeout().unwrap();
        assert!(next < Instant::from_millis(2000), "not sent again");
        s.advance(next);
        match s.take() {
            Some((_, seg)) if seg.payload == b"dropped" => break seg,
            _ => {}
        }
    };
    assert_eq!(again.mptcp, data(8, 2, "").dss(dack(1).map(0, 8, 7)).mptcp);
}

#[test]
fn fin_with_the_last_data_ack() {
    let mut s = Script::accepted(config());
    s.shutdown();
    recv!(s, 10, ack(1, 1).dss(dack(0).map(0, 0, 1).fin()));
    send!(s, 20, fin(1, 1).dss(dack(1).map(0, 0, 1).fin()));
    recv!(s, 20, fin(1, 2).dss(dack(1)));
    assert_eq!(closed(&s), Some(CloseReason::Finished));
    send!(s, 30, ack(2, 2).dss(dack(1)));
    gone(&mut s);
}

/// The FIN of the subflow is retransmitted like data (RFC 9293 section 3.8.1).
#[test]
fn a_lost_fin_is_retransmitted() {
    let mut s = Script::accepted(config());
    s.shutdown();
    recv!(s, 10, ack(1, 1).dss(dack(0).map(0, 0, 1).fin()));
    send!(s, 20, ack(1, 1).dss(dack(1).map(0, 0, 1).fin()));
    recv!(s, 20, fin(1, 1).dss(dack(1)));
    recv!(s, 100, fin(1, 1).dss(dack(1)));
    recv!(s, 310, fin(1, 1).dss(dack(1)));
    send!(s, 320, fin(1, 2).dss(dack(1)));
    recv!(s, 320, ack(2, 2).dss(dack(1)));
    gone(&mut s);
}

/// The last ACK is lost: the peer's FIN comes again and is acknowledged again, or reset once the connection
/// is forgotten.
#[test]
fn a_repeated_fin_is_answered() {
    let mut s = Script::accepted(config());
    s.shutdown();
    recv!(s, 10, ack(1, 1).dss(dack(0).map(0, 0, 1).fin()));
    send!(s, 20, ack(1, 1).dss(dack(1).map(0, 0, 1).fin()));
    recv!(s, 20, fin(1, 1).dss(dack(1)));
    send!(s, 30, fin(1, 2).dss(dack(1)));
    recv!(s, 30, ack(2, 2).dss(dack(1)));
    send!(s, 240, fin(1, 2).dss(dack(1)));
    s.advance(s.now);
    let (_, answer) = s.take().expect("the peer would wait for its last ACK");
    assert!(answer.flags.intersects(Flags::ACK | Flags::RST));
}

/// A peer that says nothing more does not keep the connection for ever.
#[test]
fn a_peer_silent_after_the_end_is_forgotten() {
    let mut s = Script::accepted(config());
    s.shutdown();
    recv!(s, 10, ack(1, 1).dss(dack(0).map(0, 0, 1).fin()));
    send!(s, 20, ack(1, 1).dss(dack(1).map(0, 0, 1).fin()));
    recv!(s, 20, fin(1, 1).dss(dack(1)));
    assert_eq!(closed(&s), Some(CloseReason::Finished));
    gone(&mut s);
}

/// MP_FASTCLOSE on an ACK, then on a RST: both end the connection, the first is answered by RST.
// Conforms: 8684-3.5-1
#[test]
fn fastclose_on_an_ack() {
    let mut s = Script::accepted(config());
    let receiver_key = s.key.unwrap();
    send!(
        s,
        20,
        ack(1, 1).opt(MptcpOption::FastClose { receiver_key })
    );
    assert_eq!(closed(&s), Some(CloseReason::Reset));
    let (_, reset) = s.take().expect("not answered");
    assert!(reset.flags.contains(Flags::RST));
    gone(&mut s);
}

/// RFC 9293 section 3.10.7.4: options of a segment outside the window are ignored.
// Conforms: 8684-3-3, 9293-3.10.7.4-1
#[test]
fn fastclose_on_an_old_segment() {
    let mut s = Script::accepted(config());
    let receiver_key = s.key.unwrap();
    let fastclose = |seg: Seg| seg.opt(MptcpOption::FastClose { receiver_key });
    send!(s, 20, mapped(0, 0, "abcdef"));
    recv!(s, 20, ack(1, 7).dss(dack(6)));
    send!(s, 30, fastclose(ack(6, 1)));
    recv!(s, 30, ack(1, 7).dss(dack(6)));
    send!(s, 40, fastclose(data(1, 1, "ab")));
    recv!(s, 40, ack(1, 7).dss(dack(6)).sack(&[(1, 3)]));
    let before = 1u64.wrapping_sub(1 << 30);
    send!(s, 600, fastclose(ack(before, 1)));
    recv!(s, 600, ack(1, 7).dss(dack(6)));
    send!(s, 1200, fastclose(ack(7 + (5 << 20), 1)));
    recv!(s, 1200, ack(1, 7).dss(dack(6)));
    assert_eq!(closed(&s), None);
    send!(s, 1210, fastclose(ack(7, 1)));
    assert_eq!(closed(&s), Some(CloseReason::Reset));
}

// Conforms: 8684-3.5-2
#[test]
fn fastclose_on_a_rst() {
    let mut s = Script::accepted(config());
    let receiver_key = s.key.unwrap();
    send!(
        s,
        20,
        rst_ack(1, 1).opt(MptcpOption::FastClose { receiver_key })
    );
    assert_eq!(closed(&s), Some(CloseReason::Reset));
    quiet!(s, 1000);
    gone(&mut s);
}

/// A key that is not ours proves nothing.
// Conforms: 8684-3.5-3
#[test]
fn fastclose_with_a_wrong_key() {
    let mut s = Script::accepted(config());
    let receiver_key = s.key.unwrap() ^ 1;
    send!(
        s,
        20,
        ack(1, 1).opt(MptcpOption::FastClose { receiver_key })
    );
    quiet!(s, 100);
    assert_eq!(closed(&s), None);
    // As a RST it still ends the subflow that carries it, but not the connection.
    send!(
        s,
        110,
        rst_ack(1, 1).opt(MptcpOption::FastClose { receiver_key })
    );
    assert_eq!(closed(&s), None);
    assert!(s.saw(|e| matches!(e, Event::SubflowClosed { .. })));
}

// Conforms: 8684-3.5-4
#[test]
fn abort_sends_fastclose() {
    let mut s = Script::accepted(config());
    s.write("never acknowledged");
    let _ = s.take();
    s.abort();
    let key = PEER_KEY.to_be_bytes();
    recv!(
        s,
        10,
        rst_ack(19, 1).raw(&[&[30, 12, 0x70, 0], &key[..]].concat())
    );
    assert_eq!(closed(&s), Some(CloseReason::Aborted));
    gone(&mut s);
}

/// RFC 8684 section 3.5: data before the RST was lost, so the peer asks (RFC 5961 section 3.2) and gets the
/// RST again at the number that it expects. Once it knows, the repeats end.
#[test]
fn fastclose_is_repeated_to_a_peer_with_a_hole() {
    let mut s = Script::accepted(config());
    s.write("lost");
    recv!(s, 10, data(1, 1, "lost").dss(dack(0).map(0, 1, 4)));
    s.abort();
    let key = PEER_KEY.to_be_bytes();
    let option = [&[30, 12, 0x70, 0], &key[..]].concat();
    recv!(s, 10, rst_ack(5, 1).raw(&option));
    for at in [20, 100] {
        send!(s, at, ack(1, 1).dss(dack(0)));
        recv!(s, at, rst_ack(1, 1).raw(&option));
    }
    send!(s, 110, rst(1));
    assert_eq!(s.stack.connections(), 0);
}

/// A guess is not answered, and a peer that reuses its port gets through.
#[test]
fn an_aborted_connection_answers_its_peer_only() {
    let mut s = Script::accepted(config());
    s.abort();
    let _ = s.take();
    send!(s, 20, ack(1, 5000));
    quiet!(s, 30);
    send!(s, 40, syn());
    quiet!(s, 50);
    send!(s, 1040, syn());
    let (_, answer) = s.take().expect("the port is not free");
    assert_eq!(answer.flags, Flags::SYN | Flags::ACK);
}

// --- regular TCP (RFC 9293 section 3.6)

fn plain() -> Script {
    Script::tcp(config(), syn(), ack(1, 1).win(512))
}

#[test]
fn tcp_closes_first() {
    let mut s = plain();
    s.stack.write(s.now, s.id(), b"last").unwrap();
    s.shutdown();
    recv!(s, 10, data(1, 1, "last"));
    recv!(s, 10, fin(5, 1));
    send!(s, 20, ack(1, 6));
    send!(s, 30, data(1, 6, "answer"));
    recv!(s, 30, ack(6, 7));
    assert_eq!(s.read(), b"answer");
    send!(s, 40, fin(7, 6));
    recv!(s, 40, ack(6, 8));
    assert_eq!(closed(&s), Some(CloseReason::Finished));
    gone(&mut s);
}

/// TIME-WAIT (RFC 9293 section 3.6.1): the last ACK was lost, and the peer's FIN comes again.
// Conforms: 9293-3.10.7.4-5
#[test]
fn tcp_acknowledges_a_repeated_fin() {
    let mut s = plain();
    s.shutdown();
    recv!(s, 10, fin(1, 1));
    send!(s, 20, fin(1, 2));
    recv!(s, 20, ack(2, 2));
    assert_eq!(closed(&s), Some(CloseReason::Finished));
    for at in [300, 700] {
        send!(s, at, fin(1, 2));
        recv!(s, at, ack(2, 2));
    }
    gone(&mut s);
}

/// A peer without TIME-WAIT resets our repeated FIN, which is still a clean end.
#[test]
fn tcp_reset_in_last_ack_is_a_clean_end() {
    let mut s = plain();
    send!(s, 20, fin(1, 1));
    recv!(s, 20, ack(1, 2));
    s.shutdown();
    recv!(s, 20, fin(1, 2));
    send!(s, 30, rst(2));
    assert_eq!(closed(&s), Some(CloseReason::Finished));
    gone(&mut s);
}

#[test]
fn tcp_closes_second() {
    let mut s = plain();
    send!(
        s,
        20,
        Seg {
            flags: Flags::FIN | Flags::ACK,
            ..data(1, 1, "last")
        }
    );
    recv!(s, 20, ack(1, 6));
    assert_eq!(s.read(), b"last");
    assert!(s.stack.read_finished(s.id()));
    s.write("answer");
    recv!(s, 20, data(1, 6, "answer"));
    send!(s, 30, ack(6, 7));
    s.shutdown();
    recv!(s, 30, fin(7, 6));
    send!(s, 40, ack(6, 8));
    assert_eq!(closed(&s), Some(CloseReason::Finished));
    gone(&mut s);
}

#[test]
fn tcp_closes_on_both_sides_at_once() {
    let mut s = plain();
    s.shutdown();
    recv!(s, 10, fin(1, 1));
    send!(s, 15, fin(1, 1));
    recv!(s, 15, ack(2, 2));
    send!(s, 20, ack(2, 2));
    assert_eq!(closed(&s), Some(CloseReason::Finished));
    gone(&mut s);
}

/// FIN out of order waits for the data before it; an old one has no effect.
// Conforms: 9293-3.10.7.4-4
#[test]
fn fin_out_of_order_and_out_of_date() {
    let mut s = plain();
    send!(s, 20, fin(5, 1));
    recv!(s, 20, ack(1, 1));
    assert!(!s.stack.read_finished(s.id()));
    send!(s, 30, data(1, 1, "last"));
    recv!(s, 30, ack(1, 6));
    assert_eq!(s.read(), b"last");
    assert!(s.stack.read_finished(s.id()));

    let mut s = plain();
    send!(s, 20, data(1, 1, "abcd"));
    recv!(s, 20, ack(1, 5));
    // Below the received data: no end of the stream.
    send!(s, 30, fin(3, 1));
    recv!(s, 30, ack(1, 5));
    send!(s, 40, data(5, 1, "efgh"));
    recv!(s, 40, ack(1, 9));
    assert_eq!(s.read(), b"abcdefgh");
    send!(s, 50, fin(9, 1));
    recv!(s, 50, ack(1, 10));
    assert!(s.stack.read_finished(s.id()));
}

/// No data lies behind a FIN, and no FIN before data that is here.
#[test]
fn data_behind_a_fin_is_not_taken() {
    let mut s = plain();
    send!(s, 20, fin(5, 1));
    recv!(s, 20, ack(1, 1));
    send!(s, 30, data(1, 1, "last and more"));
    recv!(s, 30, ack(1, 1));
    send!(s, 40, data(1, 1, "last"));
    recv!(s, 40, ack(1, 6));
    assert_eq!(s.read(), b"last");

    let mut s = plain();
    send!(s, 20, data(5, 1, "more"));
    recv!(s, 20, ack(1, 1).sack(&[(5, 9)]));
    send!(s, 30, fin(5, 1));
    recv!(s, 30, ack(1, 1).sack(&[(5, 9)]));
    send!(s, 40, data(1, 1, "some"));
    recv!(s, 40, ack(1, 9));
    assert!(!s.stack.read_finished(s.id()));
}

/// The only subflow gets a FIN while the connection goes on, on the subflow that replaces it; our FIN
/// follows once that one works.
// Conforms: 8684-3.3.3-8
#[test]
fn fin_of_the_only_subflow_is_no_end() {
    let mut s = Script::opened(config(), 1);
    send!(s, 30, fin(1, 1).dss(dack(0)));
    assert_eq!(closed(&s), None);
    let (_, syn) = s.take().expect("no subflow in its place");
    Script::join_syn(&syn.mptcp[0]);
    recv!(s, 30, ack(1, 2).dss(dack(0)));
    assert_eq!(s.stack.is_mptcp(s.id()), Some(true));
    s.write("meanwhile");
    recv!(s, 30, data(1, 2, "meanwhile").dss(dack(0).map(0, 1, 9)));
    let (_, nonce) = Script::join_syn(&syn.mptcp[0]);
    send!(s, 40, join::join_syn_ack(&s, nonce, false));
    recv!(s => 40, join::third_ack(s, nonce));
    send!(s, 50, ack(1, 1).on(1).win(512).dss(dack(9)));
    recv!(s, 50, fin(10, 2).dss(dack(0)));
}

/// A peer closes its last subflow without DATA_FIN, and opens no other: a middlebox stripped its options,
/// or it is gone. It acknowledges for ever, and the rest of its stream never comes.
// Conforms: 8684-3.3.3-9
#[test]
fn a_stream_that_nobody_can_end_is_given_up() {
    let mut s = Script::accepted(config());
    send!(s, 20, fin(1, 1).win(512).dss(dack(0)));
    for seconds in 1..40 {
        s.skip(seconds * 1_000);
        send!(s, seconds * 1_000, ack(2, 1).win(512).dss(dack(0)));
        let over = closed(&s).map(|_| seconds);
        match over {
            None => assert!(seconds <= 31, "it waits for ever"),
            Some(at) => {
                assert!(at >= 30, "after {at} s");
                assert_eq!(closed(&s), Some(CloseReason::TimedOut));
                return;
            }
        }
    }
}

/// A reader takes its time after both ends have closed: the peer has forgotten the connection and would
/// answer anything by RST, so nothing is sent, and a RST discards no data.
#[test]
fn what_is_left_to_read_after_the_end_stays() {
    let mut s = plain();
    s.shutdown();
    recv!(s, 10, fin(1, 1));
    send!(s, 20, ack(1, 2));
    for n in 0..10 {
        send!(s, 30, data(1 + n * 40_000, 2, vec![b'x'; 40_000]));
        while s.take().is_some() {}
    }
    send!(s, 40, fin(400_001, 2));
    recv!(s, 40, ack(2, 400_002));
    let id = s.id();
    for _ in 0..350 {
        let taken = s.stack.read_with(s.now, id, |_| Ok::<_, ApiError>(1_000));
        assert_eq!(taken, Ok(1_000));
    }
    quiet!(s, 120_000);
    send!(s, 120_010, rst(400_002));
    quiet!(s, 240_000);
    assert_eq!(closed(&s), None);
    assert_eq!(s.read().len(), 50_000);
    assert_eq!(closed(&s), Some(CloseReason::Finished));
}
