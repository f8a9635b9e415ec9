//! Networks as the tests want them.

use core::time::Duration;

use braid_links::{QueueLimit, Rate, Settings};
use braid_sim::aggregation::{Aggregation, AggregationConfig};
use braid_sim::transfer::PathSettings;

/// A link of this rate and round-trip time with a queue of one bandwidth-delay product.
pub fn link(mbit: u64, rtt_ms: u64) -> PathSettings {
    let settings = Settings {
        rate: Rate::bits_per_second(mbit * 1_000_000),
        delay: Duration::from_millis(rtt_ms) / 2,
        queue: QueueLimit::Bytes(mbit * 1_000_000 / 8 * rtt_ms / 1_000),
        ..Settings::default()
    };
    PathSettings {
        up: settings.clone(),
        down: settings,
    }
}

/// Two links, of 20 Mbit/s with 30 ms and of 10 Mbit/s with 70 ms.
pub fn two_links() -> AggregationConfig {
    AggregationConfig::new(vec![link(20, 30), link(10, 70)]).unwrap()
}

/// The network, once the box takes connections in.
pub fn start(config: &AggregationConfig) -> Aggregation {
    let mut net = Aggregation::new(1, config).unwrap();
    assert!(net.settle(), "no server was found");
    net
}

pub fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
