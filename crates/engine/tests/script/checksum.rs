//! DSS checksums (RFC 8684 section 3.3.1) and MP_FAIL (section 3.7).

use braid_engine::{CloseReason, Config, Event, FallbackCause, Protocol, SubflowCloseReason};
use braid_wire::mptcp::MptcpOption;
use braid_wire::tcp::Flags;

use crate::harness::{PEER_KEY, Script, config, token_idsn};
use crate::join;
use crate::limits::{BLOCK, share_memory};
use crate::segment::{Rel, Seg, ack, dack, data, fin, hex, rst_ack, syn, syn_ack};

/// Returns the checksum of section 3.3.1, word by word: the full data sequence number, subflow sequence
/// number and length of the mapping, a zero word, and the data.
fn sum(key: u64, (at, sub, len): (u64, u32, u16), payload: &[u8]) -> u16 {
    let dsn = token_idsn(key).1.add(1 + at).0;
    let mut bytes = dsn.to_be_bytes().to_vec();
    bytes.extend(sub.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    let mut total = 0u32;
    for pair in bytes.chunks(2) {
        total += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        total = (total & 0xffff) + (total >> 16);
    }
    !(total as u16)
}

/// Returns a mapping of the peer with its checksum over `payload`.
fn sound(acked: u64, map: (u64, u32, u16), payload: &[u8]) -> Rel {
    let (at, sub, len) = map;
    dack(acked)
        .map(at, sub, len)
        .sum(sum(PEER_KEY, map, payload))
}

/// Returns a mapping of the stack.
pub fn ours(s: &Script, acked: u64, map: (u64, u32, u16), payload: &[u8]) -> Rel {
    let (at, sub, len) = map;
    let key = s.key.expect("no key seen yet");
    dack(acked).map(at, sub, len).sum(sum(key, map, payload))
}

/// Returns data of the peer under a mapping of its own, byte `at` of the stream at `at + 1`.
fn checked(at: u64, payload: &str) -> Seg {
    let map = (at, at as u32 + 1, payload.len() as u16);
    data(at + 1, 1, payload).dss(sound(0, map, payload.as_bytes()))
}

/// Returns the same data with a byte changed on the way.
fn changed(at: u64, payload: &str) -> Seg {
    let mut seg = checked(at, payload);
    seg.payload[0] ^= 0x20;
    seg
}

fn keys(s: &Script, head: &str) -> Vec<u8> {
    let ours = s.key.expect("no key seen yet").to_be_bytes();
    [hex(head), PEER_KEY.to_be_bytes().to_vec(), ours.to_vec()].concat()
}

/// Accepted at 10 ms from a peer that requires checksums.
fn accepted() -> Script {
    let mut s = Script::server(config());
    accept(&mut s, 0);
    s
}

/// Accepts a connection from a peer that arrives at time `at`; the handshake takes 10 ms.
fn accept(s: &mut Script, at: i32) {
    let flow = s.peer(1);
    send!(s, at, syn().on(flow).raw(&hex("1e 04 01 81")));
    let answer = |s: &Script| [hex("1e 0c 01 81"), s.key.unwrap().to_be_bytes().to_vec()].concat();
    recv!(s => at, syn_ack().on(flow).raw(&answer(s)));
    let third = keys(s, "1e 14 01 81");
    send!(s, at + 10, ack(1, 1).on(flow).win(512).raw(&third));
    recv!(s, at + 10, ack(1, 1).on(flow).dss(dack(0)));
}

/// Memory is full up to a reserve of four blocks with out-of-order data. Connections `14..` are regular TCP
/// and hold nothing.
fn over_quota(n: usize) -> Script {
    let (mut s, _) = share_memory(n, 32 * BLOCK);
    for flow in 0..14 {
        for n in 1..40 {
            send!(s, 0, data(1000 * n + 1, 1, [7; 1000]).on(flow));
            while s.take().is_some() {}
        }
    }
    assert_eq!(s.stack.buffered(), 28 * BLOCK);
    s
}

/// Data held back until it was verified counts as a duplicate as well.
#[test]
fn what_comes_twice_is_counted() {
    let mut s = accepted();
    send!(s, 20, checked(0, "abcd"));
    s.skip(20);
    send!(s, 21, data(5, 1, "cdef").dss(sound(0, (2, 5, 4), b"cdef")));
    assert_eq!(s.stack.subflows(s.id())[0].duplicate, 2);
    assert_eq!(s.stack.conn_stats(s.id()).unwrap().duplicate, 2);
    assert_eq!(s.read(), b"abcdef");
}

fn fell_back(s: &Script) -> Option<FallbackCause> {
    s.events.iter().find_map(|e| match e {
        Event::FellBack { cause, .. } => Some(*cause),
        _ => None,
    })
}

fn broken_off(s: &Script) -> Option<SubflowCloseReason> {
    s.events.iter().find_map(|e| match e {
        Event::SubflowClosed { reason, .. } => Some(*reason),
        _ => None,
    })
}

/// RFC 8684 section 3.1: one side that sets flag A is enough, and the opener's third ACK sets it.
// Conforms: 8684-3.1-3, 8684-3.3.1-8
#[test]
fn either_side_may_require_checksums() {
    for (wanted, syn_flags, answer) in [(true, 0x81, 0x01), (false, 0x01, 0x81), (true, 0x81, 0x81)]
    {
        let required = Config {
            checksum: wanted,
            ..config()
        };
        let mut s = Script::client(required, 1, Protocol::Mptcp);
        recv!(s, 0, syn().ws(None).raw(&[30, 4, 1, syn_flags]));
        let theirs = [&[30, 12, 1, answer], &PEER_KEY.to_be_bytes()[..]].concat();
        send!(s, 10, syn_ack().win(65_535).raw(&theirs));
        let third = |s: &Script, head: &str| {
            let ours = s.key.unwrap().to_be_bytes().to_vec();
            [hex(head), ours, PEER_KEY.to_be_bytes().to_vec()].concat()
        };
        recv!(s => 10, ack(1, 1).raw(&third(s, "1e 14 01 81")));
        s.write("hello");
        let with_sum = |s: &Script| {
            let sum = sum(s.key.unwrap(), (0, 1, 5), b"hello");
            let tail = [5u16.to_be_bytes(), sum.to_be_bytes()].concat();
            [third(s, "1e 18 01 81"), tail].concat()
        };
        recv!(s => 10, data(1, 1, "hello").raw(&with_sum(s)));
        send!(s, 20, ack(1, 6).dss(dack(5)));
        s.write("more");
        recv!(s => 20, data(6, 1, "more").dss(ours(s, 0, (5, 6, 4), b"more")));
        assert_eq!(fell_back(&s), None);
    }
    // Either the listener requires them, or the opener did.
    let required = Config {
        checksum: true,
        ..config()
    };
    let mut s = Script::server(required);
    s.peer(1);
    send!(s, 0, syn().raw(&hex("1e 04 01 01")));
    let answer = |s: &Script| [hex("1e 0c 01 81"), s.key.unwrap().to_be_bytes().to_vec()].concat();
    recv!(s => 0, syn_ack().raw(&answer(s)));
    let mut s = accepted();
    s.write("hello");
    recv!(s => 10, data(1, 1, "hello").dss(ours(s, 0, (0, 1, 5), b"hello")));
}

/// The opener's first mapping has its checksum in MP_CAPABLE.
#[test]
fn keys_and_data_with_a_checksum() {
    let mut s = Script::server(config());
    s.peer(1);
    send!(s, 0, syn().raw(&hex("1e 04 01 81")));
    s.skip(5);
    let with = |s: &Script, sum: u16| {
        let tail = [5u16.to_be_bytes(), sum.to_be_bytes()].concat();
        [keys(s, "1e 18 01 81"), tail].concat()
    };
    let right = sum(PEER_KEY, (0, 1, 5), b"hello");
    let first = with(&s, right);
    send!(s, 10, data(1, 1, "hello").win(512).raw(&first));
    recv!(s, 10, ack(1, 6).dss(dack(5)));
    assert_eq!(s.read(), b"hello");
}

/// No part of a mapping is handed on or acknowledged at the data level before all of it is verified, in
/// whatever order and segments it comes.
// Conforms: 8684-3.7-8
#[test]
fn a_mapping_in_parts() {
    let mut s = accepted();
    let map = sound(0, (0, 1, 9), b"onetwosix");
    send!(s, 20, data(7, 1, "six").dss(map));
    recv!(s, 20, ack(1, 1).dss(dack(0)).sack(&[(7, 10)]));
    send!(s, 21, data(1, 1, "one").dss(map));
    recv!(s, 21, ack(1, 4).dss(dack(0)).sack(&[(7, 10)]));
    assert_eq!(s.read(), b"");
    send!(s, 22, data(4, 1, "two").dss(map));
    recv!(s, 22, ack(1, 10).dss(dack(9)));
    assert_eq!(s.read(), b"onetwosix");
    send!(s, 30, checked(9, "odd"));
    recv!(s, 30, ack(1, 13).dss(dack(12)));
    assert_eq!(s.read(), b"odd");
    assert_eq!(s.stack.buffered(), 0);
}

/// Several mappings lie behind a hole, and the last comes again with DATA_FIN.
#[test]
fn checked_mappings_behind_a_hole() {
    let mut s = accepted();
    send!(s, 20, checked(3, "two"));
    recv!(s, 20, ack(1, 1).dss(dack(0)).sack(&[(4, 7)]));
    let last = sound(0, (3, 4, 4), b"two").fin();
    send!(s, 21, data(4, 1, "two").dss(last));
    recv!(s, 21, ack(1, 1).dss(dack(0)).sack(&[(4, 7), (4, 7)]));
    send!(s, 22, checked(0, "one"));
    recv!(s, 22, ack(1, 7).dss(dack(7)));
    assert_eq!(s.read(), b"onetwo");
    assert!(s.stack.read_finished(s.id()));
}

/// A lone DATA_FIN has a checksum too: ours, and the peer's must be right.
// Conforms: 8684-3.3.3-2
#[test]
fn data_fin_with_a_checksum() {
    let mut s = accepted();
    s.shutdown();
    recv!(s => 10, ack(1, 1).dss(ours(s, 0, (0, 0, 1), b"").fin()));
    let wrong = dack(0).map(0, 0, 1).fin();
    send!(s, 20, ack(1, 1).dss(sound(1, (0, 0, 1), b"").fin()));
    recv!(s, 20, fin(1, 1).dss(dack(1)));
    for wrong in [wrong, wrong.sum(0x1234)] {
        let mut s = accepted();
        send!(s, 20, ack(1, 1).dss(wrong));
        recv!(s, 20, rst_ack(1, 1).raw(&hex("1e 04 80 01")));
    }
}

/// A DATA_FIN with payload counts only once the checksum of both is verified: until then it ends no stream.
// Conforms: 8684-3.7-8
#[test]
fn data_fin_with_a_wrong_checksum() {
    let mut s = accepted();
    join::complete(&mut s, 20);
    // Data behind the range of the other subflow is here already.
    let map = (3, 1, 3);
    send!(s, 40, data(1, 1, "two").on(1).dss(sound(0, map, b"two")));
    recv!(s, 40, ack(1, 4).on(1).dss(dack(0)));
    let end = sound(0, (0, 1, 4), b"end").fin();
    send!(s, 41, data(1, 1, "bad").dss(end));
    let dsn = token_idsn(PEER_KEY).1.add(1);
    recv!(s, 41, rst_ack(1, 4).opt(MptcpOption::Fail { dsn }));
    let map = (0, 4, 3);
    send!(s, 50, data(4, 1, "one").on(1).dss(sound(0, map, b"one")));
    recv!(s, 50, ack(1, 7).on(1).dss(dack(6)));
    assert_eq!(s.read(), b"onetwo");
    assert!(!s.stack.read_finished(s.id()));
}

/// Data held back and then verified lies behind the end that the peer has announced since.
#[test]
fn data_fin_before_what_is_held() {
    let mut s = accepted();
    send!(s, 20, checked(3, "two"));
    recv!(s, 20, ack(1, 1).dss(dack(0)).sack(&[(4, 7)]));
    send!(s, 21, ack(1, 1).dss(sound(0, (4, 0, 1), b"").fin()));
    recv!(s, 21, ack(1, 1).dss(dack(0)).sack(&[(4, 7)]));
    send!(s, 22, checked(0, "one"));
    let reason = CloseReason::PeerMisbehaved;
    assert!(s.saw(|e| matches!(e, Event::Closed { reason: r, .. } if *r == reason)));
    let (_, reset) = s.take().expect("no reset");
    assert!(reset.flags.contains(Flags::RST));
    assert_eq!(s.stack.buffered(), 0);
}

/// A middlebox that changes payload may make it longer: after the fallback the stream continues past the
/// earlier DATA_FIN, to the FIN of the subflow.
// Conforms: 8684-3.7-9
#[test]
fn a_fallback_forgets_data_fin() {
    let mut s = accepted();
    send!(s, 20, ack(1, 1).dss(sound(0, (3, 0, 1), b"").fin()));
    recv!(s, 20, ack(1, 1).dss(dack(0)));
    send!(s, 21, changed(0, "bad"));
    let dsn = token_idsn(PEER_KEY).1.add(1);
    let fail = MptcpOption::Fail { dsn };
    recv!(s, 21, ack(1, 4).opt(fail));
    send!(s, 30, data(4, 1, "der").opt(fail));
    recv!(s, 30, ack(1, 7));
    assert_eq!(s.read(), b"Badder");
    assert!(!s.stack.read_finished(s.id()));
    send!(s, 31, fin(7, 1));
    recv!(s, 31, ack(1, 8));
    assert!(s.stack.read_finished(s.id()));
}

/// Section 3.3.1: a mapping without the agreed checksum, and one that changes, cannot be verified.
// Conforms: 8684-3.3-3, 8684-3.3-4
#[test]
fn mappings_that_cannot_be_checked() {
    let other = sound(0, (0, 1, 6), b"hello!");
    for wrong in [dack(0).map(0, 1, 5), other] {
        let mut s = accepted();
        send!(s, 20, ack(1, 1).dss(sound(0, (0, 1, 5), b"hello")));
        send!(s, 21, data(1, 1, "hello").dss(wrong));
        recv!(s, 21, rst_ack(1, 1).raw(&hex("1e 04 80 01")));
    }
}

/// Section 3.3: a checksum that was not agreed on is an error.
// Conforms: 8684-3.3-2, 8684-3.3-4
#[test]
fn a_checksum_that_was_not_agreed_on() {
    let map = sound(0, (0, 1, 5), b"hello");
    let end = sound(0, (0, 0, 1), b"").fin();
    for wrong in [data(1, 1, "hello").dss(map), ack(1, 1).dss(end)] {
        let mut s = Script::accepted(config());
        send!(s, 20, wrong);
        recv!(s, 20, rst_ack(1, 1).raw(&hex("1e 04 80 01")));
        assert_eq!(s.read(), b"");
    }
}

/// Section 3.7: with one subflow whose bytes are the stream the connection goes on as regular TCP, with the
/// received data; the peer gets MP_FAIL until it answers.
// Conforms: 8684-3.7-9, 8684-3.7-13
#[test]
fn a_wrong_checksum_on_the_only_subflow() {
    let mut s = accepted();
    send!(s, 20, checked(0, "good"));
    recv!(s, 20, ack(1, 5).dss(dack(4)));
    // Another mapping behind the wrong one is here already.
    send!(s, 29, checked(7, "end"));
    recv!(s, 29, ack(1, 5).dss(dack(4)).sack(&[(8, 11)]));
    send!(s, 30, changed(4, "bad"));
    let dsn = token_idsn(PEER_KEY).1.add(5);
    let fail = MptcpOption::Fail { dsn };
    recv!(s, 30, ack(1, 11).opt(fail));
    assert_eq!(fell_back(&s), Some(FallbackCause::BadChecksum));
    let counted = s.stack.stats().fallbacks;
    assert_eq!(counted[FallbackCause::BadChecksum as usize], 1);
    assert_eq!(counted.iter().sum::<u64>(), 1);
    assert_eq!(s.read(), b"goodBadend");
    // The peer does not know yet.
    send!(s, 31, checked(10, "more"));
    recv!(s, 31, ack(1, 15).opt(fail));
    send!(s, 40, data(15, 1, "plain").opt(fail));
    recv!(s, 40, ack(1, 20));
    assert_eq!(s.read(), b"moreplain");
    // Our own stream goes on in order too.
    s.write("answer");
    let infinite = Rel::default().map(0, 1, 0).sum(0);
    recv!(s, 40, data(1, 20, "answer").dss(infinite));
    send!(s, 50, fin(20, 7));
    recv!(s, 50, ack(7, 21));
    assert_eq!(s.stack.buffered(), 0);
}

/// The peer found a wrong checksum: MP_FAIL is answered by MP_FAIL and the infinite mapping.
// Conforms: 8684-3.7-10
#[test]
fn mp_fail_on_the_only_subflow() {
    let mut s = accepted();
    s.write("hello");
    recv!(s => 10, data(1, 1, "hello").dss(ours(s, 0, (0, 1, 5), b"hello")));
    let ours = token_idsn(s.key.unwrap()).1.add(1);
    send!(s, 20, ack(1, 6).opt(MptcpOption::Fail { dsn: ours }));
    let dsn = token_idsn(PEER_KEY).1.add(1);
    recv!(s, 20, ack(6, 1).opt(MptcpOption::Fail { dsn }));
    assert_eq!(fell_back(&s), Some(FallbackCause::PeerBadChecksum));
    s.write("plain");
    recv!(
        s,
        20,
        data(6, 1, "plain").dss(Rel::default().map(5, 6, 0).sum(0))
    );
    send!(
        s,
        30,
        data(1, 11, "answer").dss(Rel::default().map(0, 1, 0))
    );
    recv!(s, 30, ack(11, 7));
    assert_eq!(s.read(), b"answer");
}

/// With several subflows the one that changes payload ends by RST with MP_FAIL; its data comes by another
/// one.
// Conforms: 8684-3.7-7, 8684-3.7-8
#[test]
fn a_wrong_checksum_beside_another_subflow() {
    let mut s = accepted();
    join::complete(&mut s, 20);
    let map = (0, 1, 3);
    let mut bad = data(1, 1, "bad").on(1).dss(sound(0, map, b"bad"));
    bad.payload[1] = b'i';
    send!(s, 40, bad);
    let dsn = token_idsn(PEER_KEY).1.add(1);
    recv!(s, 40, rst_ack(1, 4).on(1).opt(MptcpOption::Fail { dsn }));
    assert_eq!(broken_off(&s), Some(SubflowCloseReason::BadChecksum));
    assert_eq!((fell_back(&s), s.read()), (None, Vec::new()));
    send!(s, 50, checked(0, "bad"));
    recv!(s, 50, ack(1, 4).dss(dack(3)));
    assert_eq!(s.read(), b"bad");
}

/// The peer finds a wrong checksum: the data of that subflow is sent again on the other one.
// Conforms: 8684-3.7-11, 8684-3.7-16
#[test]
fn mp_fail_beside_another_subflow() {
    for on_rst in [false, true] {
        let mut s = accepted();
        s.write("hello");
        recv!(s => 10, data(1, 1, "hello").dss(ours(s, 0, (0, 1, 5), b"hello")));
        join::complete(&mut s, 20);
        let dsn = token_idsn(s.key.unwrap()).1.add(1);
        let told = if on_rst { rst_ack(1, 6) } else { ack(1, 6) };
        send!(s, 40, told.opt(MptcpOption::Fail { dsn }));
        if !on_rst {
            let dsn = token_idsn(PEER_KEY).1.add(1);
            recv!(s, 40, rst_ack(6, 1).opt(MptcpOption::Fail { dsn }));
        }
        assert_eq!(broken_off(&s), Some(SubflowCloseReason::BadChecksum));
        // The rate requires 8-byte numbers.
        let again = |s: &Script| ours(s, 0, (0, 1, 5), b"hello").wide_map();
        recv!(s => 40, data(1, 1, "hello").on(1).dss(again(s)));
        assert_eq!(fell_back(&s), None);
    }
}

/// The subflow has as many bytes as the stream, but in another order: the data of a lost subflow came last.
/// A fallback to regular TCP would shuffle the stream.
// Conforms: 8684-3.7-11
#[test]
fn mp_fail_after_the_order_was_lost() {
    let mut s = accepted();
    s.write("hello");
    recv!(s => 10, data(1, 1, "hello").dss(ours(s, 0, (0, 1, 5), b"hello")));
    join::complete(&mut s, 20);
    // More than the faster one takes at first.
    s.write([7; 16_000]);
    s.skip(22);
    let sent = |s: &Script| s.stack.subflows(s.id())[0].traffic.bytes_sent;
    let first = sent(&s);
    assert!(first > 5 && first < 8000, "{first}");
    send!(s, 22, ack(1, 1 + first).win(512).dss(dack(5)));
    s.skip(22);
    send!(s, 22, rst_ack(1, 1).on(1));
    s.skip(29);
    assert_eq!(sent(&s), 16_005);
    let dsn = token_idsn(s.key.unwrap()).1.add(6);
    let last = ack(1, 1 + first).dss(dack(5));
    send!(s, 30, last.opt(MptcpOption::Fail { dsn }));
    let dsn = token_idsn(PEER_KEY).1.add(1);
    recv!(s, 30, rst_ack(16_006, 1).opt(MptcpOption::Fail { dsn }));
    assert_eq!(fell_back(&s), None);
}

/// If there was another subflow, data in flight on the last one may be out of order, and only the peer
/// knows.
// Conforms: 8684-3.7-7
#[test]
fn a_wrong_checksum_after_another_subflow() {
    let mut s = accepted();
    join::complete(&mut s, 20);
    send!(s, 30, rst_ack(1, 1).on(1));
    send!(s, 40, changed(0, "bad"));
    let dsn = token_idsn(PEER_KEY).1.add(1);
    recv!(s, 40, rst_ack(1, 4).opt(MptcpOption::Fail { dsn }));
    assert_eq!((fell_back(&s), s.read()), (None, Vec::new()));
}

/// A stream of holes accepts no more waiting data, and the list of its mappings stays short. Data that
/// fills the holes is accepted nevertheless.
#[test]
fn mappings_that_wait_are_bounded() {
    let mut s = accepted();
    let segment = |n: u64, at: u64, bytes: &[u8]| {
        let map = (at, n as u32 + 1, bytes.len() as u16);
        data(n + 1, 1, bytes).dss(sound(0, map, bytes))
    };
    let mut sent = 0;
    while sent < 10_000 {
        send!(s, 20, segment(sent, 2 * sent + 1, b"x"));
        sent += 1;
        s.skip(20);
    }
    let acked = s.stack.subflows(s.id())[0].bytes_received;
    for n in 0..20 {
        send!(s, 30, segment(acked + 1000 * n, 1000 * n, &[b'y'; 1000]));
        s.skip(30);
    }
    assert_eq!(s.read().len(), 20_000);
}

/// With little memory left, data behind a hole of the stream does not block data that fills the hole and
/// arrived later.
#[test]
fn what_fills_a_hole_passes_what_finds_no_memory() {
    let mut s = over_quota(14);
    accept(&mut s, 20);
    for (at, sub) in [(40_000, 1), (0, 1001)] {
        let dss = sound(0, (at, sub, 1000), &[5; 1000]);
        send!(s, 40, data(sub.into(), 1, [5; 1000]).on(14).dss(dss));
        s.skip(40);
    }
    assert_eq!(s.read(), [5; 1000]);
    assert_eq!(s.stack.buffered(), 28 * BLOCK);
}

/// With no memory left, and nothing to read that would free some, a subflow frees the data that it holds.
#[test]
fn what_waits_lets_go_of_the_last_memory() {
    let mut s = over_quota(17);
    for flow in 14..17 {
        send!(s, 10, data(1, 1, "x").on(flow));
        s.skip(10);
    }
    accept(&mut s, 20);
    let dss = sound(0, (0, 1, 9), b"onetwosix");
    send!(s, 40, data(1, 1, "onetwo").on(17).dss(dss));
    recv!(s, 40, ack(1, 7).on(17).dss(dack(0)));
    assert_eq!(s.stack.buffered(), 32 * BLOCK);
    send!(s, 41, data(7, 1, "six").on(17).dss(dss));
    recv!(s, 41, rst_ack(1, 10).on(17).raw(&hex("1e 04 81 02")));
    assert_eq!(s.stack.buffered(), 31 * BLOCK);
}

/// Data from before a fallback and the FIN behind it do not end the stream while they wait for memory.
#[test]
fn what_waits_for_memory_is_not_cut_off() {
    let mut s = over_quota(17);
    for flow in 14..17 {
        send!(s, 10, data(1, 1, "x").on(flow));
        s.skip(10);
    }
    let other = s.id();
    accept(&mut s, 20);
    send!(s, 40, changed(0, "bad").on(17));
    let cause = FallbackCause::BadChecksum;
    assert!(s.saw(|e| matches!(e, Event::FellBack { cause: c, .. } if *c == cause)));
    s.skip(40);
    send!(s, 41, fin(4, 1).on(17));
    s.skip(41);
    assert!(!s.stack.read_finished(s.id()));
    s.stack.abort(s.now, other);
    // Its next timer, the keepalive.
    s.skip(10_100);
    assert_eq!(s.read(), b"Bad");
    assert!(s.stack.read_finished(s.id()));
}
