//! Transfers on links that lose, die and come back.

use braid_engine::{CloseReason, PathId, PathRecord};
use braid_sim::host::options;
use braid_sim::traffic::{Role, Stream};
use braid_sim::transfer::REMOTE;
use braid_sim::{Host, Transfer};

use crate::support::{Exchange, at, closed, deep, delivered, ms, secs, set_up, two_deep};

fn set_path_up(transfer: &mut Transfer, path: u8, up: bool) {
    let client = transfer.client;
    transfer.world.with_node(client, |host: &mut Host, now| {
        host.stack_mut().set_path_up(now, PathId(path), up);
    });
}

#[test]
fn random_loss_on_both_links() {
    for seed in 0..20 {
        let exchange = Exchange::new(300_000, 2_000_000);
        let mut transfer = exchange.start(seed, &two_deep(0.02));
        assert!(transfer.run(secs(60)), "seed {seed}");
        let client = transfer.client;
        assert_eq!(
            closed(&transfer, client),
            Some(CloseReason::Finished),
            "seed {seed}"
        );
        assert_eq!(at(&transfer, client).received, 2_000_000);
    }
}

#[test]
fn heavy_loss_in_the_handshake_and_everywhere() {
    for seed in 100..130 {
        let mut transfer = Exchange::new(20_000, 60_000).start(seed, &two_deep(0.2));
        transfer.run(secs(300));
        let client = transfer.client;
        let reason = closed(&transfer, client);
        assert!(reason.is_some(), "seed {seed} hangs: {transfer:?}");
        if reason == Some(CloseReason::Finished) {
            assert_eq!(at(&transfer, client).received, 60_000);
        }
    }
}

#[test]
fn a_dark_link_does_not_stop_the_transfer() {
    for dark in [0, 1] {
        let exchange = Exchange::new(100, 40_000_000);
        let mut transfer = exchange.start(7, &two_deep(0.0));
        transfer.world.advance(secs(1));
        set_up(&mut transfer, dark, false);
        let client = transfer.client;
        let before = at(&transfer, client).received;
        transfer.world.advance(secs(10));
        let moved = at(&transfer, client).received - before;
        let rate = if dark == 0 { 10 } else { 20 };
        assert!(
            moved > rate * 125_000 * 7,
            "link {dark} dark: only {moved} bytes in 10 s"
        );
        set_up(&mut transfer, dark, true);
        exchange.finish(&mut transfer, secs(60));
    }
}

#[test]
fn a_link_that_was_dark_is_at_full_rate_soon_after() {
    let paths = [deep(60, 5, 0.0), deep(60, 5, 0.0)];
    let mut transfer = Exchange::new(100, 80_000_000).start(15, &paths);
    let carried = |transfer: &mut Transfer, path, time| {
        let [_, before] = delivered(transfer, path);
        transfer.world.advance(time);
        delivered(transfer, path)[1] - before
    };
    transfer.world.advance(ms(500));
    set_up(&mut transfer, 0, false);
    transfer.world.advance(ms(100));
    let other = carried(&mut transfer, 1, ms(900));
    assert!(
        other > 900 * 6_500,
        "the other link carried {other} bytes meanwhile"
    );
    set_up(&mut transfer, 0, true);
    transfer.world.advance(ms(500));
    let back = carried(&mut transfer, 0, ms(500));
    assert!(back > 500 * 6_500, "{back} bytes in half a second");
}

#[test]
fn both_links_dark_for_a_while() {
    let exchange = Exchange::new(100, 20_000_000);
    let mut transfer = exchange.start(8, &two_deep(0.0));
    transfer.world.advance(secs(1));
    for n in [0, 1] {
        set_up(&mut transfer, n, false);
    }
    transfer.world.advance(secs(10));
    for n in [0, 1] {
        set_up(&mut transfer, n, true);
    }
    exchange.finish(&mut transfer, secs(60));
}

/// Neither end learns of the outage; data arrives within a second of the links' return.
#[test]
fn links_that_were_dark_for_long_deliver_soon_after() {
    for (seed, first) in [(20, 0), (21, 1)] {
        let exchange = Exchange::new(100, 60_000_000);
        let mut transfer = exchange.start(seed, &two_deep(0.0));
        transfer.world.advance(secs(1));
        for n in [0, 1] {
            set_up(&mut transfer, n, false);
        }
        transfer.world.advance(secs(20));
        let client = transfer.client;
        let before = at(&transfer, client).received;
        set_up(&mut transfer, first, true);
        transfer.world.advance(secs(1));
        let after = at(&transfer, client).received;
        assert!(after > before, "link {first}: nothing in a second");
        set_up(&mut transfer, 1 - first, true);
        exchange.finish(&mut transfer, secs(60));
    }
}

