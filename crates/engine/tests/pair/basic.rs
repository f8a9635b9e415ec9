//! Transfers on working links.

use core::time::Duration;

use braid_engine::{CloseReason, Event, Protocol};
use braid_links::{QueueLimit, Rate, Settings};

use crate::net::{Net, config};

pub fn link(mbit: u64, delay_ms: u64) -> Settings {
    Settings {
        rate: Rate::bits_per_second(mbit * 1_000_000),
        delay: Duration::from_millis(delay_ms),
        queue: QueueLimit::Bytes((mbit * 125 * 2 * delay_ms).max(30_000)),
        ..Settings::default()
    }
}

fn assert_clean_end(net: &Net, up: u64, down: u64) {
    for host in [&net.client, &net.server] {
        let closed = host.events.iter().find_map(|e| match e {
            Event::Closed { reason, .. } => Some(*reason),
            _ => None,
        });
        assert_eq!(closed, Some(CloseReason::Finished), "{:?}", host.events);
        assert_eq!(host.stack.buffered(), 0, "payload left in buffers");
    }
    assert_eq!(net.server.apps[0].received, up);
    assert_eq!(net.client.apps[0].received, down);
}

#[test]
fn download_over_two_links_uses_the_sum() {
    let mut net = Net::new(&[link(20, 15), link(10, 35)], config(), 1);
    let start = net.now;
    net.transfer(100, 20_000_000, Protocol::Mptcp);
    assert!(net.run_to_end(Duration::from_secs(60)));
    assert_clean_end(&net, 100, 20_000_000);
    let seconds = net.now.saturating_since(start).as_secs_f64();
    let rate = 160.0 / seconds;
    assert!(rate > 26.0, "{rate:.1} Mbit/s of 30");
}

#[test]
fn upload_over_two_links_uses_the_sum() {
    let mut net = Net::new(&[link(20, 15), link(10, 35)], config(), 2);
    let start = net.now;
    net.transfer(20_000_000, 100, Protocol::Mptcp);
    assert!(net.run_to_end(Duration::from_secs(60)));
    assert_clean_end(&net, 20_000_000, 100);
    let rate = 160.0 / net.now.saturating_since(start).as_secs_f64();
    assert!(rate > 26.0, "{rate:.1} Mbit/s of 30");
}

#[test]
fn regular_tcp_fills_its_link() {
    let mut net = Net::new(&[link(20, 15)], config(), 3);
    let start = net.now;
    net.transfer(100, 10_000_000, Protocol::Tcp);
    assert!(net.run_to_end(Duration::from_secs(60)));
    assert_clean_end(&net, 100, 10_000_000);
    let rate = 80.0 / net.now.saturating_since(start).as_secs_f64();
    assert!(rate > 18.0, "{rate:.1} Mbit/s of 20");
}

#[test]
fn both_directions_at_once_and_all_sizes() {
    for (n, size) in [0, 1, 100, 1428, 1429, 14_280, 65_535, 65_536, 1_000_003]
        .into_iter()
        .enumerate()
    {
        for protocol in [Protocol::Mptcp, Protocol::Tcp] {
            let mut net = Net::new(&[link(50, 5), link(50, 8)], config(), n as u64);
            net.transfer(size, size, protocol);
            assert!(
                net.run_to_end(Duration::from_secs(30)),
                "{size} bytes by {protocol:?}"
            );
            assert_clean_end(&net, size, size);
        }
    }
}

#[test]
fn a_device_without_segmentation_gets_single_packets() {
    let mut config = config();
    config.max_transmit = 1500;
    let mut net = Net::new(&[link(20, 15), link(10, 35)], config, 5);
    net.transfer(100_000, 1_000_000, Protocol::Mptcp);
    assert!(net.run_to_end(Duration::from_secs(30)));
    assert_clean_end(&net, 100_000, 1_000_000);
}

#[test]
fn a_reader_that_pauses_stops_the_sender_and_holds_bounded_memory() {
    let mut net = Net::new(&[link(100, 5)], config(), 6);
    net.config.recv_buffer = 1 << 20;
    net.transfer(1, 20_000_000, Protocol::Mptcp);
    net.run(Duration::from_millis(200), |_| false);
    net.client.apps[0].paused = true;
    net.run(Duration::from_secs(30), |_| false);
    let held = net.client.stack.buffered();
    assert!(
        held <= config().recv_buffer + (1 << 16),
        "{held} bytes held"
    );
    let before = net.client.apps[0].received;
    net.client.apps[0].resume();
    assert!(
        net.run_to_end(Duration::from_secs(30)),
        "stuck after {before} bytes"
    );
    assert_clean_end(&net, 1, 20_000_000);
}
