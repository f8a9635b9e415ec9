//! The published strategies, rule by rule.

use std::time::Duration;

use braid_engine::strategy::{
    Decision, FlowSize, OpenView, Opening, PathView, Payload, SendView, Strategy, StrategyEvent,
    SubflowView,
};
use braid_engine::{PathId, PathRecord, Protocol, SubflowId};
use braid_strategy::{Fsa, by_name};
use braid_wire::Rng;

use crate::views::*;

const MOUSE: FlowSize = FlowSize::Declared(512 << 10);
/// The smallest mouse. Its alpha is so close to 1 that the draws in these tests give copies only.
const TINY_MOUSE: FlowSize = FlowSize::Predicted(4_097);
/// The largest mouse. Its alpha is so close to 0 that the draws in these tests give new data only.
const HUGE_MOUSE: FlowSize = FlowSize::Read((1 << 20) - 1);
const ELEPHANT: FlowSize = FlowSize::Declared(1 << 20);

fn fsa(view: &SendView<'_>) -> Decision {
    decide("fsa", view)
}

/// Returns a view of a flow of size `size` that has written at most 4,000 bytes, so that the size determines the
/// class.
fn sized<'a>(size: FlowSize, view: SendView<'a>) -> SendView<'a> {
    SendView {
        flow_size: size,
        sent: 1_000,
        unsent: view.unsent.min(3_000),
        ..view
    }
}

/// Returns the decision to send a copy of at most `max_bytes` bytes.
fn copy_of(id: u32, data: braid_engine::strategy::InFlight, max_bytes: u32) -> Decision {
    Decision::Send {
        subflow: SubflowId(id),
        data: Payload::Copy {
            data,
            penalise: false,
        },
        max_bytes,
    }
}

#[test]
fn fsa_puts_new_data_on_the_best_subflow() {
    let data = sent_range(0, 0, 10);
    let all = [
        single(subflow(0, 30), sent_range(1, 0, 10)),
        single(subflow(1, 70), data),
    ];
    for size in [FlowSize::Unknown, TINY_MOUSE, MOUSE, ELEPHANT] {
        let decision = fsa(&sized(size, view(&all)));
        assert_eq!(decision, Decision::new_on(SubflowId(0)), "{size:?}");
    }
    // The best path is the one with the lowest round-trip time without queues, even if it is full.
    let best = SubflowView {
        srtt: Duration::from_millis(200),
        ..full(subflow(0, 30))
    };
    let all = [best, single(subflow(1, 70), data)];
    let decision = fsa(&sized(TINY_MOUSE, view(&all)));
    assert!(
        matches!(decision, Decision::Send { subflow, data: Payload::Copy { .. }, .. }
        if subflow.0 == 1),
        "{decision:?}"
    );
    // The best subflow has nothing to copy at the end.
    let all = [single(subflow(0, 30), sent_range(1, 0, 10)), subflow(1, 70)];
    assert_eq!(fsa(&sized(MOUSE, at_the_end(&all))), Decision::WAIT);
}

/// A mouse sends data of the other kind if there is none of the drawn kind, and nothing if there is neither.
#[test]
fn fsa_sends_the_other_kind_if_the_drawn_one_is_missing() {
    let data = sent_range(0, 0, 10);
    let with = [full(subflow(0, 30)), single(subflow(1, 70), data)];
    let without = [full(subflow(0, 30)), subflow(1, 70)];
    assert_eq!(fsa(&sized(TINY_MOUSE, view(&without))), send(1, 1_000));
    assert_eq!(
        fsa(&sized(TINY_MOUSE, at_the_end(&without))),
        Decision::WAIT
    );
    let new = fsa(&sized(HUGE_MOUSE, view(&with)));
    assert!(matches!(new, Decision::Send { subflow, data: Payload::New, .. } if subflow.0 == 1));
    let tail = fsa(&sized(HUGE_MOUSE, at_the_end(&with)));
    assert!(
        matches!(tail, Decision::Send { subflow, data: Payload::Copy { .. }, .. }
        if subflow.0 == 1)
    );
    // If new data waits for the peer's window, no copy takes its place.
    let shut = sized(HUGE_MOUSE, blocked(&with, data));
    assert_eq!(fsa(&shut), Decision::WAIT);
}

