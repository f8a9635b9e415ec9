//! Decisions of the baseline schedulers. Expected values follow from the papers and kernel sources.

use std::time::Duration;

use braid_engine::strategy::{Decision, SendView, Strategy, StrategyEvent, SubflowView};
use braid_strategy::{Blest, Ecf, Linux, by_name, names};
use braid_wire::{Instant, Rng};

use crate::views::*;

fn rng() -> Rng {
    Rng::for_component(0, 0)
}

/// Returns `s` in congestion avoidance.
fn avoiding(s: SubflowView) -> SubflowView {
    SubflowView {
        ssthresh: 10_000,
        ..s
    }
}

/// Returns whether `strategy` sends on the slow subflow 1 when `window` bytes of the peer's window are left.
fn takes_slow(strategy: &mut Blest, all: &[SubflowView], now: Instant, window: u64) -> bool {
    let view = SendView {
        now,
        peer_window: window,
        ..view(all)
    };
    match strategy.next(&view, &mut rng()) {
        Decision::Wait { .. } => false,
        decision => {
            assert!(decision == send(1, 10_000) || decision == send(1, 1_000));
            true
        }
    }
}

/// A segment on the slow subflow is in flight for 70 ms. That is 3 rounds of the fast subflow: 70 / 30 rounded
/// down, and 1.
#[test]
fn blest_waits_if_the_window_has_no_room_for_the_fast_subflow() {
    let fast = full(subflow(0, 30));
    for (fast, segments) in [
        // Slow start: 20 + 40 + 80 segments.
        (fast, 140.0),
        // Congestion avoidance: (20 + 2 / 2) * 3.
        (avoiding(fast), 63.0),
    ] {
        let all = [fast, subflow(1, 70)];
        // Lambda is 1.2 at first.
        let fast_bytes = (1.2f64 * 1000.0 * segments).round() as u64;
        // 10,000 bytes are in flight on the slow subflow, and the segment is 1000 more.
        let needed = fast_bytes + 11_000;
        assert!(takes_slow(&mut Blest::default(), &all, NOW, needed));
        assert!(!takes_slow(&mut Blest::default(), &all, NOW, needed - 1));
    }
    // There is no wait for the fastest subflow if it has room.
    let all = [subflow(0, 30), subflow(1, 70)];
    let tight = SendView {
        peer_window: 1_000,
        ..view(&all)
    };
    let decision = Blest::default().next(&tight, &mut rng());
    assert_eq!(decision, send(0, 1_000));
}

/// The estimated time in flight moves from the lowest to the highest round-trip time (70 to 170 ms) as the window
/// fills.
#[test]
fn blest_considers_the_queue_of_the_slow_subflow() {
    let fast = avoiding(full(subflow(0, 30)));
    let mut strategy = Blest::default();
    let _ = takes_slow(&mut strategy, &[fast, subflow(1, 170)], NOW, 1_000_000);
    // 11 of 20 segments would be in flight: 70 + 100 * 11 / 20 = 125 ms, or 5 rounds. In these the fast subflow
    // sends (20 + 4 / 2) * 5 = 110 segments, and 1.2 * 110,000 = 132,000.
    let all = [fast, subflow(1, 70)];
    let needed = 132_000 + 11_000;
    assert!(takes_slow(&mut strategy, &all, NOW, needed));
    assert!(!takes_slow(&mut strategy, &all, NOW, needed - 1));
}

/// Lambda changes once in the lowest round-trip time of the slow subflow (70 ms). It rises by 0.04 if the window
/// was used up and falls by 0.01 otherwise, between 1.0 and 1.3.
#[test]
fn blest_corrects_lambda_by_used_up_windows() {
    let all = [avoiding(full(subflow(0, 30))), subflow(1, 70)];
    let needed = |lambda: f64| (lambda * 63_000.0).round() as u64 + 11_000;
    let mut strategy = Blest::default();
    let mut at = |ms, blocked: bool, lambda: f64| {
        if blocked {
            strategy.on_event(&StrategyEvent::WindowBlocked);
        }
        let now = NOW + Duration::from_millis(ms);
        // One byte either way absorbs the rounding.
        assert!(
            takes_slow(&mut strategy, &all, now, needed(lambda) + 1),
            "{ms}"
        );
        assert!(
            !takes_slow(&mut strategy, &all, now, needed(lambda) - 1),
            "{ms}"
        );
    };
    at(0, false, 1.2);
    at(69, true, 1.2);
    at(70, false, 1.24);
    at(139, false, 1.24);
    at(140, false, 1.23);
    for n in 3..6 {
        at(70 * n, true, (1.23 + 0.04 * (n - 2) as f64).min(1.3));
    }
    for n in 6..40 {
        at(70 * n, false, (1.3 - 0.01 * (n - 5) as f64).max(1.0));
    }
}

/// The fast subflow has a round trip of 30 ms and a window of 20 kB, the slow one a round trip of 100 ms. Delta,
/// the larger deviation, is 5 ms.
#[test]
fn ecf_waits_if_the_fast_subflow_alone_finishes_earlier() {
    let all = [full(subflow(0, 30)), subflow(1, 100)];
    let decision = |strategy: &mut Ecf, unsent| {
        let view = SendView {
            unsent,
            ..view(&all)
        };
        strategy.next(&view, &mut rng())
    };
    let mut strategy = Ecf::default();
    // 52 kB are 2.6 windows: (1 + 2.6) * 30 = 108, not less than 100 + 5. 48 kB: (1 + 2.4) * 30 = 102 is less.
    assert_eq!(decision(&mut strategy, 52_000), send(1, 10_000));
    assert_eq!(decision(&mut strategy, 48_000), Decision::WAIT);
    // After a wait the limit is 1.25 * 105 = 131.25. 66 kB: (1 + 3.3) * 30 = 129; 68 kB: (1 + 3.4) * 30 = 132.
    // After a decision to send, the limit is 105 again.
    assert_eq!(decision(&mut strategy, 66_000), Decision::WAIT);
    assert_eq!(decision(&mut strategy, 68_000), send(1, 10_000));
    assert_eq!(decision(&mut strategy, 66_000), send(1, 10_000));
    // Less than a window still needs a round trip: (1 + 1) * 30 = 60.
    assert_eq!(decision(&mut strategy, 1_000), Decision::WAIT);
}

