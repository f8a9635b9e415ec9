use std::sync::{Arc, Mutex};

use super::*;
use crate::cc::{Loss, NEWRENO};

const RTT: Duration = Duration::from_millis(100);
const START: Instant = Instant::from_millis(1000);

fn send(sender: &mut Sender, now: Instant, segments: u64) {
    for _ in 0..segments {
        let map = Mapping {
            data: sender.nxt - 1,
            sub: sender.nxt,
            len: 1000,
            fin: false,
            checksum: None,
        };
        sender.on_new(now, map, false);
    }
}

/// Twenty segments of 1000 bytes, all sent at `START`.
fn flight() -> Sender {
    let config = Config {
        congestion: NEWRENO,
        initial_window: 20,
        ..Config::default()
    };
    let mut sender = Sender::new(Seq32(0), 1000, &config);
    sender.established(START, Some(RTT), 1 << 20, 0);
    send(&mut sender, START, 20);
    sender
}

/// The window is half of what 1 MB/s delivers in a round trip. The lower round trip counts, the recorded one or
/// the measured one.
#[test]
fn a_known_path_starts_with_half_of_its_capacity() {
    let cases = [
        (100, 100, 50_000),
        (190, 100, 50_000),
        (60, 100, 30_000),
        (100, 30, 15_000),
        // A round trip of more than ten times or less than half of the recorded one is that of another path, which
        // starts with an initial window.
        (100, 9, 10_000),
        (100, 201, 10_000),
    ];
    for (present_ms, recorded_ms, window) in cases {
        let mut sender = Sender::new(Seq32(0), 1000, &Config::default());
        let record = PathRecord {
            srtt: Duration::from_millis(recorded_ms),
            base_rtt: Duration::from_millis(recorded_ms),
            delivery_rate: 1_000_000,
            ..PathRecord::default()
        };
        sender.seed_from(&record);
        sender.established(START, Some(Duration::from_millis(present_ms)), 1 << 20, 0);
        assert_eq!(
            sender.cwnd(),
            window,
            "{present_ms} ms, recorded {recorded_ms} ms"
        );
    }
}

fn room(sender: &Sender) -> u64 {
    sender.cwnd() - sender.in_flight()
}

/// RFC 9937 section 6.1: the data that the first acknowledgement of a recovery reports as delivered still counts
/// as data in flight.
#[test]
fn recovery_starts_from_the_flight_before_it() {
    let mut sender = flight();
    sender.on_ack(START + RTT, 1, Some(1001..4001).as_slice(), None, &[]);
    assert_eq!((sender.in_flight(), sender.cc.cwnd()), (16_000, 10_000));
    // The reduced window is 10,000 bytes. 3000 of 20,000 bytes were delivered, so 3000 / 20,000 of this window may
    // be sent.
    assert_eq!(room(&sender), 1_500);
}

/// RFC 9937 section 6.2: an acknowledgement that reports a further loss allows only as many bytes as it reports as
/// delivered, 2000, although it advances. The acknowledgement without a further loss allows a segment more than
/// the 3000 bytes that it reports.
#[test]
fn a_further_loss_allows_no_additional_segment() {
    for (acked, sack, room_left) in [(3001, None, 4_000), (1001, Some(2001..3001), 2_000)] {
        let mut sender = flight();
        let (first, second) = (START + RTT, START + RTT + RTT);
        sender.on_ack(first, 1, Some(17_001..20_001).as_slice(), None, &[]);
        assert_eq!((sender.in_flight(), room(&sender)), (0, 3_000));
        for _ in 0..3 {
            sender.retransmit(first, 1000);
        }
        sender.on_ack(second, acked, sack.as_slice(), None, &[]);
        assert_eq!(sender.in_flight(), 0);
        assert_eq!(room(&sender), room_left, "{acked} {sack:?}");
    }
}

#[test]
fn an_application_limited_sender_keeps_its_rate() {
    let ms = Duration::from_millis(1);
    let mut sender = flight();
    sender.on_ack(START + RTT, 20_001, &[], None, &[]);
    assert_eq!(sender.delivery_rate(), 200_000);
    // The window had room for 50 ms, so this segment follows a pause.
    let now = START + RTT + ms * 50;
    send(&mut sender, now, 1);
    sender.on_ack(now + RTT, 21_001, &[], None, &[]);
    assert_eq!(sender.delivery_rate(), 200_000);
}

