use super::*;

use arrayvec::ArrayVec;
use braid_engine::PathId;

const DEPARTURE: Departure = Departure {
    bytes: 1000,
    limited: false,
    eliciting: true,
    is_large: false,
};

fn report(highest: u64, datagrams: u64) -> Report {
    Report {
        path: PathId(0),
        highest: header::truncate(highest),
        datagrams: datagrams as u32,
        bytes: (datagrams * 1000) as u32,
        received_at: 0,
        delay: 0,
        samples: ArrayVec::new(),
    }
}

#[test]
fn losses_are_counted_beyond_the_counter_of_reports() {
    let mut estimate = Estimate::new();
    // A path that has carried nearly 2^32 datagrams, of which 7 were lost.
    estimate.sent.first = (1 << 32) - 5;
    estimate.received = estimate.sent.first - 7;
    estimate.datagrams = estimate.received as u32;
    let mut now = Instant::from_millis(1000);
    for arrived in [2, 9, 20] {
        while estimate.sent.next() < (1 << 32) - 5 + arrived {
            estimate.on_sent(now, DEPARTURE);
        }
        now += Duration::from_millis(10);
        let highest = estimate.sent.next() - 1;
        let update = estimate.on_report(now, &report(highest, highest + 1 - 7));
        assert!(update.is_some());
        assert_eq!(estimate.lost(), 7);
    }
}

#[test]
fn a_restart_keeps_numbers_and_counters_and_nothing_else() {
    let mut estimate = Estimate::new();
    let mut now = Instant::from_millis(1000);
    (0..20).for_each(|_| estimate.on_sent(now, DEPARTURE));
    now += Duration::from_millis(300);
    assert!(estimate.on_report(now, &report(19, 18)).is_some());
    estimate.restart();
    assert_eq!((estimate.next_number(), estimate.lost()), (20, 2));
    assert_eq!(estimate.bytes_sent(), 20_000);
    assert!(estimate.rtt().is_none() && estimate.base_delay().is_none());
    assert_eq!(
        (estimate.in_flight(), estimate.unreported_since()),
        (0, None)
    );
    // A report of what the old network carried says nothing of the new one.
    assert!(estimate.on_report(now, &report(19, 19)).is_none());
    (0..10).for_each(|_| estimate.on_sent(now, DEPARTURE));
    now += Duration::from_millis(40);
    assert!(estimate.on_report(now, &report(29, 28)).is_some());
    assert_eq!(estimate.lost(), 2);
    assert_eq!(estimate.rtt().unwrap().smoothed, Duration::from_millis(40));
}

#[test]
fn large_datagrams_that_vanish_among_small_ones_are_a_black_hole() {
    let large = Departure {
        is_large: true,
        ..DEPARTURE
    };
    let mut estimate = Estimate::new();
    let now = Instant::from_millis(1000);
    let mut received = 0;
    // A small datagram in four; all large ones are lost.
    let mut found = Vec::new();
    for step in 0..6 {
        (0..3).for_each(|_| estimate.on_sent(now, large));
        estimate.on_sent(now, DEPARTURE);
        received += 1;
        let highest = estimate.next_number() - 1;
        let update = estimate.on_report(now, &report(highest, received)).unwrap();
        found.extend(update.is_black_hole.then_some(step));
    }
    assert_eq!(found, [2, 5]);
    // One that arrives ends the count.
    for _ in 0..6 {
        (0..3).for_each(|_| estimate.on_sent(now, large));
        estimate.on_sent(now, DEPARTURE);
        received += 2;
        let highest = estimate.next_number() - 1;
        let update = estimate.on_report(now, &report(highest, received)).unwrap();
        assert!(!update.is_black_hole);
    }
}
