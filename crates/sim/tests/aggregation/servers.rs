//! The choice among several servers (PLS).

use core::time::Duration;

use braid_links::{QueueLimit, Rate, Settings};
use braid_proxy::config::Select;
use braid_proxy::control::{Answer, Request};
use braid_proxy::selection::Quiet;
use braid_proxy::status::Status;
use braid_sim::aggregation::{
    Action, Aggregation, AggregationConfig, Load, TransferId, content_addr, server_addr,
};
use braid_sim::transfer::PathSettings;
use braid_sim::udp::UdpFlow;
use braid_wire::Instant;

use crate::support::{box_counters, millis, secs, start, start_with_seed, two_links};

/// Opens a user's connection every 200 ms for `time`.
fn browse(net: &mut Aggregation, time: Duration) -> Vec<TransferId> {
    let mut ids = Vec::new();
    for _ in 0..time.as_millis() / 200 {
        ids.push(net.open(0, 0, Load::Down(20_000)).unwrap());
        net.run_for(millis(200));
    }
    ids
}

/// Returns how many users' connections a server has led to their destinations.
fn connected(net: &Aggregation, server: usize) -> u64 {
    let core = net.server_node(server).core();
    core.map_or(0, |core| core.counters().connected)
}

#[track_caller]
fn expect_within(longest: Duration, net: &Aggregation, ids: &[TransferId]) {
    let took = ids
        .iter()
        .map(|id| net.duration(*id).expect("it is through"));
    let took = took.max().unwrap();
    assert!(took < longest, "{took:?}");
}

#[test]
fn a_server_that_dies_is_left_within_three_seconds_and_used_again() {
    let mut config = two_links();
    config.set_servers(2).unwrap();
    config.boxed.select = Select::Order;
    let mut net = start(&config);
    browse(&mut net, secs(4));
    assert_eq!(connected(&net, 1), 0);
    net.after(secs(0), Action::KillServer(0));
    let meanwhile = browse(&mut net, secs(3));
    let before = connected(&net, 1);
    let after = browse(&mut net, secs(5));
    net.run_for(secs(1));
    assert!(connected(&net, 1) >= before + after.len() as u64);
    expect_within(millis(200), &net, &after);
    // No connection failed, and none waited for long.
    expect_within(secs(3), &net, &meanwhile);
    net.after(secs(0), Action::StartServer(0));
    browse(&mut net, secs(5));
    let before = connected(&net, 0);
    let back = browse(&mut net, secs(5));
    net.run_for(secs(1));
    assert_eq!(connected(&net, 0), before + back.len() as u64);
    expect_within(millis(200), &net, &back);
}

/// No user was active while the server died: the first one to ask waits, and the others use another
/// server.
#[test]
fn a_server_that_died_in_quiet_times_is_left_within_three_seconds_of_the_next_connection() {
    let mut config = two_links();
    config.set_servers(2).unwrap();
    config.boxed.select = Select::Order;
    let mut net = start(&config);
    browse(&mut net, secs(2));
    net.run_for(secs(90));
    net.after(secs(0), Action::KillServer(0));
    net.run_for(millis(100));
    let meanwhile = browse(&mut net, secs(3));
    let before = connected(&net, 1);
    let after = browse(&mut net, secs(2));
    net.run_for(secs(1));
    assert!(connected(&net, 1) >= before + after.len() as u64);
    expect_within(secs(3), &net, &meanwhile);
}

/// Table 1 of T-MPTCP: Mbit/s and round trip in ms, of both paths and of the path to the content.
const TABLE: [[(f64, f64); 3]; 5] = [
    [(21.89, 53.37), (13.45, 91.745), (92.8, 42.64)],
    [(22.63, 44.60), (15.38, 64.34), (98.4, 36.05)],
    [(27.57, 53.97), (19.75, 67.66), (56.31, 27.50)],
    [(1.38, 43.67), (13.91, 57.45), (36.31, 38.19)],
    [(5.1, 113.15), (12.9, 179.58), (63.28, 36.9)],
];

