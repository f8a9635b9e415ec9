//! A client and a server joined by links.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;

use braid_engine::{Config, ConnectOptions, PathConfig, Protocol};
use braid_links::{QueueLimit, Rate, Settings};
use braid_sim::traffic::{Role, Stream};
use braid_sim::{Host, HostConfig, NodeId, World};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 1);

pub fn client_addr(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, n, 2)
}

fn path(addr: Ipv4Addr) -> PathConfig {
    PathConfig {
        v4: Some(addr),
        v6: None,
        mtu: 1500,
        backup: false,
    }
}

pub fn link(mbit: u64, delay_ms: u64) -> Settings {
    Settings {
        rate: Rate::bits_per_second(mbit * 1_000_000),
        delay: Duration::from_millis(delay_ms),
        queue: QueueLimit::Packets(50),
        ..Settings::default()
    }
}

/// A client and a server joined by `links`; the server answers with `size` bytes.
pub fn pair(seed: u64, links: &[Settings], size: u64) -> (World, NodeId, NodeId) {
    let mut world = World::new(seed);
    let policy = || braid_strategy::by_name("minrtt").unwrap();
    let count = links.len() as u8;
    let client = world.add(|rng| {
        let config = HostConfig {
            engine: Config::default(),
            paths: (0..count).map(|n| path(client_addr(n))).collect(),
            routes: Vec::new(),
            policy: Box::new(policy),
        };
        Host::new(config, rng)
    });
    let server = world.add(|rng| {
        let config = HostConfig {
            engine: Config::default(),
            paths: vec![path(SERVER)],
            routes: (0..count)
                .map(|n| (IpAddr::V4(client_addr(n)), u32::from(n)))
                .collect(),
            policy: Box::new(policy),
        };
        Host::new(config, rng)
    });
    for settings in links {
        world.connect(client, server, *settings, *settings);
    }
    let addr = SocketAddr::new(IpAddr::V4(SERVER), 80);
    world.with_host(server, |host, _| {
        let answer = Stream::new(Role::Answer { request: 100, size });
        host.serve(addr, answer).unwrap();
    });
    world.with_host(client, |host, now| {
        let options = ConnectOptions {
            remote: addr,
            remote_alt: None,
            path: None,
            protocol: Protocol::Mptcp,
            policy: policy(),
        };
        host.open(now, options, Stream::new(Role::Fetch { request: 100 }))
            .unwrap();
    });
    (world, client, server)
}

pub fn finish(world: &mut World, client: NodeId) -> Duration {
    let done = world.run(Duration::from_secs(600), |w| {
        !w.host(client).finished().is_empty()
    });
    assert!(done, "{:?}", world.host(client));
    let stream = &world.host(client).finished()[0];
    stream
        .complete_at
        .unwrap()
        .saturating_since(stream.opened_at)
}
