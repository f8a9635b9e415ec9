//! TCP Fast Open (RFC 7413), also with Multipath TCP (RFC 8684 appendix B).

use braid_engine::{Config, Event, FallbackCause, PathConfig, PathId, Protocol};
use braid_wire::tcp::Flags;

use crate::checksum::ours;
use crate::harness::{Script, config};
use crate::segment::{Seg, ack, dack, data, fin, hex, rst, syn, syn_ack};

const COOKIE: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
const NEW_COOKIE: [u8; 8] = [8, 7, 6, 5, 4, 3, 2, 1];

fn fast() -> Config {
    Config {
        fast_open: true,
        ..config()
    }
}

fn capable_syn() -> Seg {
    syn().ws(None).raw(&hex("1e 04 01 01"))
}

/// Opens the next connection of the same stack, with unknown keys.
fn again(s: &mut Script, at: i32, protocol: Protocol, bytes: &[u8]) {
    s.skip(at);
    s.key = None;
    s.connect_with(protocol, bytes);
}

/// A client that has had a cookie since 10 ms; its next connection has flow 1.
fn client(config: Config) -> Script {
    let path = PathConfig::v4([10, 0, 0, 2].into());
    let mut s = Script::new(config, &[path]);
    s.connect_with(Protocol::Mptcp, b"first");
    recv!(s, 0, capable_syn().cookie(&[]));
    send!(s, 10, s.peer_capable(syn_ack()).cookie(&COOKIE));
    recv!(s => 10, s.stack_keys_data(data(1, 1, "first"), 5));
    s.abort();
    s.skip(11);
    // The peer knows of the end, so MP_FASTCLOSE is not repeated.
    send!(s, 11, rst(1));
    s
}

/// The client's second connection at 20 ms, whose SYN carries `bytes`.
fn opening(config: Config, protocol: Protocol, bytes: &[u8]) -> Script {
    let mut s = client(config);
    again(&mut s, 20, protocol, bytes);
    s
}

fn fast_syn(payload: &str) -> Seg {
    capable_syn().on(1).cookie(&COOKIE).payload(payload)
}

/// Payload of a SYN has no data sequence number and no subflow sequence number.
// Conforms: 7413-4.2.1-1, 7413-4.2.2-1, 8684-B.1-1, 8684-B.2-1, 8684-B.2-2
#[test]
fn a_syn_carries_what_is_written() {
    let mut s = opening(fast(), Protocol::Mptcp, b"hello");
    recv!(s, 20, fast_syn("hello"));
    send!(s, 30, s.peer_capable(syn_ack()).on(1).acks(6));
    recv!(s => 30, s.stack_keys(ack(6, 1)).on(1));
    s.write("world");
    recv!(s => 30, s.stack_keys_data(data(6, 1, "world"), 5).on(1));
    send!(s, 40, ack(1, 11).on(1).win(512).dss(dack(5)));
    s.write("!");
    recv!(s, 40, data(11, 1, "!").on(1).dss(dack(0).map(5, 6, 1)));
    send!(s, 50, ack(1, 12).on(1).win(512).dss(dack(6)));
    s.shutdown();
    recv!(s, 50, ack(12, 1).on(1).dss(dack(0).map(6, 0, 1).fin()));
    assert_eq!(s.stack.stats().fast_opened, 1);
    let stats = s.stack.conn_stats(s.id()).unwrap();
    assert_eq!((stats.snd_una, stats.snd_nxt), (11, 11));
}

// Conforms: 7413-4.2-2
#[test]
fn nothing_is_asked_for_unless_it_is_wanted() {
    let path = PathConfig::v4([10, 0, 0, 2].into());
    let mut s = Script::new(config(), &[path]);
    s.connect_with(Protocol::Mptcp, b"first");
    recv!(s, 0, capable_syn());
}

/// Without data to write the SYN is an ordinary one.
#[test]
fn nothing_to_send_needs_no_cookie() {
    let mut s = opening(fast(), Protocol::Mptcp, b"");
    recv!(s, 20, capable_syn().on(1));
}

