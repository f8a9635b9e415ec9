//! The theory of links and of transfers over them, against the link models and the engine.

mod bbr;
mod fairness;
mod loss;
mod queue;
mod saturation;
mod statistics;

use core::time::Duration;

use braid_engine::cc::Algorithm;
use braid_engine::{Config, Protocol};
use braid_links::{Counters, Rate, Settings};
use braid_sim::Transfer;
use braid_sim::transfer::{Direction, PathSettings, TransferConfig};

/// Length of a full packet, bytes.
const MTU: f64 = 1500.0;

/// Returns the payload bytes of a full packet: the rest after IPv4, TCP, timestamps (12) and, over MPTCP,
/// a DSS option with 4-byte numbers (20, RFC 8684 section 3.3). Data sequence numbers take eight bytes
/// only once 2^31 bytes have passed, which no test here does.
fn payload(protocol: Protocol) -> f64 {
    match protocol {
        Protocol::Tcp => MTU - 20.0 - 20.0 - 12.0,
        Protocol::Mptcp => MTU - 20.0 - 20.0 - 12.0 - 20.0,
    }
}

/// One greedy download over one path.
struct Download {
    seed: u64,
    congestion: Algorithm,
    protocol: Protocol,
    /// The link that carries the data; the link back has its delay and no other limit.
    down: Settings,
    /// The time left out: handshake, slow start, the first losses.
    warm_up: Duration,
    /// The time that counts.
    span: Duration,
}

/// The results of a download in its span.
struct Steady {
    /// Bytes/s of payload that reached the reader.
    goodput: f64,
    /// The counters of the link that carried the data, before and after.
    link: [Counters; 2],
}

impl Download {
    fn steady(&self) -> Steady {
        let up = Settings {
            delay: self.down.delay,
            rate: Rate::Unlimited,
            ..Settings::default()
        };
        let down = self.down.clone();
        let paths = [PathSettings { up, down }];
        let config = TransferConfig {
            engine: Config {
                congestion: self.congestion,
                ..Config::default()
            },
            protocol: self.protocol,
            ..TransferConfig::new(&paths, 1 << 40, Direction::Down)
        };
        let mut transfer = Transfer::start(self.seed, &config).unwrap();
        let mut at = |span| {
            transfer.world.run(span, |_| false);
            let client = transfer.world.host(transfer.client);
            let received: u64 = client.open_streams().map(|(_, s)| s.received).sum();
            (received, transfer.world.counters(transfer.links[0].1))
        };
        let (start, before) = at(self.warm_up);
        let (end, after) = at(self.span);
        Steady {
            goodput: (end - start) as f64 / self.span.as_secs_f64(),
            link: [before, after],
        }
    }
}
