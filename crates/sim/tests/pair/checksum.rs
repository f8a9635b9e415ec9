//! DSS checksums (RFC 8684 section 3.3.1) end to end.

use braid_engine::Config;
use braid_links::middlebox::{
    Chain, Direction, Middlebox, Nat, NatConfig, Output, Packet, SequenceShift, Split,
};
use braid_sim::Transfer;
use braid_sim::transfer::external_addr;
use braid_wire::{Instant, ip, tcp};

use crate::support::{Exchange, at, path, secs, two_deep};

/// Returns an exchange whose ends require checksums.
fn checked(up: u64, down: u64) -> Exchange {
    Exchange {
        engine: Config {
            checksum: true,
            ..Config::default()
        },
        ..Exchange::new(up, down)
    }
}

/// A box that changes a byte of one in `every` segments with payload, and corrects the TCP checksum, as a
/// box does that rewrites payload.
#[derive(Debug)]
struct Rewrite {
    every: u32,
    seen: u32,
}

impl Middlebox for Rewrite {
    fn process(&mut self, _: Instant, direction: Direction, mut packet: Packet, out: &mut Output) {
        let (ip, segment) = ip::Repr::parse(&packet.bytes).unwrap();
        let (tcp, payload) = tcp::Repr::parse(segment).unwrap();
        let headers = packet.bytes.len() - payload.len();
        if !payload.is_empty() {
            self.seen += 1;
            if self.seen.is_multiple_of(self.every) {
                let mut payload = payload.to_vec();
                payload[0] ^= 1;
                let header = &mut packet.bytes[..headers];
                tcp.emit(&mut header[20..]);
                tcp::fill_checksum(ip.src, ip.dst, &mut header[20..], &[&payload]);
                packet.bytes[headers..].copy_from_slice(&payload);
            }
        }
        out.push_back((direction, packet));
    }
}

/// With and without loss and super-segments.
#[test]
fn every_byte_arrives() {
    for (seed, loss, max_transmit) in [(1, 0.0, 65_521), (2, 0.02, 65_521), (3, 0.02, 1500)] {
        let mut exchange = checked(1_000_000, 300_000);
        exchange.engine.max_transmit = max_transmit;
        let mut transfer = exchange.start(seed, &two_deep(loss));
        exchange.finish(&mut transfer, secs(60));
        let plain = transfer.ends().map(|end| at(&transfer, end).fell_back);
        assert_eq!(plain, [None, None]);
    }
}

/// Boxes that cut segments and shift sequence numbers leave mappings whole, because subflow sequence
/// numbers are relative (section 3.3.1).
#[test]
fn through_boxes_that_leave_the_payload_alone() {
    let exchange = checked(300_000, 300_000);
    let chains = [0, 1].map(|n| {
        Chain::new()
            .and(SequenceShift::new(n + 1))
            .and(Split::new(500))
            .and(Nat::new(NatConfig::new(external_addr(n as usize))))
    });
    let paths = [path(20, 15, 0.0), path(10, 35, 0.0)];
    let mut transfer = Transfer::through(1, &exchange.config(&paths), chains);
    exchange.open(&mut transfer);
    exchange.finish(&mut transfer, secs(30));
    assert_eq!(at(&transfer, transfer.client).fell_back, None);
}

/// A path that changes payload is closed each time, and no reader gets a wrong byte (section 3.7).
// Conforms: 8684-3.7-8
#[test]
fn a_path_that_changes_payload() {
    for (seed, every) in [(1, 40), (2, 100), (3, 7)] {
        let exchange = checked(500_000, 500_000);
        let chains = [Chain::new(), Chain::new().and(Rewrite { every, seen: 0 })];
        let mut transfer = Transfer::through(seed, &exchange.config(&two_deep(0.0)), chains);
        exchange.open(&mut transfer);
        exchange.finish(&mut transfer, secs(60));
    }
}