/// Returns a path with a queue of one bandwidth-delay product.
fn path((mbit, rtt_ms): (f64, f64)) -> PathSettings {
    let bits = (mbit * 1e6) as u64;
    PathSettings::both(Settings {
        rate: Rate::bits_per_second(bits),
        delay: Duration::from_secs_f64(rtt_ms / 2e3),
        queue: QueueLimit::Bytes((mbit * 1e6 / 8.0 * rtt_ms / 1e3) as u64),
        ..Settings::default()
    })
}

/// Returns a box with two fast links, and servers at paths like these.
fn servers(table: &[[(f64, f64); 3]]) -> AggregationConfig {
    let access = vec![path((1000.0, 0.5)), path((1000.0, 0.5))];
    let mut config = AggregationConfig::new(access).unwrap();
    config.set_servers(table.len()).unwrap();
    for (server, [one, two, beyond]) in config.servers.iter_mut().zip(table) {
        server.from_access = vec![path(*one), path(*two)];
        server.to_content = path(*beyond);
        // No program listens there, and the host answers with a reset.
        server.config.targets = vec![(content_addr(0), 9).into()];
    }
    config
}

/// Adds cross traffic of a rate on both paths from a server, from second `from` on.
fn crossed(config: &mut AggregationConfig, server: usize, mbit: u64, from: u64) {
    let flow = |port| UdpFlow {
        start: Instant::from_millis(from * 1000),
        ..UdpFlow::constant(
            (server_addr(server), port).into(),
            ([10, 0, 0, 1], port).into(),
            mbit * 1_000_000,
            1_250,
        )
    };
    config.servers[server].cross = vec![flow(7_001), flow(7_002)];
}

fn status(net: &Aggregation) -> Status {
    let node = net.box_node();
    node.core()
        .unwrap()
        .status(net.world.now(), node.stack().unwrap())
}

/// Returns the servers chosen by bandwidth and by delay, counted from 1.
fn chosen(net: &Aggregation) -> (usize, usize) {
    let servers = status(net).servers;
    let place = |chosen: fn(&braid_proxy::status::ServerStatus) -> bool| {
        1 + servers.iter().position(chosen).unwrap()
    };
    (place(|s| s.by_bandwidth), place(|s| s.by_delay))
}

#[test]
fn of_the_papers_servers_the_third_is_chosen_by_bandwidth_and_the_second_by_delay() {
    let mut net = start(&servers(&TABLE));
    assert_eq!(chosen(&net), (1, 1), "nothing is known");
    browse(&mut net, secs(20));
    // The figures are right to a few per cent: they improve when a path is measured again.
    for (server, row) in status(&net).servers.iter().zip(TABLE) {
        let measured = &server.measured;
        for (path, (mbit, ms)) in measured.paths.iter().zip(row) {
            let (found, delay) = (path.bandwidth.unwrap() / 1e6, path.delay_ms.unwrap());
            assert!(
                (found / mbit - 1.0).abs() < 0.06,
                "{}: {found} of {mbit}",
                server.name
            );
            assert!(
                (delay / ms - 1.0).abs() < 0.15,
                "{}: {delay} of {ms}",
                server.name
            );
        }
        let delay = measured.egress.delay_ms.unwrap();
        assert!((delay - row[2].1).abs() < 1.0, "{}: {delay}", server.name);
    }
    assert_eq!(chosen(&net), (3, 2));
}

/// A request by the box's control socket starts a measurement, even while no user is active.
#[test]
fn servers_are_measured_when_somebody_asks() {
    let mut config = two_links();
    config.set_servers(2).unwrap();
    let mut net = start(&config);
    let bandwidths = |net: &Aggregation| {
        let servers = status(net).servers.into_iter();
        let paths = servers.map(|s| s.measured.paths.iter().map(|p| p.bandwidth).collect());
        paths.collect::<Vec<Vec<_>>>()
    };
    assert_eq!(bandwidths(&net), [[None; 2]; 2]);
    assert_eq!(net.ask(Request::Measure), Some(Answer::Done));
    net.run_for(secs(5));
    for measured in bandwidths(&net) {
        for (found, rate) in measured.into_iter().zip([20e6, 10e6]) {
            let share = found.unwrap() / rate;
            assert!((0.94..1.06).contains(&share), "{share} of {rate} bit/s");
        }
    }
}