/// The rest of the written data follows the handshake. If a server takes less than the SYN carried, the
/// remainder is sent as if it had never left.
// Conforms: 7413-4.2.2-2, 7413-4.2.2-3
#[test]
fn a_syn_carries_a_segment_at_most() {
    let bytes: Vec<u8> = (0..2000).map(|n| n as u8).collect();
    let mut s = opening(fast(), Protocol::Mptcp, &bytes);
    // MSS, SACK and timestamps, window scale, cookie, MP_CAPABLE.
    let most = 1460 - (4 + 12 + 4 + 12 + 4);
    let (_, got) = s.take().expect("a SYN");
    assert_eq!(got.payload, bytes[..most]);
    let taken = 1000;
    send!(s, 30, s.peer_capable(syn_ack()).on(1).acks(1 + taken));
    let (_, got) = s.take().expect("data");
    assert_eq!(got.seq, 1 + taken);
    assert_eq!(got.payload, bytes[1000..]);
    let want = s.stack_keys_data(data(1 + taken, 1, &bytes[1000..]), 1000);
    assert!(want.on(1).matches(&got), "{got:?}");
}

/// The server has forgotten its cookie and grants another one, or none: then Fast Open pauses for a while.
// Conforms: 7413-4.1.3-2, 7413-4.1.3.1-2, 7413-4.2.2-3
#[test]
fn what_is_not_taken_is_sent_after_the_handshake() {
    let mut s = opening(fast(), Protocol::Mptcp, b"hello");
    recv!(s, 20, fast_syn("hello"));
    send!(s, 30, s.peer_capable(syn_ack()).on(1).cookie(&NEW_COOKIE));
    recv!(s => 30, s.stack_keys_data(data(1, 1, "hello"), 5).on(1));
    again(&mut s, 40, Protocol::Mptcp, b"once more");
    recv!(s, 40, fast_syn("once more").cookie(&NEW_COOKIE).on(2));
    send!(s, 50, s.peer_capable(syn_ack()).on(2));
    recv!(s => 50, s.stack_keys_data(data(1, 1, "once more"), 9).on(2));
    again(&mut s, 60, Protocol::Mptcp, b"and again");
    recv!(s, 60, capable_syn().on(3));
    again(&mut s, 50 + 60_000, Protocol::Mptcp, b"much later");
    // The first connection, which nobody answers any more, has opened fresh subflows meanwhile.
    recv!(s => 50 + 60_000, capable_syn().cookie(&[]).on(s.flows.len() - 1));
    assert_eq!(s.stack.stats().fast_opened, 0);
}

/// Data written first goes first, even if urgent data was written meanwhile.
#[test]
fn what_was_in_the_syn_keeps_its_place() {
    let mut s = opening(fast(), Protocol::Tcp, b"");
    s.skip(30);
    again(&mut s, 40, Protocol::Tcp, b"slow");
    recv!(s, 40, syn().ws(None).cookie(&COOKIE).payload("slow").on(2));
    s.queue(1, 0, "urgent");
    send!(s, 50, syn_ack().on(2));
    let mut bytes = Vec::new();
    while let Some((_, seg)) = s.take() {
        bytes.extend(seg.payload);
    }
    assert_eq!(bytes, b"slowurgent");
}

/// The stream does not end before its data, wherever that was first.
#[test]
fn what_was_not_taken_goes_before_the_end() {
    let mut s = opening(fast(), Protocol::Tcp, b"hello");
    recv!(s, 20, syn().ws(None).cookie(&COOKIE).payload("hello").on(1));
    s.shutdown();
    send!(s, 30, syn_ack().on(1));
    recv!(s, 30, data(1, 1, "hello").on(1));
    recv!(s, 30, fin(6, 1).on(1));
}

