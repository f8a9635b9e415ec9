//! Middleboxes that split and merge segments.

use core::time::Duration;

use braid_links::middlebox::{Chain, Direction, Keep, Merge, Middlebox, Output, Split};
use braid_wire::tcp::Flags;
use proptest::prelude::*;

use crate::segment::{Seg, T0, abuse, outbound, process, through};

const HOLD: Duration = Duration::from_millis(1);
const DSS: &str = "1e 08 20 01 00000005";
const OTHER: &str = "1e 08 20 01 00000009";

#[test]
fn a_segment_is_split_with_its_options() {
    let mut split = Split::new(4);
    let all = Flags::ACK | Flags::PSH | Flags::FIN | Flags::CWR;
    let seg = Seg::data(u32::MAX, "abcdefghij").options(DSS).flags(all);
    // The first byte has the last sequence number, so the second part begins at 3.
    let part = |seq, payload, flags| Seg::data(seq, payload).options(DSS).flags(flags);
    let parts = [
        part(u32::MAX, "abcd", Flags::ACK | Flags::CWR),
        part(3, "efgh", Flags::ACK),
        part(7, "ij", Flags::ACK | Flags::PSH | Flags::FIN),
    ];
    assert_eq!(through(&mut split, Direction::Outbound, &seg), parts);
    assert_eq!(through(&mut split, Direction::Inbound, &seg), parts);
    assert_eq!(split.cut(), 2);
    let whole = Seg::data(1, "abcd").options(DSS);
    assert_eq!(outbound(&mut split, &whole), whole);
    let syn = Seg::syn("").ends("10.0.0.2:1", "10.0.0.3:2");
    let syn = Seg {
        payload: b"early".to_vec(),
        ..syn
    };
    assert_eq!(outbound(&mut split, &syn), syn, "a SYN is not split");
}

/// Passes `segs` at one time. Returns the segments that leave at once, and those that leave after the holding
/// time.
fn merged(merge: &mut Merge, segs: &[Seg]) -> (Vec<Seg>, Vec<Seg>) {
    let mut out = Output::new();
    for seg in segs {
        merge.process(T0, Direction::Inbound, seg.packet(), &mut out);
    }
    let mut later = Output::new();
    while let Some(at) = merge.next_timeout() {
        assert_eq!(at, T0 + HOLD);
        merge.handle_timeout(at, &mut later);
    }
    let read = |out: Output| out.iter().map(|(_, packet)| Seg::read(packet)).collect();
    (read(out), read(later))
}

#[test]
fn adjacent_segments_become_one_with_the_options_of_one() {
    let (a, b) = (Seg::data(1, "abc").options(DSS), Seg::data(4, "de"));
    let b = Seg { ack: 950, ..b }.options(OTHER);
    let whole = Seg::data(1, "abcde");
    for (keep, expected) in [
        (Keep::First, whole.clone().options(DSS)),
        (Keep::Last, Seg { ack: 950, ..whole }.options(OTHER)),
    ] {
        let mut merge = Merge::new(100, HOLD, keep);
        let (at_once, later) = merged(&mut merge, &[a.clone(), b.clone()]);
        assert_eq!((at_once, later), (vec![], vec![expected.clone()]));
        // After a push no segment is expected soon, so nothing is held back.
        let pushed = b.clone().flags(Flags::ACK | Flags::PSH);
        let (at_once, later) = merged(&mut merge, &[a.clone(), pushed]);
        let expected = expected.flags(Flags::ACK | Flags::PSH);
        assert_eq!((at_once, later), (vec![expected], vec![]));
        assert_eq!(merge.merged(), 2);
    }
}

#[test]
fn a_segment_that_cannot_be_merged_releases_the_held_one() {
    // The limit is 10 bytes: a bare ACK, a segment after a gap, and one that would make 11 bytes.
    let first = Seg::data(1, "abc");
    let ack = Seg::data(4, "");
    let gap = Seg::data(5, "e");
    let long = Seg::data(4, "12345678");
    for (next, held) in [(&ack, false), (&gap, true), (&long, true)] {
        let mut merge = Merge::new(10, HOLD, Keep::First);
        let (at_once, later) = merged(&mut merge, &[first.clone(), next.clone()]);
        let (mut expected, last) = (vec![first.clone()], vec![next.clone()]);
        if !held {
            expected.extend(last.clone());
        }
        assert_eq!(at_once, expected);
        assert_eq!(later, if held { last } else { vec![] });
    }
    // A segment of another flow or direction does not release the held one.
    let mut merge = Merge::new(10, HOLD, Keep::First);
    let (at_once, later) = merged(&mut merge, &[first.clone(), ack.back()]);
    assert_eq!((at_once.len(), later), (1, vec![first]));
}

#[test]
fn the_number_of_held_segments_is_bounded() {
    // The table has room for 1,024 flows.
    let mut merge = Merge::new(1000, HOLD, Keep::First);
    let mut out = Output::new();
    for port in 0..3000 {
        let seg = Seg::data(1, "x").ends(&format!("10.0.0.2:{}", 1000 + port), "192.0.2.1:80");
        merge.process(T0, Direction::Outbound, seg.packet(), &mut out);
    }
    assert_eq!(out.len(), 3000 - 1024);
}

#[test]
fn corrupted_segments_are_neither_split_nor_merged() {
    let seg = Seg::data(1, "some payload").options(DSS);
    abuse(&mut Split::new(5), &seg);
    let mut merge = Merge::new(1000, HOLD, Keep::Last);
    abuse(&mut merge, &seg);
    let before = merge.merged();
    let mut corrupted = Seg::data(13, "more").packet();
    *corrupted.bytes.last_mut().unwrap() ^= 1;
    process(&mut merge, T0, Direction::Outbound, seg.packet());
    let out = process(&mut merge, T0, Direction::Outbound, corrupted);
    assert_eq!((out.len(), merge.merged()), (2, before));
}

proptest! {
    /// A stream that is split, merged and split again stays complete and in order.
    #[test]
    fn splitting_and_merging_preserve_the_stream(
        lens in prop::collection::vec(1usize..60, 1..20),
        mss in 1u16..50,
        max_payload in 1usize..200,
    ) {
        let merge = Merge::new(max_payload, HOLD, Keep::First);
        let mut chain = Chain::new().and(Split::new(mss)).and(merge).and(Split::new(13));
        let (mut out, mut seq, mut sent) = (Output::new(), u32::MAX - 30, Vec::new());
        for (n, len) in lens.into_iter().enumerate() {
            let payload: String = (0..len).map(|i| char::from(b'a' + ((n + i) % 26) as u8)).collect();
            let seg = Seg::data(seq, &payload).options(DSS);
            sent.extend_from_slice(&seg.payload);
            seq = seq.wrapping_add(len as u32);
            chain.process(T0, Direction::Outbound, seg.packet(), &mut out);
        }
        chain.handle_timeout(T0 + HOLD, &mut out);
        let mut next = u32::MAX - 30;
        let mut received = Vec::new();
        for (_, packet) in out {
            let seg = Seg::read(&packet);
            prop_assert_eq!(seg.seq, next);
            prop_assert!(seg.payload.len() <= 13);
            next = next.wrapping_add(seg.payload.len() as u32);
            received.extend(seg.payload);
        }
        prop_assert_eq!(received, sent);
    }
}
