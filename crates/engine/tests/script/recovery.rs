//! Loss recovery and the retransmission timer (RFC 6298, 6675, 8985, 3522), path MTU (RFC 1191,
//! 8201). Regular TCP where MPTCP adds nothing.

use std::collections::VecDeque;

use braid_engine::cc::{BBR, NEWRENO};
use braid_engine::{Config, Event, Protocol};
use braid_wire::Instant;

use crate::harness::{At, Script, config};
use crate::segment::{Seg, ack, data, syn, syn_ack};

pub const MSS: usize = 1448;

/// Regular TCP with a round trip of 10 ms; all bytes of a segment are its number.
fn plain() -> Script {
    opened_by(syn())
}

/// The same connection, opened by `syn` of the peer.
pub fn opened_by(syn: Seg) -> Script {
    let config = Config {
        congestion: NEWRENO,
        ..config()
    };
    Script::tcp(config, syn.mss(1448), ack(1, 1).win(4096))
}

/// The same connection with timestamps.
fn stamped() -> Script {
    let config = Config {
        congestion: NEWRENO,
        ..config()
    };
    Script::tcp(config, syn().ts(0, 0), ack(1, 1).win(4096).ts(10, 0))
}

pub fn write(s: &mut Script, segments: usize) {
    let bytes: Vec<u8> = (0..segments).flat_map(|n| vec![n as u8; MSS]).collect();
    s.write(bytes);
}

pub fn nth(n: usize) -> Seg {
    data((n * MSS) as u64 + 1, 1, vec![n as u8; MSS])
}

pub fn edge(n: usize) -> u64 {
    (n * MSS) as u64 + 1
}

/// Ten segments sent from 10 ms on, within half a round trip (they are paced).
pub fn flight(mut s: Script) -> Script {
    write(&mut s, 10);
    s.advance(Instant::from_millis(15));
    for n in 0..10 {
        let (_, seg) = s.take().unwrap_or_else(|| panic!("no segment {n}"));
        assert!(nth(n).matches(&seg), "{n}: {seg:?}");
    }
    assert!(s.idle());
    s
}

/// Segments held back by the pacer leave at their time, with no other event to help.
#[test]
fn a_paced_flight_leaves_by_itself() {
    flight(plain());
}

/// RFC 6298 sections 5.4 to 5.6: the timer doubles, up to its bound.
// Conforms: 9293-3.8.2-1, 6298-5-1
#[test]
fn the_timer_backs_off_up_to_its_bound() {
    let mut s = plain();
    s.write("x");
    recv!(s, 10, data(1, 1, "x"));
    let mut times = Vec::new();
    while s.stack.connections() > 0 && s.now < Instant::from_millis(60_000) {
        let next = s.stack.next_timeout().unwrap();
        s.advance(next);
        while let Some((at, seg)) = s.take() {
            if seg.payload == b"x" {
                times.push(at.as_millis());
            }
        }
    }
    // A probe, then 210 ms doubled each time, then the bound of 10 s.
    let expected = [90, 300, 720, 1560, 3240, 6600, 13_320, 23_320];
    assert_eq!(times, expected);
    assert_eq!(s.stack.connections(), 0, "given up after 30 s of silence");
}

/// RFC 6298 section 5.7 and Karn: an acknowledged retransmission ends the backoff and gives no
/// round trip.
// Conforms: 6298-3-1
#[test]
fn a_retransmission_gives_no_round_trip() {
    let mut s = plain();
    s.write("x");
    recv!(s, 10, data(1, 1, "x"));
    recv!(s, 90, data(1, 1, "x"));
    recv!(s, 300, data(1, 1, "x"));
    send!(s, 650, ack(1, 2).win(4096));
    assert_eq!(s.stack.subflows(s.id())[0].srtt.as_millis(), 10);
    s.write("y");
    recv!(s, 650, data(2, 1, "y"));
    recv!(s, 730, data(2, 1, "y"));
    recv!(s, 940, data(2, 1, "y"));
}