/// Returns the share of copies among the packets on the other subflows, if the engine sends at most `burst`
/// packets for each decision.
fn share_of_copies(size: FlowSize, burst: u64) -> f64 {
    let mut strategy = Fsa::default();
    let mut rng = Rng::for_component(7, burst);
    let data = braid_engine::strategy::InFlight {
        end: 1_000_000,
        ..sent_range(0, 0, 10)
    };
    let (mut copies, mut sent) = (0, 0);
    while sent < 20_000_000 {
        let other = SubflowView {
            sent,
            ..single(subflow(1, 70), data)
        };
        let all = [full(subflow(0, 30)), other];
        let decision = strategy.next(&sized(size, view(&all)), &mut rng);
        let Decision::Send {
            data, max_bytes, ..
        } = decision
        else {
            panic!("{decision:?}");
        };
        let bytes = u64::from(max_bytes).min(1_000 * (1 + rng.below(burst)));
        sent += bytes;
        copies += if data == Payload::New { 0 } else { bytes };
    }
    copies as f64 / sent as f64
}

#[test]
fn fsa_copies_the_share_alpha_for_any_burst() {
    // Alpha falls linearly from 1 at 4 KiB to 0 at 1 MiB: 1 - (64 - 4) / (1024 - 4) = 0.941.
    for (size, alpha) in [(64 << 10, 0.941), (512 << 10, 0.502), (900 << 10, 0.122)] {
        for burst in [1, 4, 40] {
            let share = share_of_copies(FlowSize::Declared(size), burst);
            assert!((share - alpha).abs() < 0.015, "{size}, {burst}: {share}");
        }
    }
}

#[test]
fn fsa_sends_no_copy_of_an_elephant() {
    let data = sent_range(0, 0, 10);
    let all = [full(subflow(0, 30)), single(subflow(1, 70), data)];
    let new = Decision::new_on(SubflowId(1));
    for size in [ELEPHANT, FlowSize::Read(u64::MAX)] {
        assert_eq!(fsa(&sized(size, view(&all))), new);
        assert_eq!(fsa(&sized(size, at_the_end(&all))), Decision::WAIT);
        assert_eq!(fsa(&sized(size, blocked(&all, data))), Decision::WAIT);
    }
    // A flow that has grown to an elephant beyond its announced size.
    for size in [FlowSize::Unknown, FlowSize::Declared(1)] {
        let grown = SendView {
            sent: 1 << 20,
            flow_size: size,
            ..at_the_end(&all)
        };
        assert_eq!(fsa(&grown), Decision::WAIT);
    }
}

#[test]
fn fsa_keeps_a_mosquito_on_one_subflow() {
    let all = [
        full(subflow(0, 30)),
        single(subflow(1, 70), sent_range(0, 0, 10)),
    ];
    let tiny = SendView {
        sent: 0,
        unsent: 4_096,
        ..view(&all)
    };
    for size in [
        FlowSize::Unknown,
        FlowSize::Declared(4_096),
        FlowSize::Declared(0),
    ] {
        let tiny = SendView {
            flow_size: size,
            ..tiny
        };
        assert_eq!(fsa(&tiny), Decision::WAIT);
        let grown = SendView {
            unsent: 4_097,
            ..tiny
        };
        assert_ne!(fsa(&grown), Decision::WAIT, "{size:?}");
    }
}

pub fn path(id: u8, rtt_ms: Option<u64>) -> PathView {
    let record = rtt_ms.map(|ms| PathRecord {
        srtt: Duration::from_millis(300),
        base_rtt: Duration::from_millis(ms),
        ..PathRecord::default()
    });
    PathView {
        record,
        ..PathView::new(PathId(id))
    }
}

