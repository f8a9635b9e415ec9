//! Explicit congestion notification (RFC 3168).

use braid_engine::cc::{Algorithm, BBR, NEWRENO};
use braid_engine::{Config, Ecn, Protocol};
use braid_wire::ip::{CE, ECT, NOT_ECT};
use braid_wire::tcp::Flags;

use crate::harness::{Script, config};
use crate::recovery::{MSS, edge, nth, write};
use crate::segment::{Seg, ack, data, syn, syn_ack};

const ASKS: Flags = Flags(Flags::ECE.0 | Flags::CWR.0);

fn with(ecn: Ecn, congestion: Algorithm) -> Config {
    Config {
        ecn,
        congestion,
        ..config()
    }
}

/// Regular TCP that was asked for ECN and agreed, round trip 10 ms, done at 10 ms.
fn agreed(congestion: Algorithm) -> Script {
    let mut s = Script::server(with(Ecn::Answer, congestion));
    s.peer(1);
    send!(s, 0, syn().mss(1448).flag(ASKS));
    recv!(s, 0, syn_ack().ws(None).flag(Flags::ECE).ecn(NOT_ECT));
    send!(s, 10, ack(1, 1).win(4096));
    s
}

fn stats(s: &Script) -> braid_engine::stats::SubflowStats {
    s.stack.subflows(s.id())[0]
}

/// Section 6.1.1: a host that does not want ECN does not agree, and neither does one that was not asked.
// Conforms: 3168-6.1.1-2
#[test]
fn a_syn_that_asks_is_answered() {
    for (setting, asks, answers) in [
        (Ecn::Answer, ASKS, Flags::ECE),
        (Ecn::Ask, ASKS, Flags::ECE),
        (Ecn::Off, ASKS, Flags::EMPTY),
        (Ecn::Answer, Flags::EMPTY, Flags::EMPTY),
        (Ecn::Answer, Flags::ECE, Flags::EMPTY),
    ] {
        let mut s = Script::server(with(setting, NEWRENO));
        s.peer(1);
        send!(s, 0, syn().flag(asks));
        recv!(s, 0, syn_ack().ws(None).flag(answers).ecn(NOT_ECT));
    }
}

/// Section 6.1.1: a SYN/ACK that reflects the flags of the SYN is no agreement.
// Conforms: 3168-6.1.1-1
#[test]
fn the_first_syn_asks() {
    for (answer, bits) in [(Flags::ECE, ECT), (ASKS, NOT_ECT), (Flags::EMPTY, NOT_ECT)] {
        let mut s = Script::client(with(Ecn::Ask, NEWRENO), 1, Protocol::Tcp);
        recv!(s, 0, syn().ws(None).flag(ASKS).ecn(NOT_ECT));
        send!(s, 10, syn_ack().flag(answer));
        recv!(s, 10, ack(1, 1).ecn(NOT_ECT));
        s.write("x");
        recv!(s, 10, data(1, 1, "x").ecn(bits));
    }
    let mut s = Script::client(with(Ecn::Answer, NEWRENO), 1, Protocol::Tcp);
    recv!(s, 0, syn().ws(None));
}

/// Sections 6.1.1 and 6.1.1.1: a repeated SYN does not ask. A host that sent one sends Not-ECT, but echoes
/// incoming marks.
// Conforms: 3168-6.1.1.1-1, 3168-6.1.1-3
#[test]
fn after_a_syn_that_does_not_ask_nothing_bears_marks() {
    let mut s = Script::client(with(Ecn::Ask, NEWRENO), 1, Protocol::Tcp);
    recv!(s, 0, syn().ws(None).flag(ASKS).ecn(NOT_ECT));
    recv!(s, 1000, syn().ws(None).ecn(NOT_ECT));
    send!(s, 1010, syn_ack().flag(Flags::ECE));
    recv!(s, 1010, ack(1, 1).ecn(NOT_ECT));
    s.write("x");
    recv!(s, 1010, data(1, 1, "x").ecn(NOT_ECT));
    send!(s, 1020, data(1, 2, "a").ecn(CE));
    recv!(s, 1020, ack(2, 2).flag(Flags::ECE).ecn(NOT_ECT));
}