/// Any segment after a silence shows that the path may be back, even one without news.
#[test]
fn a_sign_of_life_ends_the_wait_for_a_timer() {
    // A keepalive is answered. Data sent a moment ago is not sent again before its answer can be here.
    for (seq, heard, again) in [
        (1, 1000.0, 1000.01),
        (0, 1000.0, 1000.01),
        (1, 725.0, 930.0),
    ] {
        let mut s = plain();
        s.write("x");
        for at in [10, 90, 300, 720] {
            recv!(s, at, data(1, 1, "x"));
        }
        send!(s, heard, ack(seq, 1).win(4096));
        if seq == 0 {
            recv!(s, heard, ack(2, 1));
        }
        recv!(s, again, data(1, 1, "x"));
        // It is lost as well: the timer is unchanged.
        send!(s, 1200, ack(1, 1).win(4096));
        recv!(s, 1560, data(1, 1, "x"));
        recv!(s, 3240, data(1, 1, "x"));
        assert_eq!(s.stack.subflows(s.id())[0].traffic.rtos, 4);
    }
}

/// RFC 6298 section 5.5: a peer heard between timeouts does not reduce the backoff.
#[test]
fn a_peer_that_speaks_leaves_the_backoff_alone() {
    let mut s = plain();
    s.write("x");
    for at in [10, 90, 300, 720, 1560, 3240] {
        recv!(s, at, data(1, 1, "x"));
        send!(s, at + 5, ack(1, 1).win(4096));
    }
}

/// RFC 8985 section 7: the last segment alone is sent again, and its answer starts recovery.
// Conforms: 8985-7.2-1
#[test]
fn a_tail_loss_is_probed() {
    let mut s = plain();
    write(&mut s, 3);
    for n in 0..3 {
        recv!(s, 10, nth(n));
    }
    // The last two are lost. Two round trips after the last answer the last one is probed.
    send!(s, 20, ack(1, edge(1)).win(4096));
    recv!(s, 40, nth(2));
    send!(s, 50, ack(1, edge(1)).win(4096).sack(&[(edge(2), edge(3))]));
    recv!(s, 50, nth(1));
    send!(s, 60, ack(1, edge(3)).win(4096));
    quiet!(s, 5000);
    assert_eq!(s.stack.subflows(s.id())[0].traffic.rtos, 0);
}

/// Three segments, the last of which is probed at 100 ms.
fn probed() -> Script {
    let mut s = plain();
    write(&mut s, 3);
    for n in 0..3 {
        recv!(s, 10, nth(n));
    }
    send!(s, 20, ack(1, edge(2)).win(4096));
    recv!(s, 100, nth(2));
    s
}

/// Returns the window after one more segment was acknowledged, and the one before.
fn after_one_more(s: &mut Script, at: f64) -> (u64, u64) {
    let before = s.stack.subflows(s.id())[0].cwnd;
    s.advance(at.at());
    write(s, 1);
    recv!(s, at, nth(0).seq(edge(3)));
    send!(s, at + 10.0, ack(1, edge(4)).win(4096));
    (before, s.stack.subflows(s.id())[0].cwnd)
}

/// RFC 8985 section 7.4.2: the probe hid a loss from everything but congestion control.
// Conforms: 8985-7.4.2-1
#[test]
fn a_loss_that_a_probe_repaired_counts() {
    let mut s = probed();
    send!(s, 110, ack(1, edge(3)).win(4096));
    assert_eq!(s.stack.subflows(s.id())[0].traffic.bytes_lost, 0);
    let (before, after) = after_one_more(&mut s, 115.0);
    assert!(after < before, "no reduction: {before} to {after}");
    let lost = s.stack.subflows(s.id())[0].traffic.bytes_lost;
    assert_eq!(lost, MSS as u64);
}

