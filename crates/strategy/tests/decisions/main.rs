//! Decisions of the strategies on literal views. In all of them, unless they say otherwise, a subflow has room for
//! 10,000 bytes, a segment has 1,000, and 100,000 bytes are unsent; see [`views`].

mod adaptive;
mod baselines;
mod load;
mod parts;
mod properties;
mod published;
mod settings;
mod views;

use std::time::Duration;

use braid_engine::SubflowId;
use braid_engine::strategy::{Decision, Payload, SendView, Strategy, SubflowView};
use braid_strategy::RoundRobin;
use braid_strategy::parts::usable::{is_overfull, is_slow};
use braid_wire::Rng;

use views::*;

#[test]
fn minrtt_takes_the_lowest_round_trip_time() {
    let all = [subflow(0, 70), subflow(1, 30), subflow(2, 30)];
    assert_eq!(minrtt(&view(&all)), send(1, 10_000));
    let unmeasured = [subflow(0, 0), subflow(1, 300)];
    assert_eq!(minrtt(&view(&unmeasured)), send(1, 10_000));
}

#[test]
fn minrtt_skips_full_and_failed_subflows() {
    let fast_full = [full(subflow(0, 30)), subflow(1, 70)];
    assert_eq!(minrtt(&view(&fast_full)), send(1, 10_000));
    let fast_stale = [stale(subflow(0, 30)), subflow(1, 70)];
    assert_eq!(minrtt(&view(&fast_stale)), send(1, 10_000));
    assert_eq!(
        minrtt(&view(&[stale(subflow(0, 30)), full(subflow(1, 70))])),
        Decision::WAIT
    );
    assert_eq!(minrtt(&view(&[])), Decision::WAIT);
}

#[test]
fn minrtt_uses_a_backup_only_without_a_usable_regular_subflow() {
    let fast = backup(subflow(0, 10));
    assert_eq!(minrtt(&view(&[fast, subflow(1, 70)])), send(1, 10_000));
    assert_eq!(minrtt(&view(&[fast, full(subflow(1, 70))])), Decision::WAIT);
    assert_eq!(
        minrtt(&view(&[fast, stale(subflow(1, 70))])),
        send(0, 10_000)
    );
    assert_eq!(minrtt(&view(&[fast])), send(0, 10_000));
}

#[test]
fn minrtt_leaves_to_a_paced_subflow_what_its_window_takes() {
    let all = [paced(subflow(0, 30)), subflow(1, 70)];
    // Subflow 0 has window room for 10,000 bytes, which are reserved for it.
    let decision = |unsent, peer_window| {
        minrtt(&SendView {
            unsent,
            peer_window,
            ..view(&all)
        })
    };
    assert_eq!(decision(10_000, 1_000_000), Decision::WAIT);
    assert_eq!(decision(14_000, 1_000_000), send(1, 4_000));
    assert_eq!(decision(100_000, 1_000_000), send(1, 10_000));
    assert_eq!(decision(100_000, 10_000), Decision::WAIT);
    // No decision is for less than a segment.
    assert_eq!(decision(10_001, 1_000_000), send(1, 1_000));
    // Nothing is reserved for a slower, a failed or a backup subflow.
    for other in [
        paced(subflow(0, 90)),
        stale(paced(subflow(0, 30))),
        backup(paced(subflow(0, 30))),
    ] {
        assert_eq!(minrtt(&view(&[other, subflow(1, 70)])), send(1, 10_000));
    }
}