/// Section 6.1.1: the same holds if the peer repeats its SYN and does not ask again.
// Conforms: 3168-6.1.1-4
#[test]
fn where_the_peer_does_not_ask_again_nothing_bears_marks() {
    for (again, bits) in [(ASKS, ECT), (Flags::EMPTY, NOT_ECT)] {
        let mut s = Script::server(with(Ecn::Answer, NEWRENO));
        s.peer(1);
        send!(s, 0, syn().flag(ASKS));
        recv!(s, 0, syn_ack().ws(None).flag(Flags::ECE));
        send!(s, 500, syn().flag(again));
        recv!(s, 500, syn_ack().ws(None).flag(Flags::ECE));
        send!(s, 510, ack(1, 1).win(4096));
        s.write("x");
        recv!(s, 510, data(1, 1, "x").ecn(bits));
        send!(s, 520, data(1, 2, "a").ecn(CE));
        recv!(s, 520, ack(2, 2).flag(Flags::ECE));
    }
}

/// Sections 6.1.4 and 6.1.5: payload may be marked if it is sent for the first time.
// Conforms: 3168-6.1.4-1, 3168-6.1.5-1
#[test]
fn new_data_bears_marks() {
    let mut s = agreed(NEWRENO);
    s.write("x");
    recv!(s, 10, data(1, 1, "x").ecn(ECT));
    recv!(s, 90, data(1, 1, "x").ecn(NOT_ECT));
    recv!(s, 300, data(1, 1, "x").ecn(NOT_ECT));
    send!(s, 310, data(1, 2, "y").win(4096));
    s.advance(braid_wire::Instant::from_millis(350));
    let (_, acked) = s.take().expect("an acknowledgement");
    assert!(ack(2, 2).ecn(NOT_ECT).matches(&acked), "{acked:?}");
}

/// A controller that does not respond to marks sends Not-ECT, and the statistics show it.
#[test]
fn without_an_answer_to_marks_nothing_bears_them() {
    for (congestion, bits, told) in [(BBR, NOT_ECT, false), (NEWRENO, ECT, true)] {
        let mut s = agreed(congestion);
        assert_eq!(stats(&s).ecn, told);
        s.write("x");
        recv!(s, 10, data(1, 1, "x").ecn(bits));
    }
}

/// Section 6.1.3: a mark is echoed in every acknowledgement until the peer reports a reduction (CWR).
// Conforms: 3168-6.1.3-1, 3168-6.1.3-2
#[test]
fn marks_are_echoed_until_the_window_is_reduced() {
    let mut s = agreed(NEWRENO);
    let told = |n| ack(1, n).flag(Flags::ECE).ecn(NOT_ECT);
    send!(s, 20, data(1, 1, "a").ecn(ECT));
    recv!(s, 20, ack(1, 2));
    send!(s, 21, data(2, 1, "b").ecn(CE));
    recv!(s, 21, told(3));
    send!(s, 22, data(3, 1, "c").ecn(ECT));
    recv!(s, 22, told(4));
    // The peer sends less, and another packet was marked.
    send!(s, 23, data(4, 1, "d").ecn(CE).flag(Flags::CWR));
    recv!(s, 23, told(5));
    send!(s, 24, data(5, 1, "e").ecn(ECT).flag(Flags::CWR));
    recv!(s, 24, ack(1, 6));
}

/// Without an agreement marks are not echoed.
#[test]
fn marks_need_an_agreement() {
    let mut s = Script::tcp(config(), syn(), ack(1, 1).win(4096));
    send!(s, 20, data(1, 1, "a").ecn(CE));
    recv!(s, 20, ack(1, 2));
    s.write("x");
    recv!(s, 20, data(1, 2, "x").ecn(NOT_ECT));
    let before = stats(&s).cwnd;
    send!(s, 30, ack(2, 2).win(4096).flag(Flags::ECE));
    assert!(stats(&s).cwnd >= before);
}