/// The record of the second path comes from an outage.
#[test]
fn a_wrong_record_does_not_keep_a_link_idle() {
    let exchange = Exchange::new(20_000_000, 100);
    let mut transfer = exchange.build(22, &[deep(20, 15, 0.0), deep(100, 20, 0.0)]);
    let record = |rtt, rate| PathRecord {
        srtt: ms(rtt),
        rttvar: ms(rtt / 10),
        base_rtt: ms(rtt),
        delivery_rate: rate,
        bytes_sent: 1 << 20,
        ..PathRecord::default()
    };
    let client = transfer.client;
    transfer.world.with_node(client, |host: &mut Host, _| {
        for (path, record) in [(0, record(30, 2_400_000)), (1, record(40, 20))] {
            let stack = host.stack_mut();
            stack.load_record(REMOTE.ip(), PathId(path), record);
        }
    });
    exchange.open(&mut transfer);
    exchange.finish(&mut transfer, secs(30));
    let [up, _] = delivered(&mut transfer, 1);
    assert!(up > 14_000_000, "it carried {up} bytes");
}

#[test]
fn a_link_reported_down_is_left_at_once_and_used_again() {
    let exchange = Exchange::new(20_000_000, 1);
    let mut transfer = exchange.start(9, &two_deep(0.0));
    transfer.world.advance(secs(1));
    set_up(&mut transfer, 0, false);
    set_path_up(&mut transfer, 0, false);
    transfer.world.advance(secs(2));
    set_up(&mut transfer, 0, true);
    set_path_up(&mut transfer, 0, true);
    let [before, _] = delivered(&mut transfer, 0);
    exchange.finish(&mut transfer, secs(60));
    let [after, _] = delivered(&mut transfer, 0);
    assert!(after > before + 1_000_000, "not used again");
}

#[test]
fn a_vanished_server_is_noticed() {
    let mut transfer = Exchange::new(100, 50_000_000).start(10, &two_deep(0.0));
    transfer.world.advance(secs(1));
    for n in [0, 1] {
        set_up(&mut transfer, n, false);
    }
    transfer.world.advance(secs(60));
    let client = transfer.client;
    assert_eq!(closed(&transfer, client), Some(CloseReason::TimedOut));
}

#[test]
fn first_path_dark_from_the_start() {
    let exchange = Exchange::new(100, 1_000_000);
    let mut transfer = exchange.build(11, &two_deep(0.0));
    set_up(&mut transfer, 0, false);
    exchange.open(&mut transfer);
    exchange.finish(&mut transfer, secs(10));
}

#[test]
fn a_host_that_is_not_there_is_given_up() {
    let mut transfer = Exchange::new(0, 0).build(12, &[deep(20, 15, 0.0)]);
    let nobody = "10.0.255.9:80".parse().unwrap();
    let asks = Stream::new(Role::Upload { size: 100 });
    let client = transfer.client;
    transfer.world.open(client, options(nobody), asks).unwrap();
    transfer.world.advance(secs(60));
    assert_eq!(closed(&transfer, client), Some(CloseReason::TimedOut));
}

/// Unlike a path that went down, a path that is left is closed by a signal to the peer.
#[test]
fn a_path_that_is_left_carries_nothing_either_way() {
    let exchange = Exchange::new(9_000_000, 9_000_000);
    let mut transfer = exchange.start(15, &two_deep(0.0));
    transfer.world.advance(ms(800));
    assert!(
        delivered(&mut transfer, 1)
            .iter()
            .all(|bytes| *bytes > 100_000)
    );
    let client = transfer.client;
    transfer.world.with_node(client, |host: &mut Host, now| {
        host.stack_mut().leave_path(now, PathId(1));
    });
    // Time for the queues to drain.
    transfer.world.advance(ms(800));
    let before = delivered(&mut transfer, 1);
    transfer.world.advance(ms(500));
    assert_eq!(delivered(&mut transfer, 1), before);
    set_path_up(&mut transfer, 1, true);
    transfer.world.advance(ms(500));
    let after = delivered(&mut transfer, 1);
    assert!(after[0] > before[0] + 100_000 && after[1] > before[1] + 100_000);
    exchange.finish(&mut transfer, secs(60));
}

#[test]
fn abort_reaches_the_peer() {
    let mut transfer = Exchange::new(100, 20_000_000).start(14, &two_deep(0.0));
    transfer.world.advance(secs(1));
    let client = transfer.client;
    transfer
        .world
        .with_node(client, |host: &mut Host, now| host.abort_labelled(now, 0));
    transfer.world.advance(secs(1));
    let reasons = transfer.ends().map(|end| closed(&transfer, end).unwrap());
    assert_eq!(reasons, [CloseReason::Aborted, CloseReason::Reset]);
    for end in transfer.ends() {
        assert_eq!(transfer.world.host(end).stack().connections(), 0);
    }
}
