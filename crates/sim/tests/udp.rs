//! UDP cross traffic: its rate, a sink's view of a link, and the rest for TCP.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use braid_engine::{ConnectOptions, PathConfig, Protocol};
use braid_links::middlebox::{Chain, Nat, NatConfig};
use braid_links::{Loss, QueueLimit, Rate, Reorder, Settings};
use braid_sim::traffic::{Role, Stream};
use braid_sim::udp::{Pauses, UdpFlow, UdpReport, UdpSink, UdpSource, UdpTally};
use braid_sim::world::START;
use braid_sim::{Host, HostConfig, MiddleboxNode, NodeId, Router, World};

const SECOND: Duration = Duration::from_secs(1);

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn flow(rate: u64, size: u16) -> UdpFlow {
    UdpFlow::constant(addr("10.0.0.1:5000"), addr("10.0.0.2:6000"), rate, size)
}

/// Returns a link of 8 Mbit/s and 10 ms.
fn link() -> Settings {
    Settings {
        rate: Rate::bits_per_second(8_000_000),
        delay: Duration::from_millis(10),
        queue: QueueLimit::Packets(50),
        ..Settings::default()
    }
}

struct Fixture {
    world: World,
    source: NodeId,
    sink: NodeId,
}

impl Fixture {
    fn new(seed: u64, flow: &UdpFlow, link: Settings) -> Fixture {
        let mut world = World::new(seed);
        let source = world.add(|rng| UdpSource::new(flow.clone(), rng));
        let sink = world.add(|_| UdpSink::new());
        world.connect(source, sink, link, Settings::default());
        Fixture {
            world,
            source,
            sink,
        }
    }

    fn run(&mut self, time: Duration) -> (UdpTally, UdpReport) {
        self.world.run(time, |_| false);
        let sent = self.world.node::<UdpSource>(self.source).sent();
        let sink: &UdpSink = self.world.node(self.sink);
        assert_eq!(sink.ignored(), 0);
        (sent, sink.report(addr("10.0.0.1:5000")))
    }
}

#[test]
fn a_constant_rate_is_exact() {
    // 3 Mbit/s in packets of 1000 bytes: one every 8/3 ms, which is no whole number of nanoseconds.
    let mut fixture = Fixture::new(1, &flow(3_000_000, 1000), link());
    let (sent, report) = fixture.run(SECOND * 8);
    assert_eq!(sent.packets, 3_001, "one at the start, and 375 a second");
    assert_eq!(sent.bytes, sent.packets * 1000);
    // The last four packets are on the way: 11 ms.
    assert_eq!((report.received.packets, report.lost()), (2_996, 0));
    let due = Duration::from_millis(11);
    assert_eq!(
        (report.delay_min, report.delay_max, report.jitter),
        (due, due, Duration::ZERO)
    );
}

#[test]
fn sizes_and_pauses_are_as_asked() {
    let varying = UdpFlow {
        sizes: 200..=1200,
        pauses: Some(Pauses {
            on: Duration::from_millis(300),
            off: Duration::from_millis(700),
        }),
        ..flow(2_000_000, 0)
    };
    let run = |seed| Fixture::new(seed, &varying, link()).run(SECOND * 300).0;
    let sent = run(1);
    let mean = sent.bytes as f64 / sent.packets as f64;
    // About 15,000 draws with a standard deviation of 289 bytes: 2.4 for the mean.
    assert!((mean - 700.0).abs() < 10.0, "{mean}");
    // The source is on for 0.3 of the time; some 300 periods of each kind make a standard deviation of
    // 0.02.
    let rate = sent.bytes as f64 * 8.0 / 300.0 / 2e6;
    assert!((rate - 0.3).abs() < 0.07, "{rate}");
    assert_eq!(run(1), sent);
    assert_ne!(run(2), sent);
    let brief = UdpFlow {
        start: START + SECOND,
        end: Some(START + SECOND * 2),
        ..flow(80_000, 100)
    };
    assert_eq!(
        Fixture::new(1, &brief, link()).run(SECOND * 9).0.packets,
        100
    );
    assert_eq!(
        Fixture::new(1, &flow(0, 100), link()).run(SECOND).0.packets,
        0
    );
    let tiny = Fixture::new(1, &flow(8_000, 1), link()).run(SECOND).0;
    assert_eq!(tiny.bytes / tiny.packets, 44, "headers and stamp");
}

#[test]
fn a_sink_measures_what_the_link_does() {
    let rough = Settings {
        loss: Loss::Uniform(0.05),
        duplicate: 0.02,
        reorder: Reorder {
            share: 0.03,
            detour: Duration::from_millis(5),
        },
        ..link()
    };
    let mut fixture = Fixture::new(3, &flow(4_000_000, 1000), rough);
    let (_, report) = fixture.run(SECOND * 20);
    fixture.world.refresh();
    let counters = fixture.world.counters(braid_sim::LinkId(0));
    assert_eq!(report.received.packets, counters.delivered.packets);
    // The end of the flow is still on its way.
    assert!(report.lost().abs_diff(counters.dropped_loss.packets) <= 1);
    assert_eq!(report.duplicates, counters.duplicated.packets);
    assert!(report.reordered > 0 && report.reordered <= counters.detoured.packets);
    assert_eq!(report.delay_min, Duration::from_millis(11));
    // The slowest packet took a detour, behind the copies of earlier ones.
    assert!(report.delay_max >= Duration::from_millis(16));
    assert!(
        report.delay_mean() < Duration::from_millis(12),
        "{report:?}"
    );
    assert!(report.jitter > Duration::ZERO);
}

