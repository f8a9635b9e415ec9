//! Connections to and from addresses that are not the stack's own.

use core::net::SocketAddr;

use braid_engine::{ApiError, ConnectOptions, Event, PathId, Protocol};

use crate::harness::{PORT, Script, config};
use crate::segment::{ack, data, rst_ack, syn, syn_ack};
use crate::strategy::strategy;

const FAR: ([u8; 4], u16) = ([203, 0, 113, 7], 80);
const USER: ([u8; 4], u16) = ([192, 168, 1, 10], 50_000);

/// A stack that also accepts connections to addresses of others.
fn transparent() -> Script {
    let mut s = Script::server(config());
    s.stack.listen_any(PathId(0)).unwrap();
    s
}

#[test]
fn a_connection_to_anybody_is_taken_in_their_name() {
    let mut s = transparent();
    s.flow(FAR.into(), USER.into());
    send!(s, 0, syn());
    recv!(s, 0, syn_ack());
    send!(s, 10, ack(1, 1).win(512));
    let accepted = s.events.iter().find_map(|e| match *e {
        Event::Accepted { local, remote, .. } => Some((local, remote)),
        _ => None,
    });
    assert_eq!(accepted, Some((FAR.into(), USER.into())));
    assert_eq!(s.stack.subflows(s.id())[0].path, PathId(0));
    send!(s, 20, data(1, 1, "GET"));
    recv!(s, 20, ack(1, 4));
    assert_eq!(s.read(), b"GET");
    s.write("200");
    recv!(s, 20, data(1, 4, "200"));
}

/// A listener on an address takes precedence, and the event names it.
#[test]
fn an_exact_listener_comes_first() {
    let mut s = Script::new(config(), &[]);
    assert_eq!(s.stack.listen_any(PathId(0)), Err(ApiError::NoUsablePath));
    s = transparent();
    assert_eq!(s.stack.listen_any(PathId(0)), Err(ApiError::AddressInUse));
    for (own, port) in [(true, PORT), (false, PORT + 1)] {
        s.events.clear();
        let peer = SocketAddr::from((USER.0, port));
        let flow = s.flow(([10, 0, 9, 1], port).into(), peer);
        send!(s, s.now, syn().on(flow));
        recv!(s, s.now, syn_ack().on(flow));
        send!(s, s.now, ack(1, 1).on(flow).win(512));
        let listener = s.events.iter().find_map(|e| match *e {
            Event::Accepted { listener, .. } => Some(listener.0),
            _ => None,
        });
        assert_eq!(listener, Some(u32::from(!own)));
    }
}

/// A segment of no connection is answered under the address that it was sent to.
#[test]
fn out_of_the_blue_segments_are_answered_in_any_name() {
    let mut s = transparent();
    s.flow(FAR.into(), USER.into());
    send!(s, 0, data(1, 1, "late"));
    s.advance(s.now);
    let (_, answer) = s.take().expect("no RST");
    assert!(answer.flags.contains(braid_wire::tcp::Flags::RST));
    assert_eq!(answer.flow, 0);
}

#[test]
fn a_source_may_be_chosen() {
    let mut s = Script::server(config());
    let options = |port| ConnectOptions {
        local: Some((USER.0, port).into()),
        protocol: Protocol::Tcp,
        ..ConnectOptions::new(FAR.into(), strategy())
    };
    let conn = s.stack.connect(s.now, options(USER.1)).unwrap();
    let again = s.stack.connect(s.now, options(USER.1));
    assert_eq!(again, Err(ApiError::AddressInUse));
    let subflow = s.stack.subflows(conn)[0];
    assert_eq!(
        (subflow.local, subflow.remote, subflow.path),
        (USER.into(), FAR.into(), PathId(0))
    );
    s.flow(USER.into(), FAR.into());
    s.conn = Some(conn);
    s.write("");
    recv!(s, 0, syn());
    send!(s, 10, rst_ack(0, 1));
    assert!(s.saw(|e| matches!(e, Event::Closed { .. })));
    // Any free port.
    let conn = s.stack.connect(s.now, options(0)).unwrap();
    let subflow = s.stack.subflows(conn)[0];
    assert_eq!(subflow.local.ip(), core::net::IpAddr::from(USER.0));
    assert!(subflow.local.port() >= 32_768);
    let v6 = ConnectOptions {
        local: Some("[2001:db8::1]:0".parse().unwrap()),
        ..ConnectOptions::new(FAR.into(), strategy())
    };
    assert_eq!(s.stack.connect(s.now, v6), Err(ApiError::NoUsablePath));
}