/// RFC 8985 section 7.4.2: the acknowledgement was late, and the peer reports the probe as a duplicate, or
/// reports nothing new.
// Conforms: 8985-7.4.2-2
#[test]
fn a_needless_probe_costs_nothing() {
    let dsack = ack(1, edge(3)).win(4096).sack(&[(edge(2), edge(3))]);
    for answer in [dsack, ack(1, edge(3)).win(4096)] {
        let mut s = probed();
        send!(s, 105, ack(1, edge(3)).win(4096));
        s.write("x");
        recv!(s, 105, data(edge(3), 1, "x"));
        send!(s, 110, answer);
        send!(s, 115, ack(1, edge(3) + 1).win(4096));
        let subflow = s.stack.subflows(s.id())[0];
        assert_eq!(subflow.traffic.bytes_lost, 0);
        assert!(subflow.cwnd >= 10 * MSS as u64, "{}", subflow.cwnd);
    }
}

/// RFC 8985 section 7.4.2: a probe that arrived twice is no sign of reordering, so the next hole does not
/// wait.
#[test]
fn a_needless_probe_is_no_reordering() {
    let mut s = probed();
    send!(s, 105, ack(1, edge(3)).win(4096));
    let dsack = [(edge(2), edge(3))];
    send!(s, 110, ack(1, edge(3)).win(4096).sack(&dsack));
    write(&mut s, 5);
    s.advance(112.at());
    while s.take().is_some() {}
    let hole = [(edge(4), edge(7))];
    send!(s, 122, ack(1, edge(3)).win(4096).sack(&hole));
    recv!(s, 122, nth(0).seq(edge(3)));
}

/// RFC 8985 section 6.2: three later segments delivered and one round trip gone by. The first
/// retransmission does not wait for the reduced window (RFC 9937: a fast retransmission is forced).
#[test]
fn a_hole_is_filled_on_sack() {
    let mut s = flight(plain());
    send!(s, 20.5, ack(1, edge(1)).win(4096));
    let before = s.stack.subflows(s.id())[0].cwnd;
    send!(
        s,
        20.6,
        ack(1, edge(1)).win(4096).sack(&[(edge(2), edge(5))])
    );
    recv!(s, 20.6, nth(1));
    let after = s.stack.subflows(s.id())[0].cwnd;
    assert!(after < before, "no reduction: {before} to {after}");
    // The hole is filled once, not for each further SACK.
    send!(
        s,
        20.7,
        ack(1, edge(1)).win(4096).sack(&[(edge(2), edge(8))])
    );
    quiet!(s, 20.8);
    send!(s, 31, ack(1, edge(10)).win(4096));
    quiet!(s, 1000);
    assert_eq!(
        s.stack.subflows(s.id())[0].traffic.bytes_retransmitted,
        MSS as u64
    );
}

/// RFC 2018 section 8: after a timeout the first segment is sent again even if a SACK covered it. The peer
/// did not keep it, or a middlebox shifts sequence numbers but not those in SACK.
#[test]
fn a_false_sack_does_not_stop_the_sender() {
    let mut s = flight(plain());
    send!(
        s,
        20,
        ack(1, edge(0)).win(4096).sack(&[(edge(1), edge(10))])
    );
    recv!(s, 20, nth(0));
    send!(s, 30, ack(1, edge(1)).win(4096));
    let sent = |s: &mut Script, until: u64| {
        s.advance(Instant::from_millis(until));
        let sent: Vec<Seg> = core::iter::from_fn(|| s.take())
            .map(|(_, seg)| seg)
            .collect();
        sent
    };
    let again = sent(&mut s, 300);
    assert!(again.len() == 1 && nth(1).matches(&again[0]), "{again:?}");
    send!(s, 300, ack(1, edge(2)).win(4096));
    let again = sent(&mut s, 310);
    assert!(again.len() == 2 && nth(2).matches(&again[0]), "{again:?}");
    send!(s, 310, ack(1, edge(10)).win(4096));
    quiet!(s, 5000);
}