#[test]
fn minrtt_skips_a_path_that_has_become_slow() {
    // 10 kB in flight at 10 kB/s need a second; the queueing delay is 970 ms.
    let slow = |s: SubflowView| SubflowView {
        latest_rtt: Duration::from_millis(1_000),
        delivery_rate: 10_000,
        ..s
    };
    assert!(is_overfull(&slow(subflow(0, 30))));
    let all = [slow(subflow(0, 30)), subflow(1, 70)];
    assert_eq!(minrtt(&view(&all)), send(1, 10_000));
    // The strategy waits for the other subflow. Without another it uses the slow one.
    let all = [slow(subflow(0, 30)), full(subflow(1, 70))];
    assert_eq!(minrtt(&view(&all)), Decision::WAIT);
    assert_eq!(minrtt(&view(&[slow(subflow(0, 30))])), send(0, 10_000));
    // A slow path without data in flight is tried with copies of one packet, until a measurement shows that it is
    // fast.
    let data = sent_range(1, 0, 10);
    let drained = SubflowView {
        in_flight: 0,
        ..single(slow(subflow(0, 30)), data)
    };
    assert!(!is_overfull(&drained) && is_slow(&drained));
    let all = [drained, subflow(1, 70)];
    assert_eq!(minrtt(&view(&all)), send(1, 10_000));
    let all = [drained, full(subflow(1, 70))];
    let trial = Decision::Send {
        subflow: SubflowId(0),
        data: Payload::Copy {
            data,
            penalise: false,
        },
        max_bytes: 1000,
    };
    assert_eq!(minrtt(&view(&all)), trial);
    let fast_again = SubflowView {
        latest_rtt: Duration::from_millis(60),
        ..drained
    };
    let all = [fast_again, full(subflow(1, 70))];
    assert_eq!(minrtt(&view(&all)), send(0, 20_000));
    // Neither of these is slow: a long queue at a high rate, and a low rate without a queue (an application that
    // sends little).
    let bloated = SubflowView {
        delivery_rate: 1_000_000,
        ..slow(subflow(0, 30))
    };
    assert!(!is_overfull(&bloated) && !is_slow(&bloated));
    let little = SubflowView {
        delivery_rate: 1_000,
        ..subflow(0, 30)
    };
    assert!(!is_slow(&little));
}

#[test]
fn lost_data_goes_first_on_the_fastest_that_works() {
    let data = sent_range(2, 0, 500);
    let all = [
        stale(lost(subflow(0, 10), data)),
        lost(subflow(1, 70), data),
        lost(subflow(2, 50), data),
    ];
    assert_eq!(minrtt(&view(&all)), copy(2, data));
    assert_eq!(decide("roundrobin", &view(&all)), copy(2, data));
    let all = [lost(full(subflow(0, 10)), data), subflow(1, 70)];
    assert_eq!(minrtt(&at_the_end(&all)), Decision::WAIT);
}

#[test]
fn late_data_overtakes_new_data() {
    // Data is late after the round trip (30 ms) and twice the grace period (150 ms and a round trip): 30 + 2 *
    // 180.
    let decision = |age| {
        let all = [
            subflow(0, 30),
            single(subflow(1, 70), sent_range(0, 0, age)),
        ];
        minrtt(&view(&all))
    };
    assert_eq!(decision(389), send(0, 10_000));
    assert_eq!(decision(390), copy(1, sent_range(0, 0, 390)));
    // Without a sample of the round-trip time nothing is late.
    let all = [subflow(0, 0), single(subflow(1, 70), sent_range(0, 0, 10))];
    assert_eq!(minrtt(&view(&all)), send(1, 10_000));
}

#[test]
fn a_wait_ends_when_data_becomes_late() {
    // The data was sent 100 ms ago and is late after 390 ms.
    let all = [full(subflow(0, 30)), full(subflow(1, 70))];
    let oldest = Some(sent_range(0, 0, 100));
    let waiting = SendView {
        oldest,
        ..view(&all)
    };
    let until = Some(NOW + Duration::from_millis(290));
    assert_eq!(minrtt(&waiting), Decision::Wait { until });
}

#[test]
fn a_blocked_window_moves_the_oldest_data_to_the_fastest_subflow() {
    let data = sent_range(1, 0, 10);
    let all = [
        single(subflow(0, 30), data),
        subflow(1, 70),
        single(subflow(2, 50), data),
    ];
    assert_eq!(minrtt(&blocked(&all, data)), penalty(0, data));
    // The fastest subflow itself carries the data that keeps the window shut.
    let all = [
        single(subflow(0, 30), sent_range(1, 9000, 10)),
        subflow(1, 70),
    ];
    let held = minrtt(&blocked(&all, sent_range(0, 0, 10)));
    assert!(matches!(held, Decision::Wait { .. }), "{held:?}");
    let all = [
        full(subflow(0, 30)),
        subflow(1, 70),
        single(subflow(2, 90), data),
    ];
    let slower = minrtt(&blocked(&all, data));
    assert!(matches!(slower, Decision::Wait { .. }), "{slower:?}");
    // The subflow that sent the data has ended. Its data is then lost (another rule), or another subflow has sent
    // it.
    let gone = sent_range(7, 0, 10);
    let all = [single(subflow(0, 30), gone), subflow(1, 70)];
    assert_eq!(minrtt(&blocked(&all, gone)), Decision::WAIT);
}

