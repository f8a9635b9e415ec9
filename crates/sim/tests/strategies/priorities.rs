//! Important data beside greedy data.

use core::net::SocketAddr;
use core::time::Duration;
use std::sync::Arc;

use braid_engine::strategy::FlowSize;
use braid_engine::{Config, ConnectOptions, Urgency};
use braid_links::{Loss, QueueLimit, Rate, Settings};
use braid_sim::Transfer;
use braid_sim::traffic::{Bulk, Role, Session, Stream};
use braid_sim::transfer::{Direction, PathSettings, REMOTE, TransferConfig};

/// Length of a run.
const SPAN: Duration = Duration::from_secs(60);

/// Returns 2 paths of 5 Mbit/s, 40 and 100 ms, 1 % loss.
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

/// Returns important data: 2 Mbit/s in messages of 1,200 bytes.
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

/// The outcome of a run.
#[derive(Debug, Default)]
struct Outcome {
    /// Delays of the important messages, shortest first.
    delays: Vec<Duration>,
    /// Bytes of all streams that arrived within the run.
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

/// Runs each of `sessions` over a connection of its own, all between the same two hosts.
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
    (1..=16).for_each(|seed| all.add(run(seed, strategy, sessions)));
    all
}

/// Important data has far less delay than with standard MPTCP, which walks its subflows in turn and knows
/// no priorities. It has a fifth less than with the lowest round-trip time first and the same precedence
/// in the queue. Next to no rate is lost.
#[test]
fn important_data_is_early_and_the_rest_loses_next_to_nothing() {
    let alike = runs("roundrobin", &[&[important(3), greedy(3)]]);
    let jump = runs("minrtt", &[&[important(0), greedy(5)]]);
    let ours = runs("adaptive", &[&[important(0), greedy(5)]]);
    compare("one connection", (0.5, 0.97), [&alike, &jump, &ours]);
}

#[test]
fn so_is_important_data_on_a_connection_of_its_own() {
    let alike = runs("roundrobin", &[&[important(3)], &[greedy(3)]]);
    let jump = runs("minrtt", &[&[important(0)], &[greedy(5)]]);
    let ours = runs("adaptive", &[&[important(0)], &[greedy(5)]]);
    compare("two connections", (0.5, 0.97), [&alike, &jump, &ours]);
}

/// Compares delays with `alike`, at most `share` of them, and with `jump`; and rates with `jump`, at
/// least `kept` of them.
fn compare(what: &str, (share, kept): (f64, f64), outcomes: [&Outcome; 3]) {
    let figures = outcomes.map(|o| (o.p95() * 1e3, o.bytes as f64 / 1e3));
    println!("{what}: p95 in ms, and kB: {figures:.1?}");
    let [alike, jump, ours] = figures;
    let delay = (share * alike.0).min(0.8 * jump.0);
    assert!(ours.0 <= delay, "{what}: {figures:.1?}");
    assert!(ours.1 >= kept * jump.1, "{what}: {figures:.1?}");
}

/// Returns the completion times of downloads of 64 kB, one every 2 s, shortest first; beside a greedy
/// download of the urgency `beside`.
fn short_flows(seed: u64, strategy: &str, beside: Option<Urgency>) -> Vec<Duration> {
    let paths = paths();
    let config = TransferConfig {
        strategy,
        declared: true,
        ..TransferConfig::new(&paths, 64 << 10, Direction::Down)
    };
    let mut transfer = Transfer::build(seed, &config);
    let (client, server) = (transfer.client, transfer.server);
    let world = &mut transfer.world;
    if let Some(urgency) = beside {
        let remote = SocketAddr::new(REMOTE.ip(), REMOTE.port() + 1);
        let mut greedy = Stream::new(Role::Greedy { span: SPAN * 2 });
        greedy.urgency = urgency;
        world.serve(server, remote, greedy).unwrap();
        let options = ConnectOptions {
            remote,
            flow_size: FlowSize::Unknown,
            ..config.options()
        };
        world
            .open(client, options, Stream::new(Role::Sink))
            .unwrap();
    }
    world.serve(server, REMOTE, config.server_stream()).unwrap();
    world.run(Duration::from_secs(5), |_| false);
    for _ in 0..25 {
        world
            .open(client, config.options(), config.client_stream())
            .unwrap();
        world.run(Duration::from_secs(2), |_| false);
    }
    let host = world.host(client);
    let short = host.finished().iter().filter(|s| s.received == 64 << 10);
    let mut times: Vec<_> = short
        .map(|s| s.last_byte_at.unwrap().saturating_since(s.opened_at))
        .collect();
    assert_eq!(times.len(), 25);
    times.sort_unstable();
    times
}

/// Background data does not slow down other flows.
#[test]
fn the_background_is_not_noticed() {
    let p95 = |beside| {
        let mut all: Vec<_> = (1..=40)
            .flat_map(|seed| short_flows(seed, "adaptive", beside))
            .collect();
        all.sort_unstable();
        all[all.len() * 95 / 100].as_secs_f64()
    };
    let [alone, background] = [None, Some(Urgency::LEAST_URGENT)].map(p95);
    assert!(background <= 1.1 * alone, "{background} s, alone {alone} s");
}
