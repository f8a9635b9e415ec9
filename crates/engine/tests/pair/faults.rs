//! Transfers on links that lose, die and come back.

use core::time::Duration;

use braid_engine::{CloseReason, Event, PathId, Protocol};
use braid_links::{Loss, Settings};

use crate::basic::link;
use crate::net::{Net, config};

fn lossy(settings: Settings, percent: f64) -> Settings {
    Settings {
        loss: Loss::Uniform(percent / 100.0),
        ..settings
    }
}

#[test]
fn random_loss_on_both_links() {
    for seed in 0..20 {
        let links = [lossy(link(20, 15), 2.0), lossy(link(10, 35), 2.0)];
        let mut net = Net::new(&links, config(), seed);
        net.transfer(300_000, 2_000_000, Protocol::Mptcp);
        assert!(net.run_to_end(Duration::from_secs(60)), "seed {seed}");
        assert_eq!(
            net.client.closed_with(),
            [CloseReason::Finished],
            "seed {seed}"
        );
        assert_eq!(net.client.apps[0].received, 2_000_000);
    }
}

#[test]
fn heavy_loss_in_the_handshake_and_everywhere() {
    for seed in 100..130 {
        let links = [lossy(link(20, 15), 20.0), lossy(link(10, 35), 20.0)];
        let mut net = Net::new(&links, config(), seed);
        net.transfer(20_000, 60_000, Protocol::Mptcp);
        net.run_to_end(Duration::from_secs(300));
        let reasons = net.client.closed_with();
        assert_eq!(
            reasons.len(),
            1,
            "seed {seed} hangs: {:?}",
            net.client.stack.subflows(net.client.apps[0].conn.unwrap())
        );
        if reasons[0] == CloseReason::Finished {
            assert_eq!(net.client.apps[0].received, 60_000);
        }
    }
}

#[test]
fn a_dark_link_does_not_stop_the_transfer() {
    for dark in [0, 1] {
        let mut net = Net::new(&[link(20, 15), link(10, 35)], config(), 7);
        net.transfer(100, 40_000_000, Protocol::Mptcp);
        net.run(Duration::from_secs(1), |_| false);
        set_up(&mut net, dark, false);
        let before = net.client.apps[0].received;
        net.run(Duration::from_secs(10), |_| false);
        let moved = net.client.apps[0].received - before;
        let rate = if dark == 0 { 10 } else { 20 };
        assert!(
            moved > rate * 125_000 * 7,
            "link {dark} dark: only {moved} bytes in 10 s"
        );
        set_up(&mut net, dark, true);
        assert!(net.run_to_end(Duration::from_secs(60)));
        assert_eq!(net.client.closed_with(), [CloseReason::Finished]);
    }
}

#[test]
fn a_link_that_was_dark_is_at_full_rate_soon_after() {
    let mut net = Net::new(&[link(60, 5), link(60, 5)], config(), 15);
    net.transfer(100, 80_000_000, Protocol::Mptcp);
    net.run(Duration::from_millis(500), |_| false);
    set_up(&mut net, 0, false);
    net.run(Duration::from_millis(100), |_| false);
    let before = net.down[1].counters().delivered.bytes;
    net.run(Duration::from_millis(900), |_| false);
    let other = net.down[1].counters().delivered.bytes - before;
    assert!(
        other > 900 * 6_500,
        "the other link carried {other} bytes meanwhile"
    );
    set_up(&mut net, 0, true);
    net.run(Duration::from_millis(500), |_| false);
    let before = net.down[0].counters().delivered.bytes;
    net.run(Duration::from_millis(500), |_| false);
    let back = net.down[0].counters().delivered.bytes - before;
    assert!(back > 500 * 6_500, "{back} bytes in half a second");
}

#[test]
fn both_links_dark_for_a_while() {
    let mut net = Net::new(&[link(20, 15), link(10, 35)], config(), 8);
    net.transfer(100, 20_000_000, Protocol::Mptcp);
    net.run(Duration::from_secs(1), |_| false);
    set_up(&mut net, 0, false);
    set_up(&mut net, 1, false);
    net.run(Duration::from_secs(10), |_| false);
    set_up(&mut net, 0, true);
    set_up(&mut net, 1, true);
    assert!(net.run_to_end(Duration::from_secs(60)));
    assert_eq!(net.client.closed_with(), [CloseReason::Finished]);
}

