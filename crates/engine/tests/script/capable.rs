//! MP_CAPABLE (RFC 8684 section 3.1) and falling back to TCP (section 3.7).

use core::net::IpAddr;
use core::ops::Range;
use core::time::Duration;

use braid_engine::{
    CloseReason, Config, Event, FallbackCause, PathConfig, PathId, PathRecord, Protocol,
};
use braid_wire::tcp::Flags;

use crate::dss::bytes;
use crate::harness::{At, PEER_KEY, PORT, Script, config, mapped, token_idsn};
use crate::segment::{Rel, Seg, ack, dack, data, fin, hex, rst_ack, syn, syn_ack};

pub fn fell_back(s: &Script) -> Option<FallbackCause> {
    s.events.iter().find_map(|e| match e {
        Event::FellBack { cause, .. } => Some(*cause),
        _ => None,
    })
}

/// Returns the infinite mapping: byte `data` of the stream and all after it travel in order.
fn infinite(data: u64) -> Rel {
    Rel::default().map(data, data as u32 + 1, 0)
}

/// RFC 8684 section 3.1, figure 4, byte by byte as Linux speaks it.
// Conforms: 8684-3.1-4, 8684-3.1-7, 8684-3.1-19, 8684-3.1-20
#[test]
fn client_opens() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    let key_b = hex("1122 3344 5566 7788");
    let option = [hex("1e 0c 01 01"), key_b.clone()].concat();
    send!(s, 10, syn_ack().win(65_535).raw(&option));
    recv!(s => 10, {
        let key_a = s.key.unwrap().to_be_bytes();
        ack(1, 1).raw(&[&hex("1e 14 01 01"), &key_a[..], &key_b].concat())
    });
    assert!(s.saw(|e| matches!(e, Event::Connected { .. })));
    assert_eq!(s.stack.is_mptcp(s.id()), Some(true));
    quiet!(s, 29);
}

// Conforms: 8684-3.1-4, 8684-3.1-7
#[test]
fn server_accepts() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().raw(&hex("1e 04 01 01")));
    recv!(s => 0, {
        let key_b = s.key.unwrap().to_be_bytes();
        syn_ack().win(65_535).raw(&[&hex("1e 0c 01 01"), &key_b[..]].concat())
    });
    let key_b = s.key.unwrap().to_be_bytes();
    let key_a = PEER_KEY.to_be_bytes();
    let third = [&hex("1e 14 01 01"), &key_a[..], &key_b].concat();
    send!(s, 10, ack(1, 1).raw(&third));
    assert!(s.saw(|e| matches!(e, Event::Accepted { .. })));
    // Linux joins only after a DATA_ACK: the bare ACK carries it (4 bytes, A flag).
    recv!(s, 10, {
        let idsn = token_idsn(PEER_KEY).1;
        ack(1, 1).raw(&[hex("1e 08 20 01"), idsn.add(1).low().to_be_bytes().to_vec()].concat())
    });
    assert_eq!(s.stack.is_mptcp(s.id()), Some(true));
    quiet!(s, 1000);
}

/// RFC 8684 section 3.1: keys and data length go with the first mapping, which stays alone until a DATA_ACK
/// shows that the peer has them.
// Conforms: 8684-3.1-15, 8684-3.7-1
#[test]
fn first_data_repeats_the_keys_until_data_ack() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    s.write("hello");
    recv!(s => 10, s.stack_keys_data(data(1, 1, "hello"), 5));
    s.write(" world");
    // Tail loss probe after two round trips and the peer's delay, then the timer with backoff.
    recv!(s => 90, s.stack_keys_data(data(1, 1, "hello"), 5));
    recv!(s => 300, s.stack_keys_data(data(1, 1, "hello"), 5));
    recv!(s => 720, s.stack_keys_data(data(1, 1, "hello"), 5));
    send!(s, 730, ack(1, 6).dss(dack(5)));
    recv!(s, 730, data(6, 1, " world").dss(dack(0).map(5, 6, 6)));
}

/// Returns the test bytes of a stream in `range`.
fn sent(range: Range<u64>) -> Vec<u8> {
    bytes(range.start as usize, range.end as usize)
}

/// An opener with `len` bytes to send, at its SYN/ACK.
fn opening_with_data(config: Config, len: u64) -> Script {
    let mut s = Script::client(config, 1, Protocol::Mptcp);
    s.write(sent(0..len));
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    s
}

