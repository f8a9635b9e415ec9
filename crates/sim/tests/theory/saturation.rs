//! A greedy transfer over a link without loss fills the link, as far as its window can.

use core::time::Duration;

use braid_engine::cc::{Algorithm, BALIA, CUBIC, LIA, NEWRENO, OLIA};
use braid_engine::{Config, Protocol};
use braid_links::{QueueLimit, Rate, Settings};
use braid_sim::Transfer;
use braid_sim::transfer::{Direction, PathSettings, TransferConfig};

use crate::{Download, MTU, payload};

/// A link, and the packets that its queue takes.
#[derive(Debug, Clone, Copy)]
struct Bottleneck {
    mbit: u64,
    rtt_ms: u64,
    queue: u32,
}

impl Bottleneck {
    /// Returns the packets in flight that fill the link without any queue.
    fn pipe(self) -> f64 {
        (self.mbit * self.rtt_ms) as f64 * 1000.0 / 8.0 / MTU
    }

    fn settings(self) -> Settings {
        Settings {
            rate: Rate::bits_per_second(self.mbit * 1_000_000),
            delay: Duration::from_millis(self.rtt_ms / 2),
            queue: QueueLimit::Packets(self.queue),
            ..Settings::default()
        }
    }

    /// Returns the share of rate x payload / packet that a greedy transfer gets. The first 20 s are left
    /// out: slow start, and the first sawtooth after it.
    fn share(self, congestion: Algorithm, protocol: Protocol) -> f64 {
        let download = Download {
            seed: 1,
            congestion,
            protocol,
            down: self.settings(),
            warm_up: Duration::from_secs(20),
            span: Duration::from_secs(100),
        };
        let steady = download.steady();
        // This confirms `payload`: no header is longer, no packet shorter.
        let [before, after] = steady.link.map(|counters| counters.delivered);
        let packets = (after.packets - before.packets) as f64;
        let length = (after.bytes - before.bytes) as f64 / packets;
        assert!(length > MTU - 1.0, "{length} bytes a packet");
        steady.goodput / (self.mbit as f64 * 1e6 / 8.0 / MTU * payload(protocol))
    }
}

/// Asserts that the halved window still fills the link with a queue of one bandwidth-delay product.
#[track_caller]
fn assert_busy(congestion: Algorithm) {
    for (mbit, rtt_ms, queue) in [(5, 40, 17), (5, 40, 50), (20, 80, 134)] {
        let link = Bottleneck {
            mbit,
            rtt_ms,
            queue,
        };
        assert!(f64::from(queue) >= link.pipe(), "{link:?}");
        for protocol in [Protocol::Mptcp, Protocol::Tcp] {
            let share = link.share(congestion, protocol);
            let what = format!("{link:?} {congestion:?} {protocol:?}: {share:.4}");
            assert!((0.98..1.001).contains(&share), "{what}");
        }
    }
}

#[test]
fn a_queue_of_one_bandwidth_delay_product_keeps_newreno_busy() {
    assert_busy(NEWRENO);
}

#[test]
fn a_queue_of_one_bandwidth_delay_product_keeps_cubic_busy() {
    assert_busy(CUBIC);
}

/// With a shorter queue CUBIC still fills the link, because it keeps 0.7 of its window. NewReno cannot,
/// and gets the rate of the sawtooth between half the peak and the peak.
#[test]
fn a_shorter_queue_costs_newreno_what_the_sawtooth_says() {
    let link = Bottleneck {
        mbit: 20,
        rtt_ms: 80,
        queue: 50,
    };
    let share = link.share(CUBIC, Protocol::Mptcp);
    assert!((0.98..1.001).contains(&share), "CUBIC: {share:.4}");

    // In units of the pipe: the window grows by one packet a round trip from `low` to `peak`. Below 1 a
    // round trip takes 1 and carries the window. Above 1 it takes as long as the window is, and the link
    // is busy.
    let peak = 1.0 + f64::from(link.queue + 1) / link.pipe();
    let low = peak / 2.0;
    let (idle, busy) = (1.0 - low, peak - 1.0);
    let carried = idle * (low + 1.0) / 2.0 + busy * (1.0 + peak) / 2.0;
    let took = idle + busy * (1.0 + peak) / 2.0;
    let expected = carried / took;
    let share = link.share(NEWRENO, Protocol::Mptcp);
    assert!(
        (share / expected - 1.0).abs() < 0.02,
        "{share:.4} instead of {expected:.4}"
    );
}

/// RFC 6356 section 2, goal 1: on paths of its own every subflow fills its link, coupled or not.
#[test]
fn coupled_control_fills_links_that_nobody_shares() {
    let links = |links: [Bottleneck; 2]| {
        links.map(|link| {
            let down = link.settings();
            let up = Settings {
                rate: Rate::Unlimited,
                ..down.clone()
            };
            PathSettings { up, down }
        })
    };
    for paths in [[(10, 40, 50), (10, 40, 50)], [(20, 20, 50), (5, 80, 50)]] {
        let bottlenecks = paths.map(|(mbit, rtt_ms, queue)| Bottleneck {
            mbit,
            rtt_ms,
            queue,
        });
        let paths = links(bottlenecks);
        for congestion in [LIA, OLIA, BALIA] {
            let config = TransferConfig {
                engine: Config {
                    congestion,
                    ..Config::default()
                },
                ..TransferConfig::new(&paths, 1 << 40, Direction::Down)
            };
            let mut transfer = Transfer::start(1, &config).unwrap();
            let mut delivered = |span| {
                transfer.world.run(Duration::from_secs(span), |_| false);
                let links = &transfer.links;
                [0, 1].map(|n| transfer.world.counters(links[n].1).delivered.bytes)
            };
            let (before, after) = (delivered(20), delivered(100));
            for (n, link) in bottlenecks.iter().enumerate() {
                let share = (after[n] - before[n]) as f64 * 8.0 / 100.0 / (link.mbit as f64 * 1e6);
                assert!(
                    (0.95..1.001).contains(&share),
                    "{congestion:?} {link:?}: {share:.4}"
                );
            }
        }
    }
}
