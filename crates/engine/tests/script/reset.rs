//! RST and SYN where they do not belong (RFC 9293 section 3.10.7, RFC 5961).

use braid_engine::{CloseReason, Event, Protocol};

use crate::harness::{Script, config};
use crate::segment::{Seg, ack, dack, data, hex, rst, rst_ack, syn, syn_ack};

/// RFC 9293 section 3.10.7.3: an ACK of something never sent, as a forgotten connection of the
/// same ports gives, is reset, and the next SYN gets through.
#[test]
fn an_unacceptable_ack_in_syn_sent_is_reset() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, ack(77, 5000));
    recv!(s, 10, rst(5000));
    send!(s, 20, rst(1));
    send!(
        s,
        30,
        Seg {
            ack: Some(9),
            ..rst(1)
        }
    );
    quiet!(s, 999);
    assert!(s.events.is_empty(), "{:?}", s.events);
    recv!(s, 1000, syn().ws(None).raw(&hex("1e 04 01 01")));
}

/// RFC 9293 section 3.10.7.4: the same in SYN-RECEIVED.
#[test]
fn an_unacceptable_ack_in_syn_received_is_reset() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().raw(&hex("1e 04 01 01")));
    recv!(s => 0, s.capable(syn_ack()));
    send!(s, 10, ack(1, 5000));
    recv!(s, 10, rst(5000));
    send!(s, 20, s.third_ack());
    recv!(s, 20, ack(1, 1).dss(dack(0)));
}

#[test]
fn a_refused_syn() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, rst_ack(0, 1));
    assert!(s.saw(|e| matches!(
        e,
        Event::Closed {
            reason: CloseReason::Refused,
            ..
        }
    )));
    assert_eq!(s.stack.connections(), 0);
    quiet!(s, 2000);
}

/// Nobody listens (RFC 9293 section 3.10.7.1).
#[test]
fn segments_of_no_connection_are_reset() {
    let mut s = Script::server(config());
    let stack = core::net::SocketAddr::from(([10, 0, 9, 1], 99));
    s.flow(stack, ([10, 0, 1, 2], 5000).into());
    send!(s, 0, syn());
    recv!(s, 0, rst_ack(0, 1));
    send!(s, 1, data(7, 9, "what?"));
    recv!(s, 1, rst(9));
    send!(s, 2, rst(7));
    quiet!(s, 100);
}
