//! Idle connections of the pool, from end to end.

use core::time::Duration;

use braid_sim::aggregation::{Aggregation, AggregationConfig, Load, TransferId};

use crate::support::{box_counters, link, secs, start};

const SIZE: u64 = 16 << 10;

/// Returns two fast links, of 40 and of 42 ms; the rest of the path takes no time.
fn fast_links() -> AggregationConfig {
    AggregationConfig::new(vec![link(100, 40), link(100, 42)]).unwrap()
}

/// Starts the network and serves a user with so many bytes.
fn served(config: &AggregationConfig, bytes: u64) -> Aggregation {
    let mut net = start(config);
    carry(&mut net, Load::Down(bytes));
    net.run_for(secs(2));
    net
}

fn carry(net: &mut Aggregation, load: Load) -> (TransferId, Duration) {
    let id = net.open(0, 0, load).unwrap();
    assert!(net.finish(secs(10)));
    (id, net.duration(id).unwrap())
}

/// The requirement: at most 1.1 round trips of the best link, for either direction.
#[test]
fn sixteen_kilobytes_take_one_round_trip() {
    let loads = [
        (Load::Down(SIZE), 1.1),
        // An upload is complete on arrival, half a round trip earlier.
        (Load::Up(SIZE), 0.6),
    ];
    for (load, round_trips) in loads {
        let mut net = served(&fast_links(), 1_000);
        let joins = net.box_node().stack().unwrap().stats().join_syns;
        let (_, took) = carry(&mut net, load);
        let bound = Duration::from_millis(40).mul_f64(round_trips);
        assert!(took <= bound, "{load:?}: {took:?}");
        let counters = box_counters(&net);
        assert_eq!((counters.idle_used, counters.idle_failed), (1, 0));
        // Neither handshake nor join happened for this user.
        net.run_for(Duration::from_millis(100));
        let after = net.box_node().stack().unwrap().stats().join_syns;
        assert_eq!(after, joins);

        let mut cold = fast_links();
        cold.boxed.warm.max = 0;
        let (_, took_cold) = carry(&mut served(&cold, 1_000), load);
        let round_trip = Duration::from_millis(40);
        assert!(
            took + round_trip <= took_cold,
            "{took:?}, cold {took_cold:?}"
        );
    }
}

/// After a larger flow the links are known to take more than an initial window. Data that one link alone
/// then carries needs no other link.
#[test]
fn what_the_links_take_is_known_from_the_flow_before() {
    let config = AggregationConfig::new(vec![link(50, 40), link(20, 150)]).unwrap();
    let mut net = served(&config, 200_000);
    for size in [SIZE, 4 * SIZE] {
        let (_, took) = carry(&mut net, Load::Down(size));
        let on_the_link = Duration::from_secs_f64(size as f64 * 8.0 / 50e6);
        let bound = Duration::from_millis(44) + on_the_link;
        assert!(took <= bound, "{size}: {took:?}");
        net.run_for(secs(2));
    }
}