/// A SYN on another path replaces one with payload, and carries none itself.
#[test]
fn the_next_path_brings_what_the_first_did_not() {
    let path = |n| PathConfig::v4([10, 0, n, 2].into());
    let mut s = Script::new(fast(), &[path(0), path(1)]);
    s.connect_with(Protocol::Tcp, b"first");
    recv!(s, 0, syn().ws(None).cookie(&[]));
    send!(s, 10, syn_ack().cookie(&COOKIE));
    recv!(s, 10, data(1, 1, "first"));
    s.abort();
    again(&mut s, 20, Protocol::Tcp, b"hello");
    recv!(s, 20, syn().ws(None).cookie(&COOKIE).payload("hello").on(1));
    s.shutdown();
    let (_, got) = {
        s.advance(braid_wire::Instant::from_millis(2_000));
        s.take().expect("a SYN on the other path")
    };
    assert!(syn().ws(None).on(2).matches(&got), "{got:?}");
    s.skip(2_000);
    send!(s, 2_010, syn_ack().on(2));
    recv!(s, 2_010, data(1, 1, "hello").on(2));
    recv!(s, 2_010, fin(6, 1).on(2));
}

/// A repeat because the link is back carries no payload either.
#[test]
fn a_link_that_is_back_brings_it_once() {
    let mut s = opening(fast(), Protocol::Mptcp, b"hello");
    recv!(s, 20, fast_syn("hello"));
    for up in [false, true] {
        s.stack.set_path_up(s.now, PathId(0), up);
    }
    s.write("");
    recv!(s, 20, capable_syn().on(1));
}

/// Its repeats neither carry payload nor ask, and the network is remembered for it.
// Conforms: 7413-4.1.3.1-1, 7413-4.2.2-8
#[test]
fn a_network_that_drops_such_syns() {
    let mut s = opening(fast(), Protocol::Mptcp, b"hello");
    recv!(s, 20, fast_syn("hello"));
    recv!(s, 230, capable_syn().on(1));
    send!(s, 240, s.peer_capable(syn_ack()).on(1));
    recv!(s => 240, s.stack_keys_data(data(1, 1, "hello"), 5).on(1));
    again(&mut s, 250, Protocol::Mptcp, b"once more");
    recv!(s, 250, capable_syn().on(2));
    // Later Fast Open is tried again.
    again(&mut s, 240 + 60_000, Protocol::Mptcp, b"once more");
    let (_, got) = s.take().expect("a SYN");
    assert_eq!(got.cookie, Some(COOKIE.to_vec()));
}

/// The first SYN had arrived after all: its payload is not sent again.
#[test]
fn a_late_answer_to_the_first_syn() {
    let mut s = opening(fast(), Protocol::Mptcp, b"hello");
    recv!(s, 20, fast_syn("hello"));
    recv!(s, 230, capable_syn().on(1));
    send!(s, 231, s.peer_capable(syn_ack()).on(1).acks(6));
    recv!(s => 231, s.stack_keys(ack(6, 1)).on(1));
    again(&mut s, 300, Protocol::Mptcp, b"once more");
    recv!(s, 300, fast_syn("once more").on(2));
}

/// An acknowledgement of more than the SYN carried belongs to another connection.
#[test]
fn no_more_is_acknowledged_than_was_sent() {
    let mut s = opening(fast(), Protocol::Mptcp, b"hello");
    recv!(s, 20, fast_syn("hello"));
    send!(s, 30, s.peer_capable(syn_ack()).on(1).acks(7));
    recv!(s, 30, rst(7).on(1));
    send!(s, 31, s.peer_capable(syn_ack()).on(1).acks(6));
    recv!(s => 31, s.stack_keys(ack(6, 1)).on(1));
}

