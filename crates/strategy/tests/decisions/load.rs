//! Decisions of `adaptive` on paths that other connections use too, and the arrivals that it expects.

use std::time::Duration;

use braid_engine::strategy::{Strategy, StrategyEvent, SubflowView};
use braid_engine::{PathRecord, SubflowId};
use braid_strategy::Adaptive;
use braid_wire::Rng;

use crate::adaptive::{adaptive, on, steady, used_up, with_unsent};
use crate::views::*;

/// Returns `s` on a path where other connections have `in_flight` bytes in flight and have measured no rate yet.
fn shared(s: SubflowView, in_flight: u64) -> SubflowView {
    SubflowView {
        delivery_rate: 0,
        others_in_flight: in_flight,
        ..s
    }
}

/// The path of 20 ms carries 20 kB without a queue at 1 MB/s. New data waits 40 ms behind 60 kB of other connections,
/// and the other path is only 5 ms longer each way.
#[test]
fn data_of_other_connections_counts_as_a_queue() {
    let two = |others| {
        let fast = shared(steady(0, 20), others);
        on(adaptive(&view(&[fast, steady(1, 30)])))
    };
    assert_eq!(two(0), Some(0));
    assert_eq!(two(20_000), Some(0));
    assert_eq!(two(60_000), Some(1));
}

/// The rates of all connections add up to the bottleneck's rate. A rate of 1 MB/s is only half of it, so that 60 kB of
/// others wait for 10 ms at 2 MB/s instead of 40 ms at 1 MB/s.
#[test]
fn the_bottleneck_is_as_fast_as_all_connections_together() {
    let fast = SubflowView {
        delivery_rate: 1_000_000,
        others_rate: 1_000_000,
        ..shared(steady(0, 20), 60_000)
    };
    assert_eq!(on(adaptive(&view(&[fast, steady(1, 60)]))), Some(0));
    let alone = SubflowView {
        others_rate: 0,
        ..fast
    };
    assert_eq!(on(adaptive(&view(&[alone, steady(1, 60)]))), Some(1));
}

/// A copy takes room for which other connections wait, so it waits until the original is overdue: 100 ms and twice the
/// deviation of 5 ms.
#[test]
fn copies_do_not_displace_other_connections() {
    let sender = SubflowView {
        in_flight: 5_000,
        rttvar: Duration::from_millis(5),
        ..steady(1, 100)
    };
    let copies = |others, age| {
        let data = sent_range(1, 0, age);
        let target = shared(single(steady(0, 20), data), others);
        adaptive(&at_the_end(&[target, sender])) == copy(0, data)
    };
    assert!(copies(0, 5));
    assert!(copies(20_000, 5), "no queue");
    assert!(!copies(30_000, 109));
    assert!(copies(30_000, 110));
}

/// At 1 MB/s, 400 kB in the queue explain that data was not acknowledged for 0.7 s: its round trip of 20 ms, a grace
/// period of 170 ms, and 340 ms in the queue. At a tenth of this rate the path fails its users, although it still
/// delivers, so that no longer queue is an excuse.
#[test]
fn a_queue_explains_late_data() {
    let rescues = |others_rate, age| {
        let data = sent_range(1, 0, age);
        let sender = SubflowView {
            peak_rate: 0,
            delivery_rate: others_rate / 10,
            in_flight: 20_000,
            others_in_flight: 380_000,
            others_rate,
            ..steady(1, 20)
        };
        let subflows = [single(steady(0, 20), data), sender];
        adaptive(&with_unsent(view(&subflows), 50_000)) == copy(0, data)
    };
    // Late are 20 ms and two grace periods.
    assert!(!rescues(0, 359) && rescues(0, 360), "no rate is known");
    assert!(!rescues(1_000_000, 529) && rescues(1_000_000, 530));
    assert!(!rescues(100_000, 529) && rescues(100_000, 530));
}

/// A path with a full window of 20 kB and 1 MB/s delivers too little of the remaining 30 kB in the 51 ms that a packet
/// takes on the other path. If an earlier connection measured the rate only in slow start, the path may be
/// faster, and is worth the wait.
#[test]
fn a_rate_of_slow_start_is_a_lower_bound() {
    let decide = |is_lower_bound| {
        let mut strategy = Adaptive::default();
        let record = PathRecord {
            delivery_rate: 1_000_000,
            is_lower_bound,
            ..PathRecord::default()
        };
        strategy.on_event(&StrategyEvent::SubflowUp {
            subflow: SubflowId(0),
            record: Some(record),
        });
        let fast = SubflowView {
            ssthresh: u64::MAX,
            delivery_rate: 0,
            oldest_sent: Some(NOW),
            ..used_up(steady(0, 20))
        };
        let subflows = [fast, steady(1, 100)];
        let view = with_unsent(view(&subflows), 30_000);
        on(strategy.next(&view, &mut Rng::for_component(0, 0)))
    };
    assert_eq!(decide(false), Some(1));
    assert_eq!(decide(true), None);
}

/// A packet of 1,000 bytes needs 10 ms one way and 1 ms at the bottleneck.
#[test]
fn it_tells_the_arrival_that_it_expects() {
    let mut strategy = Adaptive::default();
    let rng = &mut Rng::for_component(0, 0);
    strategy.next(&view(&[steady(0, 20)]), rng);
    let expected = NOW + Duration::from_millis(11);
    assert_eq!(strategy.expected_arrival(), Some(expected));
    strategy.next(&view(&[used_up(steady(0, 20))]), rng);
    assert_eq!(strategy.expected_arrival(), None);
}
