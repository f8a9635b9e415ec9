//! DSS: numbers of both widths, mappings, reassembly (RFC 8684 section 3.3).

use crate::harness::{Script, config, mapped};
use crate::segment::{Mp, ack, dack, data, hex};

pub fn bytes(from: usize, to: usize) -> Vec<u8> {
    (from..to).map(|n| n as u8).collect()
}

/// An 8-byte DSN requires 8-byte DATA_ACKs from then on (section 3.3.1).
// Conforms: 8684-3.3.2-5, 8684-3.3.2-6
#[test]
fn numbers_of_eight_bytes() {
    let mut s = Script::accepted(config());
    send!(s, 20, mapped(0, 0, "four"));
    recv!(s, 20, ack(1, 5).dss(dack(4)));
    let wide = dack(0).wide_ack().map(4, 5, 5).wide_map();
    send!(s, 30, data(5, 1, "eight").dss(wide));
    recv!(s, 30, ack(1, 10).dss(dack(9).wide_ack()));
    s.write("answer");
    recv!(
        s,
        30,
        data(1, 10, "answer").dss(dack(9).wide_ack().map(0, 1, 6))
    );
    send!(s, 40, ack(10, 7).dss(dack(6).wide_ack()));
    send!(s, 41, data(10, 7, "four").dss(dack(6).map(9, 10, 4)));
    recv!(s, 41, ack(7, 14).dss(dack(13).wide_ack()));
    assert_eq!(s.read(), b"foureightfour");
    quiet!(s, 1000);
}

/// The four forms of a data segment on the wire: flags M, m, A, a.
#[test]
fn the_bytes_of_a_dss() {
    let mut s = Script::accepted(config());
    s.write("abc");
    s.advance(s.now);
    let (_, seg) = s.take().unwrap();
    let raw = seg.raw.unwrap();
    assert_eq!((raw.len(), &raw[..4]), (18, &hex("1e 12 20 05")[..]));
    assert_eq!(raw[12..], hex("00000001 0003"));
}

/// Segmentation repeats the option in each segment; merging never does (section 3.3).
#[test]
fn a_mapping_repeated_in_every_segment() {
    let mut s = Script::accepted(config());
    let map = dack(0).map(0, 1, 30);
    send!(s, 20, data(1, 1, bytes(0, 10)).dss(map));
    recv!(s, 20, ack(1, 11).dss(dack(10)));
    send!(s, 21, data(21, 1, bytes(20, 30)).dss(map));
    recv!(s, 21, ack(1, 11).dss(dack(10)).sack(&[(21, 31)]));
    send!(s, 22, data(11, 1, bytes(10, 20)).dss(map));
    recv!(s, 22, ack(1, 31).dss(dack(30)));
    assert_eq!(s.read(), bytes(0, 30));
}

/// Only the first segment of a mapping needs to carry it.
#[test]
fn a_mapping_learned_from_an_earlier_segment() {
    let mut s = Script::accepted(config());
    send!(s, 20, data(1, 1, bytes(0, 10)).dss(dack(0).map(0, 1, 30)));
    recv!(s, 20, ack(1, 11).dss(dack(10)));
    send!(s, 21, data(11, 1, bytes(10, 30)).dss(dack(0)));
    recv!(s, 21, ack(1, 31).dss(dack(30)));
    assert_eq!(s.read(), bytes(0, 30));
}

/// The first segment was lost: the second brings the mapping of both.
#[test]
fn a_segment_from_the_middle_of_a_mapping() {
    let mut s = Script::accepted(config());
    let map = dack(0).map(0, 1, 30);
    send!(s, 20, data(11, 1, bytes(10, 30)).dss(map));
    recv!(s, 20, ack(1, 1).dss(dack(0)).sack(&[(11, 31)]));
    send!(s, 30, data(1, 1, bytes(0, 10)));
    recv!(s, 30, ack(1, 31).dss(dack(30)));
    assert_eq!(s.read(), bytes(0, 30));
}

/// One segment with the ends of two mappings, as a merging device could make it.
#[test]
fn a_segment_over_two_mappings() {
    let mut s = Script::accepted(config());
    send!(s, 20, data(1, 1, bytes(0, 10)).dss(dack(0).map(0, 1, 20)));
    recv!(s, 20, ack(1, 11).dss(dack(10)));
    send!(
        s,
        21,
        data(41, 1, bytes(40, 50)).dss(dack(0).map(20, 21, 30))
    );
    recv!(s, 21, ack(1, 11).dss(dack(10)).sack(&[(41, 51)]));
    send!(s, 22, data(11, 1, bytes(10, 40)));
    recv!(s, 22, ack(1, 51).dss(dack(50)));
    assert_eq!(s.read(), bytes(0, 50));
}

