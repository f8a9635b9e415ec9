//! Middleboxes: options vanish, and the connection goes on as regular TCP (RFC 8684 section 3.7).

use core::time::Duration;

use braid_engine::{Event, FallbackCause, Protocol};
use braid_wire::tcp::Flags;
use braid_wire::{ip, tcp};

use crate::basic::link;
use crate::net::{Net, config};

/// Rebuilds a packet without MPTCP options where `strip` says so.
fn without_mptcp(packet: Vec<u8>, strip: impl Fn(&tcp::Repr) -> bool) -> Vec<u8> {
    let (ip, segment) = ip::Repr::parse(&packet).unwrap();
    let (mut tcp, payload) = tcp::Repr::parse(segment).unwrap();
    if !strip(&tcp) {
        return packet;
    }
    tcp.options.mptcp.clear();
    let ip = ip::Repr {
        payload_len: tcp.header_len() + payload.len(),
        ..ip
    };
    let mut bytes = vec![0; 20 + tcp.header_len()];
    ip.emit(&mut bytes);
    tcp.emit(&mut bytes[20..]);
    tcp::fill_checksum(ip.src, ip.dst, &mut bytes[20..], &[payload]);
    bytes.extend_from_slice(payload);
    bytes
}

fn run(strip: impl Fn(&tcp::Repr) -> bool + 'static) -> (Vec<FallbackCause>, Vec<FallbackCause>) {
    let mut net = Net::new(&[link(20, 15), link(10, 35)], config(), 1);
    net.middlebox = Some(Box::new(move |_, p| Some(without_mptcp(p, &strip))));
    net.transfer(30_000, 300_000, Protocol::Mptcp);
    assert!(
        net.run_to_end(Duration::from_secs(20)),
        "{:?}",
        net.client.events
    );
    assert_eq!(net.client.apps[0].received, 300_000);
    assert_eq!(net.server.apps[0].received, 30_000);
    let causes = |events: &[Event]| {
        events
            .iter()
            .filter_map(|e| match e {
                Event::FellBack { cause, .. } => Some(*cause),
                _ => None,
            })
            .collect()
    };
    (causes(&net.client.events), causes(&net.server.events))
}

#[test]
fn options_stripped_from_the_syn() {
    let (client, server) = run(|t| t.flags.contains(Flags::SYN) && !t.flags.contains(Flags::ACK));
    assert_eq!(client, [FallbackCause::PeerSynAckPlain]);
    assert_eq!(server, [FallbackCause::PeerSynPlain]);
}

#[test]
fn options_stripped_from_the_syn_ack() {
    let (client, server) = run(|t| t.flags.contains(Flags::SYN | Flags::ACK));
    assert_eq!(client, [FallbackCause::PeerSynAckPlain]);
    assert_eq!(server, [FallbackCause::ThirdAckPlain]);
}

#[test]
fn options_stripped_after_the_syns() {
    let (client, server) = run(|t| !t.flags.contains(Flags::SYN));
    assert_eq!(client, [FallbackCause::DataPlain]);
    assert_eq!(server, [FallbackCause::ThirdAckPlain]);
}
