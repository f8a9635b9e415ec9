//! The search for the packet size (RFC 4821, RFC 8899): losses and reports of the network while a size is
//! probed.

use crate::harness::{At, Script};
use crate::recovery::{MSS, edge, lengths, opened_by, too_big, write};
use crate::segment::{Seg, ack, syn};

/// The payload of the sizes in force when large packets vanish.
const SMALL: usize = 1240;

/// A probe in flight, with three small packets behind it.
struct Trial {
    s: Script,
    /// The current time in ms.
    at: i32,
    /// The start of the probe.
    start: u64,
}

impl Trial {
    /// Creates the trial with a peer that opened by `syn`.
    fn new(syn: Seg) -> Trial {
        let mut s = opened_by(syn);
        write(&mut s, 2);
        // Large packets vanish.
        while s.stack.subflows(s.id())[0].traffic.rtos < 2 {
            let next = s.stack.next_timeout().unwrap();
            s.advance(next);
        }
        let mut at = s.now.as_millis() as i32;
        s.skip(at + 10);
        send!(s, at + 10, ack(1, edge(0) + SMALL as u64).win(4096));
        let mut end = edge(2);
        s.skip(at + 20);
        send!(s, at + 20, ack(1, end).win(4096));
        // The window grows until there is room for the whole trial.
        at += 20;
        s.write(vec![1; 100 * SMALL]);
        while end < edge(2) + (100 * SMALL) as u64 {
            at += 15;
            let sent = lengths(&mut s, at.at());
            end += sent.iter().sum::<usize>() as u64;
            send!(s, at, ack(1, end).win(4096));
        }
        s.skip(1500 + at);
        at += 1500;
        s.write([1; MSS + 3 * SMALL]);
        let mut trial = Trial { s, at, start: end };
        assert_eq!(trial.sent(10), [MSS, SMALL, SMALL, SMALL]);
        trial
    }

    fn end(&self) -> u64 {
        self.start + (MSS + 3 * SMALL) as u64
    }

    fn cwnd(&self) -> u64 {
        self.s.stack.subflows(self.s.id())[0].cwnd
    }

    /// Returns the payload sizes sent within the next `ms`.
    fn sent(&mut self, ms: i32) -> Vec<usize> {
        self.at += ms;
        lengths(&mut self.s, self.at.at())
    }

    fn answer(&mut self, seg: Seg) {
        send!(self.s, self.at, seg.win(4096));
    }

    /// Reports that packets over `mtu` bytes do not pass, about the packet that starts at `seq`.
    fn report(&mut self, mtu: u32, seq: u64) {
        let icmp = too_big(&self.s, mtu, seq);
        self.s.inject(self.at, &icmp);
    }
}

/// RFC 8899 section 3: the loss of a probe is no sign of congestion, and shows that the size does not pass,
/// however the loss is detected.
#[test]
fn a_lost_try_without_sack() {
    let mut t = Trial::new(syn().no_sack());
    let before = t.cwnd();
    for _ in 0..3 {
        t.answer(ack(1, t.start));
    }
    assert_eq!(t.sent(5), [SMALL, MSS - SMALL]);
    t.answer(ack(1, t.end()));
    assert!(t.cwnd() >= before, "{} of {before}", t.cwnd());
    t.s.write([1; MSS]);
    assert_eq!(t.sent(5), [SMALL, MSS - SMALL], "it arrived in parts");
}

/// Without SACK, other losses in the flight are found by duplicates of their own.
#[test]
fn a_loss_behind_a_lost_try_without_sack() {
    let mut t = Trial::new(syn().no_sack());
    t.s.write([1; 3 * SMALL]);
    assert_eq!(t.sent(10), [SMALL; 3]);
    for _ in 0..3 {
        t.answer(ack(1, t.start));
    }
    assert_eq!(t.sent(5), [SMALL, MSS - SMALL]);
    for _ in 0..2 {
        t.answer(ack(1, t.start));
    }
    let (before, hole) = (t.cwnd(), t.start + MSS as u64);
    t.answer(ack(1, hole));
    assert_eq!(t.sent(5), [0; 0]);
    for _ in 0..3 {
        t.answer(ack(1, hole));
    }
    assert_eq!(t.sent(5), [SMALL]);
    assert!(t.cwnd() < before, "{} of {before}", t.cwnd());
}

/// RFC 8899 section 4.6.2: the size reported about a probe is the next one to probe, and the data is sent
/// again at once in smaller packets.
#[test]
fn a_report_on_a_try() {
    for first in [syn(), syn().no_sack()] {
        let mut t = Trial::new(first);
        let before = t.cwnd();
        t.report(1400, t.start);
        assert_eq!(t.sent(1), [SMALL, MSS - SMALL]);
        // The report came first; these duplicates concern the same packet.
        for _ in 0..3 {
            t.answer(ack(1, t.start));
        }
        assert_eq!(t.sent(1), [0; 0]);
        t.answer(ack(1, t.end()));
        assert!(t.cwnd() >= before, "{} of {before}", t.cwnd());
        t.s.write([1; 1360 + SMALL]);
        assert_eq!(t.sent(5), [1360, SMALL]);
        t.answer(ack(1, t.end() + (1360 + SMALL) as u64));
        t.s.write([1; 2 * 1360]);
        assert_eq!(t.sent(5), [1360; 2]);
    }
}

/// A report of less than the current size prevails, even if the probe's data is sent again and arrives in
/// parts.
#[test]
fn a_report_of_less_ends_a_search() {
    for first in [syn(), syn().no_sack()] {
        let mut t = Trial::new(first);
        t.report(1000, t.start);
        let again = t.sent(5);
        assert!(again.iter().all(|len| *len <= 960), "{again:?}");
        t.answer(ack(1, t.end()));
        t.sent(2000);
        t.s.write([1; 2 * MSS]);
        assert_eq!(t.sent(5), [960, 960, 960, 16]);
    }
}

/// A report of at least the probed size concerns another packet, or is forged.
#[test]
fn a_report_of_more_than_a_try() {
    let mut t = Trial::new(syn());
    t.report(1500, t.start);
    assert_eq!(t.sent(2), [0; 0]);
    t.answer(ack(1, t.end()));
    t.s.write([1; 2 * MSS]);
    assert_eq!(t.sent(5), [MSS; 2]);
}

/// Data that duplicates stood for is in flight again once it is sent again.
#[test]
fn a_report_after_duplicates_without_sack() {
    let mut s = crate::recovery::flight(opened_by(syn().no_sack()));
    for _ in 0..2 {
        send!(s, 20, ack(1, 1).win(4096));
    }
    let icmp = too_big(&s, 1400, 1);
    s.inject(21, &icmp);
    s.advance(50.at());
    let again: usize = core::iter::from_fn(|| s.take())
        .map(|(_, seg)| seg.payload.len())
        .sum();
    assert_eq!(s.stack.subflows(s.id())[0].in_flight, again as u64);
}