/// The payload of a segment with the keys and a mapping.
const WITH_KEYS: u64 = 1436;
const MAPPED: u64 = 1440;
/// The first flight: an initial window.
const FLIGHT: u64 = 10 * WITH_KEYS;

/// Segment `n` of the first flight.
fn nth_with_keys(s: &Script, n: u64) -> Seg {
    let at = n * WITH_KEYS;
    let segment = data(1 + at, 1, sent(at..at + WITH_KEYS));
    s.stack_keys_data(segment, FLIGHT as u16)
}

/// The opener's whole initial window leaves at once, in one mapping, whose keys and length each segment
/// repeats, as a segmenting device does. Everything else waits for the first DATA_ACK.
// Conforms: 8684-3.1-15
#[test]
fn the_first_flight_is_an_initial_window() {
    let mut s = opening_with_data(config(), 20_000);
    for n in 0..10 {
        recv!(s => 10, nth_with_keys(s, n));
    }
    send!(s, 20, ack(1, 1 + WITH_KEYS).win(512).dss(dack(WITH_KEYS)));
    let next = sent(FLIGHT..FLIGHT + MAPPED);
    let map = dack(0).map(FLIGHT, FLIGHT as u32 + 1, MAPPED as u16);
    recv!(s, 20, data(FLIGHT + 1, 1, next).dss(map));
}

/// A device that segments cuts the first flight.
#[test]
fn the_first_flight_is_one_packet() {
    let whole = Config {
        max_transmit: 65_521,
        ..config()
    };
    let mut s = opening_with_data(whole, 20_000);
    let flight = data(1, 1, sent(0..FLIGHT));
    recv!(s => 10, s.stack_keys_data(flight, FLIGHT as u16));
    quiet!(s, 20);
}

/// A hole at its start is filled under the same mapping: Linux accepts no other for the bytes that it
/// covers.
#[test]
fn a_hole_in_the_first_flight() {
    let mut s = opening_with_data(config(), FLIGHT);
    for n in 0..10 {
        recv!(s => 10, nth_with_keys(s, n));
    }
    let rest = [(1 + WITH_KEYS, 1 + FLIGHT)];
    send!(s, 20, ack(1, 1).win(512).dss(dack(0)).sack(&rest));
    let first = data(1, 1, sent(0..WITH_KEYS));
    recv!(s, 22.5, first.dss(dack(0).map(0, 1, FLIGHT as u16)));
}

/// A listener accepts such a flight in any order: each segment proves the handshake and maps everything.
// Conforms: 8684-3.1-16
#[test]
fn a_first_flight_out_of_order() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().raw(&hex("1e 04 01 01")));
    recv!(s => 0, s.capable(syn_ack()));
    let third = |s: &Script, at: u64| s.peer_keys(data(1 + at, 1, sent(at..at + 1000)), Some(3000));
    send!(s, 10, third(&s, 2000));
    recv!(s, 10, ack(1, 1).dss(dack(0)).sack(&[(2001, 3001)]));
    send!(s, 11, third(&s, 1000));
    recv!(s, 11, ack(1, 1).dss(dack(0)).sack(&[(1001, 3001)]));
    send!(s, 12, third(&s, 0));
    recv!(s, 12, ack(1, 3001).dss(dack(3000)));
    assert_eq!(s.read(), sent(0..3000));
    assert_eq!(fell_back(&s), None);
}

/// Before it is fully established, the connection depends on its only subflow, which is not closed.
#[test]
fn a_path_that_is_left_during_the_handshake() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    s.stack.leave_path(s.now, PathId(0));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    s.write("hello");
    recv!(s => 10, s.stack_keys_data(data(1, 1, "hello"), 5));
}

/// A subflow that is closed because its path was left cannot carry a fallback: data written since would be
/// lost.
// Conforms: 8684-3.4.2-8
#[test]
fn no_fallback_to_a_subflow_that_ended_before_the_stream() {
    let mut s = Script::opened(config(), 1);
    s.stack.leave_path(s.now, PathId(0));
    s.write("hello");
    let (_, last) = s.take().expect("no FIN");
    assert!(last.flags.contains(Flags::FIN) && last.payload.is_empty());
    send!(s, 30, ack(1, 2).win(512));
    quiet!(s, 30);
    assert_eq!(fell_back(&s), None);
}

/// Data written before the handshake is over leaves with the third ACK.
#[test]
fn data_rides_on_the_third_ack() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    s.write("hello");
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys_data(data(1, 1, "hello"), 5));
}

