//! Paths whose MTU changes in the middle of a transfer, with and without reports (RFC 1191, RFC 4821,
//! RFC 8899).

use core::time::Duration;

use braid_engine::CloseReason;
use braid_links::middlebox::{Chain, MtuLimit, Nat, NatConfig};
use braid_sim::transfer::{Direction, TransferConfig, external_addr};
use braid_sim::{MiddleboxNode, Transfer};

use crate::support::{at, closed, deep, ms, secs};

/// Starts a transfer over paths of 10 Mbit/s, each through a chain that `chain` makes, and lets it reach
/// full rate.
fn start(
    paths: usize,
    direction: Direction,
    size: u64,
    chain: impl Fn(usize) -> Chain,
) -> Transfer {
    let links = vec![deep(10, 15, 0.0); paths];
    let config = TransferConfig::new(&links, size, direction);
    let mut transfer = Transfer::through(5, &config, (0..paths).map(chain));
    transfer.open(&config).unwrap();
    transfer.world.advance(secs(1));
    transfer
}

/// Sets the MTU of a path from now on.
fn set_mtu(transfer: &mut Transfer, path: usize, mtu: Option<usize>) {
    let node = transfer.boxes[path];
    transfer
        .world
        .with_node(node, |node: &mut MiddleboxNode, _| {
            node.get_mut::<MtuLimit>().set_mtu(mtu);
        });
}

/// Returns the bytes that arrive in each of `n` spans of time.
fn arrivals(transfer: &mut Transfer, direction: Direction, n: usize, span: Duration) -> Vec<u64> {
    let end = transfer.receiver(direction);
    let mut last = at(transfer, end).received;
    let mut next = || {
        transfer.world.advance(span);
        let received = at(transfer, end).received;
        received - core::mem::replace(&mut last, received)
    };
    (0..n).map(|_| next()).collect()
}

fn finish(transfer: &mut Transfer, direction: Direction, size: u64) {
    assert!(transfer.run(secs(120)), "{transfer:?}");
    for end in transfer.ends() {
        assert_eq!(closed(transfer, end), Some(CloseReason::Finished));
    }
    assert_eq!(at(transfer, transfer.receiver(direction)).received, size);
}

fn silent(_: usize) -> Chain {
    Chain::new().and(MtuLimit::new())
}

/// Makes a path with address translation, as every path of a box has it, and ICMP reports.
fn reporting(path: usize) -> Chain {
    Chain::new()
        .and(Nat::new(NatConfig::new(external_addr(path))))
        .and(MtuLimit::new().reporting([10, 9, 9, 9].into()))
}

const DIRECTIONS: [Direction; 2] = [Direction::Up, Direction::Down];

/// RFC 1191: a report through address translation is understood, and the change costs next to nothing.
#[test]
fn a_report_shrinks_packets_at_once() {
    for direction in DIRECTIONS {
        let size = 10_000_000;
        let mut transfer = start(1, direction, size, reporting);
        set_mtu(&mut transfer, 0, Some(1300));
        let seconds = arrivals(&mut transfer, direction, 4, secs(1));
        assert!(
            seconds.iter().all(|n| *n > 1_000_000),
            "{direction:?}: {seconds:?}"
        );
        finish(&mut transfer, direction, size);
    }
}

/// RFC 8899 section 4.3: repeated losses of large packets reveal a black hole.
#[test]
fn a_black_hole_is_found_without_reports() {
    for direction in DIRECTIONS {
        let size = 10_000_000;
        let mut transfer = start(1, direction, size, silent);
        set_mtu(&mut transfer, 0, Some(1300));
        let seconds = arrivals(&mut transfer, direction, 5, secs(1));
        assert!(
            seconds[2..].iter().all(|n| *n > 900_000),
            "{direction:?}: {seconds:?}"
        );
        finish(&mut transfer, direction, size);
    }
}

/// The unchanged path goes on undisturbed, and the other one is back soon.
#[test]
fn the_other_path_carries_on() {
    for direction in DIRECTIONS {
        let size = 30_000_000;
        let mut transfer = start(2, direction, size, silent);
        set_mtu(&mut transfer, 1, Some(1300));
        let tenths = arrivals(&mut transfer, direction, 100, ms(100));
        let second = |n: usize| tenths[10 * n..10 * (n + 1)].iter().sum::<u64>();
        for n in 0..10 {
            assert!(second(n) > 900_000, "{direction:?} second {n}: {tenths:?}");
        }
        for n in 2..10 {
            assert!(
                second(n) > 1_900_000,
                "{direction:?} second {n}: {tenths:?}"
            );
        }
        finish(&mut transfer, direction, size);
    }
}

/// RFC 4821 section 7.3: when large packets pass again, they are used again.
#[test]
fn large_packets_come_back() {
    let (direction, size) = (Direction::Up, 10_000_000);
    let mut transfer = start(1, direction, size, silent);
    let packets = |transfer: &mut Transfer| {
        let (link, _) = transfer.links[0];
        transfer.world.refresh();
        let before = transfer.world.counters(link).delivered;
        transfer.world.advance(ms(500));
        transfer.world.refresh();
        let after = transfer.world.counters(link).delivered;
        (after.bytes - before.bytes) / (after.packets - before.packets)
    };
    set_mtu(&mut transfer, 0, Some(1300));
    transfer.world.advance(secs(2));
    let narrow = packets(&mut transfer);
    assert!((1200..=1300).contains(&narrow), "{narrow}");
    set_mtu(&mut transfer, 0, None);
    transfer.world.advance(secs(2));
    let wide = packets(&mut transfer);
    assert!(wide > 1450, "{wide}");
    finish(&mut transfer, direction, size);
}
