//! Middleboxes that rewrite headers: options and sequence numbers.

use braid_links::middlebox::{Chain, Direction, Edit, OptionEdit, Scope, SequenceShift, Target};
use braid_wire::tcp::Flags;

use crate::segment::{Seg, T0, abuse, inbound, outbound, process};

/// The options of a SYN: MSS, MP_CAPABLE, fast open and window scale.
const SYN: &str = "02 04 05b4  1e 04 01 81  22 02 01 01  01 03 03 07";
/// Timestamps and a DSS.
const DATA: &str = "01 01 08 0a 00000001 00000002  1e 08 20 01 00000005";

#[test]
fn mptcp_is_removed_from_syns_only() {
    let mut strip = OptionEdit::new(Target::MPTCP, Scope::Syn, Edit::Remove);
    let syn = Seg::syn(SYN);
    let without = "02 04 05b4  22 02  03 03 07  01 01 01";
    assert_eq!(outbound(&mut strip, &syn), syn.clone().options(without));
    let answer = Seg::syn("1e 04 01 81")
        .flags(Flags::SYN | Flags::ACK)
        .back();
    assert_eq!(inbound(&mut strip, &answer), answer.clone().options(""));
    let data = Seg::data(101, "abc").options(DATA);
    assert_eq!(outbound(&mut strip, &data), data);
    assert_eq!(strip.edited(), 2);
}

#[test]
fn mptcp_is_removed_from_later_segments_only() {
    let mut strip = OptionEdit::new(Target::MPTCP, Scope::Later, Edit::Remove);
    let syn = Seg::syn(SYN);
    assert_eq!(outbound(&mut strip, &syn), syn);
    let data = Seg::data(101, "abc").options(DATA);
    let without = "08 0a 00000001 00000002  01 01";
    assert_eq!(outbound(&mut strip, &data), data.clone().options(without));
}

#[test]
fn edits_are_restricted_by_direction_and_time() {
    let late = T0 + core::time::Duration::from_secs(1);
    let mut strip = OptionEdit::new(Target::MPTCP, Scope::All, Edit::Remove)
        .only(Direction::Inbound)
        .since(late);
    let seg = Seg::data(1, "x").options("1e 04 00 01");
    assert_eq!(outbound(&mut strip, &seg), seg);
    assert_eq!(inbound(&mut strip, &seg), seg);
    let [(_, bare)] = &process(&mut strip, late, Direction::Inbound, seg.packet())[..] else {
        panic!("one packet");
    };
    assert_eq!(Seg::read(bare), seg.clone().options(""));
    let [(_, kept)] = &process(&mut strip, late, Direction::Outbound, seg.packet())[..] else {
        panic!("one packet");
    };
    assert_eq!(Seg::read(kept), seg);
}

#[test]
fn unknown_options_are_blanked_or_zeroed() {
    let syn = Seg::syn(SYN);
    let mut blank = OptionEdit::new(Target::Unknown, Scope::All, Edit::Blank);
    let blanked = "02 04 05b4  01 01 01 01  01 01 01 01  01 03 03 07";
    assert_eq!(outbound(&mut blank, &syn), syn.clone().options(blanked));
    let mut zero = OptionEdit::new(Target::Unknown, Scope::All, Edit::Zero);
    let zeroed = "02 04 05b4  1e 04 00 00  22 02 01 01  01 03 03 07";
    assert_eq!(outbound(&mut zero, &syn), syn.clone().options(zeroed));
}

#[test]
fn a_malformed_option_list_is_left_unchanged() {
    // A length below 2, a missing length, a length past the end, and an option after the end of the list.
    let mut strip = OptionEdit::new(Target::MPTCP, Scope::All, Edit::Remove);
    for odd in ["1e 01 00 00", "01 01 01 1e", "1e 09 00 00", "00 1e 03 00"] {
        let seg = Seg::data(1, "x").options(odd);
        assert_eq!(outbound(&mut strip, &seg), seg);
    }
}

