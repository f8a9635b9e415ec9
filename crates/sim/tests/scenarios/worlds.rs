//! The twelve scenarios.

use core::time::Duration;
use std::iter;

use braid_engine::{Config, ConnectOptions, PathConfig, Protocol};
use braid_links::{Change, Loss, QueueLimit, Rate, Schedule, Settings};
use braid_sim::transfer::{Direction, PathSettings, REMOTE, SERVER, TransferConfig, client_addr};
use braid_sim::{Host, HostConfig, NodeId, Transfer, World};
use braid_wire::Rng;

/// The scenario of a download.
pub struct Scenario {
    pub name: &'static str,
    /// The length of greedy downloads.
    pub span: Duration,
    paths: Vec<PathSettings>,
    /// The times at which the first path goes down, comes back, and so on.
    switches: Vec<Duration>,
    /// The receive buffer, bytes, if it is small.
    recv_buffer: Option<usize>,
    /// Both subflows share the first path with a TCP connection.
    shared: bool,
}

/// A download in progress.
pub struct Download {
    pub world: World,
    client: NodeId,
}

impl Download {
    /// Returns the bytes that reached the reader.
    pub fn received(&self) -> u64 {
        let stream = self.world.host(self.client).labelled(0);
        stream.map_or(0, |stream| stream.received)
    }
}

/// Returns the packets that a path holds.
fn pipe(mbit: u64, rtt_ms: u64) -> u64 {
    mbit * rtt_ms * 1000 / 8 / 1500
}

/// Returns a path by rate and round trip. The queue holds as much as the path, but 20 packets at least.
fn path(mbit: u64, rtt_ms: u64) -> Settings {
    Settings {
        rate: Rate::bits_per_second(mbit * 1_000_000),
        delay: Duration::from_micros(rtt_ms * 500),
        queue: QueueLimit::Packets(pipe(mbit, rtt_ms).max(20) as u32),
        ..Settings::default()
    }
}

fn lossy(loss: f64) -> Settings {
    Settings {
        loss: Loss::uniform(loss),
        ..path(10, 40)
    }
}

impl Scenario {
    pub fn new(name: &'static str, paths: impl IntoIterator<Item = Settings>) -> Self {
        Scenario {
            name,
            span: Duration::from_secs(10),
            paths: paths.into_iter().map(PathSettings::both).collect(),
            switches: Vec::new(),
            recv_buffer: None,
            shared: false,
        }
    }

    /// Starts a download of `size` bytes.
    pub fn start(&self, strategy: &str, engine: &Config, size: u64) -> Download {
        let mut engine = engine.clone();
        engine.recv_buffer = self.recv_buffer.unwrap_or(engine.recv_buffer);
        let config = TransferConfig {
            engine,
            strategy,
            ..TransferConfig::new(&self.paths, size, Direction::Down)
        };
        match self.shared {
            true => beside_tcp(&config),
            false => self.on_links(&config),
        }
    }

    fn on_links(&self, config: &TransferConfig<'_>) -> Download {
        let mut transfer = Transfer::start(1, config).unwrap();
        let (up, down) = transfer.links[0];
        for link in [up, down] {
            let settings = transfer.world.link_settings(link).clone();
            let changes = self.switches.iter().enumerate().map(|(n, at)| Change {
                at: *at,
                settings: Settings {
                    up: n % 2 == 1,
                    ..settings.clone()
                },
            });
            let changes: Vec<Change> = changes.collect();
            transfer.world.schedule(link, Schedule::new(changes));
        }
        Download {
            client: transfer.client,
            world: transfer.world,
        }
    }
}

/// Starts a download with two subflows over the first path, which a greedy TCP connection shares.
fn beside_tcp(config: &TransferConfig<'_>) -> Download {
    let mut world = World::new(1);
    let mut host = |addrs: &mut dyn Iterator<Item = _>| {
        let config = HostConfig {
            engine: config.engine.clone(),
            routes: vec![(SERVER.into(), 0)],
            strategy: braid_strategy::factory(config.strategy).unwrap(),
            ..HostConfig::new(addrs.map(PathConfig::v4).collect())
        };
        world.add(|rng| Host::new(config, rng))
    };
    let client = host(&mut (0..2).map(client_addr));
    let server = host(&mut iter::once(SERVER));
    let PathSettings { up, down } = config.paths[0].clone();
    world.connect(client, server, up, down);
    world.serve(server, REMOTE, config.server_stream()).unwrap();
    let other = TransferConfig {
        size: 1 << 40,
        ..config.clone()
    };
    let remote = (REMOTE.ip(), REMOTE.port() + 1).into();
    world.serve(server, remote, other.server_stream()).unwrap();
    let options = ConnectOptions {
        remote,
        protocol: Protocol::Tcp,
        ..config.options()
    };
    let mut asks = other.client_stream();
    asks.label = 1;
    world.open(client, options, asks).unwrap();
    world
        .open(client, config.options(), config.client_stream())
        .unwrap();
    Download { world, client }
}

/// Returns two paths of 1 to 100 Mbit/s and 10 to 300 ms, small values more often.
pub fn pair(number: u64) -> [(u64, u64); 2] {
    let mut rng = Rng::for_component(1, number);
    [(); 2].map(|()| {
        let (rate, rtt) = (rng.unit(), rng.unit());
        let mbit = 1.0 + 99.0 * rate * rate * rate;
        let rtt_ms = 10.0 + 290.0 * rtt * rtt;
        (mbit.round() as u64, rtt_ms.round() as u64)
    })
}

/// Returns a path with a queue that holds as much as the path, but 4 packets at least.
pub fn measured((mbit, rtt_ms): (u64, u64)) -> Settings {
    Settings {
        queue: QueueLimit::Packets(pipe(mbit, rtt_ms).max(4) as u32),
        ..path(mbit, rtt_ms)
    }
}

/// Returns all scenarios.
pub fn scenarios() -> Vec<Scenario> {
    let secs = Duration::from_secs;
    let bloated = Settings {
        queue: QueueLimit::Packets(400),
        ..path(2, 30)
    };
    vec![
        Scenario::new("equal", [path(10, 40), path(10, 40)]),
        Scenario::new("rtt 10:1", [path(10, 20), path(10, 200)]),
        Scenario::new("rate 20:1", [path(40, 40), path(2, 40)]),
        Scenario::new("1 % loss", [lossy(0.01), lossy(0.01)]),
        Scenario::new("5 % loss", [lossy(0.05), lossy(0.05)]),
        Scenario::new("bufferbloat", [path(10, 30), bloated]),
        Scenario {
            recv_buffer: Some(64 << 10),
            ..Scenario::new("small buffer", [path(10, 20), path(5, 100)])
        },
        Scenario {
            switches: vec![Duration::from_millis(300)],
            ..Scenario::new("path break", [path(10, 20), path(5, 60)])
        },
        Scenario {
            switches: (0..10)
                .map(|n| Duration::from_millis(300) + secs(n))
                .collect(),
            ..Scenario::new("flapping", [path(10, 20), path(5, 60)])
        },
        Scenario {
            span: secs(4),
            ..Scenario::new("long fat", [path(1000, 200), path(20, 40)])
        },
        Scenario {
            shared: true,
            ..Scenario::new("shared", [path(10, 40)])
        },
        Scenario::new(
            "4 paths",
            [path(20, 20), path(10, 40), path(5, 80), path(2, 160)],
        ),
    ]
}
