//! Spurious timeouts without timestamps (F-RTO, RFC 5682).

use braid_engine::PathId;

use crate::harness::Script;
use crate::recovery::{MSS, edge, flight, opened_by, write};
use crate::segment::{Seg, ack, syn};

/// Ten segments in flight, all acknowledgements of which are late. Returns the time of the timeout and the
/// window before it.
fn timed_out(syn: Seg) -> (Script, i32, u64) {
    let mut s = flight(opened_by(syn));
    let before = stats(&s).cwnd;
    while stats(&s).traffic.rtos == 0 {
        let next = s.stack.next_timeout().expect("a timer");
        s.skip(next);
    }
    let at = s.now.as_millis() as i32;
    s.skip(at + 5);
    (s, at + 5, before)
}

fn stats(s: &Script) -> braid_engine::stats::SubflowStats {
    s.stack.subflows(s.id())[0]
}

/// An acknowledgement of everything below segment `n`.
fn until(n: usize) -> Seg {
    ack(1, edge(n)).win(4096)
}

/// Returns the sequence numbers sent until a time in milliseconds.
fn sent(s: &mut Script, until: i32) -> Vec<u64> {
    use crate::harness::At;
    s.advance(until.at());
    core::iter::from_fn(|| s.take())
        .map(|(_, seg)| seg.seq)
        .collect()
}

/// Section 2.1: the answer to the first segment permits two new ones; the next one acknowledges data that
/// was not retransmitted, so that data was late and not lost.
// Conforms: 5682-2.1-2, 5682-2.1-3
#[test]
fn what_was_only_late_is_not_sent_again() {
    for syn in [syn(), syn().no_sack()] {
        let (mut s, at, before) = timed_out(syn);
        write(&mut s, 6);
        assert_eq!(stats(&s).cwnd, MSS as u64);
        send!(s, at + 1, until(1));
        assert_eq!(sent(&mut s, at + 8), [edge(10), edge(11)]);
        let again = stats(&s).traffic.bytes_retransmitted;
        send!(s, at + 9, until(3));
        let now = stats(&s);
        assert_eq!(now.traffic.spurious_rtos, 1);
        assert!(now.cwnd >= before, "{} of {before}", now.cwnd);
        s.skip(at + 9);
        send!(s, at + 9, until(10));
        s.skip(at + 20);
        send!(s, at + 20, until(16));
        s.skip(at + 2000);
        assert_eq!(stats(&s).traffic.bytes_retransmitted, again);
    }
}

/// Section 3.1: with SACK late data may lie behind a hole.
// Conforms: 5682-3.1-1
#[test]
fn a_late_block_is_as_good_as_an_acknowledgement() {
    let (mut s, at, before) = timed_out(syn());
    write(&mut s, 6);
    // A block alone decides nothing yet.
    let late = [(edge(3), edge(5))];
    send!(s, at, until(0).sack(&[(edge(3), edge(4))]));
    quiet!(s, at + 1);
    send!(s, at + 1, until(1).sack(&[(edge(3), edge(4))]));
    // The known round trip is longer now.
    assert_eq!(sent(&mut s, at + 30), [edge(10), edge(11)]);
    send!(s, at + 30, until(1).sack(&late));
    assert_eq!(stats(&s).traffic.spurious_rtos, 1);
    assert!(stats(&s).cwnd >= before);
}

/// The new segments arrive and the old do not: the loss was real.
// Conforms: 5682-2.1-3, 5682-3.1-1
#[test]
fn what_was_lost_is_sent_again() {
    let beyond = |s: Seg| s.sack(&[(edge(10), edge(11))]);
    let plain = |s: Seg| s;
    for (syn, told) in [
        (syn(), beyond as fn(Seg) -> Seg),
        (syn().no_sack(), plain as fn(Seg) -> Seg),
    ] {
        let (mut s, at, _) = timed_out(syn);
        write(&mut s, 6);
        send!(s, at + 1, until(1));
        assert_eq!(sent(&mut s, at + 8), [edge(10), edge(11)]);
        send!(s, at + 11, told(until(1)));
        let next = sent(&mut s, at + 20);
        assert_eq!(next.first(), Some(&edge(1)), "{next:?}");
        assert_eq!(stats(&s).traffic.spurious_rtos, 0);
    }
}

/// Without new data to send, retransmission does not wait.
// Conforms: 5682-2.1-4
#[test]
fn without_new_data_the_rest_follows_at_once() {
    let (mut s, at, _) = timed_out(syn());
    send!(s, at + 1, until(1));
    assert_eq!(sent(&mut s, at + 8), [edge(1), edge(2)]);
    send!(s, at + 9, until(3));
    assert_eq!(stats(&s).traffic.spurious_rtos, 0);
}

/// An acknowledgement cannot show that only a part of the first segment was late.
// Conforms: 5682-2.1-2
#[test]
fn a_part_of_what_was_sent_again_tells_nothing() {
    let (mut s, at, _) = timed_out(syn());
    write(&mut s, 6);
    send!(s, at + 1, ack(1, 700).win(4096));
    send!(s, at + 2, until(1));
    let next = sent(&mut s, at + 8);
    assert_eq!(next.first(), Some(&edge(1)), "{next:?}");
}

/// A timeout during the recovery from another one counts as genuine.
// Conforms: 5682-2.1-1
#[test]
fn a_second_timeout_is_not_taken_for_spurious() {
    let (mut s, at, _) = timed_out(syn());
    send!(s, at + 1, until(1));
    s.skip(at + 8);
    while stats(&s).traffic.rtos == 1 {
        let next = s.stack.next_timeout().expect("a timer");
        s.skip(next);
    }
    let at = s.now.as_millis() as i32;
    write(&mut s, 6);
    s.skip(at);
    send!(s, at + 10, until(2));
    let next = sent(&mut s, at + 18);
    assert_eq!(next.first(), Some(&edge(2)), "{next:?}");
    send!(s, at + 19, until(5));
    assert_eq!(stats(&s).traffic.spurious_rtos, 0);
}

/// The first timeout counts as genuine as well, once the timer has expired again.
// Conforms: 5682-2.1-1
#[test]
fn two_timeouts_in_a_row_are_not_taken_for_spurious() {
    for syn in [syn(), syn().no_sack()] {
        let (mut s, _, _) = timed_out(syn);
        while stats(&s).traffic.rtos == 1 {
            let next = s.stack.next_timeout().expect("a timer");
            s.skip(next);
        }
        let at = s.now.as_millis() as i32;
        s.skip(at + 5);
        write(&mut s, 6);
        send!(s, at + 6, until(1));
        assert_eq!(sent(&mut s, at + 12), [edge(1), edge(2)]);
        send!(s, at + 13, until(3));
        assert_eq!(stats(&s).traffic.spurious_rtos, 0);
    }
}

/// Data lost with a link is sent at once when the link is back, whatever recovery waited for.
#[test]
fn a_link_that_is_back_waits_for_no_proof() {
    let (mut s, at, _) = timed_out(syn());
    write(&mut s, 6);
    send!(s, at + 1, until(1));
    s.skip(at + 7);
    s.stack.set_path_up(s.now, PathId(0), false);
    s.stack.set_path_up(s.now, PathId(0), true);
    // The harness sends only after a call of the application.
    s.write("");
    assert_eq!(sent(&mut s, at + 8).first(), Some(&edge(1)));
}
