//! Transfers of the same kind share a link.

use core::net::Ipv4Addr;
use core::time::Duration;
use std::iter;

use braid_engine::cc::{Algorithm, BALIA, LIA, NEWRENO, OLIA};
use braid_engine::{Config, ConnectOptions, PathConfig, Protocol};
use braid_links::{QueueLimit, Rate, Settings};
use braid_sim::transfer::{Direction, PathSettings, REMOTE, SERVER, TransferConfig, client_addr};
use braid_sim::{Host, HostConfig, NodeId, World};

/// Two downloads between two hosts over one link of 10 Mbit/s and 40 ms.
struct Sharing {
    seed: u64,
    /// The time by which the second starts later.
    offset: Duration,
    queue: u32,
    congestion: Algorithm,
    /// The number of subflows of the first download, all over the same link; with one, it is regular TCP,
    /// as the second is.
    subflows: usize,
}

fn host(world: &mut World, engine: &Config, addrs: impl Iterator<Item = Ipv4Addr>) -> NodeId {
    let config = HostConfig {
        engine: engine.clone(),
        routes: vec![(SERVER.into(), 0)],
        ..HostConfig::new(addrs.map(PathConfig::v4).collect())
    };
    world.add(|rng| Host::new(config, rng))
}

impl Sharing {
    /// Returns the payload that each download brought within 300 s.
    fn shares(&self) -> [f64; 2] {
        let up = Settings {
            delay: Duration::from_millis(20),
            ..Settings::default()
        };
        let down = Settings {
            rate: Rate::bits_per_second(10_000_000),
            queue: QueueLimit::Packets(self.queue),
            ..up.clone()
        };
        let paths = [PathSettings { up, down }];
        let config = TransferConfig {
            engine: Config {
                congestion: self.congestion,
                ..Config::default()
            },
            protocol: match self.subflows {
                1 => Protocol::Tcp,
                _ => Protocol::Mptcp,
            },
            ..TransferConfig::new(&paths, 1 << 40, Direction::Down)
        };
        let mut world = World::new(self.seed);
        let clients = (0..self.subflows).map(client_addr);
        let client = host(&mut world, &config.engine, clients);
        let server = host(&mut world, &config.engine, iter::once(SERVER));
        let [PathSettings { up, down }] = paths.clone();
        world.connect(client, server, up, down);
        world.serve(server, REMOTE, config.server_stream()).unwrap();
        let received = |world: &World, conn| {
            let mut streams = world.host(client).open_streams();
            let (_, stream) = streams.find(|(id, _)| *id == conn).unwrap();
            stream.received
        };
        let first = world.open(client, config.options(), config.client_stream());
        world.advance(self.offset);
        let single = ConnectOptions {
            protocol: Protocol::Tcp,
            ..config.options()
        };
        let second = world.open(client, single, config.client_stream());
        let both = [first, second].map(Result::unwrap);
        let before = both.map(|conn| received(&world, conn));
        world.advance(Duration::from_secs(300));
        let after = both.map(|conn| received(&world, conn));
        [0, 1].map(|n| (after[n] - before[n]) as f64)
    }
}

/// Returns Jain's index (Jain, Chiu, Hawe 1984): 1 if all shares are equal, 1/n if one has all.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|s| s * s).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Asserts that two NewReno flows share a link with this queue, packets, whatever the start of the
/// second.
#[track_caller]
fn assert_shared(queue: u32) {
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
        // The flows use the whole link.
        let total = shares.iter().sum::<f64>() * 8.0 / 300.0;
        assert!(
            total > 0.97 * 10e6 * 1448.0 / 1500.0,
            "{what}: {total} bit/s"
        );
    }
}

#[test]
fn two_newreno_flows_share_a_bottleneck() {
    assert_shared(33);
}

#[test]
fn two_newreno_flows_share_a_bottleneck_with_a_longer_queue() {
    assert_shared(50);
}

/// Returns the bytes of two subflows together, as a share of a TCP connection's bytes over the same link.
fn ratio(seed: u64, offset_ms: u64, queue: u32, congestion: Algorithm) -> f64 {
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
}

/// Asserts goal 2 of RFC 6356 section 2: subflows over one bottleneck together take no more than one TCP.
/// The TCP beside them is NewReno, as coupled control of a single subflow is.
#[track_caller]
fn assert_no_more_than_a_tcp(congestion: Algorithm) {
    for queue in [33, 50] {
        for (seed, offset_ms) in [(1, 0), (2, 137), (5, 30_123)] {
            let ratio = ratio(seed, offset_ms, queue, congestion);
            let what = format!("{congestion:?}, queue {queue}, {offset_ms} ms: {ratio:.3}");
            assert!((0.7..=1.15).contains(&ratio), "{what}");
        }
    }
}

#[test]
fn two_lia_subflows_over_a_bottleneck_take_no_more_than_a_tcp() {
    assert_no_more_than_a_tcp(LIA);
}

#[test]
fn two_olia_subflows_over_a_bottleneck_take_no_more_than_a_tcp() {
    assert_no_more_than_a_tcp(OLIA);
}

#[test]
fn two_balia_subflows_over_a_bottleneck_take_no_more_than_a_tcp() {
    assert_no_more_than_a_tcp(BALIA);
}

/// Goal 2 requires coupling: each of two uncoupled subflows takes as much as a TCP.
#[test]
fn two_uncoupled_subflows_over_a_bottleneck_take_as_much_as_two_tcps() {
    let uncoupled = ratio(1, 0, 50, NEWRENO);
    assert!((1.7..=2.3).contains(&uncoupled), "{uncoupled:.3}");
}
