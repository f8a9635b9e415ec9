//! Transfers in the world: done, the same every time, at the rate the links allow.

use core::time::Duration;
use std::sync::{Arc, Mutex};

use braid_engine::{CloseReason, Config, Protocol};
use braid_links::{Cause, Change, Loss, QueueLimit, Rate, Schedule, Settings};
use braid_sim::tap::What;
use braid_sim::transfer::{Direction, PathSettings, TransferConfig};
use braid_sim::{Host, LinkId, Packet, Tap, Transfer};
use braid_wire::Instant;

fn path(mbit: u64, delay_ms: u64, loss: f64) -> PathSettings {
    let settings = Settings {
        rate: Rate::bits_per_second(mbit * 1_000_000),
        delay: Duration::from_millis(delay_ms),
        queue: QueueLimit::Packets(50),
        loss: Loss::Uniform(loss),
        ..Settings::default()
    };
    PathSettings {
        up: settings.clone(),
        down: settings,
    }
}

fn start(seed: u64, paths: &[PathSettings], size: u64, direction: Direction) -> Transfer {
    let config = TransferConfig {
        paths,
        size,
        direction,
        engine: Config::default(),
        protocol: Protocol::Mptcp,
        initial_path: None,
        strategy: || braid_strategy::by_name("minrtt").unwrap(),
    };
    Transfer::start(seed, &config).unwrap()
}

/// Runs a transfer to its end and returns how long it took.
fn transfer(seed: u64, paths: &[PathSettings], size: u64, direction: Direction) -> Duration {
    finish(&mut start(seed, paths, size, direction), size, direction)
}

fn finish(transfer: &mut Transfer, size: u64, direction: Direction) -> Duration {
    assert!(transfer.run(Duration::from_secs(600)), "{transfer:?}");
    for end in [transfer.client, transfer.server] {
        let (_, reason) = transfer.world.node::<Host>(end).finished()[0]
            .closed
            .unwrap();
        assert_eq!(reason, CloseReason::Finished);
    }
    let opened_at = transfer.world.node::<Host>(transfer.client).finished()[0].opened_at;
    let receiver = transfer.world.node::<Host>(transfer.receiver(direction));
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
    let mut other = dead.clone();
    other.up.loss = Loss::None;
    let with = |paths: &[PathSettings]| transfer(3, paths, 200_000, Direction::Down);
    assert_eq!(with(&[first.clone(), dead]), with(&[first, other]));
}

#[test]
fn corrupted_packets_are_found_by_their_checksum() {
    let mut spoilt = path(5, 20, 0.0);
    spoilt.down.corrupt = 0.05;
    spoilt.up.corrupt = 0.01;
    let mut transfer = start(4, &[spoilt], 1_000_000, Direction::Down);
    finish(&mut transfer, 1_000_000, Direction::Down);
    let corrupted = transfer.world.counters(transfer.links[0].1).corrupted;
    let stats = transfer.world.node::<Host>(transfer.client).stack().stats();
    assert!(stats.bad_checksum > 10, "{stats:?}");
    // A bit of the IP header is found before.
    assert!(stats.bad_checksum + stats.malformed <= corrupted.packets);
    assert!(stats.bad_checksum + stats.malformed + 3 >= corrupted.packets);
}

