//! Transfers in the world: done, the same every time, at the rate the links allow.

use core::time::Duration;

use braid_engine::{CloseReason, Config, Protocol};
use braid_links::{Loss, QueueLimit, Rate, Settings};
use braid_sim::Transfer;
use braid_sim::transfer::{Direction, PathSettings, TransferConfig};

fn path(mbit: u64, delay_ms: u64, loss: f64) -> PathSettings {
    let settings = Settings {
        rate: Rate::bits_per_second(mbit * 1_000_000),
        delay: Duration::from_millis(delay_ms),
        queue: QueueLimit::Packets(50),
        loss: Loss::Uniform(loss),
        ..Settings::default()
    };
    PathSettings {
        up: settings,
        down: settings,
    }
}

/// Runs a transfer to its end and returns how long it took.
fn transfer(seed: u64, paths: &[PathSettings], size: u64, direction: Direction) -> Duration {
    let config = TransferConfig {
        paths,
        size,
        direction,
        engine: Config::default(),
        protocol: Protocol::Mptcp,
        initial_path: None,
        policy: || braid_strategy::by_name("minrtt").unwrap(),
    };
    let mut transfer = Transfer::start(seed, &config).unwrap();
    assert!(transfer.run(Duration::from_secs(600)), "{transfer:?}");
    for end in [transfer.client, transfer.server] {
        let (_, reason) = transfer.world.host(end).finished()[0].closed.unwrap();
        assert_eq!(reason, CloseReason::Finished);
    }
    let opened_at = transfer.world.host(transfer.client).finished()[0].opened_at;
    let receiver = transfer.world.host(transfer.receiver(direction));
    let stream = &receiver.finished()[0];
    assert_eq!(stream.received, size);
    stream.complete_at.unwrap().saturating_since(opened_at)
}

#[test]
fn both_links_are_used_either_way() {
    let size = 5_000_000;
    for direction in [Direction::Down, Direction::Up] {
        let took = transfer(1, &[path(5, 20, 0.0), path(5, 50, 0.0)], size, direction);
        let rate = size as f64 * 8.0 / took.as_secs_f64();
        assert!(rate > 8.5e6, "{direction:?}: {rate} bit/s of 10 Mbit/s");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let paths = [path(5, 20, 0.02), path(5, 50, 0.02)];
    let run = |seed| transfer(seed, &paths, 500_000, Direction::Down);
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn another_link_does_not_disturb_the_first() {
    // The second path is down from the start: whatever it would have drawn, the first sees the
    // same losses.
    let first = path(5, 20, 0.02);
    let mut dead = path(5, 50, 0.5);
    dead.up.up = false;
    dead.down.up = false;
    let mut other = dead;
    other.up.loss = Loss::None;
    let with = |paths: &[PathSettings]| transfer(3, paths, 200_000, Direction::Down);
    assert_eq!(with(&[first, dead]), with(&[first, other]));
}