#[test]
fn cross_traffic_moves_the_choice() {
    let mut config = servers(&TABLE);
    config.boxed.measuring.most = secs(10);
    crossed(&mut config, 2, 20, 30);
    let mut net = start(&config);
    browse(&mut net, secs(25));
    assert_eq!(chosen(&net), (3, 2));
    browse(&mut net, secs(30));
    assert_eq!(chosen(&net).0, 2);
}

/// Server 1 is the nearer one to the box and over all destinations. Content 1 is near server 2 alone. The box
/// learns that from its first connections to content 1, and then each content has the better server.
#[test]
fn each_destination_has_the_server_that_is_best_for_it() {
    let (near, far) = ((50.0, 10.0), (50.0, 160.0));
    let mut config = servers(&[
        [(20.0, 20.0), (10.0, 40.0), near],
        [(20.0, 40.0), (10.0, 60.0), near],
    ]);
    config.contents = 2;
    config.servers[0].to_first_contents = vec![path(near), path(far)];
    config.boxed.select = Select::Delay;
    config.boxed.measuring.most = secs(20);
    let mut net = start(&config);
    // Returns how many of 40 connections to a content each server led there.
    let share = |net: &mut Aggregation, content| {
        let before = [0, 1].map(|server| connected(net, server));
        for _ in 0..40 {
            net.open(0, content, Load::Down(20_000)).unwrap();
            net.run_for(millis(200));
        }
        net.run_for(secs(1));
        [0, 1].map(|server| connected(net, server) - before[server])
    };
    browse(&mut net, secs(20));
    assert_eq!(chosen(&net), (1, 1));
    share(&mut net, 1);
    share(&mut net, 1);
    assert_eq!(share(&mut net, 1), [0, 40]);
    assert_eq!(share(&mut net, 0), [40, 0]);
    assert_eq!(chosen(&net), (1, 1));
    // Returns the prefixes that have another server than the usual one, by this server.
    let prefixes = |net: &Aggregation| {
        let servers = status(net).servers.into_iter();
        let prefixes = servers.map(|server| {
            let all = server.destinations.into_iter();
            all.map(|d| (d.prefix, d.by_delay)).collect::<Vec<_>>()
        });
        prefixes.collect::<Vec<_>>()
    };
    let by_prefix = [vec![], vec![("198.51.101.0/24".to_owned(), true)]];
    assert_eq!(prefixes(&net), by_prefix);
    // The operator's choice is for all destinations, at once.
    let select = |net: &mut Aggregation, name: String| {
        let answer = net.ask(Request::Server { name });
        assert_eq!(answer, Some(Answer::Done));
    };
    let name = status(&net).servers[0].name.clone();
    select(&mut net, name);
    assert_eq!(prefixes(&net), [[], []]);
    assert_eq!(share(&mut net, 1), [40, 0]);
    select(&mut net, "auto".to_owned());
    share(&mut net, 1);
    assert_eq!(prefixes(&net), by_prefix);
}

/// Opens connections with short answers, so that links are idle though users are active.
fn chat(net: &mut Aggregation, time: Duration) -> u64 {
    for _ in 0..time.as_millis() / 500 {
        net.open(0, 0, Load::Down(100)).unwrap();
        net.run_for(millis(500));
    }
    100 * (time.as_millis() / 500) as u64
}

#[test]
fn measuring_costs_less_than_a_hundredth_of_each_link() {
    let paths = [(100.0, 20.0), (100.0, 40.0), (100.0, 20.0)];
    let mut config = servers(&[paths, paths, paths]);
    config.access = vec![path((5.0, 20.0)), path((2.0, 20.0))];
    config.boxed.measuring.least = secs(1);
    config.boxed.measuring.most = secs(1);
    // Idle connections in the pool would count without being measured.
    config.boxed.warm.max = 0;
    let mut net = start(&config);
    let users = chat(&mut net, secs(120));
    let (counters, status) = (box_counters(&net), status(&net));
    assert!(counters.trains > 40, "{}", counters.trains);
    for (link, rate) in status.paths.iter().zip([5e6, 2e6]) {
        // Handshakes, tickets, replies and ends are some 1,000 bytes for each answer of 100, which
        // protection pads.
        let trains = link.bytes_received.saturating_sub(10 * users) as f64;
        let share = trains * 8.0 / 120.0 / rate;
        assert!(share < 0.01, "{}: {share}", link.name);
    }
}

