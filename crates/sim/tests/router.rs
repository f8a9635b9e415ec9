//! Routers: several hosts behind one link, and reports of packets that cannot be forwarded.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use braid_engine::{CloseReason, ConnectOptions, PathConfig, Protocol};
use braid_links::{QueueLimit, Rate, Settings};
use braid_sim::host::options;
use braid_sim::router::{RouterCounters, all_like};
use braid_sim::traffic::{Role, Stream};
use braid_sim::{Host, HostConfig, NodeId, Router, World};
use ipnet::IpNet;

const SIZE: u64 = 2_000_000;

fn link(mbit: u64, delay_ms: u64) -> Settings {
    Settings {
        rate: Rate::bits_per_second(mbit * 1_000_000),
        delay: Duration::from_millis(delay_ms),
        queue: QueueLimit::Packets(50),
        ..Settings::default()
    }
}

fn host(world: &mut World, addr: Ipv4Addr) -> NodeId {
    let config = HostConfig::new(vec![PathConfig::v4(addr)]);
    world.add(|rng| Host::new(config, rng))
}

fn left(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, n, 2)
}

fn right(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 2, n, 2)
}

/// `pairs` hosts on either side of a link of 10 Mbit/s between two routers.
struct Dumbbell {
    world: World,
    clients: Vec<NodeId>,
    routers: [NodeId; 2],
}

impl Dumbbell {
    /// Builds the network. `adapt` finishes both routers: the one with the clients on its interfaces from
    /// 1 on, and the other one on interface 0.
    fn new(pairs: u8, adapt: impl FnOnce(Router) -> Router) -> Self {
        let mut world = World::new(1);
        let side = |to: fn(u8) -> Ipv4Addr| {
            let near = Router::new().route(all_like(IpAddr::V4(to(0))), 0);
            (0..pairs).fold(near, |router, n| {
                let prefix = IpNet::new_assert(IpAddr::V4(to(n)), 24);
                router.route(prefix, u32::from(n) + 1)
            })
        };
        let near = world.add(|_| adapt(side(left)));
        let far = world.add(|_| side(right));
        world.connect(near, far, link(10, 10), link(10, 10));
        let mut clients = Vec::new();
        let mut ends = |router, addr: fn(u8) -> Ipv4Addr| -> Vec<NodeId> {
            let join = |n| {
                let end = host(&mut world, addr(n));
                world.connect(router, end, link(100, 1), link(100, 1));
                end
            };
            (0..pairs).map(join).collect()
        };
        clients.extend(ends(near, left));
        let servers = ends(far, right);
        for (n, (client, server)) in (0..).zip(clients.iter().zip(&servers)) {
            let addr = SocketAddr::new(right(n).into(), 80);
            let sink = Stream::new(Role::Sink);
            world.serve(*server, addr, sink).unwrap();
            let upload = Stream::new(Role::Upload { size: SIZE });
            world.open(*client, options(addr), upload).unwrap();
        }
        Dumbbell {
            world,
            clients,
            routers: [near, far],
        }
    }

    /// Runs until all transfers end, and returns how long that took.
    fn run(&mut self) -> Duration {
        let start = self.world.now();
        let ended = |world: &World, id: &NodeId| !world.host(*id).finished().is_empty();
        let clients = self.clients.clone();
        let done = self.world.run(Duration::from_secs(60), |world| {
            clients.iter().all(|id| ended(world, id))
        });
        assert!(done, "{:?}", self.world);
        for id in &clients {
            let (_, reason) = self.world.host(*id).finished()[0].closed.unwrap();
            assert_eq!(reason, CloseReason::Finished);
        }
        self.world.now().saturating_since(start)
    }

    fn counters(&self, router: usize) -> RouterCounters {
        self.world.node::<Router>(self.routers[router]).counters()
    }
}

#[test]
fn hosts_share_the_link_between_two_routers() {
    let alone = Dumbbell::new(1, |router| router).run();
    let mut all = Dumbbell::new(3, |router| router);
    let together = all.run();
    // Each transfer takes 1.6 s of the line, without headers.
    assert!(alone < Duration::from_millis(2_500), "{alone:?}");
    assert!(together > Duration::from_millis(4_800), "{together:?}");
    assert!(together < Duration::from_millis(7_000), "{together:?}");
    for router in [0, 1] {
        let counters = all.counters(router);
        assert!(counters.forwarded > 3 * SIZE / 1448, "{counters:?}");
        let others = RouterCounters {
            forwarded: 0,
            ..counters
        };
        assert_eq!(others, RouterCounters::default());
    }
}

#[test]
fn a_smaller_link_behind_a_router_is_found_out() {
    let report = IpAddr::from([10, 1, 255, 1]);
    let mut fixture = Dumbbell::new(1, |router| router.mtu(0, 1200).reports_from(report));
    fixture.run();
    let counters = fixture.counters(0);
    // The first flight is too big; packets sent after the report are not.
    assert!((1..=40).contains(&counters.too_big), "{counters:?}");
    assert!(counters.forwarded > SIZE / 1160, "{counters:?}");
}

#[test]
fn a_range_of_all_addresses_has_one_family() {
    let addr = |text: &str| text.parse::<IpAddr>().unwrap();
    assert!(all_like(addr("::")).contains(&addr("2001:db8::")));
    assert!(!all_like(addr("::")).contains(&addr("10.1.2.3")));
}

/// Opens a connection to an address without a host.
fn knock(world: &mut World, client: NodeId) {
    let nobody = SocketAddr::new(Ipv4Addr::new(10, 9, 9, 9).into(), 80);
    let options = ConnectOptions {
        protocol: Protocol::Tcp,
        ..options(nobody)
    };
    let fetch = Stream::new(Role::Fetch { request: 1 });
    world.open(client, options, fetch).unwrap();
}

#[test]
fn a_packet_that_goes_round_in_circles_expires() {
    let mut fixture = Dumbbell::new(1, |router| router);
    knock(&mut fixture.world, fixture.clients[0]);
    fixture.world.run(Duration::from_secs(10), |_| false);
    let expired = fixture.counters(0).expired + fixture.counters(1).expired;
    assert!(expired > 0, "{:?}", fixture.counters(0));
}

#[test]
fn a_router_without_a_route_says_so() {
    let mut world = World::new(1);
    let router = Router::new()
        .route(IpAddr::V4(left(0)), 0)
        .reports_from(IpAddr::from([10, 1, 0, 1]));
    let router = world.add(|_| router);
    let client = host(&mut world, left(0));
    world.connect(router, client, link(100, 1), link(100, 1));
    knock(&mut world, client);
    let given_up = world.run(Duration::from_secs(10), |world| {
        !world.host(client).finished().is_empty()
    });
    assert!(given_up);
    let (at, reason) = world.host(client).finished()[0].closed.unwrap();
    assert_eq!(reason, CloseReason::Unreachable);
    assert!(
        at < braid_sim::world::START + Duration::from_millis(3),
        "{at:?}"
    );
    assert_eq!(world.node::<Router>(router).counters().unreachable, 1);
}