/// A block that ends beyond the sent data is ignored.
#[test]
fn a_sack_of_what_was_never_sent_is_ignored() {
    let mut s = flight(plain());
    send!(
        s,
        20,
        ack(1, edge(0)).win(4096).sack(&[(edge(1), edge(10) + 1)])
    );
    quiet!(s, 30);
    send!(s, 30, ack(1, edge(10)).win(4096));
    quiet!(s, 5000);
    assert_eq!(s.stack.subflows(s.id())[0].traffic.bytes_retransmitted, 0);
}

/// An overtaken segment is not yet lost: RACK waits a quarter of the round trip.
// Conforms: 8985-3.3.2-1
#[test]
fn reordering_is_waited_for() {
    let mut s = flight(plain());
    send!(s, 20.5, ack(1, edge(1)).win(4096));
    send!(
        s,
        20.6,
        ack(1, edge(1)).win(4096).sack(&[(edge(2), edge(3))])
    );
    quiet!(s, 20.7);
    send!(s, 21.5, ack(1, edge(10)).win(4096));
    quiet!(s, 1000);
    assert_eq!(s.stack.subflows(s.id())[0].traffic.bytes_retransmitted, 0);
}

/// A lost retransmission is found by time as well (RFC 8985 section 3.2).
// Conforms: 8985-6.2-3
#[test]
fn a_lost_retransmission_is_sent_again() {
    let mut s = flight(plain());
    send!(s, 20.5, ack(1, edge(1)).win(4096));
    send!(
        s,
        20.6,
        ack(1, edge(1)).win(4096).sack(&[(edge(2), edge(6))])
    );
    recv!(s, 20.6, nth(1));
    send!(
        s,
        21,
        ack(1, edge(1)).win(4096).sack(&[(edge(2), edge(10))])
    );
    write(&mut s, 1);
    s.advance(Instant::from_millis(25));
    let (_, fresh) = s.take().expect("the window has room");
    assert_eq!(fresh.seq, edge(10));
    // Data sent after the retransmission is delivered, the retransmission is not.
    send!(
        s,
        36,
        ack(1, edge(1)).win(4096).sack(&[(edge(2), edge(11))])
    );
    s.advance(Instant::from_millis(45));
    let (_, again) = s.take().expect("not repeated");
    assert!(nth(1).matches(&again), "{again:?}");
}

/// RFC 2883 and 3708: the peer got everything twice, so the reduction is undone.
#[test]
fn dsack_undoes_a_needless_reduction() {
    let mut s = flight(plain());
    send!(s, 20.5, ack(1, edge(1)).win(4096));
    let before = s.stack.subflows(s.id())[0].cwnd;
    send!(
        s,
        20.6,
        ack(1, edge(1)).win(4096).sack(&[(edge(2), edge(5))])
    );
    recv!(s, 20.6, nth(1));
    assert!(s.stack.subflows(s.id())[0].cwnd < before);
    send!(s, 22, ack(1, edge(5)).win(4096));
    let dup = [(edge(1), edge(2))];
    send!(s, 31, ack(1, edge(10)).win(4096).sack(&dup));
    assert!(s.stack.subflows(s.id())[0].cwnd >= before);
}

/// RFC 3522: an echo from before the retransmission shows that the original arrived.
#[test]
fn eifel_undoes_a_spurious_timeout() {
    let mut s = flight(stamped());
    let before = s.stack.subflows(s.id())[0].cwnd;
    // Nothing for long: probe, then timeout.
    while s.stack.subflows(s.id())[0].traffic.rtos == 0 {
        let next = s.stack.next_timeout().unwrap();
        s.advance(next);
    }
    while s.take().is_some() {}
    assert!(s.stack.subflows(s.id())[0].cwnd < before);
    let late = Instant::from_millis(s.now.as_millis() + 50);
    send!(s, late, ack(1, edge(2)).win(4096).ts(100, 10));
    let stats = s.stack.subflows(s.id())[0];
    assert_eq!((stats.traffic.rtos, stats.traffic.spurious_rtos), (1, 1));
    assert!(stats.cwnd >= before, "{} of {before}", stats.cwnd);
}