// Conforms: 8684-3.1-16
#[test]
fn lost_third_ack_is_made_up_for_by_the_first_data() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().raw(&hex("1e 04 01 01")));
    recv!(s => 0, s.capable(syn_ack()));
    send!(s, 20, s.peer_keys(data(1, 1, "hello"), Some(5)));
    recv!(s, 20, ack(1, 6).dss(dack(5)));
    assert_eq!(s.read(), b"hello");
    // The keys again, with a retransmission: known data.
    send!(s, 30, s.peer_keys(data(1, 1, "hello"), Some(5)));
    recv!(s, 30, ack(1, 6).dss(dack(5)).sack(&[(1, 6)]));
}

/// A third ACK is overtaken by data: the data is useless without keys, and comes again.
#[test]
fn third_ack_after_data() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().raw(&hex("1e 04 01 01")));
    recv!(s => 0, s.capable(syn_ack()));
    send!(s, 10, data(6, 1, "world").dss(dack(0).map(5, 6, 5)));
    quiet!(s, 11);
    send!(s, 12, s.peer_keys(data(1, 1, "hello"), Some(5)));
    recv!(s, 12, ack(1, 6).dss(dack(5)));
    send!(s, 20, data(6, 1, "world").dss(dack(0).map(5, 6, 5)));
    recv!(s, 20, ack(1, 11).dss(dack(10)));
    assert_eq!(s.read(), b"helloworld");
    assert_eq!(fell_back(&s), None);
}

/// The third ACK may be lost, and nothing acknowledges it: it is repeated after two round trips, then at
/// growing intervals, and only a few times, since the peer may have nothing to say.
#[test]
fn an_unanswered_third_ack_is_repeated() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    for at in [10, 30, 240, 660] {
        recv!(s => at, s.stack_keys(ack(1, 1)));
    }
    // A repeated SYN/ACK asks for it at once.
    send!(s, 1010, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 1010, s.stack_keys(ack(1, 1)));
    recv!(s => 1500, s.stack_keys(ack(1, 1)));
    quiet!(s, 9000);
}

/// A near peer takes longer to answer than its packets to arrive.
#[test]
fn a_third_ack_waits_a_while_however_near_the_peer_is() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 1, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 1, s.stack_keys(ack(1, 1)));
    recv!(s => 11, s.stack_keys(ack(1, 1)));
}

/// The path is known for occasional late answers, however fast this one was.
#[test]
fn a_third_ack_waits_as_long_as_the_path_is_known_to_take() {
    let mut s = Script::new(config(), &[PathConfig::v4([10, 0, 0, 2].into())]);
    let ms = Duration::from_millis;
    let record = PathRecord {
        srtt: ms(20),
        rttvar: ms(10),
        bytes_sent: 1_000_000,
        ..PathRecord::default()
    };
    s.stack.load_record([10, 0, 9, 1].into(), PathId(0), record);
    s.connect(([10, 0, 9, 1], PORT).into(), Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    s.advance(60.at());
    let (at, _) = s.take().expect("not repeated");
    // The new sample is averaged with the record.
    assert!(at >= 40.at(), "{at}");
}

#[test]
fn a_third_ack_is_not_repeated_once_the_peer_is_heard() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    send!(s, 29, ack(1, 1).win(512).dss(dack(0)));
    quiet!(s, 9000);
}

/// Data written meanwhile carries the keys, so the third ACK is not repeated.
#[test]
fn data_takes_the_place_of_the_third_ack() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    quiet!(s, 25);
    s.write("hello");
    recv!(s => 25, s.stack_keys_data(data(1, 1, "hello"), 5));
    recv!(s => 105, s.stack_keys_data(data(1, 1, "hello"), 5));
}

/// The SYN/ACK is repeated with backoff (RFC 6298 section 5.5) and given up.
#[test]
fn syn_ack_backs_off_and_ends() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().raw(&hex("1e 04 01 01")));
    for at in [0, 1000, 3000, 7000] {
        recv!(s => at, s.capable(syn_ack()));
    }
    // A repeated SYN is answered at once by the same SYN/ACK.
    send!(s, 8000, syn().raw(&hex("1e 04 01 01")));
    recv!(s => 8000, s.capable(syn_ack()));
    while s.stack.connections() > 0 {
        let next = s
            .stack
            .next_timeout()
            .expect("a half-open connection stays");
        s.advance(next);
    }
    assert!(s.now <= braid_wire::Instant::from_millis(60_000));
    assert!(s.events.is_empty(), "nobody knew of it: {:?}", s.events);
}