/// The second condition: 20 kB are one window, so the slow subflow needs 60 ms, less than 2 * 30 + 3. With 63 ms
/// it is not less.
#[test]
fn ecf_takes_a_subflow_that_is_not_much_slower() {
    let decision = |slow_ms, rttvar_ms| {
        let slow = SubflowView {
            rttvar: Duration::from_millis(rttvar_ms),
            ..subflow(1, slow_ms)
        };
        let fast = SubflowView {
            rttvar: Duration::ZERO,
            ..full(subflow(0, 30))
        };
        let all = [fast, slow];
        let view = SendView {
            unsent: 20_000,
            ..view(&all)
        };
        Ecf::default().next(&view, &mut rng())
    };
    assert_eq!(decision(60, 3), send(1, 10_000));
    assert_eq!(decision(63, 3), Decision::WAIT);
    assert_eq!(decision(62, 3), send(1, 10_000));
}

/// The first subflow needs 20 ms for its queued data (20 kB at 1 MB/s), the second 15 ms (30 kB at 2 MB/s).
#[test]
fn linux_takes_the_subflow_that_drains_first() {
    let with_queue = |id, queued, pacing_rate| SubflowView {
        queued,
        pacing_rate,
        ..subflow(id, 10)
    };
    let a = with_queue(0, 20_000, 1_000_000);
    let b = with_queue(1, 30_000, 2_000_000);
    let next = |all: &[SubflowView]| Linux::default().next(&view(all), &mut rng());
    assert_eq!(next(&[a, b]), send(1, 65_536));
    let drained = with_queue(2, 0, 1_000);
    assert_eq!(next(&[a, b, drained]), send(2, 65_536));
    let without_rate = with_queue(2, 1, 0);
    assert_eq!(next(&[a, without_rate]), send(0, 65_536));
    // If the chosen subflow is full, the scheduler waits.
    assert_eq!(next(&[a, full(b)]), Decision::WAIT);
    assert_eq!(next(&[a, stale(b)]), send(0, 65_536));
    assert_eq!(next(&[a, backup(b)]), send(0, 65_536));
}

#[test]
fn linux_keeps_bursts_together() {
    let at = |strategy: &mut Linux, sent, all: &[SubflowView]| {
        let view = SendView { sent, ..view(all) };
        strategy.next(&view, &mut rng())
    };
    let long = |id| SubflowView {
        queued: 90_000,
        ..subflow(id, 10)
    };
    let mut strategy = Linux::default();
    assert_eq!(
        at(&mut strategy, 0, &[subflow(0, 10), long(1)]),
        send(0, 65_536)
    );
    // Subflow 0 now ranks second, but its burst goes on.
    let turned = [long(0), subflow(1, 10)];
    assert_eq!(at(&mut strategy, 20_000, &turned), send(0, 45_536));
    // Only 536 bytes of the burst are left, but no decision is for less than a segment. Then the other subflow is
    // chosen.
    assert_eq!(at(&mut strategy, 65_000, &turned), send(0, 1_000));
    assert_eq!(at(&mut strategy, 66_000, &turned), send(1, 65_536));
    // A burst ends early when the window of its subflow is full.
    let window_full = [subflow(0, 10), full(long(1))];
    assert_eq!(at(&mut strategy, 70_000, &window_full), send(0, 65_536));
}

/// Data that was lost with a failed path goes first, on the fastest usable subflow.
#[test]
fn every_strategy_sends_lost_data_first() {
    let data = sent_range(9, 0, 500);
    let all = [
        lost(subflow(0, 70), data),
        lost(subflow(1, 30), data),
        stale(subflow(2, 10)),
        backup(lost(subflow(3, 20), data)),
    ];
    for name in names() {
        assert_eq!(decide(name, &view(&all)), copy(1, data), "{name}");
        assert_eq!(decide(name, &at_the_end(&all)), copy(1, data), "{name}");
    }
}

#[test]
fn every_strategy_avoids_failed_and_backup_subflows() {
    for name in names() {
        let mut strategy = by_name(name).unwrap();
        let all = [
            stale(subflow(0, 10)),
            subflow(1, 70),
            backup(subflow(2, 20)),
        ];
        let Decision::Send { subflow: on, .. } = strategy.next(&view(&all), &mut rng()) else {
            panic!("{name} waits");
        };
        assert_eq!(on.0, 1, "{name}");
        let all = [
            stale(subflow(0, 10)),
            full(subflow(1, 70)),
            backup(subflow(2, 20)),
        ];
        let waits = strategy.next(&view(&all), &mut rng());
        assert!(matches!(waits, Decision::Wait { .. }), "{name}: {waits:?}");
        let mut strategy = by_name(name).unwrap();
        let all = [stale(subflow(0, 10)), backup(subflow(2, 20))];
        let Decision::Send { subflow: on, .. } = strategy.next(&view(&all), &mut rng()) else {
            panic!("{name} waits");
        };
        assert_eq!(on.0, 2, "{name}");
    }
}