/// Without the old echo the timeout was genuine, and slow start begins again.
#[test]
fn a_true_timeout_starts_slowly() {
    let mut s = flight(stamped());
    while s.stack.subflows(s.id())[0].traffic.rtos == 0 {
        let next = s.stack.next_timeout().unwrap();
        s.advance(next);
    }
    let at = s.now;
    let mut sent = Vec::new();
    while let Some((when, seg)) = s.take() {
        if when == at {
            sent.push(seg.seq);
        }
    }
    assert_eq!(sent, [1], "one segment after a timeout");
    let late = Instant::from_millis(at.as_millis() + 10);
    let echo = (at.as_millis()) as u32;
    send!(s, late, ack(1, edge(1)).win(4096).ts(300, echo));
    assert_eq!(s.stack.subflows(s.id())[0].traffic.spurious_rtos, 0);
    s.advance(Instant::from_millis(late.as_millis() + 8));
    let next: Vec<u64> = core::iter::from_fn(|| s.take())
        .map(|(_, seg)| seg.seq)
        .collect();
    assert_eq!(next, [edge(1), edge(2)]);
}

/// RFC 5681 section 4.1: after an idle period the sender starts from the initial window, or, with Careful
/// Resume, from half of the path's capacity in a round trip.
#[test]
fn an_idle_sender_restarts_from_less() {
    let mut s = plain();
    let mut acked = 0;
    let mut at = s.now.as_millis();
    for _ in 0..4 {
        write(&mut s, 40);
        at += 20;
        s.advance(Instant::from_millis(at));
        while s.take().is_some() {
            acked += 1;
        }
        at += 1;
        send!(s, Instant::from_millis(at), ack(1, edge(acked)).win(4096));
    }
    s.advance(Instant::from_millis(at + 20));
    while s.take().is_some() {
        acked += 1;
    }
    send!(
        s,
        Instant::from_millis(at + 21),
        ack(1, edge(acked)).win(4096)
    );
    let grown = s.stack.subflows(s.id())[0].cwnd;
    assert!(grown > 20 * MSS as u64, "{grown}");
    s.advance(Instant::from_millis(at + 2000));
    write(&mut s, 1);
    let rested = s.stack.subflows(s.id())[0].cwnd;
    assert!(
        (10 * MSS as u64..=grown / 2).contains(&rested),
        "{rested} of {grown}"
    );
}

/// BBR after a pause keeps the window, and paces at the known rate of the path less one percent, not at the
/// 125 % of the probe that the pause ended, nor at Startup's 277 %.
#[test]
fn bbr_restarts_at_the_rate_of_the_path() {
    let config = Config {
        congestion: BBR,
        ..config()
    };
    let mut s = Script::tcp(config, syn().mss(1448), ack(1, 1).win(4096));
    let subflow = |s: &Script| s.stack.subflows(s.id())[0];
    // A link of a segment a millisecond and 4 ms each way: acknowledgements under way, and the time when it
    // is free.
    let (mut link, mut free) = (VecDeque::new(), 0);
    let (mut drained, mut probed, mut written) = (false, false, 0);
    for ms in 10..1000 {
        s.advance(ms.at());
        while let Some((at, seg)) = s.take() {
            free = free.max(at.as_millis() as i32 + 4) + 1;
            link.push_back((free + 4, seg.seq + seg.payload.len() as u64));
        }
        if let Some((at, end)) = link.front().copied().filter(|(at, _)| *at <= ms) {
            send!(s, at.max(ms), ack(1, end).win(4096));
            link.pop_front();
        }
        // Half of 1,448,000 bytes/s, less one percent, empties the queue; 125 % probes.
        drained |= subflow(&s).pacing_rate == 716_760;
        probed |= drained && subflow(&s).pacing_rate == 1_791_900;
        // A little data always waits to be sent, until soon none does.
        if !probed && written < subflow(&s).traffic.bytes_sent + 10_000 {
            s.write([0; 10_000]);
            written += 10_000;
        }
    }
    let before = subflow(&s);
    assert!(probed && before.in_flight == 0, "{before:?}");
    assert_eq!(before.pacing_rate, 1_791_900);
    s.write("x");
    assert_eq!(subflow(&s).pacing_rate, 1_433_520);
    assert!(subflow(&s).cwnd >= before.cwnd);
}