#[test]
fn sequence_numbers_are_shifted_there_and_back() {
    let mut firewall = SequenceShift::new(3);
    let shifts = |firewall: &mut SequenceShift, seg: &Seg| {
        let out = outbound(firewall, seg).seq.wrapping_sub(seg.seq);
        let back = inbound(firewall, &seg.clone().back())
            .seq
            .wrapping_sub(seg.seq);
        (out, back)
    };
    let syn = Seg::syn("");
    let (out, back) = shifts(&mut firewall, &syn);
    assert!(out != 0 && back != 0 && out != back);
    assert_eq!(outbound(&mut firewall, &syn).ack, 0, "no acknowledgement");
    let seg = Seg::data(0xffff_fff0, "abc").options("01 01 05 0a 00000010 00000020");
    let sack = |edges: [u32; 2]| {
        let [left, right] = edges.map(|edge| format!("{edge:08x}"));
        format!("01 01 05 0a {left} {right}")
    };
    let leaving = Seg {
        seq: seg.seq.wrapping_add(out),
        ack: seg.ack.wrapping_sub(back),
        ..seg.clone()
    };
    let shifted = sack([0x10, 0x20].map(|edge: u32| edge.wrapping_sub(back)));
    assert_eq!(outbound(&mut firewall, &seg), leaving.options(&shifted));
    let arriving = Seg {
        seq: seg.seq.wrapping_add(back),
        ack: seg.ack.wrapping_sub(out),
        ..seg.clone().back()
    };
    let shifted = sack([0x10, 0x20].map(|edge: u32| edge.wrapping_sub(out)));
    assert_eq!(
        inbound(&mut firewall, &seg.clone().back()),
        arriving.clone().options(&shifted)
    );
    let mut forgetful = SequenceShift::new(3).forgetting_sack();
    assert_eq!(inbound(&mut forgetful, &seg.clone().back()), arriving);
    let other = seg.ends("10.0.0.2:4001", "192.0.2.1:80");
    assert_ne!(
        shifts(&mut firewall, &other),
        (out, back),
        "another connection"
    );
    assert_ne!(
        shifts(&mut SequenceShift::new(4), &syn),
        (out, back),
        "another key"
    );
}

#[test]
fn ipv6_is_rewritten_too() {
    let mut chain = Chain::new()
        .and(OptionEdit::new(Target::MPTCP, Scope::All, Edit::Remove))
        .and(SequenceShift::new(1));
    let seg = Seg::data(5, "abc")
        .ends("[2001:db8::1]:4000", "[2001:db8::2]:80")
        .options("1e 04 00 01");
    let out = outbound(&mut chain, &seg);
    assert_eq!(
        (out.payload, out.options),
        (seg.payload.clone(), Vec::new())
    );
    assert_ne!(out.seq, seg.seq);
}

#[test]
fn a_chain_passes_packets_in_both_directions() {
    // The inner middlebox zeroes unknown options of outbound segments; the outer one removes timestamps in both
    // directions.
    let mut chain = Chain::new()
        .and(OptionEdit::new(Target::Unknown, Scope::All, Edit::Zero).only(Direction::Outbound))
        .and(OptionEdit::new(Target::Kind(8), Scope::All, Edit::Remove));
    let seg = Seg::data(1, "x").options(DATA);
    let out = outbound(&mut chain, &seg);
    assert_eq!(out, seg.clone().options("1e 08 00 00 00000000"));
    let back = seg.back();
    let into = inbound(&mut chain, &back);
    assert_eq!(into, back.options("1e 08 20 01 00000005"));
    let first: &mut OptionEdit = chain.get_mut().unwrap();
    assert_eq!(first.edited(), 1);
    assert!(chain.get_mut::<SequenceShift>().is_none());
}

#[test]
fn corrupted_packets_stay_corrupted() {
    let seg = Seg::data(1, "some payload").options(DATA);
    for edit in [Edit::Remove, Edit::Blank, Edit::Zero] {
        abuse(
            &mut OptionEdit::new(Target::Unknown, Scope::All, edit),
            &seg,
        );
    }
    abuse(&mut SequenceShift::new(1), &seg);
}
