//! What the strategies decide, by literals.

use std::time::Duration;

use braid_engine::strategy::{Decision, FlowSize, Payload, Reinject, SendView, SubflowView};
use braid_engine::{PathId, SubflowId};
use braid_strategy::{UnknownStrategy, by_name, reinjector, scheduler, strategy};
use braid_wire::{Instant, Rng};

/// A regular subflow with room for 10 of its 20 segments of 1000 bytes.
fn subflow(id: u32, srtt_ms: u64) -> SubflowView {
    SubflowView {
        id: SubflowId(id),
        path: PathId(id as u8),
        srtt: Duration::from_millis(srtt_ms),
        rttvar: Duration::from_millis(srtt_ms / 20),
        min_rtt: Duration::from_millis(srtt_ms),
        cwnd: 20_000,
        ssthresh: u64::MAX,
        in_flight: 10_000,
        mss: 1000,
        pacing_rate: 1_000_000,
        loss: 0.0,
        backup: false,
        stale: false,
        ready: true,
    }
}

fn full(s: SubflowView) -> SubflowView {
    SubflowView {
        in_flight: s.cwnd,
        ready: false,
        ..s
    }
}

fn paced(s: SubflowView) -> SubflowView {
    SubflowView { ready: false, ..s }
}

fn stale(s: SubflowView) -> SubflowView {
    SubflowView { stale: true, ..s }
}

fn backup(s: SubflowView) -> SubflowView {
    SubflowView { backup: true, ..s }
}

fn view(subflows: &[SubflowView]) -> SendView<'_> {
    SendView {
        now: Instant::ZERO,
        subflows,
        unsent: 100_000,
        peer_window: 1_000_000,
        outstanding: 20_000,
        flow_size: FlowSize::Unknown,
    }
}

fn minrtt(view: &SendView<'_>) -> Decision {
    let mut scheduler = by_name("minrtt").unwrap().scheduler;
    scheduler.next(view, &mut Rng::for_component(0, 0))
}

fn send(id: u32, max_bytes: u32) -> Decision {
    Decision::Send {
        subflow: SubflowId(id),
        data: Payload::New,
        max_bytes,
    }
}

fn opportunistic(view: &SendView<'_>, holder: u32) -> Option<Reinject> {
    by_name("minrtt")
        .unwrap()
        .reinjector
        .next(view, SubflowId(holder))
}

fn copy(id: u32, penalise_holder: bool) -> Option<Reinject> {
    Some(Reinject {
        subflow: SubflowId(id),
        penalise_holder,
    })
}

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
        Decision::Wait
    );
    assert_eq!(minrtt(&view(&[])), Decision::Wait);
}

#[test]
fn minrtt_uses_a_backup_only_without_a_usable_regular_subflow() {
    let fast = backup(subflow(0, 10));
    assert_eq!(minrtt(&view(&[fast, subflow(1, 70)])), send(1, 10_000));
    assert_eq!(minrtt(&view(&[fast, full(subflow(1, 70))])), Decision::Wait);
    assert_eq!(
        minrtt(&view(&[fast, stale(subflow(1, 70))])),
        send(0, 10_000)
    );
    assert_eq!(minrtt(&view(&[fast])), send(0, 10_000));
}

#[test]
fn minrtt_leaves_to_a_paced_subflow_what_its_window_takes() {
    let all = [paced(subflow(0, 30)), subflow(1, 70)];
    let of = |unsent, peer_window| {
        minrtt(&SendView {
            unsent,
            peer_window,
            ..view(&all)
        })
    };
    assert_eq!(of(10_000, 1_000_000), Decision::Wait);
    assert_eq!(of(14_000, 1_000_000), send(1, 4_000));
    assert_eq!(of(100_000, 1_000_000), send(1, 10_000));
    assert_eq!(of(100_000, 10_000), Decision::Wait);
    // No slivers.
    assert_eq!(of(10_001, 1_000_000), send(1, 1_000));
    // A slower one has no such claim, nor has a failed or a backup one.
    for other in [
        paced(subflow(0, 90)),
        stale(paced(subflow(0, 30))),
        backup(paced(subflow(0, 30))),
    ] {
        assert_eq!(minrtt(&view(&[other, subflow(1, 70)])), send(1, 10_000));
    }
}

