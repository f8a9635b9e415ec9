//! The aims of BBR: full links with short queues, and tolerance of losses that are no congestion
//! (draft-ietf-ccwg-bbr-06 section 3.1).

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;

use braid_engine::cc::{Algorithm, BBR, CUBIC};
use braid_engine::{Config, ConnectOptions, PathConfig, Protocol};
use braid_links::{Loss, QueueLimit, Rate, Settings};
use braid_sim::router::Router;
use braid_sim::traffic::{Role, Stream};
use braid_sim::transfer::{Direction, PathSettings, REMOTE, SERVER, TransferConfig, client_addr};
use braid_sim::{Host, HostConfig, NodeId, Transfer, World};

/// The TCP payload at 10 Mbit/s, bytes/s.
const FULL: f64 = 10e6 / 8.0 * 1448.0 / 1500.0;
/// The packets that 10 Mbit/s hold in 40 ms.
const PIPE: u32 = 33;

fn link(queue: u32, loss: f64) -> Settings {
    Settings {
        rate: Rate::bits_per_second(10_000_000),
        delay: Duration::from_millis(20),
        queue: QueueLimit::Packets(queue),
        loss: Loss::uniform(loss),
        ..Settings::default()
    }
}

fn back() -> Settings {
    Settings {
        delay: Duration::from_millis(20),
        ..Settings::default()
    }
}

/// Returns the share of the link that a greedy download gets from its 10th second to its 70th, and the
/// mean length of the queue, packets.
fn alone(congestion: Algorithm, seed: u64, queue: u32, loss: f64) -> (f64, f64) {
    let paths = [PathSettings {
        up: back(),
        down: link(queue, loss),
    }];
    let config = TransferConfig {
        engine: Config {
            congestion,
            ..Config::default()
        },
        protocol: Protocol::Tcp,
        ..TransferConfig::new(&paths, 1 << 40, Direction::Down)
    };
    let mut transfer = Transfer::start(seed, &config).unwrap();
    let received = |transfer: &Transfer| {
        let client = transfer.world.host(transfer.client);
        let received: u64 = client.open_streams().map(|(_, s)| s.received).sum();
        received as f64
    };
    transfer.world.advance(Duration::from_secs(10));
    let before = received(&transfer);
    let mut queued = 0;
    for _ in 0..6_000 {
        transfer.world.advance(Duration::from_millis(10));
        transfer.world.refresh();
        queued += transfer.world.counters(transfer.links[0].1).queue.packets;
    }
    let share = (received(&transfer) - before) / 60.0 / FULL;
    (share, queued as f64 / 6_000.0)
}

#[test]
fn bbr_fills_a_link_without_filling_its_queue() {
    for queue in [PIPE, 4 * PIPE] {
        let (share, queued) = alone(BBR, 1, queue, 0.0);
        let what = format!("queue {queue}: {share:.4}, {queued:.1} packets");
        assert!(share >= 0.9, "{what}");
        // The queue is at most half of a pipe, however much room there is.
        assert!(queued <= 0.5 * f64::from(PIPE), "{what}");
    }
    let (_, queued) = alone(CUBIC, 1, 4 * PIPE, 0.0);
    assert!(queued >= 2.0 * f64::from(PIPE), "CUBIC: {queued:.1}");
}

/// After each round trip with a loss the draft lowers its rate to the delivered rate, until the next
/// probe two to three seconds later (section 5.5.10.3). It takes more than 2 % of loss for its own doing,
/// and keeps two thirds of the link at 2 %.
#[test]
fn bbr_does_not_take_random_loss_for_congestion() {
    for (loss, bbr, cubic) in [(0.005, 0.85, 0.6), (0.01, 0.8, 0.45), (0.02, 0.6, 0.3)] {
        let mean = |congestion| {
            let shares = [1, 2, 3].map(|seed| alone(congestion, seed, PIPE, loss).0);
            shares.iter().sum::<f64>() / 3.0
        };
        let shares = [mean(BBR), mean(CUBIC)];
        assert!(shares[0] >= bbr, "{loss}: {shares:.3?}");
        assert!(shares[1] <= cubic, "{loss}: {shares:.3?}");
    }
}

fn host(
    world: &mut World,
    addr: Ipv4Addr,
    congestion: Algorithm,
    destinations: &[Ipv4Addr],
) -> NodeId {
    let config = HostConfig {
        engine: Config {
            congestion,
            ..Config::default()
        },
        routes: destinations
            .iter()
            .map(|addr| (IpAddr::V4(*addr), 0))
            .collect(),
        ..HostConfig::new(vec![PathConfig::v4(addr)])
    };
    world.add(|rng| Host::new(config, rng))
}

/// Returns the shares of two uploads, by BBR and by CUBIC, from their 10th second to their 130th.
fn beside(queue: u32, offset: Duration) -> [f64; 2] {
    let mut world = World::new(1);
    let addrs = [0, 1].map(client_addr);
    let controllers = [BBR, CUBIC];
    let server = host(&mut world, SERVER, CUBIC, &addrs);
    let routes = [(addrs[0], 0), (addrs[1], 1), (SERVER, 2)];
    let router = world.add(|_| {
        let routes = routes.map(|(addr, iface)| (IpAddr::V4(addr), iface));
        let empty = Router::new();
        (routes.into_iter()).fold(empty, |router, (addr, iface)| router.route(addr, iface))
    });
    let clients = [0, 1].map(|n| host(&mut world, addrs[n], controllers[n], &[SERVER]));
    for client in clients {
        world.connect(client, router, Settings::default(), Settings::default());
    }
    world.connect(router, server, link(queue, 0.0), back());
    let config = TransferConfig {
        protocol: Protocol::Tcp,
        ..TransferConfig::new(&[], 1 << 40, Direction::Up)
    };
    for (client, label) in clients.into_iter().zip(0..) {
        let remote = (REMOTE.ip(), REMOTE.port() + label as u16).into();
        let mut sink = Stream::new(Role::Sink);
        sink.label = label;
        world.serve(server, remote, sink).unwrap();
        let options = ConnectOptions {
            remote,
            ..config.options()
        };
        world.open(client, options, config.client_stream()).unwrap();
        world.advance(offset);
    }
    let received = |world: &World| {
        [0, 1].map(|label| {
            let stream = world.host(server).labelled(label);
            stream.map_or(0.0, |stream| stream.received as f64)
        })
    };
    world.advance(Duration::from_secs(10));
    let before = received(&world);
    world.advance(Duration::from_secs(120));
    let after = received(&world);
    [0, 1].map(|n| (after[n] - before[n]) / 120.0 / FULL)
}

#[test]
fn bbr_and_cubic_leave_each_other_a_part() {
    for queue in [PIPE, 2 * PIPE, 4 * PIPE] {
        for offset in [0, 5_000] {
            let shares = beside(queue, Duration::from_millis(offset));
            let what = format!("queue {queue}, {offset} ms: {shares:.3?}");
            assert!(shares.iter().all(|share| *share >= 0.15), "{what}");
            assert!(shares.iter().sum::<f64>() >= 0.93, "{what}");
        }
    }
}
