//! Links with a small MTU.

use braid_links::middlebox::{Direction, Middlebox, MtuLimit, Output};
use braid_wire::icmp::{Kind, TcpError};
use braid_wire::ip;

use crate::segment::{Seg, T0, abuse};

/// Returns the output for a packet of 40 bytes and one of 50, over a link with an MTU of 40.
fn pass(mut limit: MtuLimit) -> Output {
    limit.set_mtu(Some(40));
    let mut out = Output::new();
    for payload in ["", "ten bytes!"] {
        let packet = Seg::data(7, payload).packet();
        limit.process(T0, Direction::Outbound, packet, &mut out);
    }
    assert_eq!(limit.dropped(), 1);
    out
}

#[test]
fn longer_packets_are_dropped() {
    let out = pass(MtuLimit::new());
    assert_eq!(out, [(Direction::Outbound, Seg::data(7, "").packet())]);
}

/// The ICMP error contains the MTU and quotes the packet (RFC 1191 section 4).
#[test]
fn the_sender_gets_an_icmp_error() {
    let router = "192.0.2.254".parse().unwrap();
    let out = pass(
        MtuLimit::new()
            .reporting("2001:db8::1".parse().unwrap())
            .reporting(router),
    );
    let (direction, report) = &out[1];
    assert_eq!(*direction, Direction::Inbound);
    let (header, message) = ip::Repr::parse(&report.bytes).unwrap();
    let sent = Seg::data(7, "");
    assert_eq!((header.src, header.dst), (router, sent.src.ip()));
    let error = TcpError::parse(false, message).unwrap();
    assert_eq!(error.kind, Kind::PacketTooBig { mtu: 40 });
    assert_eq!((error.seq.0, error.src_port), (7, sent.src.port()));
}

#[test]
fn random_bytes_do_no_harm() {
    let mut limit = MtuLimit::new().reporting("192.0.2.254".parse().unwrap());
    limit.set_mtu(Some(30));
    abuse(&mut limit, &Seg::data(7, "ten bytes!"));
}