/// The server does not use MPTCP: the stream continues where the SYN ended.
#[test]
fn a_server_without_mptcp() {
    for taken in [0, 3, 5] {
        let mut s = opening(fast(), Protocol::Mptcp, b"hello");
        recv!(s, 20, fast_syn("hello"));
        send!(s, 30, syn_ack().on(1).acks(1 + taken));
        let rest = &b"hello"[taken as usize..];
        match rest {
            [] => recv!(s, 30, ack(6, 1).on(1)),
            rest => recv!(s, 30, data(1 + taken, 1, rest).on(1)),
        }
        send!(s, 40, ack(1, 6).on(1).win(512));
        s.write("world");
        recv!(s, 40, data(6, 1, "world").on(1));
        send!(s, 50, data(1, 11, "answer").on(1).win(512));
        assert_eq!(s.read(), b"answer");
        let stats = s.stack.conn_stats(s.id()).unwrap();
        assert_eq!((stats.snd_una, stats.rcv_nxt), (10, 6), "{taken} taken");
    }
}

/// A middlebox strips the MPTCP options after the SYNs.
// Conforms: 8684-B.2-1
#[test]
fn a_fallback_after_the_handshake() {
    let mut s = opening(fast(), Protocol::Mptcp, b"hello");
    recv!(s, 20, fast_syn("hello"));
    send!(s, 30, s.peer_capable(syn_ack()).on(1).acks(6));
    recv!(s => 30, s.stack_keys(ack(6, 1)).on(1));
    // This acknowledges nothing that could have a DATA_ACK.
    send!(s, 40, ack(1, 6).on(1).win(512));
    assert!(!s.saw(|e| matches!(e, Event::FellBack { .. })));
    s.write("world");
    s.skip(41);
    send!(s, 50, ack(1, 11).on(1).win(512));
    let plain = |e: &Event| matches!(e, Event::FellBack { cause, .. } if *cause == FallbackCause::DataPlain);
    assert!(s.saw(plain));
    s.skip(51);
    s.write("!");
    // The infinite mapping: behind IDSN and five numbered bytes.
    let map = dack(0).map(5, 6, 0);
    recv!(
        s,
        51,
        data(11, 1, "!")
            .on(1)
            .dss(crate::segment::Rel { ack: None, ..map })
    );
}

/// All data went with the SYN, and then options vanish: only a probe can reveal it.
#[test]
fn a_fallback_with_nothing_left_to_send() {
    let mut s = opening(fast(), Protocol::Mptcp, b"hello");
    recv!(s, 20, fast_syn("hello"));
    s.shutdown();
    send!(s, 30, s.peer_capable(syn_ack()).on(1).acks(6));
    recv!(s => 30, s.stack_keys(ack(6, 1)).on(1));
    s.advance(braid_wire::Instant::from_millis(60));
    while let Some((_, got)) = s.take() {
        let probe = got.seq == 5 || got.seq == 6;
        assert!(
            probe && s.stack_keys(ack(got.seq, 1)).on(1).matches(&got),
            "{got:?}"
        );
    }
    send!(s, 60, ack(1, 6).on(1).win(512));
    let map = dack(0).map(0, 1, 0);
    let map = crate::segment::Rel { ack: None, ..map };
    let plain = |e: &Event| matches!(e, Event::FellBack { cause, .. } if *cause == FallbackCause::DataPlain);
    assert!(s.saw(plain));
    recv!(s, 60, fin(6, 1).on(1).dss(map));
}

/// No checksum covers payload of a SYN; the later mappings have theirs.
// Conforms: 8684-B.2-1
#[test]
fn checksums_begin_behind_the_syn() {
    let checked = Config {
        checksum: true,
        ..fast()
    };
    let path = PathConfig::v4([10, 0, 0, 2].into());
    let mut s = Script::new(checked, &[path]);
    let capable = |s: &Script, seg: Seg| {
        let Some(mut raw) = s.peer_capable(seg.clone()).raw else {
            unreachable!();
        };
        raw[3] |= 0x80;
        seg.raw(&raw)
    };
    let offer = syn().ws(None).raw(&hex("1e 04 01 81"));
    s.connect_with(Protocol::Mptcp, b"first");
    recv!(s, 0, offer.clone().cookie(&[]));
    send!(s, 10, capable(&s, syn_ack()).cookie(&COOKIE));
    again(&mut s, 20, Protocol::Mptcp, b"hello");
    recv!(s, 20, offer.cookie(&COOKIE).payload("hello").on(1));
    send!(s, 30, capable(&s, syn_ack()).on(1).acks(6));
    s.skip(31);
    send!(s, 40, ack(1, 6).on(1).win(512).dss(dack(0)));
    s.write("world");
    let (_, got) = s.take().expect("data");
    let want = data(6, 1, "world").dss(ours(&s, 0, (0, 1, 5), b"world"));
    assert!(want.on(1).matches(&got), "{got:?}");
}

