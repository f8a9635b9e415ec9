//! Acknowledgements, windows and probes (RFC 9293 section 3.8.6, RFC 5681 section 4.2, RFC 7323,
//! RFC 8684 sections 3.3.4 and 3.3.5).

use core::time::Duration;

use braid_engine::{Config, DelayedAck, Event, Protocol};
use braid_wire::Instant;

use crate::harness::{Script, config, mapped};
use crate::segment::{Seg, ack, dack, data, hex, syn, syn_ack};

const MSS: usize = 1460;

fn plain() -> Script {
    Script::tcp(config(), syn(), ack(1, 1).win(512))
}

/// An accepted MPTCP connection that has written 200 bytes to a peer with a window of 128, full at
/// 10 ms.
fn filled() -> Script {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().raw(&hex("1e 04 01 01")));
    recv!(s => 0, s.capable(syn_ack()));
    send!(s, 10, s.third_ack().win(1));
    recv!(s, 10, ack(1, 1).dss(dack(0)));
    s.write([7; 200]);
    recv!(s, 10, data(1, 1, [7; 128]).dss(dack(0).map(0, 1, 128)));
    s
}

/// The statistics of a connection show the time with data to deliver, and the part of it that waited for
/// window.
#[test]
fn time_that_waits_for_the_window_is_counted() {
    let mut s = filled();
    send!(s, 15, ack(1, 129).win(1).dss(dack(128)));
    recv!(s, 15, data(129, 1, [7; 72]).dss(dack(0).map(128, 129, 72)));
    send!(s, 25, ack(1, 201).win(1).dss(dack(200)));
    s.skip(100);
    s.write("x");
    recv!(s, 100, data(201, 1, "x").dss(dack(0).map(200, 201, 1)));
    send!(s, 107, ack(1, 202).win(1).dss(dack(201)));
    let stats = s.stack.conn_stats(s.id()).unwrap();
    let counted = (stats.busy, stats.window_limited);
    let ms = Duration::from_millis;
    assert_eq!(counted, (ms(22), ms(5)));
}

/// Before the handshake is complete there is no window to wait for.
#[test]
fn the_handshake_is_no_wait_for_the_window() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&[30, 4, 1, 1]));
    s.write("x");
    s.skip(400);
    send!(s, 500, s.peer_capable(syn_ack()).win(65_535));
    s.skip(510);
    send!(s, 520, ack(1, 2).win(512).dss(dack(1)));
    let stats = s.stack.conn_stats(s.id()).unwrap();
    let counted = (stats.busy, stats.window_limited);
    assert_eq!(counted, (Duration::from_millis(520), Duration::ZERO));
}

/// `n` segments of the peer, each acknowledged at once at the start.
fn quick(s: &mut Script, n: usize) {
    for n in 0..n {
        let at = 20.0 + n as f64 / 10.0;
        send!(s, at, data((n * MSS) as u64 + 1, 1, vec![n as u8; MSS]));
        recv!(s, at, ack(1, ((n + 1) * MSS) as u64 + 1));
    }
}

/// The first segments are acknowledged one by one, so that the peer's window opens; afterwards
/// every second one, and a single one within 40 ms (RFC 5681 section 4.2, RFC 9293 section
/// 3.8.6.3).
// Conforms: 9293-3.8.6.3-1, 9293-3.8.6.3-2
#[test]
fn quick_acks_then_delayed_acks() {
    let mut s = plain();
    quick(&mut s, 16);
    let at = |n: usize| (n * MSS) as u64 + 1;
    send!(s, 30, data(at(16), 1, vec![0; MSS]));
    quiet!(s, 69);
    recv!(s, 70, ack(1, at(17)));
    send!(s, 80, data(at(17), 1, vec![0; MSS]));
    quiet!(s, 81);
    send!(s, 82, data(at(18), 1, vec![0; MSS]));
    recv!(s, 82, ack(1, at(19)));
    quiet!(s, 500);
}

