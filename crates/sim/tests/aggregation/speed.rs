//! The rate of aggregated links.

use core::time::Duration;

use braid_engine::CloseReason;
use braid_sim::aggregation::{Aggregation, AggregationConfig, Load, TransferId};
use braid_sim::transfer::PathSettings;
use braid_wire::Rng;

use crate::support::{link, received_by_interval, secs, start, start_with_seed, two_links};

/// Transfers `size` bytes, which must get nearly the rate of both links.
fn assert_sum(load: Load, size: u64) {
    let mut net = start(&two_links());
    let id = net.open(0, 0, load).unwrap();
    assert!(net.finish(secs(60)), "{:?}", net.at_user(id));
    let took = net.duration(id).unwrap();
    let rate = size as f64 * 8.0 / took.as_secs_f64();
    // Headers take a part of the 30 Mbit/s.
    let most = 30e6 * 1_400.0 / 1_500.0;
    assert!(rate >= 0.95 * most, "{took:?}: {rate} bit/s");
}

#[test]
fn a_download_takes_what_both_links_have() {
    assert_sum(Load::Down(40_000_000), 40_000_000);
}

#[test]
fn so_does_an_upload() {
    assert_sum(Load::Up(20_000_000), 20_000_000);
}

/// Both links, then each alone.
#[test]
fn the_rate_follows_the_links_that_are_there() {
    use braid_sim::aggregation::Action::Carrier;
    let mut net = start(&two_links());
    net.open(0, 0, Load::Down(100_000_000)).unwrap();
    net.run_for(secs(2));
    net.after(secs(4), Carrier { link: 1, up: false });
    net.after(secs(8), Carrier { link: 1, up: true });
    net.after(secs(8), Carrier { link: 0, up: false });
    let bytes = received_by_interval(&mut net, secs(4), 3);
    let most = [30e6, 20e6, 10e6].map(|rate| rate / 8.0 * 4.0 * 1_400.0 / 1_500.0);
    for (phase, (bytes, most)) in bytes.iter().zip(most).enumerate() {
        let share = *bytes as f64 / most;
        assert!((0.85..1.1).contains(&share), "phase {phase}: {share}");
    }
}

/// Access links with different rates to two servers, and servers with their own rates to the content.
#[test]
fn the_narrowest_part_of_the_way_decides() {
    let mut config = two_links();
    config.set_servers(2).unwrap();
    let rate = |server: usize, config: &AggregationConfig| {
        let mut config = config.clone();
        config.boxed.servers.swap(0, server);
        let mut net = start(&config);
        let id = net.open(0, 0, Load::Down(8_000_000)).unwrap();
        assert!(net.finish(secs(60)));
        let core = net.server_node(server).core().unwrap();
        assert_eq!(core.counters().connected, 1);
        64e6 / net.duration(id).unwrap().as_secs_f64() / 1e6
    };
    config.servers[0].from_access = vec![link(5, 20), link(5, 20)];
    config.servers[1].to_content = link(8, 40);
    let rates = [0, 1].map(|server| rate(server, &config));
    assert!((8.5..9.4).contains(&rates[0]), "{rates:?}");
    assert!((6.8..7.6).contains(&rates[1]), "{rates:?}");
}

/// Opens connections at random times, with downloads and uploads of 1 kB to 5 MB, most of them small.
fn crowd(net: &mut Aggregation, count: usize) -> Vec<(TransferId, u64)> {
    let mut rng = Rng::for_component(5, 1);
    let mut transfers = Vec::new();
    for n in 0..count {
        net.run_for(Duration::from_millis(rng.below(40)));
        let size = 1_000 + (rng.unit().powi(6) * 5e6) as u64;
        let load = match rng.below(3) {
            0 => Load::Up(size),
            _ => Load::Down(size),
        };
        let id = net.open(n % 3, n % 2, load).unwrap();
        transfers.push((id, size));
    }
    transfers
}

fn busy_config() -> AggregationConfig {
    let mut config = two_links();
    let lan: PathSettings = config.users[0].clone();
    config.users = vec![lan; 3];
    config.contents = 2;
    config
}

#[test]
fn many_transfers_at_once_arrive_whole() {
    let mut net = start(&busy_config());
    let transfers = crowd(&mut net, 200);
    assert!(net.finish(secs(120)));
    for (id, size) in transfers {
        let (user, content) = (net.at_user(id), net.at_content(id).unwrap());
        // The streams themselves check that each byte is in its place.
        assert_eq!(user.received.max(content.received), size, "{user:?}");
        for end in [user, content] {
            let (_, reason) = end.closed.unwrap();
            assert_eq!(reason, CloseReason::Finished, "{end:?}");
        }
    }
    net.run_for(secs(30));
    let counters = *net.box_node().core().unwrap().counters();
    assert_eq!((counters.accepted, counters.finished), (200, 200));
    assert_eq!(net.box_node().core().unwrap().connections(), 0);
    assert_eq!(net.server_node(0).core().unwrap().connections(), 0);
    assert!(net.box_node().downstream().unwrap().is_empty());
    assert!(net.server_node(0).downstream().unwrap().is_empty());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let mut config = busy_config();
    for path in &mut config.access {
        path.down.loss = braid_links::Loss::Uniform(0.01);
    }
    let run = |seed| {
        let mut net = start_with_seed(seed, &config);
        let transfers = crowd(&mut net, 20);
        assert!(net.finish(secs(120)));
        let packets = net.world.counters(net.access[0].1).delivered;
        let durations = transfers.iter().map(|(id, _)| net.duration(*id).unwrap());
        (durations.collect::<Vec<_>>(), packets)
    };
    let first = run(7);
    assert_eq!(first, run(7));
    assert_ne!(first, run(8));
}