/// The third and later SYNs go without MP_CAPABLE (RFC 8684 section 3.7): the network may drop SYNs that
/// have it.
// Conforms: 8684-3.9.3-1
#[test]
fn syn_backs_off_and_ends() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    for at in [0, 1000] {
        recv!(s, at, syn().ws(None).raw(&hex("1e 04 01 01")));
    }
    for at in [3000, 7000] {
        recv!(s, at, syn().ws(None));
    }
    quiet!(s, 14_999);
    s.advance(braid_wire::Instant::from_millis(15_000));
    assert!(s.saw(|e| matches!(
        e,
        Event::Closed {
            reason: CloseReason::TimedOut,
            ..
        }
    )));
    assert_eq!(s.stack.connections(), 0);
}

/// Returns whether the next connection opens with a SYN without MP_CAPABLE.
fn opens_plainly(s: &mut Script) -> bool {
    s.connect(([10, 0, 9, 1], PORT).into(), Protocol::Mptcp);
    let (_, got) = s.take().expect("no SYN");
    let plain = got.mptcp.is_empty();
    s.abort();
    plain
}

/// A network that drops SYNs with MP_CAPABLE is remembered for a while, by path and destination (RFC
/// 8684 section 3.7).
#[test]
fn a_network_that_drops_mp_capable_is_remembered() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    s.skip(3_000);
    send!(s, 3_010, syn_ack().win(65_535));
    recv!(s, 3_010, ack(1, 1));
    let cause = FallbackCause::SynsDropped;
    assert!(s.saw(|e| matches!(e, Event::FellBack { cause: c, .. } if *c == cause)));
    assert_eq!(s.stack.stats().fallbacks[cause as usize], 1);
    s.abort();
    s.skip(3_020);
    assert!(opens_plainly(&mut s));
    s.skip(62_000);
    assert!(opens_plainly(&mut s));
    s.skip(63_100);
    assert!(!opens_plainly(&mut s));
}

/// Another path to the same destination may work: it is tried first.
#[test]
fn a_network_that_drops_mp_capable_is_avoided() {
    let mut s = Script::client(config(), 2, Protocol::Mptcp);
    s.skip(3_000);
    let last = s.flows.len() - 1;
    let path = s.flows[last].stack.ip();
    send!(s, 3_010, syn_ack().on(last).win(65_535));
    s.abort();
    s.skip(3_020);
    assert!(!opens_plainly(&mut s));
    let flow = s.flows.last().unwrap();
    assert_ne!(flow.stack.ip(), path);
}

/// The memory does not feed itself: a SYN sent without MP_CAPABLE because of it, and answered so, shows
/// nothing new.
#[test]
fn what_was_not_offered_mp_capable_is_not_remembered_anew() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    s.skip(3_000);
    send!(s, 3_010, syn_ack().win(65_535));
    s.abort();
    s.skip(60_000);
    s.connect(([10, 0, 9, 1], PORT).into(), Protocol::Mptcp);
    let (_, plain) = s.take().expect("no SYN");
    assert!(plain.mptcp.is_empty());
    send!(s, 60_010, syn_ack().on(plain.flow).win(65_535));
    s.abort();
    s.skip(63_100);
    assert!(!opens_plainly(&mut s));
}

/// The third SYN may leave on a path on which no SYN with MP_CAPABLE was tried.
#[test]
fn a_path_that_was_not_offered_mp_capable_is_not_blamed() {
    let mut s = Script::client(config(), 3, Protocol::Mptcp);
    s.skip(1_500);
    s.stack.set_path_up(s.now, PathId(0), false);
    s.skip(3_000);
    let last = s.flows.len() - 1;
    assert_eq!(s.flows[last].stack.ip(), IpAddr::from([10, 0, 2, 2]));
    send!(s, 3_010, syn_ack().on(last).win(65_535));
    let cause = FallbackCause::SynsDropped;
    assert_eq!(s.stack.stats().fallbacks[cause as usize], 1);
    s.abort();
    s.skip(3_020);
    s.stack.set_path_up(s.now, PathId(1), false);
    assert!(!opens_plainly(&mut s));
    let flow = s.flows.last().unwrap();
    assert_eq!(flow.stack.ip(), IpAddr::from([10, 0, 2, 2]));
}

/// A late answer to a SYN that had MP_CAPABLE opens MPTCP all the same.
#[test]
fn a_late_answer_still_opens_mptcp() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    s.skip(3_000);
    send!(s, 3_010, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 3_010, s.stack_keys(ack(1, 1)));
    assert_eq!(s.stack.is_mptcp(s.id()), Some(true));
}