// --- the server's side

fn peer_syn() -> Seg {
    syn().raw(&hex("1e 04 01 01"))
}

/// A server, and the cookie that it gave at 0 ms to the peer of flow 0.
fn server(config: Config) -> (Script, Vec<u8>) {
    let mut s = Script::server(config);
    s.peer(1);
    send!(s, 0, peer_syn().cookie(&[]));
    let (_, got) = s.take().expect("a SYN/ACK");
    assert_eq!(got.ack, Some(1));
    let cookie = got.cookie.expect("a cookie");
    assert_eq!(cookie.len(), 6);
    send!(s, 1, rst(1));
    s.skip(1);
    s.key = None;
    (s, cookie)
}

/// The application gets the payload at once; its answer waits for the third ACK, as does the key without
/// which there is no DATA_ACK.
// Conforms: 7413-4.1.2-1, 7413-4.2.2-5, 8684-B.2-1, 8684-B.2-2
#[test]
fn a_server_takes_what_a_syn_carries() {
    let (mut s, cookie) = server(fast());
    s.peer(1);
    send!(s, 10, peer_syn().on(1).cookie(&cookie).payload("hello"));
    recv!(s => 10, s.capable(syn_ack()).on(1).acks(6));
    assert!(s.saw(|e| matches!(e, Event::Accepted { .. })));
    assert_eq!(s.read(), b"hello");
    s.write("answer");
    quiet!(s, 19);
    let third = s.peer_keys(ack(6, 1), None).win(512).on(1);
    send!(s, 20, third);
    recv!(s, 20, data(1, 6, "answer").on(1).dss(dack(0).map(0, 1, 6)));
    // The first byte that has a data sequence number.
    let map = dack(6).map(0, 1, 5);
    send!(s, 30, data(6, 7, "world").on(1).win(512).dss(map));
    recv!(s, 30, ack(7, 11).on(1).dss(dack(5)));
    assert_eq!(s.read(), b"world");
    send!(
        s,
        40,
        ack(11, 7).on(1).win(512).dss(dack(6).map(5, 0, 1).fin())
    );
    assert!(s.stack.read_finished(s.id()));
    assert_eq!(s.stack.stats().fast_accepted, 1);
    let accepted = s.events.iter();
    let accepted = accepted.filter(|e| matches!(e, Event::Accepted { .. }));
    assert_eq!(accepted.count(), 1);
}

/// The cookie fits beside everything that Linux asks for.
#[test]
fn a_cookie_beside_timestamps_and_a_key() {
    let mut s = Script::server(fast());
    s.peer(1);
    send!(s, 0, peer_syn().ts(0, 0).cookie(&[]));
    let (_, got) = s.take().expect("a SYN/ACK");
    assert!(got.ts.is_some() && got.cookie.is_some() && !got.mptcp.is_empty());
}

/// The first mapping behind the SYN's payload carries the keys (RFC 8684 section 3.1).
// Conforms: 8684-B.2-2
#[test]
fn data_with_the_keys_follows_what_the_syn_carried() {
    let (mut s, cookie) = server(fast());
    s.peer(1);
    send!(s, 10, peer_syn().on(1).cookie(&cookie).payload("hello"));
    recv!(s => 10, s.capable(syn_ack()).on(1).acks(6));
    let first = s.peer_keys(data(6, 1, "world"), Some(5)).on(1);
    send!(s, 20, first.win(512));
    recv!(s, 20, ack(1, 11).on(1).dss(dack(5)));
    assert_eq!(s.read(), b"helloworld");
}