pub fn opening(paths: &[PathView], flow_size: FlowSize) -> OpenView<'_> {
    OpenView {
        requested: Some(PathId(1)),
        flow_size,
        ..OpenView::new(NOW, paths)
    }
}

fn opens(view: &OpenView<'_>) -> Option<(u8, Protocol)> {
    let opening = Fsa::default().open(view);
    opening.map(|Opening { path, protocol }| (path.0, protocol))
}

#[test]
fn fsa_opens_on_the_fastest_path_on_record() {
    let mptcp = |id| Some((id, Protocol::Mptcp));
    let known = [path(0, Some(100)), path(1, Some(120)), path(2, Some(40))];
    let open = opening(&known, MOUSE);
    assert_eq!(opens(&open), mptcp(2));
    // After a path that did not answer, the next one is tried.
    let again = OpenView {
        unanswered: Some(PathId(2)),
        ..open
    };
    assert_eq!(opens(&again), mptcp(0));
    let some = [path(0, None), path(1, None), path(2, Some(900))];
    assert_eq!(opens(&opening(&some, MOUSE)), mptcp(2));
    let spare = PathView {
        backup: true,
        ..path(0, Some(10))
    };
    assert_eq!(
        opens(&opening(&[spare, path(1, Some(80))], MOUSE)),
        mptcp(1)
    );
    // Without records the flow opens as stock MPTCP does, on the requested path.
    let unknown = [path(0, None), path(1, None)];
    assert_eq!(opens(&opening(&unknown, MOUSE)), mptcp(1));
    assert_eq!(opens(&opening(&[], MOUSE)), None);
}

/// A mosquito uses regular TCP only if its size is declared, and joins no further path.
#[test]
fn fsa_opens_one_subflow_for_a_mosquito() {
    let paths = [path(0, Some(40)), path(1, Some(100))];
    for (size, protocol, joins) in [
        (FlowSize::Declared(4_096), Protocol::Tcp, false),
        (FlowSize::Read(4_096), Protocol::Mptcp, false),
        (FlowSize::Predicted(1), Protocol::Mptcp, false),
        (FlowSize::Unknown, Protocol::Mptcp, false),
        (FlowSize::Declared(4_097), Protocol::Mptcp, true),
        (ELEPHANT, Protocol::Mptcp, true),
    ] {
        let view = opening(&paths, size);
        assert_eq!(opens(&view), Some((0, protocol)), "{size:?}");
        let join = Fsa::default().join(&view, &paths[1]);
        assert_eq!(join, joins.then_some(NOW), "{size:?}");
        // A flow that has grown to a mouse joins.
        let grown = OpenView {
            seen: 4_097,
            ..view
        };
        assert_eq!(Fsa::default().join(&grown, &paths[1]), Some(NOW));
    }
}

