//! Loss recovery with peers that send no SACK (RFC 5681 section 3.2, RFC 6582).

use crate::harness::{At, Script};
use crate::recovery::{MSS, edge, flight, nth, opened_by, write};
use crate::segment::{Seg, ack, syn};

/// Ten segments in flight from 10 ms on, round trip 10 ms.
fn unsacked() -> Script {
    flight(opened_by(syn().no_sack()))
}

/// An acknowledgement of everything below segment `n`, caused by another segment.
fn stuck(n: usize) -> Seg {
    ack(1, edge(n)).win(4096)
}

fn stats(s: &Script) -> braid_engine::stats::SubflowStats {
    s.stack.subflows(s.id())[0]
}

/// RFC 5681 section 3.2: the third duplicate retransmits the first segment, and the window is reduced.
#[test]
fn three_duplicates_are_a_loss() {
    let mut s = unsacked();
    let before = stats(&s).cwnd;
    for at in [20.1, 20.2] {
        send!(s, at, stuck(0));
        quiet!(s, at);
    }
    send!(s, 20.3, stuck(0));
    recv!(s, 20.3, nth(0));
    for n in 4..10 {
        send!(s, 20.0 + f64::from(n) / 10.0, stuck(0));
    }
    quiet!(s, 31);
    send!(s, 31, stuck(10));
    quiet!(s, 2000);
    let stats = stats(&s);
    assert_eq!(stats.traffic.bytes_retransmitted, MSS as u64);
    assert_eq!(stats.traffic.rtos, 0);
    assert!(
        (before / 3..before * 2 / 3).contains(&stats.cwnd),
        "{} of {before}",
        stats.cwnd
    );
}

/// However many duplicates come, the missing segment has not arrived.
#[test]
fn duplicates_never_tell_of_all_that_is_in_flight() {
    let mut s = unsacked();
    for n in 1..30 {
        send!(s, 20.0 + f64::from(n) / 10.0, stuck(0));
        s.skip(20.0 + f64::from(n) / 10.0);
    }
    assert_eq!(stats(&s).in_flight, MSS as u64);
}

/// However many duplicates came, of two holes the second is in flight once it is sent again.
#[test]
fn duplicates_do_not_stand_for_the_next_hole() {
    let mut s = unsacked();
    for n in 1..20 {
        send!(s, 20.0 + f64::from(n) / 10.0, stuck(0));
        if n == 3 {
            recv!(s, 20.3, nth(0));
        }
    }
    send!(s, 31, stuck(1));
    recv!(s, 31, nth(1));
    assert_eq!(stats(&s).in_flight, MSS as u64);
}

/// RFC 6582 section 3.2, step 3: each partial acknowledgement shows the next hole, with one reduction in
/// all.
// Conforms: 6582-3.2-2
#[test]
fn partial_acknowledgements_fill_hole_after_hole() {
    let mut s = unsacked();
    for n in 1..4 {
        send!(s, 20.0 + f64::from(n) / 10.0, stuck(0));
    }
    recv!(s, 20.3, nth(0));
    for n in 4..8 {
        send!(s, 20.0 + f64::from(n) / 10.0, stuck(0));
    }
    let reduced = stats(&s).cwnd;
    send!(s, 30.5, stuck(4));
    recv!(s, 30.5, nth(4));
    send!(s, 40.5, stuck(7));
    recv!(s, 40.5, nth(7));
    send!(s, 50.5, stuck(10));
    quiet!(s, 2000);
    let stats = stats(&s);
    assert_eq!(stats.traffic.bytes_retransmitted, 3 * MSS as u64);
    assert_eq!(stats.traffic.rtos, 0);
    assert!(
        stats.cwnd >= reduced - MSS as u64,
        "{} of {reduced}",
        stats.cwnd
    );
}

/// RFC 5681 section 2: a segment that opens the window, or carries data, is no duplicate.
#[test]
fn window_updates_and_data_are_no_duplicates() {
    let mut s = unsacked();
    for (n, win) in [4100, 4104, 4108, 4112].into_iter().enumerate() {
        send!(s, 20.0 + n as f64 / 10.0, ack(1, 1).win(win));
    }
    for n in 0..3 {
        let data = crate::segment::data(1 + n, 1, "y").win(4112);
        send!(s, 21.0 + n as f64 / 10.0, data);
        s.skip(21.0 + n as f64 / 10.0);
    }
    send!(s, 25, ack(4, edge(10)).win(4112));
    s.skip(2000);
    assert_eq!(stats(&s).traffic.bytes_retransmitted, 0);
}

/// RFC 6582 section 3.2, step 2: duplicates that retransmissions after a timeout cause are no loss.
// Conforms: 6582-3.2-1
#[test]
fn duplicates_of_a_timeout_are_no_loss() {
    let mut s = unsacked();
    while stats(&s).traffic.rtos == 0 {
        let next = s.stack.next_timeout().expect("a timer");
        s.advance(next);
    }
    let at = s.now.as_millis() as i32;
    s.skip(at);
    send!(s, at + 10, stuck(5));
    s.skip(at + 15);
    let retransmitted = stats(&s).traffic.bytes_retransmitted;
    for n in 16..20 {
        send!(s, at + n, stuck(5));
    }
    s.skip(at + 20);
    assert_eq!(stats(&s).traffic.bytes_retransmitted, retransmitted);
}

/// RFC 8985 section 7.2: a tail loss probe needs SACK to learn what was lost.
// Conforms: 8985-4-1
#[test]
fn the_tail_is_not_probed() {
    let mut s = opened_by(syn().no_sack());
    write(&mut s, 1);
    recv!(s, 10, nth(0));
    quiet!(s, 219);
    recv!(s, 220, nth(0));
    s.skip(220.at());
}