#[test]
fn more_than_the_link_carries_is_lost_and_the_rest_is_late() {
    let (sent, report) = Fixture::new(1, &flow(16_000_000, 1000), link()).run(SECOND * 10);
    let share = report.received.packets as f64 / sent.packets as f64;
    assert!((share - 0.5).abs() < 0.01, "{share}");
    // 50 packets of 1 ms each ahead of the packet, one on the line, and the packet itself.
    let full = Duration::from_millis(10 + 50 + 2);
    assert!(report.delay_max <= full && report.delay_max > full - Duration::from_millis(2));
}

#[test]
fn a_corrupted_packet_is_not_counted() {
    let spoilt = Settings {
        corrupt: 0.1,
        ..link()
    };
    let mut fixture = Fixture::new(1, &flow(4_000_000, 1000), spoilt);
    fixture.world.run(SECOND * 10, |_| false);
    let corrupted = fixture
        .world
        .counters(braid_sim::LinkId(0))
        .corrupted
        .packets;
    let ignored = fixture.world.node::<UdpSink>(fixture.sink).ignored();
    assert!(corrupted > 100);
    assert_eq!(ignored, corrupted);
}

#[test]
fn flows_of_both_families_through_a_router_and_a_nat() {
    let mut world = World::new(1);
    let inner = world.add(|rng| UdpSource::new(flow(800_000, 500), rng));
    let six = UdpFlow::constant(addr("[fd00::1]:5000"), addr("[fd00::2]:6000"), 800_000, 500);
    let other = world.add(|rng| UdpSource::new(six, rng));
    let config = NatConfig::new([203, 0, 113, 1].into());
    let nat = world.add(|_| MiddleboxNode::new(Chain::new().and(Nat::new(config))));
    let router = Router::new()
        .route(IpAddr::from([10, 0, 0, 2]), 2)
        .route(addr("[fd00::2]:1").ip(), 2);
    let router = world.add(|_| router);
    let sink = world.add(|_| UdpSink::new());
    for (a, b) in [(inner, nat), (nat, router), (other, router), (router, sink)] {
        world.connect(a, b, link(), link());
    }
    // The router's interfaces, in this order: NAT, the other source, the sink.
    world.run(SECOND, |_| false);
    let sink: &UdpSink = world.node(sink);
    assert_eq!(sink.ignored(), 0);
    for src in ["203.0.113.1:5000", "[fd00::1]:5000"] {
        let report = sink.report(addr(src));
        assert!(report.received.packets > 190, "{src}: {report:?}");
        assert_eq!(report.lost(), 0);
    }
}

/// Adds a host with plain TCP at `addr`.
fn host(world: &mut World, addr: IpAddr) -> NodeId {
    let IpAddr::V4(v4) = addr else {
        panic!("an IPv4 address");
    };
    let config = HostConfig::new(vec![PathConfig::v4(v4)]);
    world.add(|rng| Host::new(config, rng))
}

#[test]
fn tcp_takes_what_udp_leaves() {
    const SIZE: u64 = 4_000_000;
    let mut world = World::new(1);
    let [client, server] = ["10.0.0.3:0", "10.0.0.4:80"].map(addr);
    let near = Router::new().route(client.ip(), 0).route(server.ip(), 2);
    let near = near.route(addr("10.0.0.2:0").ip(), 2);
    let far = Router::new().route(client.ip(), 0).route(server.ip(), 1);
    let far = far.route(addr("10.0.0.2:0").ip(), 2);
    let (near, far) = (world.add(|_| near), world.add(|_| far));
    let source = world.add(|rng| UdpSource::new(flow(3_000_000, 1000), rng));
    let sink = world.add(|_| UdpSink::new());
    let (asks, answers) = (host(&mut world, client.ip()), host(&mut world, server.ip()));
    let fast = Settings::default;
    world.connect(near, asks, fast(), fast());
    world.connect(near, source, fast(), fast());
    world.connect(near, far, link(), link());
    world.connect(far, answers, fast(), fast());
    world.connect(far, sink, fast(), fast());
    world
        .serve(answers, server, Stream::new(Role::Sink))
        .unwrap();
    let options = ConnectOptions {
        protocol: Protocol::Tcp,
        ..braid_sim::host::options(server)
    };
    world
        .open(asks, options, Stream::new(Role::Upload { size: SIZE }))
        .unwrap();
    let done = world.run(SECOND * 60, |world| !world.host(asks).finished().is_empty());
    assert!(done);
    let took = world.now().saturating_since(START).as_secs_f64();
    // UDP has 3 of the 8 Mbit/s; headers take 3.5 % of the rest.
    let rate = SIZE as f64 * 8.0 / took / 1e6;
    assert!((4.2..4.9).contains(&rate), "{rate} Mbit/s");
    let report = world.node::<UdpSink>(sink).report(addr("10.0.0.1:5000"));
    assert!(report.lost() * 20 < report.expected, "{report:?}");
}