/// Data out of order, data that fills a hole, and duplicates are acknowledged at once (RFC 5681 section
/// 4.2, RFC 2883).
#[test]
fn disorder_is_acknowledged_at_once() {
    let mut s = plain();
    quick(&mut s, 16);
    let at = |n: usize| (n * MSS) as u64 + 1;
    send!(s, 30, data(at(17), 1, vec![0; MSS]));
    recv!(s, 30, ack(1, at(16)).sack(&[(at(17), at(18))]));
    send!(s, 31, data(at(19), 1, vec![0; MSS]));
    recv!(
        s,
        31,
        ack(1, at(16)).sack(&[(at(19), at(20)), (at(17), at(18))])
    );
    send!(s, 32, data(at(17), 1, vec![0; MSS]));
    let dup = (at(17), at(18));
    recv!(
        s,
        32,
        ack(1, at(16)).sack(&[dup, (at(19), at(20)), (at(17), at(18))])
    );
    send!(s, 33, data(at(16), 1, vec![0; MSS]));
    recv!(s, 33, ack(1, at(18)).sack(&[(at(19), at(20))]));
    send!(s, 34, data(at(18), 1, vec![0; MSS]));
    recv!(s, 34, ack(1, at(20)));
}

/// A peer that did not agree to SACK gets none.
#[test]
fn no_sack_unless_agreed() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().no_sack());
    recv!(
        s,
        0,
        Seg {
            sack_ok: Some(false),
            ..syn_ack()
        }
    );
    send!(s, 10, ack(1, 1).win(512));
    send!(s, 20, data(5, 1, "late"));
    recv!(s, 20, ack(1, 1));
}

/// Windows are not scaled for a peer that does not scale (RFC 7323 section 2.2).
// Conforms: 7323-2.2-1
#[test]
fn no_scaling_unless_agreed() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().ws(None));
    s.advance(s.now);
    let (_, answer) = s.take().unwrap();
    assert_eq!((answer.ws, answer.win), (None, Some(65_535)));
    // 1000 bytes and no more.
    send!(s, 10, ack(1, 1).win(1000));
    s.write([0; 2000]);
    recv!(s, 10, data(1, 1, [0; 1000]).win(65_535));
    quiet!(s, 15);
}

/// The window field of a SYN/ACK is not scaled, an ACK's is.
// Conforms: 7323-2.2-2
#[test]
fn windows_are_scaled_except_on_syns() {
    let mut s = Script::client(config(), 1, Protocol::Tcp);
    recv!(s, 0, syn().win(65_535));
    send!(s, 10, syn_ack().win(1000));
    // A new connection offers 512 kB.
    recv!(s, 10, ack(1, 1).win(((512 << 10) >> 7) as u16));
    s.write([0; 2000]);
    recv!(s, 10, data(1, 1, [0; 1000]));
    send!(s, 20, ack(1, 1001).win(100));
    recv!(s, 20, data(1001, 1, [0; 1000]));
}

/// The window shrinks with unread data and opens with a read of a good part of it.
// Conforms: 9293-3.8.6.2.2-1
#[test]
fn the_window_follows_the_reader() {
    let config = Config {
        recv_buffer: 64 << 10,
        ..config()
    };
    let mut s = Script::tcp(config, syn(), ack(1, 1).win(512));
    let mut last = None;
    for n in 0..64 {
        send!(s, 20 + n, data((n * 1024) as u64 + 1, 1, [7; 1024]));
        last = s.take().or(last);
    }
    s.advance(braid_wire::Instant::from_millis(150));
    let (_, last) = s.take().or(last).unwrap();
    assert_eq!((last.ack, last.win), (Some(65_537), Some(0)));
    // The peer's probe of a zero window is answered, without room.
    send!(s, 200, data(65_537, 1, "x"));
    recv!(s, 200, ack(1, 65_537).win(0));
    send!(s, 210, ack(65_536, 1));
    recv!(s, 210, ack(1, 65_537).win(0));
    assert_eq!(s.read().len(), 65_536);
    s.advance(s.now);
    let (at, update) = s.take().expect("no window update");
    assert_eq!((at.as_millis(), update.ack), (210, Some(65_537)));
    assert!(update.win > Some(30_000), "{update:?}");
}