#[test]
fn a_link_reported_down_is_left_at_once_and_used_again() {
    let mut net = Net::new(&[link(20, 15), link(10, 35)], config(), 9);
    net.transfer(20_000_000, 1, Protocol::Mptcp);
    net.run(Duration::from_secs(1), |_| false);
    set_up(&mut net, 0, false);
    net.client.stack.set_path_up(net.now, PathId(0), false);
    net.run(Duration::from_secs(2), |_| false);
    set_up(&mut net, 0, true);
    net.client.stack.set_path_up(net.now, PathId(0), true);
    let before = net.up[0].counters().delivered.bytes;
    assert!(net.run_to_end(Duration::from_secs(60)));
    assert!(
        net.up[0].counters().delivered.bytes > before + 1_000_000,
        "not used again"
    );
}

#[test]
fn a_vanished_server_is_noticed() {
    let mut net = Net::new(&[link(20, 15), link(10, 35)], config(), 10);
    net.transfer(100, 50_000_000, Protocol::Mptcp);
    net.run(Duration::from_secs(1), |_| false);
    for n in [0, 1] {
        set_up(&mut net, n, false);
    }
    net.run(Duration::from_secs(60), |_| false);
    assert_eq!(net.client.closed_with(), [CloseReason::TimedOut]);
}

#[test]
fn first_path_dark_from_the_start() {
    let mut net = Net::new(&[link(20, 15), link(10, 35)], config(), 11);
    set_up(&mut net, 0, false);
    net.transfer(100, 1_000_000, Protocol::Mptcp);
    assert!(net.run_to_end(Duration::from_secs(10)));
    assert_eq!(net.client.closed_with(), [CloseReason::Finished]);
}

#[test]
fn nobody_listens() {
    let mut net = Net::new(&[link(20, 15)], config(), 12);
    net.server = Net::new(&[link(20, 15)], config(), 13).client;
    net.transfer(100, 100, Protocol::Mptcp);
    net.run(Duration::from_secs(60), |_| false);
    assert_eq!(
        net.client.closed_with(),
        [CloseReason::TimedOut],
        "a host that is not there"
    );
}

/// Unlike one that went down, a path that is left tells the peer.
#[test]
fn a_path_that_is_left_carries_nothing_either_way() {
    let mut net = Net::new(&[link(20, 15), link(10, 35)], config(), 15);
    net.transfer(9_000_000, 9_000_000, Protocol::Mptcp);
    net.run(Duration::from_millis(800), |_| false);
    let delivered = |net: &Net| [&net.up[1], &net.down[1]].map(|l| l.counters().delivered.bytes);
    assert!(delivered(&net).iter().all(|bytes| *bytes > 100_000));
    net.client.stack.leave_path(net.now, PathId(1));
    // What is in the queues.
    net.run(Duration::from_millis(500), |_| false);
    let before = delivered(&net);
    net.run(Duration::from_millis(500), |_| false);
    assert_eq!(delivered(&net), before);
    net.client.stack.set_path_up(net.now, PathId(1), true);
    net.run(Duration::from_millis(500), |_| false);
    let after = delivered(&net);
    assert!(after[0] > before[0] + 100_000 && after[1] > before[1] + 100_000);
    assert!(net.run_to_end(Duration::from_secs(60)));
    assert_eq!(net.client.closed_with(), [CloseReason::Finished]);
    assert_eq!(net.client.apps[0].received, 9_000_000);
}

#[test]
fn abort_reaches_the_peer() {
    let mut net = Net::new(&[link(20, 15), link(10, 35)], config(), 14);
    let conn = net.transfer(100, 20_000_000, Protocol::Mptcp);
    net.run(Duration::from_secs(1), |_| false);
    net.client.stack.abort(net.now, conn);
    net.run(Duration::from_secs(1), |_| false);
    assert_eq!(net.client.closed_with(), [CloseReason::Aborted]);
    let reset = |e: &Event| {
        matches!(
            e,
            Event::Closed {
                reason: CloseReason::Reset,
                ..
            }
        )
    };
    assert!(
        net.server.events.iter().any(reset),
        "{:?}",
        net.server.events
    );
    assert_eq!(net.server.stack.connections(), 0);
    assert_eq!(net.client.stack.connections(), 0);
}

pub fn set_up(net: &mut Net, n: usize, up: bool) {
    for link in [&mut net.up[n], &mut net.down[n]] {
        let settings = Settings {
            up,
            ..link.settings().clone()
        };
        link.set(net.now, settings);
    }
}