#[test]
fn nothing_is_measured_in_quiet_hours_or_while_nobody_sends() {
    let mut config = servers(&TABLE[..2]);
    config.boxed.measuring.quiet = vec![Quiet { from: 0, to: 0 }];
    let mut net = start(&config);
    browse(&mut net, secs(20));
    assert_eq!(box_counters(&net).trains, 0);
    assert_eq!(chosen(&net), (1, 1), "by the order of the configuration");

    config.boxed.measuring.quiet.clear();
    let mut net = start(&config);
    net.run_for(secs(120));
    assert_eq!(box_counters(&net).trains, 0);
    browse(&mut net, secs(20));
    let trains = box_counters(&net).trains;
    assert!(trains >= 8, "{trains}");
    assert_eq!(chosen(&net), (2, 2));
    net.run_for(secs(600));
    // The measurements due within half a minute of the last connection.
    let later = box_counters(&net).trains - trains;
    assert!(later <= 16, "{later}");
    assert_eq!(chosen(&net), (2, 2));
}

#[test]
fn a_server_whose_own_link_is_narrow_is_left_once_that_shows() {
    let mut table = TABLE[1..3].to_vec();
    table.push([(40.0, 30.0), (20.0, 30.0), (10.0, 60.0)]);
    let mut config = servers(&table);
    config.boxed.measuring.most = secs(10);
    let mut net = start(&config);
    browse(&mut net, secs(15));
    assert_eq!(chosen(&net).0, 3, "nothing is known of its link");
    net.open(0, 0, Load::Down(10_000_000)).unwrap();
    browse(&mut net, secs(20));
    let third = &status(&net).servers[2].measured.egress;
    let known = third.bandwidth.expect("it shows");
    assert!((8e6..10.6e6).contains(&known), "{known}");
    assert_eq!(chosen(&net).0, 2);
}

/// The box learns of the best server while users are active; none of them waits for a handshake.
#[test]
fn a_change_of_servers_costs_nobody_a_round_trip() {
    let mut net = start(&servers(&TABLE[1..3]));
    browse(&mut net, secs(2));
    assert_eq!(connected(&net, 1), 0);
    let cold = |net: &Aggregation| {
        let counters = box_counters(net);
        counters.accepted - counters.idle_used
    };
    let before = cold(&net);
    browse(&mut net, secs(20));
    assert_eq!(chosen(&net), (2, 1));
    assert!(connected(&net, 1) > 10);
    assert_eq!(cold(&net), before);
}

/// Returns a path with a tenth of the rate, but all of its queue.
fn slowed((mbit, rtt_ms): (f64, f64)) -> PathSettings {
    let PathSettings { up, .. } = path((mbit, rtt_ms));
    PathSettings::both(Settings {
        rate: Rate::bits_per_second((mbit * 1e5) as u64),
        ..up
    })
}

/// Opens a user's download of 400 kB every 200 ms for `time`, more than a slow path has room for.
fn load(net: &mut Aggregation, time: Duration) {
    for _ in 0..time.as_millis() / 200 {
        net.open(0, 0, Load::Down(400_000)).unwrap();
        net.run_for(millis(200));
    }
}

/// The server answers, but its paths have become slow, and users load them.
#[test]
fn a_degraded_server_is_left_within_three_seconds_and_used_again() {
    let paths = [TABLE[2][0], TABLE[2][1]];
    let change = |settings: [PathSettings; 2]| Action::ServerLinks {
        server: 2,
        settings: settings.to_vec(),
    };
    for seed in 1..9 {
        let mut net = start_with_seed(seed, &servers(&TABLE));
        browse(&mut net, secs(30));
        assert_eq!(chosen(&net).0, 3);
        net.after(secs(0), change(paths.map(slowed)));
        load(&mut net, secs(3));
        assert_eq!(chosen(&net).0, 2, "seed {seed}");
        // Connections on their way to the server arrive.
        net.run_for(secs(1));
        let before = connected(&net, 2);
        load(&mut net, secs(2));
        assert_eq!(connected(&net, 2), before, "seed {seed}");
        net.after(secs(0), change(paths.map(path)));
        browse(&mut net, secs(40));
        assert_eq!(chosen(&net).0, 3, "seed {seed}: it is as it was");
    }
}