/// RFC 9293 section 3.8.6.1: a closed window is probed, with backoff, and the connection lives as
/// long as the peer answers.
// Conforms: 9293-3.8.6.1-1, 9293-3.8.6.1-4
#[test]
fn a_zero_window_is_probed() {
    let mut s = plain();
    send!(s, 20, ack(1, 1).win(0));
    s.write("wait");
    let mut probes = Vec::new();
    for _ in 0..40 {
        let next = s.stack.next_timeout().unwrap();
        s.advance(next);
        if let Some((at, probe)) = s.take() {
            probes.push(at);
            assert_eq!((probe.seq, probe.payload.len()), (0, 0), "{probe:?}");
            send!(s, s.now, ack(1, 1).win(0));
        }
    }
    let gaps: Vec<_> = probes
        .windows(2)
        .map(|p| p[1].saturating_since(p[0]))
        .collect();
    assert!(probes.len() >= 5, "{probes:?}");
    assert!(
        gaps.is_sorted() || gaps[2] > gaps[0],
        "no backoff: {gaps:?}"
    );
    assert!(s.stack.connections() == 1);
    let at = s.now;
    send!(s, at, ack(1, 1).win(512));
    recv!(s, at, data(1, 1, "wait"));
}

/// With MPTCP, the peer's subflow has accepted data that its connection has not: the probes go on with
/// backoff until a window update gets through.
// Conforms: 9293-3.8.6.1-1, 9293-3.8.6.1-3
#[test]
fn a_zero_window_is_probed_while_the_data_ack_is_behind() {
    let mut s = filled();
    send!(s, 20, ack(1, 129).win(0).dss(dack(0)));
    let mut probes = Vec::new();
    while s.now < Instant::from_millis(20_000) {
        let next = s.stack.next_timeout().unwrap();
        s.advance(next);
        while let Some((at, probe)) = s.take() {
            probes.push(at);
            assert_eq!((probe.seq, probe.payload.len()), (128, 0), "{probe:?}");
            send!(s, at, ack(1, 129).win(0).dss(dack(0)));
        }
    }
    let gaps: Vec<_> = probes
        .windows(2)
        .map(|p| p[1].saturating_since(p[0]))
        .collect();
    assert!(gaps.len() >= 9 && gaps.is_sorted(), "{gaps:?}");
    assert_eq!(gaps.last(), Some(&Duration::from_secs(5)));
    send!(s, s.now, ack(1, 129).win(1).dss(dack(128)));
    recv!(
        s,
        s.now,
        data(129, 1, [7; 72]).dss(dack(0).map(128, 129, 72))
    );
}

/// Linux goes silent with a subflow acknowledged and DATA_ACK behind: an old segment wakes it. The probe
/// carries no byte: if the peer dropped the data but kept its mapping, that byte would replace the last one
/// written.
#[test]
fn a_stalled_data_ack_is_probed() {
    let mut s = Script::accepted(config());
    s.write("hello");
    recv!(s, 10, data(1, 1, "hello").dss(dack(0).map(0, 1, 5)));
    send!(s, 20, ack(1, 6).dss(dack(0)));
    // A round trip and 5 ms, then with backoff.
    recv!(s, 35, ack(5, 1).dss(dack(0)));
    recv!(s, 65, ack(5, 1).dss(dack(0)));
    send!(s, 75, ack(1, 6).dss(dack(5)));
    quiet!(s, 5000);
}

