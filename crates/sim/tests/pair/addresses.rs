//! Hosts that announce their addresses, and which of them are backups (RFC 8684 sections 3.3.8 and 3.4).

use core::net::{IpAddr, Ipv4Addr};

use braid_engine::stats::SubflowStats;
use braid_engine::{PathConfig, PathId};
use braid_sim::transfer::REMOTE;
use braid_sim::{Host, NodeId, Transfer};

use crate::support::{Exchange, deep, delivered, ms, secs, set_up, two_deep};

const OTHER: Ipv4Addr = Ipv4Addr::new(10, 0, 254, 1);

/// Lets the server announce its other address.
fn announce(transfer: &mut Transfer) {
    let server = transfer.server;
    transfer.world.with_node(server, |host: &mut Host, _| {
        let stack = host.stack_mut();
        let path = stack.add_path(PathConfig::v4(OTHER)).unwrap();
        let addr = (OTHER, REMOTE.port()).into();
        stack.announce(path, addr).unwrap();
    });
}

fn subflows(transfer: &Transfer, end: NodeId) -> Vec<SubflowStats> {
    let stack = transfer.world.host(end).stack();
    let (conn, _) = stack.conn_bytes().next().expect("a connection");
    stack.subflows(conn)
}

#[test]
fn an_announced_address_carries_its_part() {
    for seed in 0..10 {
        let exchange = Exchange::new(100, 8_000_000);
        let mut transfer = exchange.build(seed, &[deep(20, 15, 0.02)]);
        announce(&mut transfer);
        exchange.open(&mut transfer);
        transfer.world.advance(secs(2));
        let there = subflows(&transfer, transfer.client);
        let to = |addr: Ipv4Addr| {
            let mut to = there.iter().filter(|s| s.remote.ip() == IpAddr::V4(addr));
            (to.next().is_some_and(|s| s.bytes_received > 0), to.next())
        };
        assert_eq!(to(OTHER), (true, None), "seed {seed}: {there:?}");
        assert_eq!(there.len(), 2, "seed {seed}: {there:?}");
        exchange.finish(&mut transfer, secs(60));
    }
}

/// An unreachable address costs nothing but a few SYNs.
#[test]
fn an_announced_address_may_lead_nowhere() {
    let exchange = Exchange::new(100, 20_000_000);
    let mut transfer = exchange.build(3, &two_deep(0.0));
    let server = transfer.server;
    transfer.world.with_node(server, |host: &mut Host, _| {
        let nowhere = (Ipv4Addr::new(192, 0, 2, 1), 9).into();
        host.stack_mut().announce(PathId(0), nowhere).unwrap();
        let path = host.stack_mut().add_path(PathConfig::v4(OTHER)).unwrap();
        host.stack_mut().announce(path, nowhere).unwrap();
    });
    exchange.open(&mut transfer);
    exchange.finish(&mut transfer, secs(30));
}

/// Both sides leave a path that became a backup. They come back when the other path fails, and when the
/// path is a backup no more.
// Conforms: 8684-3.3.8-1
#[test]
fn a_backup_is_used_in_need_only() {
    let exchange = Exchange::new(30_000_000, 30_000_000);
    let mut transfer = exchange.start(4, &two_deep(0.0));
    transfer.world.advance(secs(1));
    let prefer = |transfer: &mut Transfer, backup| {
        let client = transfer.client;
        transfer.world.with_node(client, |host: &mut Host, now| {
            host.stack_mut().set_path_backup(now, PathId(1), backup);
        });
    };
    let moved = |transfer: &mut Transfer, time| {
        let before = delivered(transfer, 1);
        transfer.world.advance(time);
        let after = delivered(transfer, 1);
        [after[0] - before[0], after[1] - before[1]]
    };
    prefer(&mut transfer, true);
    transfer.world.advance(secs(1));
    // Only acknowledgements and probes.
    let idle = moved(&mut transfer, ms(500));
    assert!(idle.iter().all(|bytes| *bytes < 5_000), "{idle:?}");
    set_up(&mut transfer, 0, false);
    transfer.world.advance(secs(1));
    let needed = moved(&mut transfer, ms(500));
    assert!(needed.iter().all(|bytes| *bytes > 300_000), "{needed:?}");
    set_up(&mut transfer, 0, true);
    transfer.world.advance(secs(2));
    let idle = moved(&mut transfer, ms(500));
    assert!(idle.iter().all(|bytes| *bytes < 20_000), "{idle:?}");
    prefer(&mut transfer, false);
    transfer.world.advance(secs(1));
    let wanted = moved(&mut transfer, ms(500));
    assert!(wanted.iter().all(|bytes| *bytes > 200_000), "{wanted:?}");
    exchange.finish(&mut transfer, secs(60));
}

/// Only the client knows that its link is down, and signals it on the other link. So the server, which
/// sends, need not wait for a timeout.
#[test]
fn a_sender_is_told_of_a_link_that_is_down() {
    let exchange = Exchange::new(100, 20_000_000);
    let mut transfer = exchange.start(5, &two_deep(0.0));
    transfer.world.advance(secs(1));
    set_up(&mut transfer, 0, false);
    let client = transfer.client;
    transfer.world.with_node(client, |host: &mut Host, now| {
        host.stack_mut().set_path_up(now, PathId(0), false);
    });
    // A round trip on the other link, with its queue.
    transfer.world.advance(ms(150));
    let there = subflows(&transfer, transfer.server);
    assert!(there[0].stale && !there[1].stale, "{there:?}");
    transfer.world.advance(secs(1));
    set_up(&mut transfer, 0, true);
    transfer.world.with_node(client, |host: &mut Host, now| {
        host.stack_mut().set_path_up(now, PathId(0), true);
    });
    transfer.world.advance(ms(500));
    let there = subflows(&transfer, transfer.server);
    assert!(there.len() == 2 && !there[0].stale, "{there:?}");
    exchange.finish(&mut transfer, secs(60));
}