// --- path MTU

const FRAGMENTATION_NEEDED: (u8, u8) = (3, 4);

pub fn too_big(s: &Script, mtu: u32, seq: u64) -> Vec<u8> {
    let (kind, code) = FRAGMENTATION_NEEDED;
    s.icmp(0, (kind, code, mtu), seq)
}

/// RFC 1191: a packet that was too big is sent again at once, cut to the new size, with no reduction.
#[test]
fn a_smaller_path_mtu_resends_in_smaller_packets() {
    let mut s = plain();
    write(&mut s, 1);
    recv!(s, 10, nth(0));
    let before = s.stack.subflows(s.id())[0].cwnd;
    let icmp = too_big(&s, 1400, 1);
    s.inject(12, &icmp);
    recv!(s, 12, data(1, 1, [0; 1360]));
    recv!(s, 12, data(1361, 1, [0; 88]));
    assert!(s.stack.subflows(s.id())[0].cwnd >= before * 1360 / 1448 - 1448);
    send!(s, 22, ack(1, 1449).win(4096));
    quiet!(s, 2000);
}

/// A stateless address translator does not change the packet quoted in an error.
#[test]
fn a_report_about_a_packet_from_a_translated_address() {
    let mut s = plain();
    write(&mut s, 1);
    recv!(s, 10, nth(0));
    let (kind, code) = FRAGMENTATION_NEEDED;
    let public = "203.0.113.7".parse().unwrap();
    let icmp = s.icmp_from(0, (kind, code, 1400), 1, public);
    s.inject(12, &icmp);
    recv!(s, 12, data(1, 1, [0; 1360]));
    recv!(s, 12, data(1361, 1, [0; 88]));
}

/// A report of a tiny MTU would make every packet mostly header, so it is bounded (RFC 1191 section 3:
/// every host accepts 576 bytes).
#[test]
fn a_tiny_path_mtu_is_not_believed() {
    for mtu in [0, 68, 500] {
        let mut s = plain();
        write(&mut s, 1);
        recv!(s, 10, nth(0));
        let icmp = too_big(&s, mtu, 1);
        s.inject(12, &icmp);
        // One by one: this device does not segment.
        recv!(s, 12, data(1, 1, [0; 536]).gso(0));
        recv!(s, 12, data(537, 1, [0; 536]).gso(0));
        recv!(s, 12, data(1073, 1, [0; 376]));
    }
}

/// RFC 5927 section 4.1: a quoted sequence number that is not in flight is forged or late.
#[test]
fn reports_on_what_is_not_in_flight_are_ignored() {
    let mut s = plain();
    write(&mut s, 1);
    recv!(s, 10, nth(0));
    for seq in [0, 1449, 100_000] {
        let icmp = too_big(&s, 1000, seq);
        s.inject(12, &icmp);
        quiet!(s, 12);
    }
    send!(s, 20, ack(1, 1449).win(4096));
    let icmp = too_big(&s, 1000, 1);
    s.inject(21, &icmp);
    s.write([7; MSS]);
    recv!(s, 21, data(1449, 1, [7; MSS]));
}

/// A larger MTU than the link's is no news.
#[test]
fn a_larger_path_mtu_changes_nothing() {
    let mut s = plain();
    write(&mut s, 1);
    recv!(s, 10, nth(0));
    let icmp = too_big(&s, 9000, 1);
    s.inject(12, &icmp);
    quiet!(s, 20);
}