/// Restarts the box after `time`; returns its choice, and the trains that it has sent since.
fn restarted(net: &mut Aggregation, time: Duration) -> ((usize, usize), u64) {
    net.after(secs(0), Action::KillBox);
    net.run_for(time);
    net.after(secs(0), Action::StartBox);
    net.run_for(secs(1));
    (chosen(net), box_counters(net).trains)
}

#[test]
fn what_was_measured_is_known_again_after_a_restart() {
    let mut config = servers(&TABLE);
    config.boxed.state = Some("state".into());
    let mut net = start(&config);
    browse(&mut net, secs(20));
    let measured = |net: &Aggregation| {
        let servers = status(net).servers.into_iter();
        servers.map(|s| s.measured.bandwidth()).collect::<Vec<_>>()
    };
    let before = measured(&net);
    assert_eq!(restarted(&mut net, secs(60)), ((3, 2), 0));
    assert_eq!(measured(&net), before);
    // The path is measured anew, and the first result counts.
    net.after(
        secs(0),
        Action::ServerLinks {
            server: 2,
            settings: [20.0, 5.0].map(|mbit| path((mbit, 60.0))).to_vec(),
        },
    );
    browse(&mut net, secs(20));
    assert_eq!(chosen(&net).0, 2);
}

#[test]
fn without_a_place_to_keep_it_nothing_is_known_after_a_restart() {
    let mut net = start(&servers(&TABLE));
    browse(&mut net, secs(20));
    assert_eq!(restarted(&mut net, secs(10)), ((1, 1), 0));
}

/// Returns two servers behind shaped links: bursts pass at the rate of the wire.
fn shaped(burst: u32) -> AggregationConfig {
    let paths = [(20.0, 30.0), (10.0, 70.0), (100.0, 10.0)];
    let mut config = servers(&[paths, paths]);
    config.boxed.measuring.most = secs(10);
    for server in &mut config.servers {
        for path in &mut server.from_access {
            for direction in [&mut path.up, &mut path.down] {
                direction.burst = burst;
                // A shaper has a queue for packets beyond the tokens.
                direction.queue = QueueLimit::Bytes(256_000);
            }
        }
    }
    config
}

/// Returns the measured rate of each path, as a share of its long-term rate; unknown ones are left out.
fn found(net: &Aggregation) -> Vec<f64> {
    let servers = status(net).servers.into_iter();
    let found = servers.flat_map(|server| {
        let paths = server.measured.paths.into_iter().zip([20e6, 10e6]);
        let shares = paths.map(|(path, rate)| path.bandwidth.map(|found| found / rate));
        shares.collect::<Vec<_>>()
    });
    found.flatten().filter(|share| share.is_finite()).collect()
}

/// A train is shorter than most token buckets, so it shows the rate of the wire and not the link's.
#[test]
fn of_a_shaped_link_the_rate_is_right_or_unknown() {
    for burst in [0, 2_000, 8_000, 16_000, 32_000, 64_000, 256_000] {
        let mut net = start(&shaped(burst));
        for _ in 0..20 {
            browse(&mut net, secs(1));
            for share in found(&net) {
                assert!((0.85..1.15).contains(&share), "{burst}: {share}");
            }
        }
        assert_eq!(found(&net).is_empty(), burst >= 16_000, "{burst}");
    }
}

/// Users take half of the rate, so that buckets are neither full nor empty. A train to which they leave less than a
/// quarter of the rate is late, and shows no rate.
#[test]
fn of_a_shaped_link_under_load_it_is_not_far_off() {
    for burst in [0, 8_000, 16_000, 64_000] {
        let mut net = start(&shaped(burst));
        for _ in 0..30 {
            load(&mut net, secs(1));
            for share in found(&net) {
                assert!((0.25..1.5).contains(&share), "{burst}: {share}");
            }
        }
    }
}