/// If more is in flight than the bandwidth-delay product, the delivery rate is the rate of the path, even if the
/// sender has paused.
#[test]
fn a_path_that_has_become_slow_is_measured_in_a_pause() {
    let ms = Duration::from_millis(1);
    let mut sender = flight();
    sender.on_ack(START + RTT, 20_001, &[], None, &[]);
    let full = START + RTT;
    send(&mut sender, full, 40);
    sender.on_ack(full + RTT, 60_001, &[], None, &[]);
    assert_eq!(sender.delivery_rate(), 400_000);
    let full = full + RTT;
    send(&mut sender, full, 60);
    // The window has room for 50 ms before another segment follows.
    let one = full + RTT * 3;
    sender.on_ack(one, 61_001, &[], None, &[]);
    send(&mut sender, one + ms * 50, 1);
    sender.on_ack(one + RTT * 3, 121_001, &[], None, &[]);
    // The 60,000 bytes were sent within 350 ms, which is longer than the 300 ms of their delivery.
    assert_eq!(sender.delivery_rate(), 60_000 * 1000 / 350);
}

/// The round trip is longer than before, but with only a few packets in flight the rate may be the application's.
#[test]
fn a_few_packets_do_not_measure_a_slow_path() {
    let ms = Duration::from_millis(1);
    let mut sender = flight();
    sender.on_ack(START + RTT, 20_001, &[], None, &[]);
    let full = START + RTT;
    send(&mut sender, full, 30);
    send(&mut sender, full + ms * 50, 1);
    sender.on_ack(full + RTT * 3, 51_001, &[], None, &[]);
    assert_eq!(sender.delivery_rate(), 200_000);
}

#[test]
fn a_sender_that_fills_its_window_is_measured() {
    let mut sender = flight();
    sender.on_ack(START + RTT, 20_001, &[], None, &[]);
    // A timer that expires 0.9 ms late causes no pause. The window is full again.
    let now = START + RTT + Duration::from_micros(900);
    send(&mut sender, now, 41);
    sender.on_ack(now + RTT, 30_001, &[], None, &[]);
    // 10,000 bytes in 100 ms.
    assert_eq!(sender.delivery_rate(), 10_000 * 1_000_000 / 100_000);
}

/// A controller that records the reported losses, and changes no window.
#[derive(Debug, Clone, Default)]
struct Listener(Arc<Mutex<Vec<Loss>>>);