/// A repeated SYN/ACK acknowledges as much, and has no cookie.
// Conforms: 7413-4.2.2-4
#[test]
fn a_repeated_syn_ack() {
    let (mut s, cookie) = server(fast());
    s.peer(1);
    let first = peer_syn().on(1).cookie(&cookie).payload("hello");
    send!(s, 10, first.clone());
    recv!(s => 10, s.capable(syn_ack()).on(1).acks(6));
    recv!(s => 1010, s.capable(syn_ack()).on(1).acks(6));
    send!(s, 1020, peer_syn().on(1));
    recv!(s => 1020, s.capable(syn_ack()).on(1).acks(6));
    send!(s, 1030, first);
    recv!(s => 1030, s.capable(syn_ack()).on(1).acks(6));
    assert_eq!(s.read(), b"hello");
    s.peer(2);
    s.key = None;
    send!(s, 1040, peer_syn().on(2).cookie(&[]));
    let (_, got) = s.take().expect("a SYN/ACK");
    assert!(got.cookie.is_some());
    s.advance(braid_wire::Instant::from_millis(2040));
    while let Some((_, got)) = s.take() {
        assert!(got.flow != 2 || got.cookie.is_none(), "{got:?}");
    }
}

/// A forged cookie, or one of another address, yields only a new one.
// Conforms: 7413-4.1.2-1
#[test]
fn a_cookie_that_is_not_right() {
    let (mut s, cookie) = server(fast());
    s.peer(2);
    send!(s, 10, peer_syn().on(1).cookie(&cookie).payload("hello"));
    let (_, got) = s.take().expect("a SYN/ACK");
    assert_eq!(
        (got.ack, s.saw(|e| matches!(e, Event::Accepted { .. }))),
        (Some(1), false)
    );
    assert!(got.cookie.is_some_and(|other| other != cookie));
    // The peer sends the payload again that was not taken.
    let first = s.peer_keys(data(1, 1, "hello"), Some(5)).on(1);
    send!(s, 20, first.win(512));
    recv!(s, 20, ack(1, 6).on(1).dss(dack(5)));
    assert_eq!(s.read(), b"hello");
}

/// Linux sends such payload again without a mapping: the connection is regular TCP from here on.
#[test]
fn a_peer_that_repeats_without_a_mapping() {
    let (mut s, _) = server(fast());
    s.peer(1);
    send!(s, 10, peer_syn().on(1).cookie(&COOKIE).payload("hello"));
    s.skip(11);
    let first = s.peer_keys(data(1, 1, "hello"), None).on(1);
    send!(s, 20, first.win(512));
    assert_eq!(s.read(), b"hello");
    let plain = |e: &Event| matches!(e, Event::FellBack { cause, .. } if *cause == FallbackCause::DataPlain);
    assert!(s.saw(plain));
}

/// Linux 6.18 repeats such payload beside a lone DATA_ACK, and the keys follow behind it: a fallback, since
/// the data sequence would lack those bytes. Tested with and without Fast Open here, and with a SYN
/// answered without state.
#[test]
fn a_peer_that_repeats_beside_a_data_ack() {
    let stateless = Config {
        max_half_open: 0,
        ..config()
    };
    let rest = "x".repeat(1000);
    for config in [fast(), config(), stateless] {
        let mut s = Script::server(config);
        s.peer(1);
        send!(s, 0, peer_syn().cookie(&COOKIE).payload("h".repeat(500)));
        s.skip(1);
        send!(s, 10, data(1, 1, "h".repeat(500)).win(512).dss(dack(0)));
        s.skip(11);
        send!(s, 20, s.peer_keys(data(501, 1, &rest), Some(1000)).win(512));
        assert_eq!(s.read().len(), 1500);
        let plain = |e: &Event| matches!(e, Event::FellBack { cause, .. } if *cause == FallbackCause::ThirdAckPlain);
        assert!(s.saw(plain));
    }
}