/// A peer shuts its window when nothing is outstanding, and then drops data at the data level that its
/// subflow acknowledged: it is sent again.
#[test]
fn data_dropped_after_a_shut_window_is_sent_again() {
    let mut s = filled();
    send!(s, 20, ack(1, 129).win(0).dss(dack(128)));
    s.skip(2_000);
    send!(s, 2_000, ack(1, 129).win(512).dss(dack(128)));
    let rest = data(129, 1, [7; 72]).dss(dack(0).map(128, 129, 72));
    recv!(s, 2_000, rest);
    send!(s, 2_010, ack(1, 201).win(512).dss(dack(128)));
    s.advance(Instant::from_millis(5_000));
    let again = core::iter::from_fn(|| s.take()).find(|(_, seg)| !seg.payload.is_empty());
    let again = again.map(|(_, seg)| seg.mptcp);
    assert_eq!(
        again,
        Some(data(1, 1, "").dss(dack(0).map(128, 201, 72)).mptcp)
    );
}

/// The window belongs to the connection: opened on one subflow, it opens all (section 3.3.4).
#[test]
fn a_data_level_window_update() {
    let mut s = Script::accepted(config());
    send!(s, 20, ack(1, 1).win(512).dss(dack(0)));
    s.write([1; 100]);
    recv!(s, 20, data(1, 1, [1; 100]).dss(dack(0).map(0, 1, 100)));
    // 512 << 7 from the DATA_ACK on, whatever the subflow's window.
    let window = 512 << 7;
    s.write(vec![2; window + 1000]);
    let mut at = 21;
    let mut acked = 101;
    let mut last = 100;
    while at < 200 {
        s.advance(braid_wire::Instant::from_millis(at));
        while let Some((_, seg)) = s.take() {
            let end = seg.seq + seg.payload.len() as u64;
            acked = acked.max(end);
            last = last.max(end - 1);
        }
        send!(s, s.now, ack(1, acked).win(512).dss(dack(0)));
        while s.take().is_some_and(|(_, seg)| {
            last = last.max(seg.seq + seg.payload.len() as u64 - 1);
            acked = last + 1;
            true
        }) {}
        at += 5;
    }
    // All of it except a silly remainder (RFC 9293 section 3.8.6.2.1).
    let full = (window - MSS) as u64..=window as u64;
    assert!(full.contains(&last), "{last} of {window}");
    // The stall is probed meanwhile.
    s.advance(braid_wire::Instant::from_millis(300));
    while s.take().is_some() {}
    send!(s, 300, ack(1, acked).win(512).dss(dack(last)));
    s.advance(braid_wire::Instant::from_millis(310));
    assert!(s.take().is_some_and(|(_, seg)| seg.payload.len() > 1));
}

/// A silent connection is probed for a sign of life, and ends when none comes.
#[test]
fn keepalive() {
    let mut s = Script::accepted(config());
    send!(s, 20, mapped(0, 0, "x"));
    recv!(s, 20, ack(1, 2).dss(dack(1)));
    assert_eq!(s.read(), b"x");
    recv!(s, 10_020, ack(0, 2).dss(dack(1)));
    send!(s, 10_030, ack(2, 1).dss(dack(0)));
    recv!(s, 131_000, ack(0, 2).dss(dack(1)));
    // The probe is repeated.
    recv!(s, 131_250, ack(0, 2).dss(dack(1)));
    while s.stack.connections() > 0 {
        let next = s.stack.next_timeout().unwrap();
        s.advance(next);
    }
    assert!(s.saw(|e| matches!(
        e,
        Event::Closed {
            reason: braid_engine::CloseReason::TimedOut,
            ..
        }
    )));
    assert!(s.now.as_millis() < 175_000, "{}", s.now);
}

/// The peer's keepalive is answered (RFC 9293 section 3.8.4).
// Conforms: 9293-3.10.7.4-1
#[test]
fn the_peer_s_keepalive_is_answered() {
    let mut s = plain();
    send!(s, 20, data(1, 1, "abc"));
    recv!(s, 20, ack(1, 4));
    send!(s, 30, ack(3, 1));
    recv!(s, 30, ack(1, 4));
}

// --- timestamps (RFC 7323)

fn stamped() -> Script {
    Script::tcp(config(), syn().ts(0, 0), ack(1, 1).win(512).ts(10, 0))
}

