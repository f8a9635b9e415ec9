//! Important data beside data that takes all there is.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use braid_engine::{Config, ConnectOptions};
use braid_links::{Loss, QueueLimit, Rate, Settings};
use braid_sim::Transfer;
use braid_sim::traffic::{Bulk, Role, Session, Stream};
use braid_sim::transfer::{Direction, PathSettings, REMOTE, TransferConfig};

/// Length of a run.
const SPAN: Duration = Duration::from_secs(60);

/// 2 paths of 5 Mb/s, 40 and 100 ms, 1 % loss.
fn paths() -> [PathSettings; 2] {
    [40, 100].map(|rtt| {
        PathSettings::both(Settings {
            rate: Rate::bits_per_second(5_000_000),
            delay: Duration::from_millis(rtt / 2),
            queue: QueueLimit::Packets(50),
            loss: Loss::Uniform(0.01),
            ..Settings::default()
        })
    })
}

/// 2 Mb/s in messages of 1,200 bytes.
fn important(priority: u8) -> Bulk {
    Bulk {
        stream: 0,
        priority,
        message: 1200,
        rate: Some(2_000_000),
        span: SPAN,
    }
}

fn greedy(priority: u8) -> Bulk {
    Bulk {
        stream: 1,
        priority,
        message: 16_000,
        rate: None,
        span: SPAN,
    }
}

/// What came of a run.
#[derive(Debug, Default)]
struct Outcome {
    /// Delays of the important messages, in order of length.
    delays: Vec<Duration>,
    /// Bytes of all streams that were there in time.
    bytes: u64,
}

impl Outcome {
    fn p95(&self) -> f64 {
        self.delays[self.delays.len() * 95 / 100].as_secs_f64()
    }

    fn add(&mut self, other: Outcome) {
        self.delays.extend(other.delays);
        self.delays.sort_unstable();
        self.bytes += other.bytes;
    }
}

/// Each of `sessions` over a connection of its own, all between the same two hosts.
fn run(seed: u64, strategy: &str, sessions: &[&[Bulk]]) -> Outcome {
    let paths = paths();
    let config = TransferConfig {
        strategy,
        engine: Config {
            send_buffer: 256_000,
            ..Config::default()
        },
        ..TransferConfig::new(&paths, 0, Direction::Down)
    };
    let mut transfer = Transfer::build(seed, &config);
    for (n, bulk) in sessions.iter().enumerate() {
        let remote = SocketAddr::new(REMOTE.ip(), REMOTE.port() + n as u16);
        let session = Session {
            frames: Arc::from([]),
            bulk: bulk.to_vec(),
        };
        let (client, server) = (transfer.client, transfer.server);
        let world = &mut transfer.world;
        let sends = Stream::new(Role::Send(session));
        world.serve(server, remote, sends).unwrap();
        let options = ConnectOptions {
            remote,
            ..config.options()
        };
        world
            .open(client, options, Stream::new(Role::Collect))
            .unwrap();
    }
    transfer.world.run(SPAN, |_| false);
    let host = transfer.world.host(transfer.client);
    let mut outcome = Outcome::default();
    for (_, stream) in host.open_streams() {
        outcome.bytes += stream.received;
        let important = stream.messages().iter().filter(|m| m.message.stream == 0);
        outcome.delays.extend(important.map(|m| m.delay()));
    }
    outcome.delays.sort_unstable();
    outcome
}

fn runs(strategy: &str, sessions: &[&[Bulk]]) -> Outcome {
    let mut all = Outcome::default();
    (1..=6).for_each(|seed| all.add(run(seed, strategy, sessions)));
    all
}

#[test]
fn figures() {
    let together = |a, b| [important(a), greedy(b)];
    for strategy in ["minrtt", "roundrobin", "po", "ecf", "blest", "adaptive"] {
        if braid_strategy::by_name(strategy).is_err() {
            continue;
        }
        for (a, b) in [(3, 3), (0, 5)] {
            let one = runs(strategy, &[&together(a, b)]);
            let two = runs(strategy, &[&[important(a)], &[greedy(b)]]);
            println!(
                "{strategy} {a} {b}: one {:.1} ms {} kB; two {:.1} ms {} kB",
                one.p95() * 1e3,
                one.bytes / 1000,
                two.p95() * 1e3,
                two.bytes / 1000
            );
        }
    }
}
