//! Transfers of the same kind share a link.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use braid_engine::cc::NEWRENO;
use braid_engine::{Config, ConnectOptions, PathConfig, Protocol};
use braid_links::{QueueLimit, Rate, Settings};
use braid_sim::traffic::{Role, Stream};
use braid_sim::{Host, HostConfig, NodeId, World};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 255, 1);
const REQUEST: u64 = 100;

fn host(world: &mut World, addr: Ipv4Addr) -> NodeId {
    let config = HostConfig {
        engine: Config {
            congestion: NEWRENO,
            ..Config::default()
        },
        paths: vec![PathConfig {
            v4: Some(addr),
            v6: None,
            mtu: 1500,
            backup: false,
        }],
        routes: Vec::new(),
        policy: Box::new(|| braid_strategy::by_name("minrtt").unwrap()),
    };
    world.add(|rng| Host::new(config, rng))
}

/// Payload that each of two downloads over one link brought within 300 s; the second starts
/// `offset` after the first.
fn shares(seed: u64, offset: Duration, queue: u32) -> [f64; 2] {
    let mut world = World::new(seed);
    let (client, server) = (host(&mut world, CLIENT), host(&mut world, SERVER));
    let up = Settings {
        delay: Duration::from_millis(20),
        ..Settings::default()
    };
    let down = Settings {
        rate: Rate::bits_per_second(10_000_000),
        queue: QueueLimit::Packets(queue),
        ..up.clone()
    };
    world.connect(client, server, up, down);
    let remote = SocketAddr::new(IpAddr::V4(SERVER), 80);
    let answer = Stream::new(Role::Answer {
        request: REQUEST,
        size: 1 << 40,
    });
    world
        .with_node(server, |host: &mut Host, _| host.serve(remote, answer))
        .unwrap();
    let open = |world: &mut World| {
        world.with_node(client, |host: &mut Host, now| {
            let options = ConnectOptions {
                protocol: Protocol::Tcp,
                ..ConnectOptions::new(remote, braid_strategy::by_name("minrtt").unwrap())
            };
            let asks = Stream::new(Role::Fetch { request: REQUEST });
            host.open(now, options, asks).unwrap()
        })
    };
    let received = |world: &World, conn| {
        let mut streams = world.node::<Host>(client).open_streams();
        let (_, stream) = streams.find(|(id, _)| *id == conn).unwrap();
        stream.received
    };
    let first = open(&mut world);
    world.run(offset, |_| false);
    let second = open(&mut world);
    let before = [first, second].map(|conn| received(&world, conn));
    world.run(Duration::from_secs(300), |_| false);
    let after = [first, second].map(|conn| received(&world, conn));
    [0, 1].map(|n| (after[n] - before[n]) as f64)
}

/// Jain's index (Jain, Chiu, Hawe 1984): 1 where all shares are equal, 1/n where one has all.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|s| s * s).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn two_newreno_flows_share_a_bottleneck() {
    for queue in [33, 50] {
        for (seed, offset_ms) in [(1, 0), (2, 137), (3, 1_000), (4, 10_000), (5, 30_123)] {
            let shares = shares(seed, Duration::from_millis(offset_ms), queue);
            let index = jain(&shares);
            let what = format!("queue {queue}, {offset_ms} ms: {shares:?}, {index:.4}");
            assert!(index >= 0.95, "{what}");
            // And leave nothing unused.
            let total = shares.iter().sum::<f64>() * 8.0 / 300.0;
            assert!(
                total > 0.97 * 10e6 * 1448.0 / 1500.0,
                "{what}: {total} bit/s"
            );
        }
    }
}
