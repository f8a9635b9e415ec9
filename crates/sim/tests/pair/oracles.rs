//! The oracles report nothing about a sound engine, whatever the links do; and reports reach the world.

use core::time::Duration;

use braid_engine::{CloseReason, Config, PathId, Protocol};
use braid_links::{Change, Loss, QueueLimit, Rate, Reorder, Schedule, Settings};
use braid_sim::World;
use braid_sim::node::{Node, Packet, Turn};
use braid_sim::oracle::{Rule, Violation};
use braid_sim::transfer::PathSettings;
use braid_sim::world::START;
use braid_wire::Rng;

use crate::support::Exchange;

/// Returns a link with a random choice of faults.
fn link(rng: &mut Rng) -> Settings {
    let some = |rng: &mut Rng, most: f64| match rng.below(3) {
        0 => most * (rng.below(1000) as f64) / 1000.0,
        _ => 0.0,
    };
    Settings {
        rate: Rate::bits_per_second(1_000_000 * (1 + rng.below(20))),
        delay: Duration::from_millis(1 + rng.below(80)),
        jitter: Duration::from_millis(rng.below(3) * rng.below(10)),
        queue: QueueLimit::Packets(5 + rng.below(100) as u32),
        loss: Loss::Uniform(some(rng, 0.1)),
        reorder: Reorder {
            share: some(rng, 0.1),
            detour: Duration::from_millis(rng.below(30)),
        },
        duplicate: some(rng, 0.05),
        corrupt: some(rng, 0.02),
        ..Settings::default()
    }
}

/// Returns the schedule of an outage.
fn outage(rng: &mut Rng, settings: &Settings) -> Schedule {
    let from = Duration::from_millis(rng.below(3000));
    let dark = Settings {
        up: false,
        ..settings.clone()
    };
    Schedule::new([
        Change {
            at: from,
            settings: dark,
        },
        Change {
            at: from + Duration::from_millis(rng.below(8000)),
            settings: settings.clone(),
        },
    ])
}

/// Returns whether both ends closed in order, with all bytes arrived.
fn run(seed: u64) -> bool {
    let mut rng = Rng::for_component(seed, u64::MAX);
    let paths: Vec<_> = (0..1 + rng.below(3))
        .map(|_| PathSettings {
            up: link(&mut rng),
            down: link(&mut rng),
        })
        .collect();
    let (size, direction) = (1 << rng.below(21), rng.below(2) as usize);
    let exchange = Exchange {
        engine: Config {
            initial_window: 1 + rng.below(10) as u32,
            recv_buffer: 20_000 << rng.below(8),
            send_buffer: 20_000 << rng.below(8),
            max_transmit: [1500, 65_521][rng.below(2) as usize],
            ..Config::default()
        },
        protocol: match rng.below(5) {
            0 => Protocol::Tcp,
            _ => Protocol::Mptcp,
        },
        path: Some(PathId(rng.below(paths.len() as u64) as u8)),
        ..Exchange::new(
            [size, 1 << rng.below(17)][direction],
            [1 << rng.below(17), size][direction],
        )
    };
    let mut transfer = exchange.start(seed, &paths);
    for (n, path) in paths.iter().enumerate() {
        if rng.below(4) == 0 {
            let (up, down) = transfer.links[n];
            let schedule = outage(&mut rng, &path.up);
            transfer.world.schedule(up, schedule);
            let schedule = outage(&mut rng, &path.down);
            transfer.world.schedule(down, schedule);
        }
    }
    // Every engine gives up by itself within this time.
    let (client, server) = (transfer.client, transfer.server);
    let ended = transfer.world.run(Duration::from_secs(400), |w| {
        let client = w.host(client);
        let served = w.host(server).open_streams().count() == 0;
        served && !client.finished().is_empty()
    });
    assert!(ended, "seed {seed}: {transfer:?}");
    // Connections that linger end within this time.
    transfer.world.run(Duration::from_secs(20), |_| false);
    for end in [client, server] {
        let stack = transfer.world.host(end).stack();
        let left = (stack.connections(), stack.buffered());
        assert_eq!(left, (0, 0), "seed {seed}, connections and bytes left");
    }
    let in_order = transfer
        .ended()
        .iter()
        .all(|end| end.is_some_and(|s| matches!(s.closed, Some((_, CloseReason::Finished)))));
    if in_order {
        exchange.assert_whole(&transfer);
    }
    in_order
}

#[test]
fn faults_of_links_violate_nothing() {
    let in_order = (0..300).filter(|seed| run(*seed)).count();
    // A handshake may be given up, and the last acknowledgement be lost for longer than the other end
    // waits to repeat it.
    assert!(in_order >= 290, "{in_order} of 300 end in order");
}

/// A node whose oracle reports violations.
#[derive(Debug)]
struct Tattler;

impl Node for Tattler {
    fn receive(&mut self, turn: &mut Turn<'_>, _: u32, packet: Packet) {
        turn.recycle(packet);
    }

    fn wake(&mut self, turn: &mut Turn<'_>) {
        turn.report(vec![Violation {
            at: turn.now,
            rule: Rule::Bytes,
            conn: None,
            seen: "something else".to_owned(),
        }]);
    }
}

#[test]
#[should_panic = "seed 7, node 1: at 1.000000000 s, Bytes: something else"]
fn a_violation_stops_the_run() {
    let mut world = World::new(7);
    world.add(|_| Tattler);
    let second = world.add(|_| Tattler);
    world.with_node(second, |_: &mut Tattler, _| {});
}

#[test]
fn violations_are_kept_within_a_bound() {
    let mut world = World::new(7);
    world.keep_violations();
    let node = world.add(|_| Tattler);
    for _ in 0..100 {
        world.with_node(node, |_: &mut Tattler, _| {});
    }
    assert_eq!(world.violations().len(), 64);
    let (of, first) = &world.violations()[0];
    assert_eq!((*of, first.rule, first.at), (node, Rule::Bytes, START));
}
