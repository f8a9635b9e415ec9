//! The schedulers that others are compared with, by literals of their definitions.

use std::time::Duration;

use braid_engine::strategy::{Decision, SendView, Strategy, StrategyEvent, SubflowView};
use braid_strategy::{Blest, Ecf, Linux, by_name, names};
use braid_wire::{Instant, Rng};

use crate::views::*;

fn rng() -> Rng {
    Rng::for_component(0, 0)
}

/// Puts the subflow into congestion avoidance.
fn avoiding(s: SubflowView) -> SubflowView {
    SubflowView {
        ssthresh: 10_000,
        ..s
    }
}

/// Returns whether `strategy` takes the slow subflow 1 with `window` bytes of the peer's window left.
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

/// A segment on the slow subflow is in flight for 70 ms, which is 3 rounds of the fast one.
#[test]
fn blest_waits_where_the_window_would_not_hold_what_the_fast_subflow_sends() {
    let fast = full(subflow(0, 30));
    for (fast, segments) in [
        // Slow start: 20 + 40 + 80.
        (fast, 140.0),
        // Congestion avoidance: (20 + 2 / 2) * 3.
        (avoiding(fast), 63.0),
    ] {
        let all = [fast, subflow(1, 70)];
        let fast_bytes = (1.2f64 * 1000.0 * segments).round() as u64;
        // 10,000 bytes are in flight on the slow subflow, and the segment is 1000 more.
        let needed = fast_bytes + 11_000;
        assert!(takes_slow(&mut Blest::default(), &all, NOW, needed));
        assert!(!takes_slow(&mut Blest::default(), &all, NOW, needed - 1));
    }
    // The fastest itself never waits.
    let all = [subflow(0, 30), subflow(1, 70)];
    let tight = SendView {
        peer_window: 1_000,
        ..view(&all)
    };
    let decision = Blest::default().next(&tight, &mut rng());
    assert_eq!(decision, send(0, 1_000));
}

/// The fuller the slow subflow's window, the closer a segment's time there is to the longest seen.
#[test]
fn blest_reckons_with_the_queue_of_the_slow_subflow() {
    let fast = avoiding(full(subflow(0, 30)));
    let mut strategy = Blest::default();
    let _ = takes_slow(&mut strategy, &[fast, subflow(1, 170)], NOW, 1_000_000);
    // 70 + 100 * 11 / 20 = 125 ms: 5 rounds, in which (20 + 2) * 5 segments are sent.
    let all = [fast, subflow(1, 70)];
    let needed = 132_000 + 11_000;
    assert!(takes_slow(&mut strategy, &all, NOW, needed));
    assert!(!takes_slow(&mut strategy, &all, NOW, needed - 1));
}

/// Lambda changes once in each 70 ms, by 0.04 or -0.01, within 1.0 and 1.3.
#[test]
fn blest_learns_from_a_window_that_was_used_up() {
    let all = [avoiding(full(subflow(0, 30))), subflow(1, 70)];
    let needed = |lambda: f64| (lambda * 63_000.0).round() as u64 + 11_000;
    let mut strategy = Blest::default();
    let mut at = |ms, blocked: bool, lambda: f64| {
        if blocked {
            strategy.on_event(&StrategyEvent::WindowBlocked);
        }
        let now = NOW + Duration::from_millis(ms);
        // One byte to each side absorbs rounding.
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

/// The fast subflow takes 30 ms, its window 20 kB; the slow one 100 ms, and delta is 5 ms.
#[test]
fn ecf_waits_where_the_fast_subflow_alone_is_through_earlier() {
    let all = [full(subflow(0, 30)), subflow(1, 100)];
    let of = |strategy: &mut Ecf, unsent| {
        let view = SendView {
            unsent,
            ..view(&all)
        };
        strategy.next(&view, &mut rng())
    };
    let mut strategy = Ecf::default();
    // (1 + 2.6) * 30 = 108, which is not less than 100 + 5; (1 + 2.4) * 30 = 102 is.
    assert_eq!(of(&mut strategy, 52_000), send(1, 10_000));
    assert_eq!(of(&mut strategy, 48_000), Decision::WAIT);
    // Waiting, up to 1.25 * 105 = 131.25: (1 + 3.3) * 30 = 129, (1 + 3.4) * 30 = 132.
    assert_eq!(of(&mut strategy, 66_000), Decision::WAIT);
    assert_eq!(of(&mut strategy, 68_000), send(1, 10_000));
    assert_eq!(of(&mut strategy, 66_000), send(1, 10_000));
    // Less than a window still takes a round trip.
    assert_eq!(of(&mut strategy, 1_000), Decision::WAIT);
}

/// Waiting must gain something: 60 ms on the slow subflow is less than 2 * 30 + 3.
#[test]
fn ecf_takes_a_subflow_that_is_not_much_slower() {
    let of = |slow, rttvar_ms| {
        let slow = SubflowView {
            rttvar: Duration::from_millis(rttvar_ms),
            ..subflow(1, slow)
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
    assert_eq!(of(60, 3), send(1, 10_000));
    assert_eq!(of(63, 3), Decision::WAIT);
    assert_eq!(of(62, 3), send(1, 10_000));
}

/// The first holds 20 kB at 1 MB/s, so 20 ms; the second 30 kB at 2 MB/s, so 15 ms.
#[test]
fn linux_takes_what_is_drained_first() {
    let holding = |id, queued, pacing_rate| SubflowView {
        queued,
        pacing_rate,
        ..subflow(id, 10)
    };
    let a = holding(0, 20_000, 1_000_000);
    let b = holding(1, 30_000, 2_000_000);
    let next = |all: &[SubflowView]| Linux::default().next(&view(all), &mut rng());
    assert_eq!(next(&[a, b]), send(1, 65_536));
    let drained = holding(2, 0, 1_000);
    assert_eq!(next(&[a, b, drained]), send(2, 65_536));
    let without_rate = holding(2, 1, 0);
    assert_eq!(next(&[a, without_rate]), send(0, 65_536));
    // The scheduler has no second choice.
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
    let turned = [long(0), subflow(1, 10)];
    assert_eq!(at(&mut strategy, 20_000, &turned), send(0, 45_536));
    // Nothing smaller than a segment goes out; then it is the other subflow's turn.
    assert_eq!(at(&mut strategy, 65_000, &turned), send(0, 1_000));
    assert_eq!(at(&mut strategy, 66_000, &turned), send(1, 65_536));
    // A burst ends where the window does.
    let window_full = [subflow(0, 10), full(long(1))];
    assert_eq!(at(&mut strategy, 70_000, &window_full), send(0, 65_536));
}

/// Data lost with its path goes out as soon as possible, on the fastest subflow that works.
#[test]
fn every_strategy_sends_what_was_lost_with_its_path_first() {
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
fn every_strategy_keeps_off_failed_and_backup_subflows() {
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