impl CongestionControl for Listener {
    fn cwnd(&self) -> u64 {
        20_000
    }
    fn ssthresh(&self) -> u64 {
        20_000
    }
    fn on_ack(&mut self, _: &AckSample<'_>) {}
    fn on_lost(&mut self, loss: &Loss) {
        self.0.lock().unwrap().push(*loss);
    }
    fn on_rto(&mut self, _: Instant, _: u64) {}
    fn on_spurious(&mut self, _: Instant) {}
    fn on_idle(&mut self, _: u64) {}
    fn penalise(&mut self) {}
    fn set_mss(&mut self, _: u32) {}
}

/// However a loss is detected, the controller learns the number of bytes in flight when the lost data was sent.
/// BBR bounds the data in flight by this number.
#[test]
fn every_loss_is_reported_with_its_flight() {
    type Lose = fn(&mut Sender);
    let by_sack: Lose = |sender| {
        sender.on_ack(
            START + RTT,
            19_001,
            Some(19_501..20_001).as_slice(),
            None,
            &[],
        );
        sender.on_timeout(START + RTT * 2, None);
    };
    let by_duplicates: Lose = |sender| {
        sender.count_dup_acks();
        sender.on_ack(START + RTT, 19_001, &[], None, &[]);
        (0..3).for_each(|_| _ = sender.on_dup_ack(START + RTT));
    };
    let by_a_probe: Lose = |sender| {
        sender.on_ack(START + RTT, 19_001, &[], None, &[]);
        sender.probe(START + RTT * 2);
        send(sender, START + RTT * 2, 1);
        sender.on_ack(START + RTT * 3, 21_001, &[], None, &[]);
    };
    for (name, lose) in [
        ("sack", by_sack),
        ("duplicates", by_duplicates),
        ("a probe", by_a_probe),
    ] {
        let mut sender = flight();
        let reports = Listener::default();
        sender.cc = Box::new(reports.clone());
        lose(&mut sender);
        let reports = reports.0.lock().unwrap();
        let [loss] = reports[..] else {
            panic!("{name}: {reports:?}");
        };
        // The twentieth segment is lost. Nineteen segments were in flight before it was sent.
        let flight = (loss.tx.in_flight, loss.tx.lost);
        assert_eq!(flight, (19_000, loss.bytes), "{name}");
    }
}

/// RFC 8985 section 6.2, step 4: a needless retransmission in a round lengthens the reordering window by a quarter
/// of the lowest round trip, up to a round trip. 16 recoveries without a needless retransmission reset the window.
// Conforms: 8985-3.3.2-2, 8985-3.3.2-3
#[test]
fn needless_repetitions_widen_the_reordering_window() {
    let mut sender = flight();
    let quarter = RTT / 4;
    sender.on_duplicate(START, 0..1);
    assert_eq!(sender.reordering_window(), quarter * 2);
    sender.on_duplicate(START, 0..1);
    assert_eq!(sender.reordering_window(), quarter * 2, "once in a round");
    let mut now = START;
    let mut round = |sender: &mut Sender, is_needless: bool| {
        // A round without a needless retransmission has a recovery.
        if !is_needless {
            sender.declare_dead(now, None);
        }
        now += RTT;
        sender.on_ack(now, sender.nxt, &[], None, &[]);
        if is_needless {
            sender.on_duplicate(now, 0..1);
        }
        send(sender, now, 4);
    };
    round(&mut sender, true);
    assert_eq!(sender.reordering_window(), quarter * 3);
    for _ in 0..5 {
        round(&mut sender, true);
    }
    assert_eq!(
        sender.reordering_window(),
        RTT,
        "no longer than a round trip"
    );
    for left in (0..16).rev() {
        round(&mut sender, false);
        assert_eq!(sender.reordering_window() == quarter, left == 0, "{left}");
    }
}

/// RFC 8985 section 6.2, step 1: after 20 s the lowest round trip is the 200 ms of the new route. Two quarters of
/// this round trip are 100 ms.
// Conforms: 8985-6.2-4
#[test]
fn the_reordering_window_follows_a_change_of_route() {
    let mut sender = flight();
    sender.on_duplicate(START, 0..1);
    for s in 0..25 {
        let now = START + Duration::from_secs(s);
        sender.rtt.sample(now, RTT * 2);
    }
    assert_eq!(sender.reordering_window(), RTT);
}

/// RFC 8985 section 6.2, step 2: an acknowledgement less than a round trip after a retransmission is for the
/// original.
// Conforms: 8985-6.2-2
#[test]
fn an_answer_that_is_too_fast_is_of_the_original() {
    for (after, is_duplicate_reported, is_newer) in [
        (RTT / 2, false, false),
        (RTT, false, true),
        // The peer reports a duplicate: both copies arrived.
        (RTT / 2, true, true),
    ] {
        let mut sender = flight();
        let now = START + RTT;
        sender.on_ack(now, 1, Some(10_001..20_001).as_slice(), None, &[]);
        assert_eq!(sender.rack.sent_at, START);
        sender.retransmit(now, 1000).expect("lost");
        if is_duplicate_reported {
            sender.on_duplicate(now + after, 1..1001);
        }
        sender.on_ack(now + after, 1001, &[], None, &[]);
        assert_eq!(sender.rack.sent_at > START, is_newer, "{after:?}");
    }
}

/// In an outage of ten seconds half of the data in flight arrives, but no acknowledgement returns. After the
/// outage a retransmission arrives, and its acknowledgement echoes the timestamp of the data that arrived first,
/// as Linux does. If the acknowledgement also reports the retransmission as a duplicate, the rest is marked as
/// lost. In either case the sample is capped at the timeout instead of including the outage.
// Conforms: 7323-4.1-1
#[test]
fn an_outage_is_not_the_round_trip() {
    let ms = Duration::from_millis(1);
    for is_duplicate_reported in [true, false] {
        let mut sender = flight();
        let mut now = START;
        let outage_end = START + Duration::from_secs(10);
        while now < outage_end {
            now += ms * 10;
            match sender.on_timeout(now, Some(1100)) {
                Some(Expired::Rto) => {
                    sender.cap_rto(now, RTT * 2);
                    sender.retransmit(now, 1000).expect("lost");
                }
                Some(Expired::Probe) => _ = sender.probe(now).expect("in flight"),
                _ => {}
            }
        }
        assert!(sender.traffic.rtos > 40);
        let timeout = sender.rtt.rto();
        let now = outage_end + RTT / 2;
        if is_duplicate_reported {
            sender.on_duplicate(now, 1..1001);
        }
        let echo = Echo {
            value: 1000,
            age: now.saturating_since(START),
        };
        sender.on_ack(now, 10_001, &[], Some(echo), &[]);
        assert_eq!(sender.traffic.spurious_rtos, 1);
        assert!(sender.rtt.latest() <= timeout, "{is_duplicate_reported}");
        assert!(sender.rtt.srtt() < RTT * 2, "{is_duplicate_reported}");
        let lost = if is_duplicate_reported { 10_000 } else { 0 };
        assert_eq!(sender.board.lost(), lost);
    }
}

/// The path has become slow, and the acknowledgement echoes the timestamp of the retransmission: the sample is the
/// round trip, even if that is longer than the timeout.
// Conforms: 7323-4.1-1
#[test]
fn a_round_trip_above_the_timeout() {
    let mut sender = flight();
    let mut now = START;
    while sender.traffic.rtos == 0 {
        now += Duration::from_millis(10);
        if sender.on_timeout(now, Some(1100)) == Some(Expired::Probe) {
            sender.probe(now).expect("in flight");
        }
    }
    sender.retransmit(now, 1000).expect("lost");
    let age = RTT * 20;
    let echo = Some(Echo { value: 1100, age });
    sender.on_ack(now + age, 1001, &[], echo, &[]);
    assert_eq!(sender.rtt.latest(), age);
}

/// A queue of six seconds drains, and the last segments of the flight were dropped because the queue was full. The
/// probe follows after a second of silence, although round trips through the queue took longer than a second. On a
/// path whose own round trip is 900 ms the probe waits for two round trips.
// Conforms: 8985-7.2-1
#[test]
fn a_silence_behind_a_queue_is_probed_after_a_second() {
    let ms = Duration::from_millis(1);
    for (path_rtt, after) in [(RTT, ms * 1000), (ms * 900, ms * 1800)] {
        let mut sender = Sender::new(Seq32(0), 1000, &Config::default());
        sender.established(START, Some(path_rtt), 1 << 20, 0);
        send(&mut sender, START, 10);
        let mut now = START;
        for n in 1..=8 {
            now = START + ms * 6000 + ms * 100 * n;
            sender.on_ack(now, u64::from(n) * 1000 + 1, &[], None, &[]);
        }
        assert!(sender.rtt.srtt() > ms * 1500);
        assert_eq!(sender.next_timeout(), Some(now + after));
        assert_eq!(sender.on_timeout(now + after, None), Some(Expired::Probe));
    }
}

/// The queue has drained, so the acknowledgement of a probe arrives in less than the former round trip, and
/// acknowledges only the probe. The data sent before the original of the probe is lost, whether the original or
/// the probe arrived.
// Conforms: 8985-6.2-2
#[test]
fn a_probe_that_is_answered_fast_shows_what_was_lost_before_it() {
    let mut sender = Sender::new(Seq32(0), 1000, &Config::default());
    sender.established(START, Some(RTT * 10), 1 << 20, 0);
    send(&mut sender, START, 10);
    let mut now = START + RTT * 10;
    sender.on_ack(now, 5_001, &[], None, &[]);
    while sender.on_timeout(now, None) != Some(Expired::Probe) {
        now = sender.next_timeout().expect("a probe is due");
    }
    sender.probe(now).expect("in flight");
    now += RTT;
    sender.on_ack(now, 5_001, Some(9_001..10_001).as_slice(), None, &[]);
    while sender.board.lost() == 0 {
        let next = sender.next_timeout().expect("its loss is found");
        assert_eq!(sender.traffic.rtos, 0);
        sender.on_timeout(next, None);
    }
    assert_eq!((sender.board.lost(), sender.traffic.rtos), (4_000, 0));
}

/// The probe is sent while its original is in flight. The segment before these two is lost. Its loss is not undone
/// when the peer reports the probe as a duplicate.
// Conforms: 8985-7.4.2-2
#[test]
fn a_needless_probe_undoes_no_loss() {
    let mut sender = Sender::new(Seq32(0), 1000, &Config::default());
    sender.established(START, Some(RTT * 10), 1 << 20, 0);
    send(&mut sender, START, 2);
    let mut now = START;
    while sender.on_timeout(now, None) != Some(Expired::Probe) {
        now = sender.next_timeout().expect("a probe is due");
    }
    sender.probe(now).expect("in flight");
    now += RTT;
    sender.on_ack(now, 1, Some(1_001..2_001).as_slice(), None, &[]);
    while sender.board.lost() == 0 {
        now = sender.next_timeout().expect("its loss is found");
        sender.on_timeout(now, None);
    }
    let reduced_cwnd = sender.cwnd();
    sender.retransmit(now, 1_000).expect("lost");
    sender.on_duplicate(now + RTT, 1_001..2_001);
    assert_eq!(sender.cwnd(), reduced_cwnd);
    assert_ne!(sender.recovery, Recovery::Open);
    assert!(!sender.rack.reordering_seen);
}

/// RFC 6582 section 3.2, step 3: later partial acknowledgements do not restart the timer.
// Conforms: 6582-3.2-3
#[test]
fn only_the_first_partial_acknowledgement_restarts_the_timer() {
    let ms = Duration::from_millis(1);
    let mut sender = flight();
    sender.count_dup_acks();
    let now = START + RTT;
    (0..3).for_each(|_| _ = sender.on_dup_ack(now));
    sender.retransmit(now, 1000).expect("lost");
    let mut timers = Vec::new();
    for n in 1..4 {
        let now = now + RTT / 2 + ms * n;
        sender.on_ack(now, u64::from(n) * 1000 + 1, &[], None, &[]);
        sender.retransmit(now, 1000);
        timers.push(sender.timers.rto_at);
    }
    assert!(timers[0] > Some(now + sender.rtt.rto()));
    assert_eq!(timers[1..], [timers[0]; 2]);
}

/// RFC 7323 section 4.1: an acknowledgement that does not advance may echo the timestamp of any earlier segment.
// Conforms: 7323-4.1-1
#[test]
fn an_echo_counts_where_something_new_is_acknowledged() {
    let echo = Echo {
        value: 0,
        age: RTT * 3,
    };
    for (ack, counts) in [(1, false), (1001, true)] {
        let mut sender = flight();
        let now = START + RTT;
        sender.on_ack(now, 1, Some(10_001..20_001).as_slice(), None, &[]);
        sender.retransmit(now, 1000).expect("lost");
        let latest = sender.rtt.latest();
        let repeated = Some(1..1001).filter(|_| !counts);
        sender.on_ack(now + RTT * 3, ack, repeated.as_slice(), Some(echo), &[]);
        assert_eq!(sender.rtt.latest() != latest, counts, "{ack}");
    }
}

/// RFC 9293 section 3.8.6: data beyond the end of a window that shrank is still retransmitted, and no new data
/// is sent before the window has room.
// Conforms: 9293-3.8.6-2
#[test]
fn a_window_that_shrinks_is_borne() {
    let mut sender = flight();
    sender.offer(30_001, 30_000);
    assert_eq!(sender.peer_room(), 10_000);
    sender.offer(5_001, 5_000);
    assert_eq!(sender.peer_room(), 0);
    let now = START + Duration::from_secs(2);
    assert_eq!(sender.on_timeout(now, None), Some(Expired::Probe));
    sender.probe(now);
    sender.on_timeout(now + Duration::from_secs(2), None);
    assert!(sender.retransmit(now, 1000).is_some());
    sender.on_ack(now + RTT, 20_001, &[], None, &[]);
    sender.offer(25_001, 5_000);
    assert_eq!(sender.peer_room(), 5_000);
}
