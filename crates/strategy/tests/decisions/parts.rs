//! The parts of strategies on literal values, some from the papers.

use std::time::Duration;

use braid_engine::SubflowId;
use braid_engine::strategy::{FlowSize, StrategyEvent, SubflowView};
use braid_strategy::parts::flow::{FlowClass, Limits, size};
use braid_strategy::parts::quality::{
    Attributes, Highest, MeasuredLoss, Weights, modelled_loss, score,
};
use braid_strategy::parts::rank::{by_base_rtt, by_rtt_and_window};
use braid_strategy::parts::table::PerSubflow;
use braid_wire::Instant;

use crate::views::subflow;

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn classes_begin_and_end_where_published() {
    let limits = Limits::default();
    for (size, class) in [
        (0, FlowClass::Mosquito),
        (4_096, FlowClass::Mosquito),
        (4_097, FlowClass::Mouse),
        (1_048_575, FlowClass::Mouse),
        (1_048_576, FlowClass::Elephant),
        (u64::MAX, FlowClass::Elephant),
    ] {
        assert_eq!(limits.class(size), class, "{size}");
    }
    let other = Limits {
        mosquito: 14_320,
        elephant: 100_000,
    };
    assert_eq!(other.class(14_320), FlowClass::Mosquito);
    assert_eq!(other.class(100_000), FlowClass::Elephant);
}

/// FSA-MPTCP reports 94 % at 64 kB and 50 % at 512 kB.
#[test]
fn redundancy_falls_from_one_to_nothing() {
    let alpha = |size| Limits::default().redundancy(size);
    assert_eq!(alpha(0), 1.0);
    assert_eq!(alpha(4 << 10), 1.0);
    assert!((alpha(64 << 10) - 0.941).abs() < 0.0005);
    assert!((alpha(512 << 10) - 0.502).abs() < 0.0005);
    assert_eq!(alpha(1 << 20), 0.0);
    assert_eq!(alpha(u64::MAX), 0.0);
}

#[test]
fn the_size_is_the_larger_of_announced_and_seen() {
    assert_eq!(size(FlowSize::Unknown, 700), 700);
    assert_eq!(size(FlowSize::Predicted(64_000), 700), 64_000);
    assert_eq!(size(FlowSize::Declared(64_000), 70_000), 70_000);
}

#[test]
fn equal_round_trips_are_ordered_by_window() {
    let windowed = |id, srtt, cwnd| SubflowView {
        cwnd,
        ..subflow(id, srtt)
    };
    let mut all = [
        windowed(0, 0, 90_000),
        windowed(1, 50, 90_000),
        windowed(2, 30, 10_000),
        windowed(3, 30, 20_000),
        windowed(4, 30, 20_000),
    ];
    all.sort_by_key(by_rtt_and_window);
    // Ties stay in the order of creation.
    assert_eq!(all.map(|s| s.id.0), [3, 4, 2, 1, 0]);
}

#[test]
fn a_queue_does_not_change_the_rank_of_a_path() {
    let queued = SubflowView {
        srtt: Duration::from_millis(150),
        ..subflow(0, 40)
    };
    assert!(by_base_rtt(&queued) < by_base_rtt(&subflow(1, 100)));
    assert!(by_base_rtt(&subflow(1, 100)) < by_base_rtt(&subflow(2, 0)));
}

/// MPTCP-MAPS: MP = 0.5 lambda + 0.5 delta.
#[test]
fn the_score_joins_round_trip_and_loss() {
    let half = Weights {
        rtt: 0.5,
        loss: 0.5,
    };
    let path = |rtt, loss| Attributes { rtt, loss };
    let highest = path(0.2, 0.04);
    // Half of a quarter and half of a quarter.
    assert!(close(score(half, path(0.05, 0.01), highest), 0.25));
    assert!(close(score(half, path(0.2, 0.0), highest), 0.5));
    // The only path, or one of equal paths, has the highest values itself.
    assert!(close(score(half, highest, highest), 1.0));
    // No loss anywhere, and no sample.
    assert!(close(score(half, path(0.1, 0.0), path(0.2, 0.0)), 0.25));
    assert_eq!(score(half, path(0.0, 0.0), path(0.0, 0.0)), 0.0);
    let rtt_only = Weights {
        rtt: 1.0,
        loss: 0.0,
    };
    assert!(close(score(rtt_only, path(0.05, 0.04), highest), 0.25));
}

/// MPTCP-MAPS, equation 4. The window of 30,000 bytes is 20 segments of 1500 bytes per round trip without queues.
#[test]
fn the_modelled_loss_follows_from_the_window() {
    let base = Duration::from_millis(50);
    assert!(close(
        modelled_loss(0.05, base, 30_000),
        (1.22f64 / 20.0).powi(2)
    ));
    // At twice the round-trip time the model assumes twice the bytes in flight.
    assert!(close(
        modelled_loss(0.1, base, 30_000),
        (1.22f64 / 40.0).powi(2)
    ));
    assert_eq!(modelled_loss(0.05, base, 1_500), 1.0);
    assert_eq!(modelled_loss(0.0, Duration::ZERO, 30_000), 0.0);
    assert_eq!(modelled_loss(0.05, base, 0), 0.0);
}

#[test]
fn the_highest_values_are_those_of_all_paths_in_ten_seconds() {
    let at = Instant::from_millis;
    let path = |rtt, loss| Attributes { rtt, loss };
    let mut highest = Highest::default();
    let first = [path(0.2, 0.01), path(0.1, 0.03)];
    assert_eq!(highest.with(at(5_000), first.into_iter()), path(0.2, 0.03));
    let later = [path(0.1, 0.02)];
    // The value from second 5 is in one of the ten buckets until second 14.
    assert_eq!(highest.with(at(14_999), later.into_iter()), path(0.2, 0.03));
    assert_eq!(highest.with(at(15_000), later.into_iter()), path(0.1, 0.02));
    let none = [path(0.0, 0.0)];
    assert_eq!(highest.with(at(900_000), none.into_iter()), none[0]);
}

#[test]
fn measured_loss_is_forgotten_after_ten_seconds() {
    let at = Instant::from_millis;
    let mut loss = MeasuredLoss::default();
    assert_eq!(loss.share(at(0)), 0.0);
    loss.on_delivered(9_000);
    loss.on_lost(1_000);
    assert!(close(loss.share(at(1_000)), 0.1));
    loss.on_delivered(10_000);
    // 1,000 of 20,000.
    assert!(close(loss.share(at(2_000)), 0.05));
    assert_eq!(loss.share(at(11_000)), 0.0);
}

#[test]
fn the_table_drops_ended_and_oldest_subflows() {
    let mut table = PerSubflow::<u32>::default();
    // Of 40 subflows, the table has room for 32: it drops 0 to 7.
    for id in 0..40 {
        *table.of(SubflowId(id)) += id;
    }
    assert_eq!(table.get(SubflowId(7)), None, "the oldest made room");
    assert_eq!(table.get(SubflowId(39)), Some(&39));
    let subflow = SubflowId(39);
    table.on_event(&StrategyEvent::SubflowDown { subflow });
    assert_eq!(table.get(subflow), None);
}