#[test]
fn a_server_that_does_not_want_it() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, peer_syn().cookie(&[]));
    recv!(s => 0, s.capable(syn_ack()));
    s.peer(1);
    s.key = None;
    send!(s, 10, peer_syn().on(1).cookie(&COOKIE).payload("hello"));
    recv!(s => 10, s.capable(syn_ack()).on(1));
}

/// Past the bound handshakes are ordinary ones; a connection that was reset, by either end, still counts
/// for a while.
// Conforms: 7413-4.2-1, 7413-5.1-1
#[test]
fn pending_fast_opens_are_bounded() {
    let (mut s, cookie) = server(Config {
        max_fast_open: 1,
        ..fast()
    });
    let open = |s: &mut Script, at: i32| {
        s.skip(at);
        let flow = s.peer(1);
        s.key = None;
        send!(s, at, peer_syn().on(flow).cookie(&cookie).payload("hello"));
        let (_, got) = s.take().expect("a SYN/ACK");
        (flow, got.ack == Some(6))
    };
    let (first, taken) = open(&mut s, 10);
    assert!(taken);
    let key = s.key;
    assert!(!open(&mut s, 20).1);
    // The first handshake completes.
    s.key = key;
    send!(s, 30, s.peer_keys(ack(6, 1), None).win(512).on(first));
    let (second, taken) = open(&mut s, 40);
    assert!(taken);
    send!(s, 50, rst(6).on(second));
    assert!(!open(&mut s, 60).1);
    assert!(open(&mut s, 50 + 60_001).1);
    s.abort();
    assert!(!open(&mut s, 50 + 60_002).1);
}

/// A server under a flood keeps no state of a SYN, and so no payload.
#[test]
fn nothing_is_taken_without_state() {
    let (mut s, cookie) = server(Config {
        max_half_open: 1,
        ..fast()
    });
    s.peer(2);
    send!(s, 10, peer_syn().on(1));
    s.skip(10);
    s.peer(1);
    s.key = None;
    send!(s, 20, peer_syn().on(2).cookie(&cookie).payload("hello"));
    recv!(s => 20, s.capable(syn_ack()).on(2));
    let first = s.peer_keys(data(1, 1, "hello"), Some(5)).on(2);
    send!(s, 30, first.win(512));
    recv!(s, 30, ack(1, 6).on(2).dss(dack(5)));
    assert_eq!(s.read(), b"hello");
}

/// A client never comes back: the application is told of the end.
#[test]
fn a_client_that_is_not_heard_again() {
    let (mut s, cookie) = server(fast());
    s.peer(1);
    send!(s, 10, peer_syn().on(1).cookie(&cookie).payload("hello"));
    s.skip(60_000);
    assert!(s.saw(|e| matches!(e, Event::Closed { .. })));
    assert_eq!(s.stack.connections(), 0);
}

/// Regular TCP, to its end.
#[test]
fn regular_tcp() {
    let (mut s, cookie) = server(fast());
    s.peer(1);
    send!(s, 10, syn().on(1).cookie(&cookie).payload("hello"));
    recv!(s, 10, syn_ack().ws(None).on(1).acks(6));
    assert_eq!(s.read(), b"hello");
    s.write("answer");
    s.shutdown();
    quiet!(s, 19);
    send!(s, 20, ack(6, 1).on(1).win(512));
    recv!(s, 20, data(1, 6, "answer").on(1));
    recv!(s, 20, fin(7, 6).on(1));
    send!(s, 30, data(6, 8, "world").on(1).flag(Flags::FIN).win(512));
    recv!(s, 30, ack(8, 12).on(1));
    assert_eq!(s.read(), b"world");
    assert!(s.stack.read_finished(s.id()));
}