/// Returns `view` with `bytes` more unsent data, of the given urgency.
pub fn urgent(view: SendView<'_>, urgency: usize, bytes: u64) -> SendView<'_> {
    let mut unsent_by_urgency = view.unsent_by_urgency;
    unsent_by_urgency[urgency] += bytes;
    SendView {
        unsent: view.unsent + bytes,
        unsent_by_urgency,
        ..view
    }
}

#[test]
fn po_sends_important_data_on_the_best_subflow() {
    // The base strategy would begin with subflow 0.
    let decide = |view: &SendView<'_>| decide("po:base=roundrobin", view);
    let larger = SubflowView {
        cwnd: 25_000,
        ..subflow(2, 30)
    };
    let all = [subflow(0, 70), subflow(1, 30), larger];
    for urgency in 0..3 {
        let important = urgent(view(&all), urgency, 50_000);
        assert_eq!(decide(&important), send(2, 15_000), "{urgency}");
    }
    for urgency in 3..8 {
        let other = urgent(view(&all), urgency, 50_000);
        assert_eq!(decide(&other), send(0, 1_000), "{urgency}");
    }
    // While the best is full, the next one is taken.
    let best_full = [subflow(0, 70), subflow(1, 30), full(larger)];
    let important = urgent(view(&best_full), 0, 50_000);
    assert_eq!(decide(&important), send(1, 10_000));
    // A subflow that only its pacer holds back is not full: its window room of 10,000 bytes is reserved for it.
    let best_paced = [subflow(0, 70), paced(subflow(1, 30))];
    assert_eq!(
        decide(&urgent(view(&best_paced), 0, 10_000)),
        Decision::WAIT
    );
    assert_eq!(
        decide(&urgent(view(&best_paced), 0, 14_000)),
        send(0, 4_000)
    );
}

#[test]
fn po_sends_only_lost_data_before_important_data() {
    let data = sent_range(1, 0, 10);
    let all = [subflow(0, 30), single(subflow(1, 70), data)];
    let important = urgent(view(&all), 1, 5_000);
    assert_eq!(decide("po:base=redundant", &important), send(0, 5_000));
    let all = [subflow(0, 30), lost(subflow(1, 70), data)];
    let important = urgent(view(&all), 1, 5_000);
    assert_eq!(decide("po", &important), copy(1, data));
    // While the peer's window is shut, the base strategy decides.
    let all = [single(subflow(0, 30), data), subflow(1, 70)];
    let shut = urgent(blocked(&all, data), 1, 5_000);
    assert_eq!(decide("po", &shut), penalty(0, data));
}

/// Returns two subflows. The first has 40 ms and the highest modelled loss, the second 50 ms and three times the
/// window, so a ninth of that loss. Their scores are 0.5 * 40 / 50 + 0.5 = 0.9 and 0.5 + 0.5 / 9 = 0.56.
fn unequal() -> [SubflowView; 2] {
    let wide = SubflowView {
        cwnd: 60_000,
        ..subflow(1, 50)
    };
    [subflow(0, 40), wide]
}

#[test]
fn maps_sends_on_the_path_of_lowest_score() {
    let [a, b] = unequal();
    assert_eq!(decide("maps", &view(&[a, b])), send(1, 50_000));
    assert_eq!(
        decide("maps:single", &view(&[a, b])),
        Decision::new_on(SubflowId(1))
    );
    // Without the weight of loss, or with measured loss, of which there was none, the round-trip time decides.
    for name in ["maps:beta=0", "maps:plr=measured"] {
        assert_eq!(decide(name, &view(&[a, b])), send(0, 10_000), "{name}");
    }
    // Equal scores keep the order of creation; a subflow without a sample comes last.
    let equal = [subflow(0, 40), subflow(1, 40)];
    assert_eq!(decide("maps", &view(&equal)), send(0, 10_000));
    let unknown = [subflow(0, 0), subflow(1, 900)];
    assert_eq!(decide("maps", &view(&unknown)), send(1, 10_000));
    assert_eq!(decide("maps", &view(&[subflow(0, 0)])), send(0, 10_000));
}

#[test]
fn maps_takes_the_next_path_while_the_best_is_full() {
    let [a, b] = unequal();
    let best_full = [a, full(b)];
    assert_eq!(decide("maps", &view(&best_full)), send(0, 10_000));
    assert_eq!(decide("maps:single", &view(&best_full)), Decision::WAIT);
    let best_failed = [a, stale(b)];
    for name in ["maps", "maps:single"] {
        let decision = decide(name, &view(&best_failed));
        assert!(
            matches!(decision, Decision::Send { subflow, .. } if subflow.0 == 0),
            "{name}"
        );
    }
}

/// Epsilon weighs the old value, as in the paper. The smoothed value starts at 40 ms, and each sample is 100 ms. The
/// other path has 70 ms. With `eps=0.5` the value is 70 ms and then 85 ms. With 0.75 it is 74.7 ms after three
/// samples. With 0.875, the default, it is 69.2 ms after five and 73.1 ms after six.
#[test]
fn maps_smooths_every_sample_of_the_round_trip() {
    let other = subflow(1, 70);
    let slower = SubflowView {
        latest_rtt: Duration::from_millis(100),
        ..subflow(0, 40)
    };
    let first = |strategy: &mut Box<dyn Strategy>, path| {
        let decision = strategy.next(&view(&[path, other]), &mut Rng::for_component(0, 0));
        match decision {
            Decision::Send { subflow, .. } => subflow.0,
            wait => panic!("{wait:?}"),
        }
    };
    for (name, samples) in [
        ("maps:eps=0,beta=0,single", 1),
        ("maps:eps=0.5,beta=0,single", 2),
        ("maps:eps=0.75,beta=0,single", 3),
        ("maps:eps=0.875,beta=0,single", 6),
        ("maps:beta=0,single", 6),
    ] {
        let mut strategy = by_name(name).unwrap();
        assert_eq!(first(&mut strategy, subflow(0, 40)), 0, "{name}");
        for sample in 1..=samples {
            // A sample counts only after an acknowledgement.
            assert_eq!(
                first(&mut strategy, slower),
                0,
                "{name}, before sample {sample}"
            );
            strategy.on_event(&StrategyEvent::Acknowledged {
                subflow: SubflowId(0),
                bytes: 1_000,
            });
        }
        assert_eq!(first(&mut strategy, slower), 1, "{name}");
    }
}

#[test]
fn maps_measures_losses_if_set_to() {
    let mut strategy = by_name("maps:plr=measured").unwrap();
    let all = [subflow(0, 40), subflow(1, 50)];
    let mut rng = Rng::for_component(0, 0);
    assert_eq!(strategy.next(&view(&all), &mut rng), send(0, 10_000));
    // The first path now has the highest loss: 0.5 * 40 / 50 + 0.5 * 1 = 0.9 against 0.5 * 1 + 0.
    for event in [
        StrategyEvent::Acknowledged {
            subflow: SubflowId(0),
            bytes: 99_000,
        },
        StrategyEvent::Lost {
            subflow: SubflowId(0),
            bytes: 1_000,
        },
    ] {
        strategy.on_event(&event);
    }
    assert_eq!(strategy.next(&view(&all), &mut rng), send(1, 10_000));
}

/// A path without new data is measured by at most ten segments of copies, once in four round trips (4 * 40 ms =
/// 160).
#[test]
fn maps_single_measures_the_paths_without_new_data() {
    let data = sent_range(1, 0, 10);
    let [a, b] = unequal();
    let mut strategy = by_name("maps:single").unwrap();
    let mut at = |ms, sent| {
        let idle = SubflowView {
            sent,
            ..single(a, data)
        };
        let all = [idle, full(b)];
        let view = SendView {
            now: NOW + Duration::from_millis(ms),
            ..view(&all)
        };
        strategy.next(&view, &mut Rng::for_component(0, 0))
    };
    assert_eq!(at(0, 5_000), copy_of(0, data, 10_000));
    assert_eq!(at(0, 11_500), copy_of(0, data, 3_500));
    assert_eq!(at(159, 15_000), Decision::WAIT);
    assert_eq!(at(160, 15_000), copy_of(0, data, 10_000));
    // A third path is measured after the second.
    let spent = SubflowView {
        sent: 15_000,
        ..single(a, data)
    };
    let third = single(subflow(2, 300), sent_range(1, 0, 10));
    let mut strategy = by_name("maps:single").unwrap();
    let mut rng = Rng::for_component(0, 0);
    let mut next = |all: [SubflowView; 3]| strategy.next(&view(&all), &mut rng);
    let fresh = SubflowView {
        sent: 5_000,
        ..spent
    };
    assert_eq!(next([fresh, full(b), third]), copy_of(0, data, 10_000));
    assert_eq!(next([spent, full(b), third]), copy_of(2, data, 10_000));
    // Without `single`, all paths carry new data and need no measurement.
    let all = [full(b), single(full(a), data)];
    assert_eq!(decide("maps", &view(&all)), Decision::WAIT);
}