/// Offers that version 1 cannot take: RFC 8684 section 3.1 (version, flags B and H).
// Conforms: 8684-3.1-1, 8684-3.1-5, 8684-3.1-8, 8684-3.1-13
#[test]
fn server_falls_back_on_an_unusable_syn() {
    let offers = [
        ("1e 04 00 01", FallbackCause::PeerSynPlain),
        ("1e 0c 00 81 0102030405060708", FallbackCause::PeerSynPlain),
        ("1e 04 01 00", FallbackCause::PeerSynPlain),
        ("1e 04 01 41", FallbackCause::PeerSynPlain),
        ("", FallbackCause::PeerSynPlain),
    ];
    for (offer, cause) in offers {
        let mut s = Script::server(config());
        s.peer(1);
        send!(s, 0, syn().raw(&hex(offer)));
        recv!(s, 0, syn_ack().ws(None));
        send!(s, 10, ack(1, 1).win(512));
        quiet!(s, 10);
        assert_eq!(fell_back(&s), Some(cause), "{offer}");
        assert_eq!(s.stack.is_mptcp(s.id()), Some(false));
        send!(s, 20, data(1, 1, "plain"));
        recv!(s, 20, ack(1, 6));
        assert_eq!(s.read(), b"plain");
    }
}

// Conforms: 8684-3.1-5, 8684-3.1-8, 8684-3.1-12
#[test]
fn client_falls_back_on_an_unusable_syn_ack() {
    let answers = [
        (
            "1e 0c 00 01 1122334455667788",
            FallbackCause::PeerSynAckPlain,
        ),
        (
            "1e 0c 01 00 1122334455667788",
            FallbackCause::PeerSynAckPlain,
        ),
        (
            "1e 0c 01 41 1122334455667788",
            FallbackCause::PeerSynAckPlain,
        ),
        ("1e 04 01 01", FallbackCause::PeerSynAckPlain),
        ("", FallbackCause::PeerSynAckPlain),
    ];
    for (answer, cause) in answers {
        let mut s = Script::client(config(), 2, Protocol::Mptcp);
        recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
        send!(s, 10, syn_ack().win(65_535).raw(&hex(answer)));
        recv!(s, 10, ack(1, 1));
        assert_eq!(fell_back(&s), Some(cause), "{answer}");
        s.write("plain");
        recv!(s, 10, data(1, 1, "plain"));
        send!(s, 20, ack(1, 6));
        quiet!(s, 1000);
    }
}

/// RFC 8684 section 3.7: options that vanish after the SYNs.
// Conforms: 8684-3.1-14
#[test]
fn third_ack_without_keys_falls_back() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().raw(&hex("1e 04 01 01")));
    recv!(s => 0, s.capable(syn_ack()));
    send!(s, 10, ack(1, 1).win(512));
    quiet!(s, 10);
    assert_eq!(fell_back(&s), Some(FallbackCause::ThirdAckPlain));
}

// Conforms: 8684-3.7-2, 8684-3.7-5
#[test]
fn data_acknowledged_without_dss_falls_back() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    s.write("hello");
    recv!(s => 10, s.stack_keys_data(data(1, 1, "hello"), 5));
    send!(s, 20, ack(1, 6));
    assert_eq!(fell_back(&s), Some(FallbackCause::DataPlain));
    // The last DSS: the path may drop options in one direction only.
    s.write("plain");
    recv!(s, 20, data(6, 1, "plain").dss(infinite(5)));
    send!(s, 30, data(1, 11, "answer"));
    recv!(s, 30, ack(11, 7));
    assert_eq!(s.read(), b"answer");
    s.write("more");
    recv!(s, 30, data(11, 7, "more"));
}

/// A FIN carries the infinite mapping if there is no data left.
// Conforms: 8684-3.7-5
#[test]
fn the_infinite_mapping_of_the_end() {
    let mut s = Script::client(config(), 1, Protocol::Mptcp);
    recv!(s, 0, syn().ws(None).raw(&hex("1e 04 01 01")));
    send!(s, 10, s.peer_capable(syn_ack()).win(65_535));
    recv!(s => 10, s.stack_keys(ack(1, 1)));
    s.write("hello");
    s.shutdown();
    recv!(s => 10, s.stack_keys_data(data(1, 1, "hello"), 5));
    send!(s, 20, ack(1, 6));
    recv!(s, 20, fin(6, 1).dss(infinite(5)));
}

