//! The same seed gives the same run, byte for byte, and additions beside a run do not change it.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::sync::{Arc, Mutex};

use braid_engine::PathConfig;
use braid_links::middlebox::{Chain, Keep, Merge, Nat, NatConfig, SequenceShift, Split};
use braid_links::{Change, CoDel, Loss, QueueLimit, Rate, Reorder, Schedule, Settings};
use braid_sim::host::options;
use braid_sim::tap::PacketEvent;
use braid_sim::traffic::{Role, Stream};
use braid_sim::udp::{Pauses, UdpFlow, UdpSink, UdpSource};
use braid_sim::{Host, HostConfig, LinkId, MiddleboxNode, NodeId, Packet, Router, Tap, World};
use braid_wire::Instant;

const CLIENT: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 1, 2)];
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const EXTERNAL: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const TIME: Duration = Duration::from_secs(8);

/// The events on links: kind, time, and bytes.
#[derive(Debug, Default)]
struct Log(Vec<u8>);

impl Tap for Log {
    fn on_packet(&mut self, at: Instant, link: LinkId, what: PacketEvent, packet: &Packet) {
        let (LinkId(link), at) = (link, at.as_nanos());
        self.0.extend(format!("{at} {link} {what:?} ").bytes());
        self.0.extend_from_slice(&packet.bytes);
        self.0.push(b'\n');
    }
}

/// Returns a link with all random features.
fn rough(mbit: u64, delay_ms: u64) -> Settings {
    Settings {
        rate: Rate::bits_per_second(mbit * 1_000_000),
        burst: 0,
        delay: Duration::from_millis(delay_ms),
        jitter: Duration::from_millis(3),
        jitter_reorders: false,
        queue: QueueLimit::Packets(60),
        codel: Some(CoDel::default()),
        loss: Loss::bursts(0.01, 2.0),
        reorder: Reorder {
            share: 0.01,
            detour: Duration::from_millis(4),
        },
        duplicate: 0.005,
        corrupt: 0.005,
        up: true,
    }
}

fn host(world: &mut World, addrs: &[Ipv4Addr], routes: Vec<(IpAddr, u32)>) -> NodeId {
    let paths = addrs.iter().copied().map(PathConfig::v4);
    let config = HostConfig {
        routes,
        ..HostConfig::new(paths.collect())
    };
    world.add(|rng| Host::new(config, rng))
}

/// Adds a source and a sink, joined by one link; returns the link's first direction.
fn cross_traffic(world: &mut World, net: u8) -> LinkId {
    let [src, dst] = [1, 2].map(|n| SocketAddr::new([172, 16, net, n].into(), 9));
    let flow = UdpFlow {
        sizes: 100..=1400,
        pauses: Some(Pauses {
            on: Duration::from_millis(200),
            off: Duration::from_millis(100),
        }),
        ..UdpFlow::constant(src, dst, 3_000_000, 0)
    };
    let source = world.add(|rng| UdpSource::new(flow, rng));
    let sink = world.add(|_| UdpSink::new());
    world.connect(source, sink, rough(2, 5), rough(2, 5)).0
}

/// Builds a client with two paths to a server, one through middleboxes and one through a router whose
/// link changes; and UDP traffic beside it. Returns the world and the links of all that.
fn build(seed: u64) -> (World, Vec<LinkId>) {
    let mut world = World::new(seed);
    let client = host(&mut world, &CLIENT, Vec::new());
    let routes = vec![(IpAddr::V4(EXTERNAL), 0), (IpAddr::V4(CLIENT[1]), 1)];
    let server = host(&mut world, &[SERVER], routes);
    let chain = Chain::new()
        .and(Split::new(700))
        .and(Nat::new(NatConfig::new(EXTERNAL)))
        .and(SequenceShift::new(seed))
        .and(Merge::new(3_000, Duration::from_millis(1), Keep::First));
    let boxes = world.add(|_| MiddleboxNode::new(chain));
    let router = Router::new()
        .route(IpAddr::V4(SERVER), 1)
        .route(IpAddr::V4(CLIENT[1]), 0)
        .reports_from([10, 0, 1, 1].into());
    let router = world.add(|_| router);
    let mut links = Vec::new();
    for (a, b) in [
        (client, boxes),
        (boxes, server),
        (client, router),
        (router, server),
    ] {
        let (there, back) = world.connect(a, b, rough(6, 10), rough(6, 10));
        links.extend([there, back]);
    }
    let slow = rough(1, 40);
    let change = Change {
        at: TIME / 4,
        settings: slow,
    };
    world.schedule(links[7], Schedule::new([change]));
    links.push(cross_traffic(&mut world, 0));
    let addr = SocketAddr::new(SERVER.into(), 80);
    let sized = Role::Answer {
        request: 100,
        size: 100_000_000,
    };
    world.serve(server, addr, Stream::new(sized)).unwrap();
    let options = options(addr);
    world
        .open(client, options, Stream::new(Role::Fetch { request: 100 }))
        .unwrap();
    (world, links)
}

/// Returns the log of the links of [`build`]; `add` changes the world before it runs.
fn log(seed: u64, add: impl FnOnce(&mut World)) -> Vec<u8> {
    let (mut world, links) = build(seed);
    add(&mut world);
    let log = Arc::new(Mutex::new(Log::default()));
    for link in links {
        world.tap(link, Box::new(log.clone()));
    }
    world.run(TIME, |_| false);
    let log = core::mem::take(&mut *log.lock().unwrap());
    log.0
}

/// Asserts that two logs are equal; the message names the place where they part.
fn assert_same(one: &[u8], other: &[u8]) {
    let differs = one.iter().zip(other).position(|(a, b)| a != b);
    assert!(
        one == other,
        "logs of {} and {} bytes part at {differs:?}",
        one.len(),
        other.len()
    );
}

#[test]
fn the_same_seed_gives_the_same_log() {
    let first = log(7, |_| ());
    for what in [
        "Sent",
        "Duplicated",
        "Delivered",
        "cause: Loss",
        "cause: CoDel",
    ] {
        let seen = first.windows(what.len()).any(|w| w == what.as_bytes());
        assert!(seen, "nothing was {what}");
    }
    assert!(first.len() > 5_000_000, "{} bytes", first.len());
    assert_same(&first, &log(7, |_| ()));
    assert!(first != log(8, |_| ()));
}

#[test]
fn what_is_added_leaves_the_rest_as_it_was() {
    let alone = log(7, |_| ());
    let beside = log(7, |world| {
        cross_traffic(world, 1);
        cross_traffic(world, 2);
    });
    assert_same(&alone, &beside);
}