/// RFC 7323 section 4: the answer to a repeated SYN shows by its timestamp which one it answers.
#[test]
fn the_round_trip_of_a_repeated_syn() {
    let rtt = |answer: Seg| {
        let mut s = Script::client(config(), 1, Protocol::Tcp);
        recv!(s, 0, syn().ws(None));
        recv!(s, 1000, syn().ws(None));
        send!(s, 1040, answer);
        recv!(s, 1040, ack(1, 1));
        s.events.iter().find_map(|e| match e {
            Event::SubflowEstablished { rtt, .. } => Some(rtt.as_millis()),
            _ => None,
        })
    };
    assert_eq!(rtt(syn_ack().ts(0, 1000)), Some(41));
    assert_eq!(rtt(syn_ack().ts(0, 0)), Some(1_040));
    assert_eq!(rtt(syn_ack()), Some(0), "not known");
    assert_eq!(rtt(syn_ack().ts(0, 5_000)), Some(0), "never sent");
}

/// Returns the payload sizes sent until `until`, in packets of the device's size.
pub fn lengths(s: &mut Script, until: Instant) -> Vec<usize> {
    s.advance(until);
    core::iter::from_fn(|| s.take())
        .map(|(_, seg)| seg.payload.len())
        .collect()
}

/// RFC 8899 section 4.3: small segments arrive and large ones do not, time and again.
#[test]
fn large_segments_that_vanish_come_again_in_small_ones() {
    let mut s = plain();
    write(&mut s, 1);
    recv!(s, 10, nth(0));
    let mut end = edge(1);
    while s.now < 1000.at() {
        s.write("x");
        let at = s.now.as_millis() as i32;
        let sent = lengths(&mut s, (at + 10).at());
        if sent.contains(&1240) {
            assert!(at > 200, "at {at} ms");
            return;
        }
        end += sent.iter().filter(|len| **len == 1).count() as u64;
        let small = (end > edge(1)).then_some((edge(1), end));
        send!(s, at + 10, ack(1, 1).win(4096).sack(small.as_slice()));
    }
    panic!("never in smaller ones");
}

/// RFC 4821 section 7.6.2: a larger packet is tried later, and its loss is no sign of congestion.
#[test]
fn larger_packets_are_tried_again() {
    for arrives in [true, false] {
        let mut s = plain();
        write(&mut s, 2);
        // Two timeouts in a row.
        while s.stack.subflows(s.id())[0].traffic.rtos < 2 {
            let next = s.stack.next_timeout().unwrap();
            s.advance(next);
        }
        let at = s.now.as_millis() as i32;
        assert_eq!(lengths(&mut s, at.at()).last(), Some(&1240));
        send!(s, at + 10, ack(1, 1241).win(4096));
        s.skip(at + 20);
        send!(s, at + 20, ack(1, edge(2)).win(4096));
        s.advance((at + 1100).at());
        s.write([1; 1448 + 1240]);
        let sent = lengths(&mut s, (at + 1115).at());
        assert_eq!(sent, [1448, 1240]);
        let before = s.stack.subflows(s.id())[0].cwnd;
        let (first, end) = (edge(3), edge(3) + 1240);
        let got = match arrives {
            true => ack(1, end).win(4096),
            false => ack(1, edge(2)).win(4096).sack(&[(first, end)]),
        };
        send!(s, at + 1116, got);
        if !arrives {
            assert_eq!(lengths(&mut s, (at + 1125).at()), [1240, 208]);
            send!(s, at + 1130, ack(1, end).win(4096));
        }
        assert!(s.stack.subflows(s.id())[0].cwnd >= before);
        s.write([1; 1448]);
        let expected: &[usize] = if arrives { &[1448] } else { &[1240, 208] };
        assert_eq!(lengths(&mut s, (at + 1140).at()), expected);
    }
}