#[test]
fn a_schedule_changes_a_link_at_its_times() {
    let settings = path(5, 20, 0.0).down;
    let dark = Settings {
        up: false,
        ..settings.clone()
    };
    let change = |at, settings: &Settings| Change {
        at: Duration::from_secs(at),
        settings: settings.clone(),
    };
    let mut transfer = start(1, &[path(5, 20, 0.0)], 2_000_000, Direction::Down);
    let down = transfer.links[0].1;
    transfer.world.schedule(
        down,
        Schedule::new([change(1, &dark), change(9, &settings)]),
    );
    let took = finish(&mut transfer, 2_000_000, Direction::Down);
    assert!(transfer.world.counters(down).dropped_down.packets > 0);
    // 3.3 s at 5 Mbit/s, and 8 s of darkness.
    assert!(took > Duration::from_millis(11_300), "{took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// Remembers what it was told, without the bytes.
#[derive(Debug, Default, PartialEq)]
struct Seen(Vec<(Instant, LinkId, What, usize)>);

impl Tap for Seen {
    fn on_packet(&mut self, at: Instant, link: LinkId, what: What, packet: &Packet) {
        self.0.push((at, link, what, packet.bytes.len()));
    }
}

#[test]
fn taps_see_what_the_counters_count() {
    let mut lossy = path(5, 20, 0.02);
    lossy.down.queue = QueueLimit::Packets(10);
    lossy.down.duplicate = 0.02;
    let mut transfer = start(5, &[lossy.clone(), lossy], 500_000, Direction::Down);
    let taps = [(); 2].map(|()| Arc::new(Mutex::new(Seen::default())));
    let down = transfer.links[0].1;
    for tap in &taps {
        transfer.world.tap(down, Box::new(tap.clone()));
    }
    finish(&mut transfer, 500_000, Direction::Down);
    let [one, other] = taps.map(|tap| std::mem::take(&mut *tap.lock().unwrap()));
    assert_eq!(one, other);
    let count = |which: &dyn Fn(&What) -> bool| {
        let seen = one
            .0
            .iter()
            .filter(|(_, link, what, _)| *link == down && which(what));
        seen.count() as u64
    };
    let dropped_for =
        |why| count(&|what: &What| matches!(what, What::Dropped { cause, .. } if *cause == why));
    let counters = transfer.world.counters(down);
    assert_eq!(count(&|what| *what == What::Sent), counters.offered.packets);
    assert_eq!(
        count(&|what| *what == What::Duplicated),
        counters.duplicated.packets
    );
    assert!(counters.duplicated.packets > 0);
    let delivered = count(&|what| matches!(what, What::Delivered { .. }));
    assert_eq!(delivered, counters.delivered.packets);
    assert_eq!(dropped_for(Cause::Loss), counters.dropped_loss.packets);
    assert_eq!(dropped_for(Cause::Queue), counters.dropped_queue.packets);
    assert!(counters.dropped_loss.packets > 0 && counters.dropped_queue.packets > 0);
    let on_time = one.0.iter().all(|(at, _, what, _)| match what {
        What::Delivered { sent_at } => *at >= *sent_at + Duration::from_millis(20),
        _ => true,
    });
    assert!(on_time);
}

/// Hundreds of packets are lost at once, out of a long queue, and the round trip is short again
/// afterwards. The estimate of it is not, while what was lost is repeated: the pace of that must not
/// follow a tiny window over a long round trip (15 s more), but find its way up.
#[test]
fn heavy_losses_are_made_good() {
    let settings = Settings {
        queue: QueueLimit::Packets(800),
        ..path(50, 5, 0.0).down
    };
    let link = PathSettings {
        up: settings.clone(),
        down: settings.clone(),
    };
    let size = 12_000_000;
    let took = |losing: Duration| {
        let paths = [link.clone()];
        let mut transfer = start(1, &paths, size, Direction::Down);
        let (_, down) = transfer.links[0];
        let lossy = Settings {
            loss: Loss::Uniform(1.0),
            ..settings.clone()
        };
        let at = Duration::from_secs(1);
        let changes = [(at, lossy), (at + losing, settings.clone())];
        let changes = changes.map(|(at, settings)| Change { at, settings });
        transfer.world.schedule(down, Schedule::new(changes));
        finish(&mut transfer, size, Direction::Down)
    };
    let losing = Duration::from_millis(150);
    let extra = took(losing) - took(Duration::ZERO);
    assert!(extra < Duration::from_secs(5), "{extra:?} more");
}
