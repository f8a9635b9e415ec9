//! Parsing returns the emitted fields, for random headers and options.

mod strategies;

use braid_wire::mptcp::MptcpOption;
use braid_wire::tcp::{self, Flags, Options, Packet};
use braid_wire::{checksum, ip};
use proptest::collection::vec;
use proptest::prelude::*;
use strategies::{addr_pair, ip_repr, mptcp_option, packet, tcp_repr};

proptest! {
    #[test]
    fn mptcp_options(option in mptcp_option()) {
        let mut options = Options::default();
        options.mptcp.push(option);
        let mut buf = [0; 40];
        options.emit(&mut buf);
        prop_assert_eq!(usize::from(buf[1]), option.len());
        prop_assert_eq!(MptcpOption::parse(&buf[..option.len()]), Ok(option));
    }

    /// The header has the announced length, and no byte after it changes.
    #[test]
    fn tcp_headers(repr in tcp_repr(), payload in vec(any::<u8>(), 0..64)) {
        let header_len = repr.header_len();
        let mut segment = vec![0xa5; header_len];
        segment.extend(&payload);
        repr.emit(&mut segment);
        let (parsed, rest) = tcp::Repr::parse(&segment).unwrap();
        prop_assert_eq!(parsed, repr);
        prop_assert_eq!(rest, &payload[..]);
    }

    #[test]
    fn ip_headers(repr in (0..2000usize).prop_flat_map(ip_repr), excess in 0..9usize) {
        let header_len = repr.header_len();
        let mut packet = vec![0; header_len + repr.payload_len + excess];
        repr.emit(&mut packet);
        let (parsed, payload) = ip::Repr::parse(&packet).unwrap();
        prop_assert_eq!(parsed, repr);
        prop_assert_eq!(payload.len(), repr.payload_len);
    }

    #[test]
    fn whole_packets_have_right_checksums(packet in packet()) {
        let (ip, segment) = ip::Repr::parse(&packet).unwrap();
        prop_assert!(tcp::verify_checksum(ip.src, ip.dst, segment));
        tcp::Repr::parse(segment).unwrap();
    }

    /// The TCP checksum detects every single damaged byte of a segment.
    #[test]
    fn the_checksum_detects_one_damaged_byte(
        packet in packet(),
        at in any::<prop::sample::Index>(),
        change in 1..=255u8,
    ) {
        let (ip, segment) = ip::Repr::parse(&packet).unwrap();
        let mut damaged = segment.to_vec();
        damaged[at.index(segment.len())] ^= change;
        prop_assert!(!tcp::verify_checksum(ip.src, ip.dst, &damaged));
    }

    /// The checksum does not depend on the division of the payload into parts, of odd or even length.
    #[test]
    fn checksum_of_parts(
        (src, dst) in addr_pair(),
        repr in tcp_repr(),
        parts in vec(vec(any::<u8>(), 0..9), 0..6),
    ) {
        let mut header = vec![0; repr.header_len()];
        repr.emit(&mut header);
        let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        tcp::fill_checksum(src, dst, &mut header, &slices);
        let segment = [header, parts.concat()].concat();
        prop_assert!(tcp::verify_checksum(src, dst, &segment));
    }

    /// For checksum offload a device sums the segment, including the partial checksum in its field, and
    /// complements the sum. The result must equal the checksum that software computes.
    #[test]
    fn partial_checksum((src, dst) in addr_pair(), payload in vec(any::<u8>(), 0..64)) {
        let repr = tcp::Repr::new(1, 2, Flags::ACK);
        let mut header = [0; tcp::HEADER_LEN];
        repr.emit(&mut header);
        tcp::fill_partial_checksum(src, dst, &mut header, payload.len());
        let by_device = checksum::finish(checksum::sum(
            checksum::sum(checksum::Sum::default(), &header),
            &payload,
        ));
        tcp::fill_checksum(src, dst, &mut header, &[&payload]);
        prop_assert_eq!(Packet::new(header).unwrap().checksum(), by_device);
    }

    /// A mark changes the ECN bits of ECN-capable packets and nothing else (RFC 3168 section 5).
    #[test]
    fn only_ecn_capable_packets_are_marked(packet in packet(), bits in 0..4u8) {
        let mut packet = packet;
        let mut view = ip::Packet::new(&mut packet).unwrap();
        let dscp = view.traffic_class() & !ip::CE;
        view.set_traffic_class(dscp | bits);
        view.fill_checksum();
        let before = ip::Repr::parse(&packet).unwrap().0;
        prop_assert_eq!(ip::Packet::new(&mut packet).unwrap().mark(), bits != ip::NOT_ECT);
        let after = ip::Repr::parse(&packet).unwrap().0;
        let marked = if bits == ip::NOT_ECT { dscp } else { dscp | ip::CE };
        prop_assert_eq!(after, ip::Repr { traffic_class: marked, ..before });
    }

    /// A header that was corrupted before the mark still has a wrong checksum (RFC 1624).
    #[test]
    fn a_mark_repairs_no_wrong_checksum(packet in packet(), at in 2..20usize, bit in 0..8u32) {
        let mut packet = packet;
        let mut view = ip::Packet::new(&mut packet).unwrap();
        // A damaged length would be refused before the checksum.
        prop_assume!(!view.is_v6() && !(2..4).contains(&at));
        view.set_traffic_class(ip::ECT);
        view.fill_checksum();
        packet[at] ^= 1 << bit;
        prop_assert!(ip::Packet::new(&mut packet).unwrap().mark());
        prop_assert!(ip::Repr::parse(&packet).is_err());
    }

    /// The parser returns the values that the setters of the views wrote.
    #[test]
    fn setters_write_the_parsed_fields(packet in packet(), (src, dst) in addr_pair(), to in tcp_repr()) {
        let mut packet = packet;
        let mut view = ip::Packet::new(&mut packet).unwrap();
        let is_v6 = view.is_v6();
        let (src, dst) = if src.is_ipv6() == is_v6 { (src, dst) } else { (view.dst(), view.src()) };
        view.set_src(src);
        view.set_dst(dst);
        view.set_hop_limit(7);
        view.set_traffic_class(0xa5);
        view.fill_checksum();
        let mut segment = Packet::new(view.payload_mut()).unwrap();
        segment.set_src_port(to.src_port);
        segment.set_dst_port(to.dst_port);
        segment.set_seq(to.seq);
        segment.set_ack(to.ack);
        segment.set_window(to.window);
        let (header, payload) = segment.split_mut();
        tcp::fill_checksum(src, dst, header, &[payload]);

        let (ip, segment) = ip::Repr::parse(&packet).unwrap();
        prop_assert_eq!((ip.src, ip.dst, ip.hop_limit, ip.traffic_class), (src, dst, 7, 0xa5));
        prop_assert!(tcp::verify_checksum(src, dst, segment));
        let (tcp, _) = tcp::Repr::parse(segment).unwrap();
        prop_assert_eq!((tcp.src_port, tcp.dst_port), (to.src_port, to.dst_port));
        prop_assert_eq!((tcp.seq, tcp.ack, tcp.window), (to.seq, to.ack, to.window));
    }
}
