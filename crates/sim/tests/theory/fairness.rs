//! Transfers of the same kind share a link.

use core::time::Duration;

use braid_engine::cc::Algorithm;
use braid_engine::{Config, Protocol};
use braid_links::{QueueLimit, Rate, Settings};
use braid_sim::transfer::{Direction, PathSettings, TransferConfig};
use braid_sim::{Transfer, World};

/// Payload that each of two downloads over one link brought within 300 s; the second starts
/// `offset` after the first.
fn shares(seed: u64, offset: Duration, queue: u32) -> [f64; 2] {
    let up = Settings {
        delay: Duration::from_millis(20),
        ..Settings::default()
    };
    let down = Settings {
        rate: Rate::bits_per_second(10_000_000),
        queue: QueueLimit::Packets(queue),
        ..up.clone()
    };
    let paths = [PathSettings { up, down }];
    let config = TransferConfig {
        engine: Config {
            congestion: Algorithm::NewReno,
            ..Config::default()
        },
        protocol: Protocol::Tcp,
        ..TransferConfig::new(&paths, 1 << 40, Direction::Down)
    };
    let mut transfer = Transfer::build(seed, &config);
    let client = transfer.client;
    let received = |world: &World, conn| {
        let mut streams = world.host(client).open_streams();
        let (_, stream) = streams.find(|(id, _)| *id == conn).unwrap();
        stream.received
    };
    let first = transfer.open(&config).unwrap();
    let world = &mut transfer.world;
    world.advance(offset);
    let second = world.open(client, config.options(), config.asks());
    let both = [first, second.unwrap()];
    let before = both.map(|conn| received(world, conn));
    world.advance(Duration::from_secs(300));
    let after = both.map(|conn| received(world, conn));
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
