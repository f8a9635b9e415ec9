//! Hints about connections, from users to content.

use core::net::SocketAddr;

use braid_engine::strategy::FlowSize;
use braid_sim::aggregation::{Aggregation, AggregationConfig, GATEWAY, TransferId, content_addr};
use braid_sim::traffic::{Role, Stream};

use crate::support::{box_counters, link, millis, secs, start, two_links};

const PORT: u16 = 80;
const SIZE: u64 = 200_000;

/// Returns a box that programs of the LAN may ask by SOCKS5.
fn asked() -> AggregationConfig {
    let mut config = two_links();
    config.boxed.socks = vec![SocketAddr::from((GATEWAY, 1080))];
    config
}

fn content() -> SocketAddr {
    (content_addr(0), PORT).into()
}

/// Starts a network whose content answers with [`SIZE`] bytes.
fn net(config: &AggregationConfig) -> Aggregation {
    let mut net = start(config);
    let role = Role::Answer {
        request: 100,
        size: SIZE,
    };
    let node = net.contents[0];
    net.world.serve(node, content(), Stream::new(role)).unwrap();
    net
}

const FETCH: Role = Role::Fetch { request: 100 };

/// Returns the size of the transfer in progress as the server's strategy knows it.
fn size_at_server(net: &Aggregation) -> FlowSize {
    let stack = net.server_node(0).stack().unwrap();
    let conns = stack.conn_bytes();
    let stats = conns.filter_map(|(conn, _)| stack.conn_stats(conn));
    let mut sizes = stats.map(|stats| stats.flow_size);
    let known = |size: &FlowSize| *size != FlowSize::Unknown;
    sizes.find(known).unwrap_or_default()
}

fn expect_whole(net: &mut Aggregation, id: TransferId) {
    assert!(net.finish(secs(30)));
    assert_eq!(net.at_user(id).received, SIZE);
}

#[test]
fn a_program_that_asks_the_box_says_what_it_fetches() {
    let mut net = net(&asked());
    let hints = "size=200kB,urgency=1,strategy=redundant";
    let id = net.open_by_box(0, content(), hints, FETCH).unwrap();
    net.run_for(millis(100));
    assert_eq!(size_at_server(&net), FlowSize::Declared(SIZE));
    expect_whole(&mut net, id);
    let c = box_counters(&net);
    assert_eq!((c.accepted, c.connected, c.bad_hints), (1, 1, 0));
    assert_eq!((c.bytes_up, c.bytes_down), (100, SIZE));
}

#[test]
fn what_the_box_does_not_offer_is_no_proxy() {
    let mut net = net(&two_links());
    net.open_by_box(0, content(), "size=1", FETCH).unwrap();
    net.run_for(secs(1));
    // The connection is intercepted like any other, and its destination is one that the server may not
    // reach.
    assert_eq!(box_counters(&net).destination_forbidden, 1);
}

#[test]
fn sizes_are_predicted_from_those_before() {
    let mut net = net(&two_links());
    for n in 0..12 {
        let id = net.open_to(0, content(), FETCH).unwrap();
        net.run_for(millis(100));
        let expected = match n {
            ..8 => FlowSize::Unknown,
            _ => FlowSize::Predicted(SIZE),
        };
        assert_eq!(size_at_server(&net), expected, "flow {n}");
        expect_whole(&mut net, id);
        net.run_for(secs(1));
    }
}

/// Returns the mean time of downloads of 64 to 512 KiB over links of 5 Mbit/s, 40 and 100 ms. Each is
/// from a place of its own, after 52 like it; `declares` tells the box their sizes.
fn mean_duration(strategy: &str, declares: bool) -> f64 {
    let mut config = AggregationConfig::new(vec![link(5, 40), link(5, 100)]).unwrap();
    config.boxed.socks = asked().boxed.socks;
    config.boxed.strategy = strategy.to_owned();
    config.servers[0].config.strategy = strategy.to_owned();
    let mut net = start(&config);
    let node = net.contents[0];
    let places = (0..4u16).map(|n| ((content_addr(0), PORT + n).into(), (64u64 << 10) << n));
    let places: Vec<(SocketAddr, u64)> = places.collect();
    for (place, size) in &places {
        let role = Role::Answer {
            request: 100,
            size: *size,
        };
        net.world.serve(node, *place, Stream::new(role)).unwrap();
    }
    let mut durations = Vec::new();
    for (place, size) in places.iter().cycle().take(68) {
        let id = match declares {
            true => net.open_by_box(0, *place, &format!("size={size}"), FETCH),
            false => net.open_to(0, *place, FETCH),
        };
        assert!(net.finish(secs(30)));
        durations.push(net.duration(id.unwrap()).unwrap().as_secs_f64());
        net.run_for(secs(1));
    }
    durations[52..].iter().sum::<f64>() / 16.0
}

#[test]
fn flows_of_unknown_size_take_at_most_a_tenth_longer_than_declared_ones() {
    let standard = mean_duration("minrtt", false);
    for strategy in ["fsa", "adaptive"] {
        let [declared, unknown] = [true, false].map(|declares| mean_duration(strategy, declares));
        println!(
            "{strategy}: declared {declared:.4} s, unknown {unknown:.4}; minrtt {standard:.4}"
        );
        assert!(unknown <= 1.1 * declared, "{strategy}");
        assert!(strategy == "fsa" || unknown <= standard);
    }
}
