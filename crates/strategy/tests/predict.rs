//! Predictions for literal histories, and their bounds for random ones.

use core::time::Duration;

use braid_engine::strategy::FlowSize::{self, Predicted, Unknown};
use braid_strategy::predict::{Place, Predictor};
use braid_wire::Instant;
use proptest::prelude::*;

const NOW: Instant = Instant::from_millis(1_000);

fn address(host: u8, port: u16) -> Place {
    Place::Address([192, 0, 2, host].into(), port)
}

fn name(name: &str) -> Place {
    Place::Name(name.to_owned(), 443)
}

/// Returns the prediction for a place after flows of these sizes to it.
fn after(sizes: &[u64]) -> FlowSize {
    let mut predictor = Predictor::new(4);
    for size in sizes {
        predictor.record(NOW, &[name("a")], *size);
    }
    predictor.predict(NOW, &[name("a")])
}

#[test]
fn the_median_is_predicted_after_eight_flows() {
    assert_eq!(after(&[]), Unknown);
    assert_eq!(after(&[500; 7]), Unknown);
    assert_eq!(after(&[500; 8]), Predicted(500));
    assert_eq!(
        after(&[900, 100, 200, 300, 800, 700, 600, 500, 400]),
        Predicted(500)
    );
    let even = [100, 200, 300, 400, 500, 600, 700, 800];
    assert_eq!(after(&even), Predicted(450), "the mean of 400 and 500");
    assert_eq!(after(&[u64::MAX; 8]), Predicted(u64::MAX));
}

#[test]
fn a_few_outliers_change_nothing() {
    let sizes = [5, 64_000, 64_000, 64_000, 64_000, 64_000, 64_000, 1 << 40];
    assert_eq!(after(&sizes), Predicted(64_000));
}

#[test]
fn sizes_far_apart_predict_nothing() {
    let within = [64, 64, 64, 128, 256, 512, 512, 512].map(|kb| kb << 10);
    assert_eq!(
        after(&within),
        Predicted(192 << 10),
        "the quartiles are 64 and 512"
    );
    let beyond = [63, 63, 63, 128, 256, 512, 512, 512].map(|kb| kb << 10);
    assert_eq!(after(&beyond), Unknown);
    assert_eq!(after(&[0; 20]), Unknown, "a size of 0 is no prediction");
}

#[test]
fn only_the_last_flows_count() {
    let mut sizes = vec![1_000_000; 100];
    sizes.extend([20_000; 25]);
    assert_eq!(after(&sizes), Predicted(20_000), "25 of the last 32");
}

#[test]
fn the_first_place_with_a_prediction_counts() {
    let mut predictor = Predictor::new(16);
    for _ in 0..8 {
        predictor.record(NOW, &[name("a"), address(1, 443)], 1_000);
        predictor.record(NOW, &[name("b"), address(1, 443)], 4_000);
    }
    let both = |host| [name(host), address(1, 443)];
    assert_eq!(predictor.predict(NOW, &both("a")), Predicted(1_000));
    assert_eq!(predictor.predict(NOW, &both("b")), Predicted(4_000));
    // The address has both sizes eight times; the median is their mean.
    let by_address = Predicted(2_500);
    assert_eq!(predictor.predict(NOW, &both("c")), by_address);
    assert_eq!(predictor.predict(NOW, &[address(1, 443)]), by_address);
    assert_eq!(predictor.predict(NOW, &[address(1, 80)]), Unknown);
    assert_eq!(predictor.predict(NOW, &[address(2, 443)]), Unknown);
    assert_eq!(predictor.predict(NOW, &[]), Unknown);
}

#[test]
fn history_is_forgotten_after_a_week() {
    let mut predictor = Predictor::new(4);
    let place = [address(1, 80)];
    for _ in 0..8 {
        predictor.record(NOW, &place, 1_000);
    }
    let week_later = NOW + Duration::from_secs(7 * 86_400);
    assert_eq!(predictor.predict(week_later, &place), Predicted(1_000));
    let later = week_later + Duration::from_nanos(1);
    assert_eq!(predictor.predict(later, &place), Unknown);
    for n in 0..8 {
        assert_eq!(predictor.predict(later, &place), Unknown, "{n} new ones");
        predictor.record(later, &place, 9_000);
    }
    assert_eq!(predictor.predict(later, &place), Predicted(9_000));
}

#[test]
fn a_place_in_use_is_not_evicted() {
    // 100,000 other places pass through 64 entries. The place is read more often than the hand goes round once.
    let mut predictor = Predictor::new(64);
    let mine = [name("mine")];
    for _ in 0..8 {
        predictor.record(NOW, &mine, 1_000);
    }
    for n in 0..100_000u32 {
        predictor.record(NOW, &[Place::Address(n.to_be_bytes().into(), 443)], 7);
        if n % 32 == 0 {
            assert_eq!(predictor.predict(NOW, &mine), Predicted(1_000), "after {n}");
        }
    }
    assert_eq!(predictor.len(), 64);
}

proptest! {
    #[test]
    fn predictions_lie_within_the_last_sizes(
        sizes in prop::collection::vec(prop_oneof![0..100u64, any::<u64>()], 0..80),
    ) {
        let last = &sizes[sizes.len().saturating_sub(32)..];
        if let Some(bytes) = after(&sizes).bytes() {
            prop_assert!(sizes.len() >= 8 && bytes > 0);
            let (min, max) = (last.iter().min().unwrap(), last.iter().max().unwrap());
            prop_assert!((min..=max).contains(&&bytes));
        }
    }

    #[test]
    fn memory_is_bounded_for_any_calls(
        capacity in 0..5usize,
        calls in prop::collection::vec((any::<bool>(), 0..9u8, 0..1_000_000u64), 0..200),
    ) {
        let mut predictor = Predictor::new(capacity);
        for (predicts, host, n) in calls {
            let places = [address(host, 1), address(host / 2, 2)];
            let now = NOW + Duration::from_secs(n);
            match predicts {
                true => drop(predictor.predict(now, &places)),
                false => predictor.record(now, &places, n),
            }
            prop_assert!(predictor.len() <= capacity.max(1));
        }
    }
}