/// Section 5.3: an old timestamp is an old duplicate, whatever its sequence number.
// Conforms: 7323-5.3-1
#[test]
fn paws() {
    let mut s = stamped();
    send!(s, 20, data(1, 1, "new").ts(20, 10));
    recv!(s, 20, ack(1, 4).ts(20, 20));
    send!(s, 30, data(4, 1, "old").ts(19, 10));
    recv!(s, 30, ack(1, 4).ts(30, 20));
    assert_eq!(s.read(), b"new");
    send!(s, 40, data(4, 1, "now").ts(30, 30));
    recv!(s, 40, ack(1, 7).ts(40, 30));
    assert_eq!(s.read(), b"now");
}

/// Section 5.3, R1: its acknowledgement and window are as old, and are ignored.
// Conforms: 7323-5.3-2
#[test]
fn paws_of_an_acknowledgement() {
    let mut s = stamped();
    s.write("abc");
    recv!(s, 10, data(1, 1, "abc").ts(10, 10));
    send!(s, 20, ack(1, 1).win(512).ts(20, 10));
    quiet!(s, 25);
    send!(s, 25, ack(1, 4).win(0).ts(19, 10));
    recv!(s, 25, ack(4, 1).ts(25, 20));
    let in_flight = |s: &Script| s.stack.subflows(s.id())[0].in_flight;
    let window = |s: &Script| s.stack.conn_stats(s.id()).unwrap().peer_window;
    assert_eq!((in_flight(&s), window(&s)), (3, (512 << 7) - 3));
    send!(s, 26, ack(1, 4).win(256).ts(20, 10));
    assert_eq!((in_flight(&s), window(&s)), (0, 256 << 7));
}

/// Section 4.3: the echo belongs to the segment that advanced the window, not to one that came early.
// Conforms: 7323-4.3-2, 7323-4.3-3
#[test]
fn the_echo_is_of_the_oldest_segment_not_acknowledged() {
    let mut s = stamped();
    send!(s, 20, data(5, 1, "late").ts(20, 10));
    recv!(s, 20, ack(1, 1).ts(20, 10).sack(&[(5, 9)]));
    send!(s, 25, data(1, 1, "hole").ts(21, 10));
    recv!(s, 25, ack(1, 9).ts(25, 21));
}

/// With delayed acknowledgements the first of the segments counts: the sender's round trip then
/// includes the delay.
// Conforms: 7323-4.3-1
#[test]
fn the_echo_is_of_the_first_segment_of_a_delayed_ack() {
    let mut s = stamped();
    for n in 0..16u32 {
        let at = f64::from(20 + n);
        send!(
            s,
            at,
            data(u64::from(n) * 100 + 1, 1, [0; 100]).ts(20 + n, 10)
        );
        recv!(s, at, ack(1, u64::from(n) * 100 + 101).ts(20 + n, 20 + n));
    }
    send!(s, 50, data(1601, 1, [0; 100]).ts(50, 10));
    send!(s, 55, data(1701, 1, [0; 100]).ts(55, 10));
    recv!(s, 55, ack(1, 1801).ts(55, 50));
}

/// A retransmission of acknowledged data changes nothing, but its answer echoes its timestamp: its sender
/// measures by it, after an outage that lost the acknowledgement.
#[test]
fn the_echo_of_a_retransmission_below_the_window() {
    let mut s = stamped();
    send!(s, 20, data(1, 1, "lost").ts(20, 10));
    recv!(s, 20, ack(1, 5).ts(20, 20));
    send!(s, 30, data(5, 1, "too").ts(30, 10));
    recv!(s, 30, ack(1, 8).ts(30, 30));
    send!(s, 9000, data(1, 1, "lost").ts(9000, 10));
    recv!(s, 9000, ack(1, 8).ts(9000, 9000).sack(&[(1, 5)]));
    s.write("x");
    recv!(s, 9000, data(1, 8, "x").ts(9000, 30));
}

