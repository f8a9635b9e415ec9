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

/// Returns a path with a queue of 50 packets.
fn path(mbit: u64, rtt_ms: u64, loss: f64) -> PathSettings {
    PathSettings::both(Settings {
        rate: Rate::bits_per_second(mbit * 1_000_000),
        delay: Duration::from_millis(rtt_ms / 2),
        queue: QueueLimit::Packets(50),
        loss: Loss::Uniform(loss),
        ..Settings::default()
    })
}

/// Returns 2 paths of 5 Mbit/s, 40 and 100 ms, 1 % loss.
fn paths() -> [PathSettings; 2] {
    [40, 100].map(|rtt| path(5, rtt, 0.01))
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

/// Two paths, for short flows of `bytes` beside a greedy download; 0 is for none.
#[derive(Clone, Copy)]
struct Shared {
    /// Mbit/s and round-trip time in ms of each path.
    paths: [(u64, u64); 2],
    loss: f64,
    bytes: u64,
}

/// Returns the completion times of downloads, one every 2 s, shortest first, and the bytes of a greedy download of
/// the urgency `beside`.
fn short_flows(seed: u64, shared: Shared, beside: Option<Urgency>) -> (Vec<Duration>, u64) {
    let paths = shared.paths.map(|(mbit, rtt)| path(mbit, rtt, shared.loss));
    let config = TransferConfig {
        strategy: "adaptive",
        declared: true,
        ..TransferConfig::new(&paths, shared.bytes, Direction::Down)
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
    let flows = if shared.bytes > 0 { 25 } else { 0 };
    for _ in 0..flows {
        world
            .open(client, config.options(), config.client_stream())
            .unwrap();
        world.run(Duration::from_secs(2), |_| false);
    }
    if flows == 0 {
        world.run(Duration::from_secs(50), |_| false);
    }
    let host = world.host(client);
    let short = host
        .finished()
        .iter()
        .filter(|s| s.received == shared.bytes);
    let mut times: Vec<_> = short
        .map(|s| s.last_byte_at.unwrap().saturating_since(s.opened_at))
        .collect();
    assert_eq!(times.len(), flows);
    times.sort_unstable();
    (times, host.open_streams().map(|(_, s)| s.received).sum())
}

/// Returns the 95th percentile of the completion times, s, without and with background data.
fn p95_beside_background(shared: Shared, seeds: u64) -> [f64; 2] {
    [None, Some(Urgency::LEAST_URGENT)].map(|beside| {
        let flows = (1..=seeds).flat_map(|seed| short_flows(seed, shared, beside).0);
        let mut times: Vec<_> = flows.collect();
        times.sort_unstable();
        times[times.len() * 95 / 100].as_secs_f64()
    })
}

/// Background data does not slow down other flows.
#[test]
fn the_background_is_not_noticed() {
    let shared = Shared {
        paths: [(5, 40), (5, 100)],
        loss: 0.01,
        bytes: 64 << 10,
    };
    let [alone, background] = p95_beside_background(shared, 40);
    assert!(background <= 1.1 * alone, "{background} s, alone {alone} s");
}

/// Background data leaves the best of two paths to other data, so an echo and a page take about as long as if they
/// were alone. With the best path in use until 0.3 s before, they took 88 and 149 ms in place of 41 and 79.
#[test]
fn the_background_leaves_the_best_path_to_others() {
    for (bytes, most) in [(1_000, 1.15), (64 << 10, 1.1)] {
        let shared = Shared {
            paths: [(20, 20), (10, 60)],
            loss: 0.0,
            bytes,
        };
        let [alone, background] = p95_beside_background(shared, 4);
        assert!(
            background <= most * alone,
            "{background} s, alone {alone} s"
        );
    }
}

/// Background data without other data beside it uses all paths.
#[test]
fn background_data_alone_uses_all_capacity() {
    let shared = Shared {
        paths: [(20, 20), (10, 60)],
        loss: 0.0,
        bytes: 0,
    };
    let (_, bytes) = short_flows(1, shared, Some(Urgency::LEAST_URGENT));
    let mbit = bytes as f64 * 8e-6 / 55.0;
    assert!(mbit > 0.85 * 30.0, "{mbit} Mbit/s");
}