/// Section 6.1.2: the window is reduced once a round trip, which new data reports to the peer; nothing is
/// retransmitted.
// Conforms: 3168-6.1.2-1, 3168-6.1.2-2, 3168-6.1.2-3
#[test]
fn a_mark_halves_the_window_once() {
    let mut s = agreed(NEWRENO);
    write(&mut s, 20);
    s.advance(braid_wire::Instant::from_millis(15));
    for n in 0..10 {
        let (_, seg) = s.take().expect("a segment");
        assert!(nth(n).ecn(ECT).matches(&seg), "{n}: {seg:?}");
    }
    let before = stats(&s).cwnd;
    send!(s, 20, marked(2));
    let reduced = |s: &Script| stats(s).traffic.mark_reductions;
    assert_eq!(reduced(&s), 1);
    for n in 3..9 {
        s.skip(20.0 + n as f64 / 10.0);
        send!(s, 20.0 + n as f64 / 10.0, marked(n));
    }
    assert_eq!(reduced(&s), 1, "once in a round trip");
    assert_eq!(stats(&s).traffic.bytes_retransmitted, 0);
    s.advance(braid_wire::Instant::from_millis(29));
    assert!(
        stats(&s).ssthresh < before * 2 / 3,
        "{}",
        stats(&s).ssthresh
    );
}

/// Only the first new segment after a reduction reports it, and it is a segment by itself.
// Conforms: 3168-6.1.2-3
#[test]
fn the_first_new_segment_tells_of_a_reduction() {
    let mut s = agreed(NEWRENO);
    write(&mut s, 10);
    s.skip(15);
    send!(s, 20, ack(1, edge(5)).win(4096).flag(Flags::ECE));
    write(&mut s, 10);
    s.advance(braid_wire::Instant::from_millis(21));
    let (_, first) = s.take().expect("a segment");
    let tells = nth(0).seq(edge(10)).flag(Flags::CWR).ecn(ECT);
    assert!(tells.matches(&first), "{first:?}");
    s.skip(21);
    send!(s, 21, ack(1, edge(10)).win(4096).flag(Flags::ECE));
    s.advance(braid_wire::Instant::from_millis(45));
    let mut more = 0;
    while let Some((_, next)) = s.take() {
        assert!(!next.flags.contains(Flags::CWR), "{next:?}");
        more += 1;
    }
    assert!(more > 0);
    // The peer had not heard of the reduction.
    assert_eq!(stats(&s).traffic.mark_reductions, 1);
    send!(s, 46, ack(1, edge(11)).win(4096).flag(Flags::ECE));
    assert_eq!(stats(&s).traffic.mark_reductions, 2);
    assert_eq!(stats(&s).traffic.bytes_lost, 0);
    assert!(stats(&s).cwnd >= MSS as u64);
}

/// Ten segments in flight, of which the peer acknowledges the first `answered` with a mark at 20 ms.
fn marked_after(answered: usize) -> Script {
    let mut s = agreed(NEWRENO);
    write(&mut s, 10);
    s.skip(15);
    send!(s, 20, marked(answered));
    s
}

fn marked(n: usize) -> Seg {
    ack(1, edge(n)).win(4096).flag(Flags::ECE)
}

fn times(s: &mut Script, until: u64) -> Vec<u64> {
    s.advance(braid_wire::Instant::from_millis(until));
    let sent = core::iter::from_fn(|| s.take());
    sent.map(|(at, _)| at.as_millis()).collect()
}

/// A mark on the acknowledgement that leaves nothing in flight halves the window, with no further effect:
/// the next flight fills the window. The acknowledgement itself does not grow it (section 6.1.2).
#[test]
fn a_mark_on_the_last_acknowledgement_halves_the_window() {
    let mut s = marked_after(10);
    assert_eq!(stats(&s).cwnd, 5 * MSS as u64);
    write(&mut s, 5);
    assert_eq!(times(&mut s, 27).len(), 5);
    assert_eq!(stats(&s).traffic.mark_reductions, 1);
}

/// After a mark in a flight, half as much is sent as is acknowledged.
#[test]
fn the_flight_before_the_mark_is_what_shrinks() {
    let mut s = marked_after(8);
    write(&mut s, 10);
    // Eight of ten are acknowledged, so half of that would follow, but five already fill the window.
    assert_eq!(times(&mut s, 29).len(), 3);
}

