//! Networks for the tests.

use core::net::SocketAddr;
use core::time::Duration;

use braid_engine::CloseReason;
use braid_links::{QueueLimit, Rate, Settings};
use braid_proxy::report::{BoxCounters, ServerCounters};
use braid_sim::aggregation::{Aggregation, AggregationConfig, TransferId};
use braid_sim::traffic::Role;
use braid_sim::transfer::PathSettings;

/// Returns a link of this rate and round-trip time with a queue of one bandwidth-delay product.
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

/// Returns the same link while it carries nothing.
pub fn dark(mut link: PathSettings) -> Box<PathSettings> {
    link.up.up = false;
    link.down.up = false;
    Box::new(link)
}

/// Returns two links, of 20 Mbit/s with 30 ms and of 10 Mbit/s with 70 ms.
pub fn two_links() -> AggregationConfig {
    AggregationConfig::new(vec![link(20, 30), link(10, 70)]).unwrap()
}

/// Starts the network and runs until the box intercepts connections and knows both links.
pub fn start(config: &AggregationConfig) -> Aggregation {
    start_with_seed(1, config)
}

pub fn start_with_seed(seed: u64, config: &AggregationConfig) -> Aggregation {
    let mut net = Aggregation::new(seed, config).unwrap();
    assert!(net.run_until_intercepting(), "no server was found");
    net.run_for(Duration::from_millis(500));
    net
}

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Opens a user's connection to an address, which need not exist.
pub fn ask(net: &mut Aggregation, remote: &str) -> TransferId {
    let remote: SocketAddr = remote.parse().unwrap();
    net.open_to(0, remote, Role::Fetch { request: 100 })
        .unwrap()
}

/// Returns how the user's end closed, and how long after its SYN.
pub fn ending(net: &Aggregation, id: TransferId) -> Option<(Duration, CloseReason)> {
    let stream = net.at_user(id);
    let (at, reason) = stream.closed?;
    Some((at.saturating_since(stream.opened_at), reason))
}

/// Runs for `count` intervals of `width`. Returns the payload bytes that users received in each interval.
pub fn received_by_interval(net: &mut Aggregation, width: Duration, count: usize) -> Vec<u64> {
    let mut before = net.received();
    let mut run_interval = || {
        net.run_for(width);
        let now = net.received();
        now - core::mem::replace(&mut before, now)
    };
    (0..count).map(|_| run_interval()).collect()
}

pub fn box_counters(net: &Aggregation) -> BoxCounters {
    *net.box_node().core().expect("the box is on").counters()
}

pub fn server_counters(net: &Aggregation) -> ServerCounters {
    *net.server_node(0).core().expect("it is on").counters()
}

/// Asserts that box and servers have no connection and no buffered byte.
#[track_caller]
pub fn nothing_is_left(net: &Aggregation) {
    let boxed = net.box_node();
    let local = boxed.downstream().unwrap();
    assert_eq!(boxed.core().unwrap().connections(), 0);
    assert_eq!((local.len(), local.stack().buffered()), (0, 0));
    for n in 0..net.servers.len() {
        let server = net.server_node(n);
        let local = server.downstream().unwrap();
        assert_eq!(server.core().unwrap().connections(), 0);
        assert_eq!((local.len(), local.stack().buffered()), (0, 0));
        assert_eq!(server.stack().unwrap().buffered(), 0);
    }
}