#[test]
fn copies_go_neither_to_failed_nor_to_idle_backup_subflows() {
    let data = sent_range(1, 0, 10);
    for fast in [stale(subflow(0, 10)), backup(subflow(0, 10))] {
        let all = [single(fast, data), subflow(1, 70)];
        assert_eq!(minrtt(&at_the_end(&all)), Decision::WAIT);
        let shut = minrtt(&blocked(&all, data));
        assert!(matches!(shut, Decision::Wait { .. }), "{shut:?}");
    }
    let all = [backup(single(subflow(0, 10), data)), stale(subflow(1, 70))];
    assert_eq!(minrtt(&at_the_end(&all)), copy(0, data));
}

#[test]
fn the_tail_is_copied_if_the_copy_is_clearly_earlier() {
    // A copy needs half of the fast round trip and its deviation: (30 + 2) / 2 = 16 ms. The data still needs a
    // quarter of the slow round trip: 17.5 ms of 70, but 15 of 60.
    let data = sent_range(1, 0, 10);
    let tail = |fast_ms, rttvar_ms, slow_ms| {
        let fast = SubflowView {
            rttvar: Duration::from_millis(rttvar_ms),
            ..single(subflow(0, fast_ms), data)
        };
        minrtt(&at_the_end(&[fast, subflow(1, slow_ms)]))
    };
    assert_eq!(tail(30, 2, 70), copy(0, data));
    assert_eq!(tail(30, 2, 60), Decision::WAIT);
    assert_eq!(tail(30, 10, 70), Decision::WAIT, "(30 + 10) / 2");
    assert_eq!(tail(70, 2, 30), Decision::WAIT);
}

#[test]
fn roundrobin_gives_one_segment_in_turn() {
    let mut strategy = RoundRobin::default();
    let mut next = |all: &[SubflowView]| strategy.next(&view(all), &mut Rng::for_component(0, 0));
    let all = [subflow(0, 300), subflow(1, 10), subflow(2, 70)];
    let turns: Vec<_> = (0..4).map(|_| next(&all)).collect();
    let expected = [0, 1, 2, 0].map(|id| send(id, 1000));
    assert_eq!(turns, expected);
    // A subflow without room has no turn, and the next round starts without it.
    let all = [subflow(0, 300), full(subflow(1, 10)), subflow(2, 70)];
    let turns: Vec<_> = (0..3).map(|_| next(&all)).collect();
    let expected = [2, 0, 2].map(|id| send(id, 1000));
    assert_eq!(turns, expected);
    let all = [full(subflow(0, 300)), stale(subflow(1, 10))];
    assert_eq!(next(&all), Decision::WAIT);
}

#[test]
fn redundant_sends_all_data_on_every_subflow() {
    let uncopied = sent_range(0, 3000, 10);
    let all = [subflow(0, 70), single(subflow(1, 90), uncopied)];
    let view = view(&all);
    assert_eq!(decide("redundant", &view), Decision::new_on(SubflowId(0)));
    let all = [full(subflow(0, 30)), single(subflow(1, 90), uncopied)];
    let view = SendView {
        subflows: &all,
        ..view
    };
    assert_eq!(decide("redundant", &view), copy(1, uncopied));
    // The tail is copied too, even on a slower subflow.
    let all = [subflow(0, 30), single(subflow(1, 90), uncopied)];
    assert_eq!(decide("redundant", &at_the_end(&all)), copy(1, uncopied));
    let done = [subflow(0, 30), subflow(1, 90)];
    assert_eq!(decide("redundant", &at_the_end(&done)), Decision::WAIT);
    let spare = [backup(subflow(0, 10)), full(subflow(1, 90))];
    let view = SendView {
        subflows: &spare,
        ..view
    };
    assert_eq!(decide("redundant", &view), Decision::WAIT);
}
