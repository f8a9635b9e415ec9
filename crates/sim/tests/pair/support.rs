//! Links and transfers for the tests.

use core::time::Duration;

use braid_engine::{CloseReason, Config, PathId, Protocol};
use braid_links::{Loss, QueueLimit, Rate, Settings};
use braid_sim::tap::PacketEvent;
use braid_sim::traffic::{Role, Stream};
use braid_sim::transfer::{Direction, PathSettings, TransferConfig};
use braid_sim::{LinkId, NodeId, Packet, Tap, Transfer};
use braid_wire::Instant;

/// Returns a link with a queue of 50 packets.
pub fn link(mbit: u64, delay_ms: u64, loss: f64) -> Settings {
    Settings {
        rate: Rate::bits_per_second(mbit * 1_000_000),
        delay: Duration::from_millis(delay_ms),
        queue: QueueLimit::Packets(50),
        loss: Loss::Uniform(loss),
        ..Settings::default()
    }
}

/// Returns a path with links of 50 packets in both directions.
pub fn path(mbit: u64, delay_ms: u64, loss: f64) -> PathSettings {
    PathSettings::both(link(mbit, delay_ms, loss))
}

/// Returns a path whose queues hold the packets in flight of a round trip.
pub fn deep(mbit: u64, delay_ms: u64, loss: f64) -> PathSettings {
    PathSettings::both(Settings {
        queue: QueueLimit::Bytes((mbit * 125 * 2 * delay_ms).max(30_000)),
        ..link(mbit, delay_ms, loss)
    })
}

/// Returns two paths with deep queues, of 20 and 10 Mbit/s.
pub fn two_deep(loss: f64) -> [PathSettings; 2] {
    [deep(20, 15, loss), deep(10, 35, loss)]
}

/// A connection over which client and server send `up` and `down` bytes at the same time.
pub struct Exchange {
    pub up: u64,
    pub down: u64,
    pub protocol: Protocol,
    /// The path of the first subflow.
    pub path: Option<PathId>,
    pub engine: Config,
}

impl Exchange {
    pub fn new(up: u64, down: u64) -> Self {
        Exchange {
            up,
            down,
            protocol: Protocol::Mptcp,
            path: None,
            // With a short timeout it shows soon whether a connection is given up.
            engine: Config {
                user_timeout: secs(30),
                ..Config::default()
            },
        }
    }

    /// Builds the two hosts of the exchange.
    pub fn build(&self, seed: u64, paths: &[PathSettings]) -> Transfer {
        let mut transfer = Transfer::build(seed, &self.config(paths));
        for link in transfer.world.links() {
            transfer.world.tap(link, Box::new(WithinMtu));
        }
        transfer
    }

    pub fn start(&self, seed: u64, paths: &[PathSettings]) -> Transfer {
        let mut transfer = self.build(seed, paths);
        self.open(&mut transfer);
        transfer
    }

    pub fn open(&self, transfer: &mut Transfer) {
        let ends = [self.up, self.down].map(|size| Stream::new(Role::Upload { size }));
        let [asks, answers] = ends;
        let opened = transfer.open_with(self.config(&[]).options(), asks, answers);
        opened.unwrap();
    }

    pub fn config<'a>(&self, paths: &'a [PathSettings]) -> TransferConfig<'a> {
        TransferConfig {
            engine: self.engine.clone(),
            protocol: self.protocol,
            initial_path: self.path,
            ..TransferConfig::new(paths, 0, Direction::Up)
        }
    }

    /// Runs to the end; asserts that everything arrives and both ends close in order.
    pub fn finish(&self, transfer: &mut Transfer, limit: Duration) {
        let seed = transfer.world.seed();
        assert!(transfer.run(limit), "seed {seed}: {transfer:?}");
        self.assert_whole(transfer);
    }

    pub fn assert_whole(&self, transfer: &Transfer) {
        let seed = transfer.world.seed();
        for (end, due) in transfer.ends().into_iter().zip([self.down, self.up]) {
            assert_eq!(
                closed(transfer, end),
                Some(CloseReason::Finished),
                "seed {seed}"
            );
            assert_eq!(at(transfer, end).received, due, "seed {seed}");
            let held = transfer.world.host(end).stack().buffered();
            assert_eq!(held, 0, "seed {seed}: payload left in buffers");
        }
    }
}

/// Asserts that no packet exceeds its path's MTU.
#[derive(Debug)]
struct WithinMtu;

impl Tap for WithinMtu {
    fn on_packet(&mut self, _: Instant, _: LinkId, _: PacketEvent, packet: &Packet) {
        assert!(packet.bytes.len() <= 1500, "{} bytes", packet.bytes.len());
    }
}

/// Returns one end of the connection, open or over.
pub fn at(transfer: &Transfer, end: NodeId) -> &Stream {
    let stream = transfer.world.host(end).labelled(0);
    stream.expect("a connection")
}

/// Returns the reason of the connection's end there, if it has ended.
pub fn closed(transfer: &Transfer, end: NodeId) -> Option<CloseReason> {
    at(transfer, end).closed.map(|(_, reason)| reason)
}

/// Switches a path's link on or off, without informing the hosts.
pub fn set_up(transfer: &mut Transfer, path: usize, up: bool) {
    let (there, back) = transfer.links[path];
    for link in [there, back] {
        let settings = transfer.world.link_settings(link).clone();
        transfer.world.set_link(link, Settings { up, ..settings });
    }
}

/// Returns the bytes of payload and headers that a path's link delivered: up, down.
pub fn delivered(transfer: &mut Transfer, path: usize) -> [u64; 2] {
    let (up, down) = transfer.links[path];
    transfer.world.refresh();
    [up, down].map(|link| transfer.world.counters(link).delivered.bytes)
}

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