/// RFC 3708: a needless reduction for a loss is undone; the reduction for the earlier mark stays.
#[test]
fn needless_repetitions_do_not_undo_a_mark() {
    let mut s = marked_after(2);
    assert_eq!(stats(&s).ssthresh, 5 * MSS as u64);
    send!(s, 21, marked(2).sack(&[(edge(3), edge(9))]));
    s.skip(26);
    assert_eq!(stats(&s).traffic.bytes_retransmitted, MSS as u64);
    send!(s, 27, marked(9));
    send!(s, 28, marked(9).sack(&[(edge(2), edge(3))]));
    let now = stats(&s);
    assert_eq!(now.ssthresh, 5 * MSS as u64);
    assert!(now.cwnd <= 6 * MSS as u64, "{}", now.cwnd);
}

/// Ten segments in flight, and a timeout that turns out spurious 13 ms later; before that the peer sent the
/// flags `first`.
fn late(first: Flags) -> (Script, i32) {
    let mut s = agreed(NEWRENO);
    write(&mut s, 10);
    s.skip(15);
    while stats(&s).traffic.rtos < 1 {
        let next = s.stack.next_timeout().expect("a timer");
        s.skip(next);
    }
    let at = s.now.as_millis() as i32;
    s.skip(at + 5);
    write(&mut s, 20);
    send!(s, at + 6, ack(1, edge(1)).win(4096).flag(first));
    s.skip(at + 12);
    send!(s, at + 13, ack(1, edge(3)).win(4096));
    assert_eq!(stats(&s).traffic.spurious_rtos, 1);
    (s, at + 13)
}

/// A mark that the peer reports while a timeout is in doubt is answered once the timeout proves spurious.
#[test]
fn a_mark_outlives_a_needless_timeout() {
    let (s, _) = late(Flags::EMPTY);
    assert_eq!(stats(&s).traffic.mark_reductions, 0);
    assert_eq!(stats(&s).ssthresh, u64::MAX);
    let (mut s, at) = late(Flags::ECE);
    assert_eq!(stats(&s).traffic.mark_reductions, 1);
    assert!(stats(&s).ssthresh < 10 * MSS as u64);
    s.skip(at + 1);
    send!(s, at + 10, ack(1, edge(12)).win(4096));
    assert!(stats(&s).cwnd < 10 * MSS as u64, "{}", stats(&s).cwnd);
}

/// A reduction that is undone before the peer is told of it is never reported.
// Conforms: 3168-6.1.2-3
#[test]
fn what_is_undone_is_not_told() {
    let mut s = agreed(NEWRENO);
    write(&mut s, 10);
    s.skip(15);
    send!(s, 20, ack(1, 1).win(4096).sack(&[(edge(1), edge(9))]));
    s.skip(26);
    assert_eq!(stats(&s).traffic.bytes_retransmitted, MSS as u64);
    send!(s, 27, ack(1, edge(9)).win(4096));
    send!(s, 28, ack(1, edge(9)).win(4096).sack(&[(1, edge(1))]));
    assert_eq!(stats(&s).ssthresh, u64::MAX);
    s.write("x");
    s.advance(braid_wire::Instant::from_millis(29));
    let (_, next) = s.take().expect("a segment");
    assert!(!next.flags.contains(Flags::CWR), "{next:?}");
}

/// Section 6.1.2: an acknowledgement that was overtaken reports no mark.
// Conforms: 3168-6.1.2-2
#[test]
fn an_old_acknowledgement_tells_of_no_mark() {
    let mut s = marked_after(2);
    write(&mut s, 10);
    s.skip(24);
    send!(s, 25, marked(10));
    s.skip(34);
    send!(s, 35, ack(1, edge(12)).win(4096));
    s.skip(36);
    send!(s, 36, marked(5));
    assert_eq!(stats(&s).traffic.mark_reductions, 1);
}

/// All of the first flight may be marked, even if the device takes one segment at a time.
// Conforms: 3168-6.1.5-1
#[test]
fn all_of_the_first_flight_bears_marks() {
    let mut s = Script::client(with(Ecn::Ask, NEWRENO), 1, Protocol::Mptcp);
    s.write(vec![1; 14_000]);
    s.skip(0);
    let answer = s.peer_capable(syn_ack().flag(Flags::ECE));
    send!(s, 10, answer.win(65_535));
    s.advance(braid_wire::Instant::from_millis(11));
    let sent: Vec<Seg> = core::iter::from_fn(|| s.take()).map(|out| out.1).collect();
    assert!(sent.len() >= 10, "{sent:?}");
    assert!(sent.iter().all(|seg| seg.ecn == Some(ECT)), "{sent:?}");
}
