//! Data that a subflow delivered and the connection lost (RFC 8684 section 3.3.6).

use core::time::Duration;
use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;

use braid_engine::Protocol;
use braid_wire::mptcp::{MptcpOption, WireDsn};
use braid_wire::{ip, tcp};

use crate::basic::link;
use crate::net::{Net, SERVER, config};

/// The mapping, counted from the first, that is led astray.
const VICTIM: usize = 40;
/// How far back it is led: to bytes that the receiver has already.
const BACK: u32 = 20_000;

/// Makes the receiver take the bytes of one mapping for old ones: its subflow acknowledges them,
/// and the connection never gets them.
fn astray(seen: &mut Vec<(IpAddr, u32)>, hits: &Cell<u32>, packet: Vec<u8>) -> Vec<u8> {
    let (ip, segment) = ip::Repr::parse(&packet).unwrap();
    let (mut tcp, payload) = tcp::Repr::parse(segment).unwrap();
    if ip.src != IpAddr::from(SERVER) {
        return packet;
    }
    for option in &mut tcp.options.mptcp {
        let MptcpOption::Dss(dss) = option else {
            continue;
        };
        let Some(mapping) = &mut dss.mapping else {
            continue;
        };
        let this = (ip.dst, mapping.subflow_seq);
        if !seen.contains(&this) {
            seen.push(this);
        }
        if seen.get(VICTIM) == Some(&this) {
            hits.set(hits.get() + 1);
            mapping.dsn = match mapping.dsn {
                WireDsn::Four(low) => WireDsn::Four(low.wrapping_sub(BACK)),
                WireDsn::Eight(full) => WireDsn::Eight(full.wrapping_sub(u64::from(BACK))),
            };
        }
    }
    let mut bytes = vec![0; packet.len() - payload.len()];
    ip.emit(&mut bytes);
    tcp.emit(&mut bytes[20..]);
    tcp::fill_checksum(ip.src, ip.dst, &mut bytes[20..], &[payload]);
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn bytes_acknowledged_by_a_subflow_only_are_sent_again() {
    let mut net = Net::new(&[link(20, 15), link(10, 35)], config(), 1);
    let hits = Rc::new(Cell::new(0));
    let counted = hits.clone();
    let mut seen = Vec::new();
    net.middlebox = Some(Box::new(move |_, packet| {
        Some(astray(&mut seen, &counted, packet))
    }));
    net.transfer(1_000, 1_000_000, Protocol::Mptcp);
    assert!(
        net.run_to_end(Duration::from_secs(20)),
        "{:?}",
        net.client.events
    );
    assert!(hits.get() > 0, "no mapping was led astray");
    assert_eq!(net.client.apps[0].received, 1_000_000);
}