/// More mappings lie behind a hole than are kept: the one that fills the hole finds its place.
#[test]
fn many_mappings_behind_a_hole() {
    let mut s = Script::accepted(config());
    let sent: Vec<u8> = bytes(0, 1500);
    for at in 1..sent.len() {
        send!(s, 20, mapped(at as u64, 0, &sent[at..=at]));
        while s.take().is_some() {}
    }
    send!(s, 30, mapped(0, 0, &sent[..1]));
    recv!(s, 30, ack(1, 1501).dss(dack(1500)));
    assert_eq!(s.read(), sent);
}

/// Mappings whose data never comes do not block mappings whose data does.
#[test]
fn many_mappings_without_data() {
    let mut s = Script::accepted(config());
    for n in 1..1000 {
        send!(
            s,
            20,
            ack(1, 1).dss(dack(0).map(2 * n, 2 * n as u32 + 1, 1))
        );
        while s.take().is_some() {}
    }
    send!(s, 30, mapped(0, 0, "a"));
    recv!(s, 30, ack(1, 2).dss(dack(1)));
    assert_eq!(s.read(), b"a");
}

/// A mapping may come with a pure ACK, before its data.
#[test]
fn a_mapping_ahead_of_its_data() {
    let mut s = Script::accepted(config());
    send!(s, 20, ack(1, 1).dss(dack(0).map(0, 1, 10)));
    send!(s, 21, data(1, 1, bytes(0, 10)));
    recv!(s, 21, ack(1, 11).dss(dack(10)));
    assert_eq!(s.read(), bytes(0, 10));
}

/// Data without a mapping is not acknowledged, and comes again.
#[test]
fn the_unmapped_end_of_a_segment_is_not_taken() {
    let mut s = Script::accepted(config());
    send!(s, 20, data(1, 1, bytes(0, 20)).dss(dack(0).map(0, 1, 10)));
    recv!(s, 20, ack(1, 11).dss(dack(10)));
    send!(
        s,
        30,
        data(11, 1, bytes(10, 20)).dss(dack(0).map(10, 11, 10))
    );
    recv!(s, 30, ack(1, 21).dss(dack(20)));
    assert_eq!(s.read(), bytes(0, 20));
}

/// The same data under two subflow ranges is a reinjection, not a contradiction.
// Conforms: 8684-3.3.1-11
#[test]
fn data_that_comes_twice_is_read_once() {
    let mut s = Script::accepted(config());
    send!(s, 20, mapped(0, 0, bytes(0, 10)));
    recv!(s, 20, ack(1, 11).dss(dack(10)));
    send!(s, 21, data(11, 1, bytes(5, 15)).dss(dack(0).map(5, 11, 10)));
    recv!(s, 21, ack(1, 21).dss(dack(15)));
    assert_eq!(s.read(), bytes(0, 15));
    assert_eq!(s.stack.conn_stats(s.id()).unwrap().duplicate, 5);
}

/// Reassembly at the data level: the subflow is complete, the stream is not.
// Conforms: 8684-3.3.1-10
#[test]
fn data_out_of_order_at_the_data_level() {
    let mut s = Script::accepted(config());
    send!(s, 20, data(1, 1, bytes(10, 20)).dss(dack(0).map(10, 1, 10)));
    recv!(s, 20, ack(1, 11).dss(dack(0)));
    assert_eq!(s.read(), b"");
    send!(s, 30, data(11, 1, bytes(0, 10)).dss(dack(0).map(0, 11, 10)));
    recv!(s, 30, ack(1, 21).dss(dack(20)));
    assert_eq!(s.read(), bytes(0, 20));
}

/// Data past the window is refused, and not acknowledged (RFC 9293 section 3.10.7.4).
// Conforms: 8684-3.3.4-2
#[test]
fn data_past_the_window() {
    let mut s = Script::accepted(config());
    let far = 5 << 20;
    send!(s, 20, data(1, 1, "far").dss(dack(0).map(far, 1, 3)));
    recv!(s, 20, ack(1, 1).dss(dack(0)));
    assert_eq!(s.stack.buffered(), 0);
}

/// A DATA_ACK of data that was never sent is ignored, and so is an old one.
// Conforms: 8684-3.3.2-1, 8684-4-1
#[test]
fn data_acks_out_of_range() {
    let mut s = Script::accepted(config());
    s.write("abcd");
    recv!(s, 10, data(1, 1, "abcd").dss(dack(0).map(0, 1, 4)));
    send!(s, 20, ack(1, 5).dss(dack(5)));
    assert!(s.stack.buffered() > 0, "freed by a DATA_ACK of nothing");
    send!(s, 21, ack(1, 5).dss(dack(4)));
    assert_eq!(s.stack.buffered(), 0);
    send!(s, 22, ack(1, 5).dss(dack(2)));
    quiet!(s, 1000);
}

/// Section 3.3.4: the window belongs to the connection, and its right edge never moves back.
// Conforms: 8684-3.3.5-1
#[test]
fn an_overtaken_acknowledgement_closes_no_window() {
    let mut s = Script::accepted(config());
    s.write(bytes(0, 200));
    recv!(s, 10, data(1, 1, bytes(0, 200)).dss(dack(0).map(0, 1, 200)));
    send!(s, 20, ack(1, 201).win(512).dss(dack(200)));
    send!(s, 21, ack(1, 101).win(0).dss(dack(100)));
    s.write("more");
    recv!(s, 21, data(201, 1, "more").dss(dack(0).map(200, 201, 4)));
}

