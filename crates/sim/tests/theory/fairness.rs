//! Transfers of the same kind share a link.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::iter;

use braid_engine::cc::{Algorithm, LIA, NEWRENO};
use braid_engine::{Config, ConnectOptions, PathConfig, Protocol};
use braid_links::{QueueLimit, Rate, Settings};
use braid_sim::traffic::{Role, Stream};
use braid_sim::{Host, HostConfig, NodeId, World};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 255, 1);
const REQUEST: u64 = 100;

/// Two downloads between two hosts over one link of 10 Mbit/s and 40 ms.
struct Sharing {
    seed: u64,
    /// The second starts so much later.
    offset: Duration,
    queue: u32,
    congestion: Algorithm,
    /// Subflows of the first, all over that link; where it is one it is regular TCP, as the second
    /// is.
    subflows: u8,
}

fn host(world: &mut World, congestion: Algorithm, addrs: impl Iterator<Item = Ipv4Addr>) -> NodeId {
    let path = |addr| PathConfig {
        v4: Some(addr),
        v6: None,
        mtu: 1500,
        backup: false,
    };
    let config = HostConfig {
        engine: Config {
            congestion,
            ..Config::default()
        },
        paths: addrs.map(path).collect(),
        routes: vec![(SERVER.into(), 0)],
        strategy: Box::new(|| braid_strategy::by_name("minrtt").unwrap()),
    };
    world.add(|rng| Host::new(config, rng))
}

impl Sharing {
    /// Payload that each brought within 300 s.
    fn shares(&self) -> [f64; 2] {
        let mut world = World::new(self.seed);
        let clients = (0..self.subflows).map(|n| Ipv4Addr::new(10, 0, n, 2));
        let client = host(&mut world, self.congestion, clients);
        let server = host(&mut world, self.congestion, iter::once(SERVER));
        let up = Settings {
            delay: Duration::from_millis(20),
            ..Settings::default()
        };
        let down = Settings {
            rate: Rate::bits_per_second(10_000_000),
            queue: QueueLimit::Packets(self.queue),
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
        let open = |world: &mut World, protocol| {
            world.with_node(client, |host: &mut Host, now| {
                let options = ConnectOptions {
                    protocol,
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
        let protocol = match self.subflows {
            1 => Protocol::Tcp,
            _ => Protocol::Mptcp,
        };
        let first = open(&mut world, protocol);
        world.run(self.offset, |_| false);
        let second = open(&mut world, Protocol::Tcp);
        let before = [first, second].map(|conn| received(&world, conn));
        world.run(Duration::from_secs(300), |_| false);
        let after = [first, second].map(|conn| received(&world, conn));
        [0, 1].map(|n| (after[n] - before[n]) as f64)
    }
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
            let sharing = Sharing {
                seed,
                offset: Duration::from_millis(offset_ms),
                queue,
                congestion: NEWRENO,
                subflows: 1,
            };
            let shares = sharing.shares();
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

/// RFC 6356 section 2, goal 2: subflows over one bottleneck take no more together than one TCP does;
/// uncoupled they take as much each.
#[test]
fn two_lia_subflows_over_a_bottleneck_take_no_more_than_a_tcp() {
    let ratio = |seed, offset_ms, queue, congestion| {
        let sharing = Sharing {
            seed,
            offset: Duration::from_millis(offset_ms),
            queue,
            congestion,
            subflows: 2,
        };
        let [subflows, tcp] = sharing.shares();
        let total = (subflows + tcp) * 8.0 / 300.0;
        assert!(total > 0.97 * 10e6 * 1428.0 / 1500.0, "{total} bit/s");
        subflows / tcp
    };
    for queue in [33, 50] {
        for (seed, offset_ms) in [(1, 0), (2, 137), (5, 30_123)] {
            let ratio = ratio(seed, offset_ms, queue, LIA);
            let what = format!("queue {queue}, {offset_ms} ms: {ratio:.3}");
            assert!((0.7..=1.15).contains(&ratio), "{what}");
        }
    }
    let uncoupled = ratio(1, 0, 50, NEWRENO);
    assert!((1.7..=2.3).contains(&uncoupled), "{uncoupled:.3}");
}
