//! Middleboxes: options vanish, and the connection goes on as regular TCP (RFC 8684 section 3.7).

use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Arc;

use braid_engine::{CloseReason, Event, FallbackCause, Protocol};
use braid_links::middlebox::{
    Direction, Edit, Middlebox, OptionEdit, Output, Packet, Scope, Target,
};
use braid_wire::tcp::Flags;
use braid_wire::{ip, tcp};

use crate::basic::link;
use crate::net::{Net, PORT, client_addr, config};

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

/// The side that hears nothing falls back at once; the other one must follow, or what it sends
/// again would be taken for new bytes.
#[test]
fn options_stripped_one_way_after_the_syns() {
    let later = |t: &tcp::Repr| !t.flags.contains(Flags::SYN);
    let (client, server) = run(move |t| later(t) && t.src_port == PORT);
    assert_eq!(client, [FallbackCause::DataPlain]);
    assert_eq!(server, [FallbackCause::PeerFellBack]);
    let (client, server) = run(move |t| later(t) && t.dst_port == PORT);
    assert_eq!(client, [FallbackCause::DataPlain]);
    assert_eq!(server, [FallbackCause::ThirdAckPlain]);
}

/// Some boxes overwrite options instead of taking them out; zeros make an MP_CAPABLE of a DSS.
#[test]
fn options_zeroed_after_the_syns() {
    for from_server in [true, false] {
        let mut net = Net::new(&[link(20, 15)], config(), 1);
        let edit = OptionEdit::new(Target::MPTCP, Scope::Later, Edit::Zero);
        let mut edit = edit.only(if from_server {
            Direction::Inbound
        } else {
            Direction::Outbound
        });
        net.middlebox = Some(Box::new(move |now, bytes| {
            let inbound = tcp::Packet::new(&bytes[20..]).unwrap().src_port() == PORT;
            let direction = if inbound {
                Direction::Inbound
            } else {
                Direction::Outbound
            };
            let mut out = Output::new();
            edit.process(now, direction, Packet::new(bytes), &mut out);
            out.pop_front().map(|(_, packet)| packet.bytes)
        }));
        net.transfer(30_000, 300_000, Protocol::Mptcp);
        assert!(net.run_to_end(Duration::from_secs(20)), "{net:?}");
        assert_eq!(net.client.apps[0].received, 300_000);
        assert_eq!(net.server.apps[0].received, 30_000);
    }
}

/// Once both ends know that MPTCP works, bytes without mapping are never taken: the connection
/// goes on elsewhere.
#[test]
fn options_stripped_in_the_middle_on_one_path() {
    let mut net = Net::new(&[link(20, 15), link(10, 35)], config(), 1);
    let since = net.now + Duration::from_millis(300);
    net.middlebox = Some(Box::new(move |now, p| {
        let first_path = ip::Repr::parse(&p).is_ok_and(|(ip, _)| {
            let first = IpAddr::V4(client_addr(0));
            ip.src == first || ip.dst == first
        });
        let hit = now > since && first_path;
        Some(if hit { without_mptcp(p, |_| true) } else { p })
    }));
    net.transfer(30_000, 3_000_000, Protocol::Mptcp);
    assert!(net.run_to_end(Duration::from_secs(60)), "{net:?}");
    assert_eq!(net.client.apps[0].received, 3_000_000);
    assert_eq!(net.server.apps[0].received, 30_000);
}

/// Acknowledgements come for ever, and none says that the data arrived: RFC 5482 section 3.1 bounds
/// how long that may go on.
#[test]
fn a_path_that_hides_data_acks_is_given_up() {
    let mut net = Net::new(&[link(20, 15)], config(), 1);
    let since = net.now + Duration::from_millis(300);
    net.middlebox = Some(Box::new(move |now, p| {
        let (ip, segment) = ip::Repr::parse(&p).unwrap();
        let (tcp, payload) = tcp::Repr::parse(segment).unwrap();
        let from_client = ip.src == IpAddr::V4(client_addr(0)) && tcp.dst_port == PORT;
        let hit = now > since && from_client && payload.is_empty();
        Some(if hit { without_mptcp(p, |_| true) } else { p })
    }));
    net.transfer(100, 30_000_000, Protocol::Mptcp);
    net.run(Duration::from_secs(120), |_| false);
    assert_eq!(net.server.closed_with(), [CloseReason::TimedOut], "{net:?}");
}

/// Nor does one live for ever that waits for window which only a DATA_ACK could open.
#[test]
fn a_path_that_hides_the_window_is_given_up() {
    let mut net = Net::new(&[link(20, 15)], config(), 1);
    let shut = Arc::new(AtomicBool::new(false));
    let hide = shut.clone();
    net.middlebox = Some(Box::new(move |_, p| {
        let hide = hide.load(Ordering::Relaxed);
        Some(if hide { without_mptcp(p, |_| true) } else { p })
    }));
    net.transfer(100, 30_000_000, Protocol::Mptcp);
    net.run(Duration::from_millis(300), |_| false);
    net.client.apps[0].paused = true;
    // A reader that waits is no reason to give up.
    net.run(Duration::from_secs(100), |_| false);
    assert_eq!(net.server.closed_with(), []);
    shut.store(true, Ordering::Relaxed);
    net.run(Duration::from_secs(60), |_| false);
    assert_eq!(net.server.closed_with(), [CloseReason::TimedOut], "{net:?}");
}