/// Options of a later version or without meaning here are ignored.
#[test]
fn unknown_options_do_no_harm() {
    for option in [
        "1e 04 f0 00",
        "1e 03 30",
        "1e 04 20 00",
        "1e 0c 60 00 0000000000000000",
    ] {
        let mut s = Script::accepted(config());
        send!(s, 20, mapped(0, 0, "x"));
        recv!(s, 20, ack(1, 2).dss(dack(1)));
        send!(s, 21, ack(2, 1).raw(&hex(option)));
        quiet!(s, 25);
        assert_eq!(s.stack.is_mptcp(s.id()), Some(true), "{option}");
    }
}

/// A retransmission that was split by SACK repeats the whole original mapping.
// Conforms: 8684-3.3.1-1, 8684-3.3.1-13
#[test]
fn a_piece_is_retransmitted_under_its_original_mapping() {
    let config = braid_engine::Config {
        max_transmit: 65_521,
        ..config()
    };
    let mut s = Script::accepted(config);
    let mss = 1460 - 20;
    s.write(bytes(0, 4 * mss));
    s.advance(s.now);
    let (_, first) = s.take().unwrap();
    let whole = first.payload.len();
    assert!(
        whole >= 2 * mss && first.gso == Some(mss as u16),
        "{first:?}"
    );
    while s.take().is_some() {}
    // Everything but the first packet arrived.
    let end = 4 * mss as u64 + 1;
    let hole = mss as u64 + 1;
    send!(s, 20, ack(1, 1).win(512).dss(dack(0)).sack(&[(hole, end)]));
    let map = dack(0).map(0, 1, whole as u16);
    s.advance(braid_wire::Instant::from_millis(40));
    let (_, again) = s.take().expect("no retransmission");
    assert_eq!(again.payload, bytes(0, mss));
    assert_eq!((again.seq, &again.mptcp[0]), (1, &Mp::Dss(map)));
}

/// A mapping that changes the place of no byte is no contradiction: a sender may lengthen the mapping of
/// bytes it has not sent yet, or cut it.
#[test]
fn a_longer_or_shorter_mapping_of_the_same_bytes() {
    for (at, sub, len) in [(0, 1, 30), (10, 11, 20), (2, 3, 4)] {
        let mut s = Script::accepted(config());
        send!(s, 20, data(1, 1, bytes(0, 2)).dss(dack(0).map(0, 1, 20)));
        recv!(s, 20, ack(1, 3).dss(dack(2)));
        let end = usize::from(sub as u16 + len - 1).max(20);
        let rest = data(3, 1, bytes(2, end)).dss(dack(0).map(at, sub, len));
        send!(s, 21, rest);
        recv!(s, 21, ack(1, end as u64 + 1).dss(dack(end as u64)));
        assert_eq!(s.read(), bytes(0, end));
    }
}

/// Section 3.7: the infinite mapping belongs to the data it comes with. A zero-length one on an
/// acknowledgement has no meaning.
#[test]
fn a_mapping_of_nothing_on_an_acknowledgement() {
    let mut s = Script::accepted(config());
    send!(s, 20, mapped(0, 0, "one"));
    recv!(s, 20, ack(1, 4).dss(dack(3)));
    send!(s, 30, ack(4, 1).dss(dack(0).map(3, 4, 0)));
    send!(s, 31, ack(4, 1).dss(dack(0).map(9, 4, 0)));
    assert_eq!(s.stack.is_mptcp(s.id()), Some(true));
    send!(s, 40, mapped(3, 0, "two"));
    recv!(s, 40, ack(1, 7).dss(dack(6)));
    assert_eq!(s.read(), b"onetwo");
}

/// Super-segments arrive in the wrong order and partly twice: some of their blocks are taken, other bytes
/// copied, and the data read is the data sent.
#[test]
fn super_segments_find_their_place() {
    let mut s = Script::accepted(config());
    let sent: Vec<u8> = (0..120_000).map(|n| (n ^ n >> 8 ^ n >> 15) as u8).collect();
    let mut read = Vec::new();
    let mut most = 0;
    let parts = [(20_000, 60_000), (0, 1_000), (0, 21_000), (60_000, 120_000)];
    for (n, (from, to)) in parts.into_iter().enumerate() {
        let map = dack(0).map(from, 1 + from as u32, (to - from) as u16);
        let payload = sent[from as usize..to as usize].to_vec();
        s.send(20 + n as i32, data(1 + from, 1, payload).dss(map));
        s.skip(20 + n as i32);
        most = most.max(s.stack.buffered());
        read.extend(s.read());
        s.skip(20 + n as i32);
    }
    assert!(read == sent, "{} bytes", read.len());
    assert!(most <= 4 * 32 * 1024, "{most} bytes for 60,000");
    assert_eq!(s.stack.buffered(), 0);
}