#[test]
fn a_blocked_window_moves_the_oldest_data_to_the_fastest_subflow() {
    let all = [subflow(0, 30), subflow(1, 70), subflow(2, 50)];
    let blocked = SendView {
        peer_window: 0,
        ..view(&all)
    };
    assert_eq!(opportunistic(&blocked, 1), copy(0, true));
    assert_eq!(opportunistic(&blocked, 0), None, "the fastest one holds it");
    let all = [full(subflow(0, 30)), subflow(1, 70), subflow(2, 90)];
    let blocked = SendView {
        peer_window: 0,
        ..view(&all)
    };
    assert_eq!(
        opportunistic(&blocked, 1),
        None,
        "only a slower one has room"
    );
    assert_eq!(opportunistic(&blocked, 7), None, "no such subflow");
}

#[test]
fn copies_go_neither_to_failed_nor_to_idle_backup_subflows() {
    for fast in [stale(subflow(0, 10)), backup(subflow(0, 10))] {
        let all = [fast, subflow(1, 70)];
        assert_eq!(
            opportunistic(
                &SendView {
                    peer_window: 0,
                    ..view(&all)
                },
                1
            ),
            None
        );
        assert_eq!(
            opportunistic(
                &SendView {
                    unsent: 0,
                    ..view(&all)
                },
                1
            ),
            None
        );
    }
    let all = [backup(subflow(0, 10)), stale(subflow(1, 70))];
    assert_eq!(
        opportunistic(
            &SendView {
                unsent: 0,
                ..view(&all)
            },
            1
        ),
        copy(0, false)
    );
}

#[test]
fn the_tail_is_copied_where_that_is_clearly_earlier() {
    let tail = |fast_ms, rttvar_ms, slow_ms| {
        let fast = SubflowView {
            rttvar: Duration::from_millis(rttvar_ms),
            ..subflow(0, fast_ms)
        };
        let all = [fast, subflow(1, slow_ms)];
        opportunistic(
            &SendView {
                unsent: 0,
                ..view(&all)
            },
            1,
        )
    };
    assert_eq!(tail(30, 2, 70), copy(0, false));
    assert_eq!(tail(30, 2, 60), None);
    assert_eq!(tail(30, 10, 70), None, "the fast one is not that sure");
    assert_eq!(tail(70, 2, 30), None);
}

#[test]
fn none_never_copies() {
    let all = [subflow(0, 10), subflow(1, 700)];
    let mut none = strategy("minrtt", "none").unwrap().reinjector;
    assert_eq!(
        none.next(
            &SendView {
                unsent: 0,
                ..view(&all)
            },
            SubflowId(1)
        ),
        None
    );
    assert_eq!(
        none.next(
            &SendView {
                peer_window: 0,
                ..view(&all)
            },
            SubflowId(1)
        ),
        None
    );
}

#[test]
fn strategies_answer_to_the_name_they_are_listed_under() {
    for name in scheduler::names() {
        assert_eq!(scheduler::by_name(name).unwrap().name(), name);
    }
    for name in reinjector::names() {
        assert_eq!(reinjector::by_name(name).unwrap().name(), name);
    }
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let error = by_name("fastest").unwrap_err();
    let UnknownStrategy {
        kind,
        ref name,
        ref known,
    } = error;
    assert_eq!(
        (kind, name.as_str(), known.as_slice()),
        ("scheduler", "fastest", &["minrtt"][..])
    );
    assert_eq!(
        error.to_string(),
        r#"unknown scheduler "fastest"; known are: minrtt"#
    );
    assert_eq!(
        strategy("minrtt", "").unwrap_err().to_string(),
        r#"unknown reinjector ""; known are: opportunistic, none"#
    );
}