/// The stack's answer reached the peer without options: the acknowledgement shows it, although the peer's
/// own options arrive.
#[test]
fn an_answer_acknowledged_without_dss_falls_back() {
    let mut s = Script::accepted(config());
    send!(s, 20, mapped(0, 0, "hello"));
    recv!(s, 20, ack(1, 6).dss(dack(5)));
    s.write("answer");
    s.shutdown();
    recv!(s, 20, data(1, 6, "answer").dss(dack(5).map(0, 1, 6)));
    recv!(s, 20, ack(7, 6).dss(dack(5).map(6, 0, 1).fin()));
    send!(s, 30, ack(6, 7));
    assert_eq!(fell_back(&s), Some(FallbackCause::DataPlain));
    // DATA_FIN does not count there.
    recv!(s, 30, fin(7, 6).dss(infinite(6)));
    send!(s, 40, fin(6, 8));
    recv!(s, 40, ack(8, 7));
    assert_eq!(s.read(), b"hello");
    assert!(s.saw(|e| matches!(
        e,
        Event::Closed {
            reason: CloseReason::Finished,
            ..
        }
    )));
}

// Conforms: 8684-3.3.2-4
#[test]
fn an_acknowledgement_without_dss_later_on_means_nothing() {
    let mut s = Script::accepted(config());
    s.write("answer");
    recv!(s, 10, data(1, 1, "answer").dss(dack(0).map(0, 1, 6)));
    send!(s, 20, ack(1, 7).dss(dack(6)));
    s.write("more");
    recv!(s, 20, data(7, 1, "more").dss(dack(0).map(6, 7, 4)));
    send!(s, 30, ack(1, 11));
    assert_eq!(fell_back(&s), None);
}

// Conforms: 8684-3.7-14
#[test]
fn the_peer_falls_back_by_the_infinite_mapping() {
    let mut s = Script::accepted(config());
    send!(s, 20, mapped(0, 0, "hello"));
    recv!(s, 20, ack(1, 6).dss(dack(5)));
    // Overtaken data is placed as well.
    send!(s, 30, data(8, 1, "ain").dss(infinite(7)));
    assert_eq!(fell_back(&s), Some(FallbackCause::PeerFellBack));
    recv!(s, 30, ack(1, 6).sack(&[(8, 11)]));
    send!(s, 31, data(6, 1, "pl").dss(infinite(5)));
    recv!(s, 31, ack(1, 11));
    assert_eq!(s.read(), b"helloplain");
    s.write("answer");
    recv!(s, 31, data(1, 11, "answer"));
}

/// An infinite mapping that would move the stream is not accepted.
#[test]
fn an_infinite_mapping_out_of_place() {
    let mut s = Script::accepted(config());
    send!(s, 20, mapped(0, 0, "hello"));
    recv!(s, 20, ack(1, 6).dss(dack(5)));
    let moved = Rel::default().map(9, 6, 0);
    send!(s, 30, data(6, 1, "plain").dss(moved));
    recv!(s, 30, rst_ack(1, 6).raw(&hex("1e 04 80 06")));
    assert_eq!(fell_back(&s), None);
}

// Conforms: 8684-3.3.1-3, 8684-3.7-6
#[test]
fn data_without_dss_falls_back_at_the_start_only() {
    let mut s = Script::accepted(config());
    send!(s, 20, data(1, 1, "plain"));
    assert_eq!(fell_back(&s), Some(FallbackCause::DataPlain));
    recv!(s, 20, ack(1, 6));

    let mut s = Script::accepted(config());
    send!(s, 20, mapped(0, 0, "hello"));
    recv!(s, 20, ack(1, 6).dss(dack(5)));
    send!(s, 30, data(6, 1, "plain"));
    // Without a mapping the data never finds a place: the subflow is useless (section 3.3.1).
    recv!(s, 30, rst_ack(1, 6).raw(&hex("1e 04 80 06")));
    assert_eq!(fell_back(&s), None);
}

/// Only the echo of our key distinguishes the opener from a guess.
// Conforms: 8684-3.1-17
#[test]
fn keys_that_are_not_ours_are_not_taken() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().raw(&hex("1e 04 01 01")));
    recv!(s => 0, s.capable(syn_ack()));
    send!(
        s,
        10,
        ack(1, 1).raw(&hex("1e 14 01 01 1122334455667788 0000000000000001"))
    );
    recv!(s, 10, ack(1, 1));
    assert_eq!(fell_back(&s), Some(FallbackCause::ThirdAckPlain));
}