/// A RST is accepted whatever its timestamp, and without timestamps too.
// Conforms: 7323-5.2-1
#[test]
fn paws_does_not_hold_for_rst() {
    let mut s = stamped();
    send!(s, 20, data(1, 1, "new").ts(20, 10));
    recv!(s, 20, ack(1, 4));
    send!(s, 30, crate::segment::rst(4).ts(1, 1));
    assert!(s.saw(|e| matches!(e, Event::Closed { .. })));
}

/// An MPTCP handshake with timestamps: everything fits.
#[test]
fn timestamps_and_the_keys_share_the_header() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    s.write([5; 3000]);
    recv!(
        s,
        0,
        syn()
            .ts(0, 0u32.wrapping_sub(1_000_000))
            .raw(&hex("1e 04 01 01"))
    );
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535).ts(0, 0));
    // 1500 - 40 - 12 - 24.
    recv!(s => 10, s.stack_keys_data(data(1, 1, [5; 1424]), 3000).ts(10, 0));
}

/// Delayed acknowledgements as configured: here as in NS-2, every second segment from the start
/// and a lone one after 100 ms.
#[test]
fn delayed_acks_are_a_setting() {
    let delayed_ack = DelayedAck {
        timeout: Duration::from_millis(100),
        every: 2,
        quick: 0,
    };
    let config = Config {
        delayed_ack,
        ..config()
    };
    let mut s = Script::tcp(config, syn(), ack(1, 1).win(512));
    let at = |n: usize| (n * MSS) as u64 + 1;
    send!(s, 20, data(at(0), 1, vec![0; MSS]));
    quiet!(s, 119);
    recv!(s, 120, ack(1, at(1)));
    send!(s, 130, data(at(1), 1, vec![0; MSS]));
    quiet!(s, 131);
    send!(s, 132, data(at(2), 1, vec![0; MSS]));
    recv!(s, 132, ack(1, at(3)));
}

/// A peer with a long delay is not probed before it may have answered (RFC 8985 section 7.2).
// Conforms: 8985-7.2-1
#[test]
fn the_probe_waits_for_a_delayed_ack() {
    let delayed_ack = DelayedAck {
        timeout: Duration::from_millis(100),
        ..DelayedAck::default()
    };
    let config = Config {
        delayed_ack,
        ..config()
    };
    let mut s = Script::tcp(config, syn(), ack(1, 1).win(512));
    s.write("x");
    recv!(s, 10, data(1, 1, "x"));
    // 2 srtt + 150 ms.
    recv!(s, 180, data(1, 1, "x"));
}

/// Without the configured bound congestion control would have doubled the window.
#[test]
fn a_window_bound_holds() {
    let config = Config {
        initial_window: 2,
        max_cwnd: Some(3),
        ..config()
    };
    let mut s = Script::tcp(config, syn().mss(1448), ack(1, 1).win(4096));
    s.write(vec![0; 20 * 1448]);
    let mut flight = |at: i32, acked: u64| {
        if acked > 1 {
            send!(s, at, ack(1, acked).win(4096));
        }
        s.advance(Instant::from_millis(at as u64 + 9));
        core::iter::from_fn(|| s.take()).count()
    };
    assert_eq!(flight(10, 1), 2);
    assert_eq!(flight(20, 1 + 2 * 1448), 3);
    assert_eq!(flight(30, 1 + 5 * 1448), 3);
}

/// A receive buffer smaller than the usual initial window is not exceeded.
#[test]
fn a_small_receive_buffer_is_obeyed() {
    let config = Config {
        recv_buffer: 20 * MSS,
        ..config()
    };
    let mut s = Script::server(config);
    s.peer(1);
    send!(s, 0, syn());
    recv!(s, 0, syn_ack().ws(None).win(20 * MSS as u16));
    send!(s, 10, ack(1, 1).win(512));
    s.write("x");
    recv!(s, 10, data(1, 1, "x").win(20 * MSS as u16));
}
