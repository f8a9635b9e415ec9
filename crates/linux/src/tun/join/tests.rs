use super::*;
use crate::tun::examples::{Example, TCP4, UDP4, UDP6};
use crate::tun::split::Packets;

const ALL: Joinable = Joinable {
    tcp: true,
    udp: true,
};

/// Returns what is written for these packets, and of how many packets each write consists.
fn written(packets: &[Vec<u8>], joinable: Joinable) -> Vec<(Vec<u8>, usize)> {
    let mut found = Vec::new();
    let mut joiner = Joiner::default();
    for packet in packets {
        joiner.push(packet, joinable, &mut |bytes, count| {
            found.push((bytes.to_vec(), count))
        });
    }
    joiner.flush(&mut |bytes, count| found.push((bytes.to_vec(), count)));
    found
}

/// Returns the number of packets of each write. Asserts that the kernel would make the same packets of the writes, in
/// the order `by`.
fn counts_in_order(packets: &[Vec<u8>], by: &[usize]) -> Vec<usize> {
    let mut cut = Vec::new();
    let mut counts = Vec::new();
    for (mut bytes, count) in written(packets, ALL) {
        let (vnet, whole) = bytes.split_first_chunk_mut().unwrap();
        let mut packets = Packets::new(&VnetHdr::parse(vnet), whole).unwrap();
        let before = cut.len();
        while let Some(packet) = packets.next() {
            cut.push(packet.to_vec());
        }
        assert_eq!(cut.len() - before, count);
        counts.push(count);
    }
    let expected: Vec<_> = by.iter().map(|index| packets[*index].clone()).collect();
    assert_eq!(cut, expected);
    counts
}

fn counts(packets: &[Vec<u8>]) -> Vec<usize> {
    let order: Vec<usize> = (0..packets.len()).collect();
    counts_in_order(packets, &order)
}

/// Makes the checksum of the IPv4 header right, and with `refill` the checksum of the transport too.
fn mend(packet: &mut [u8], refill: bool) {
    ip::Packet::new(&mut packet[..]).unwrap().fill_checksum();
    let layout = layout_of(packet, ALL).filter(|_| refill);
    if let Some(layout) = layout {
        let len = packet.len();
        layout.set_partial_checksum(packet, len);
        let offset = layout.transport.checksum_offset();
        crate::tun::headers::complete_checksum(&mut packet[layout.l3_len..], offset);
    }
}

/// Makes packets of UDP over IPv4 with payload of these lengths, from this port.
fn datagrams(port: u16, lens: &[usize]) -> Vec<Vec<u8>> {
    let packet = |(number, len): (u16, &usize)| {
        let mut packet = UDP4.packets()[0][..28].to_vec();
        packet.extend((0..*len).map(|i| (i * 7 + usize::from(number)) as u8));
        packet[4..6].copy_from_slice(&number.to_be_bytes());
        packet[20..22].copy_from_slice(&port.to_be_bytes());
        packet[26] = 1;
        let total = packet.len() as u16;
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[24..26].copy_from_slice(&(total - 20).to_be_bytes());
        mend(&mut packet, true);
        packet
    };
    (0..).zip(lens).map(packet).collect()
}

#[test]
fn packets_of_a_flow_become_a_super_segment() {
    for (name, example) in [("UDP4", UDP4), ("UDP6", UDP6), ("TCP4", TCP4)] {
        let (vnet, whole) = example.whole();
        let found = written(&example.packets(), ALL);
        let expected = [&vnet.emit()[..], &whole].concat();
        assert_eq!(found, [(expected, 3)], "{name}");
        assert_eq!(counts(&example.packets()), [3], "{name}");
    }
}

#[test]
fn a_packet_alone_passes_as_it_is() {
    let packet = UDP4.packets()[0].clone();
    let found = written(std::slice::from_ref(&packet), ALL);
    assert_eq!(found, [([&[0; VNET_HDR_LEN][..], &packet].concat(), 1)]);
}

#[test]
fn nothing_is_joined_that_the_kernel_does_not_cut() {
    for (example, tcp, udp) in [(UDP4, true, false), (TCP4, false, true)] {
        let found = written(&example.packets(), Joinable { tcp, udp });
        let counts: Vec<_> = found.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [1, 1, 1]);
        for ((bytes, _), packet) in found.iter().zip(example.packets()) {
            assert_eq!(bytes[..VNET_HDR_LEN], [0; VNET_HDR_LEN]);
            assert_eq!(bytes[VNET_HDR_LEN..], packet);
        }
    }
}

#[test]
fn packets_with_other_headers_are_not_joined() {
    let alone = |example: &Example, name: &str, change: fn(&mut Vec<u8>)| {
        let [first, mut second, _] = example.packets();
        change(&mut second);
        mend(&mut second, true);
        assert_eq!(counts(&[first, second]), [1, 1], "{name}");
    };
    for example in [&UDP4, &TCP4] {
        alone(example, "TOS", |p| p[1] ^= 4);
        alone(example, "ECN", |p| p[1] ^= 1);
        alone(example, "TTL", |p| p[8] -= 1);
        alone(example, "DF", |p| p[6] = 0);
        alone(example, "reserved flag", |p| p[6] |= 0x80);
        alone(example, "source", |p| p[15] ^= 1);
        alone(example, "destination", |p| p[19] ^= 1);
        alone(example, "source port", |p| p[21] ^= 1);
        alone(example, "destination port", |p| p[23] ^= 1);
    }
    alone(&UDP6, "traffic class", |p| p[1] ^= 0x40);
    alone(&UDP6, "flow label", |p| p[3] ^= 1);
    alone(&UDP6, "hop limit", |p| p[7] -= 1);
    alone(&TCP4, "sequence number", |p| p[27] += 1);
    alone(&TCP4, "acknowledgement number", |p| p[31] += 1);
    alone(&TCP4, "window", |p| p[35] += 1);
    alone(&TCP4, "timestamp", |p| p[47] += 1);
    for flag in [
        Flags::FIN,
        Flags::SYN,
        Flags::RST,
        Flags::URG,
        Flags::ECE,
        Flags::CWR,
    ] {
        let [first, mut second, _] = TCP4.packets();
        second[33] |= flag.0;
        mend(&mut second, true);
        assert_eq!(counts(&[first, second]), [1, 1], "{flag:?}");
    }
}

/// Without DF, a router may fragment the packets, and the identifications say which fragments are of one packet.
#[test]
fn identifications_matter_where_packets_may_be_fragmented() {
    let with_ids = |ids: [u16; 2], fragment: u8| {
        let [mut first, mut second, _] = UDP4.packets();
        for (packet, id) in [&mut first, &mut second].into_iter().zip(ids) {
            packet[4..6].copy_from_slice(&id.to_be_bytes());
            packet[6] = fragment;
            mend(packet, false);
        }
        let found = written(&[first, second], ALL);
        found.iter().map(|(_, count)| *count).collect::<Vec<_>>()
    };
    assert_eq!(with_ids([0xffff, 0], 0), [2]);
    assert_eq!(with_ids([7, 7], 0), [1, 1]);
    assert_eq!(with_ids([7, 9], 0), [1, 1]);
    // RFC 6864 section 4.1: they mean nothing.
    assert_eq!(with_ids([0, 0], 0x40), [2]);
}

#[test]
fn damaged_packets_stay_damaged() {
    for example in [UDP4, TCP4, UDP6] {
        for damaged in 0..3 {
            let mut packets = example.packets();
            *packets[damaged].last_mut().unwrap() ^= 1;
            let expected = [&[1, 2][..], &[1, 1, 1], &[2, 1]][damaged];
            assert_eq!(counts(&packets), expected);
        }
    }
    let mut packets = UDP4.packets();
    packets[1][10] ^= 1;
    assert_eq!(
        counts(&packets),
        [1, 1, 1],
        "the checksum of the IPv4 header"
    );
    // UDP without checksum.
    let mut packets = UDP4.packets();
    packets[1][26..28].fill(0);
    assert_eq!(counts(&packets), [1, 1, 1]);
}

#[test]
fn a_shorter_packet_is_the_last_one_and_a_longer_one_begins_anew() {
    assert_eq!(counts(&datagrams(9, &[100, 100, 99, 99, 100])), [3, 1, 1]);
    assert_eq!(
        counts(&datagrams(9, &[1_400, 1_400, 1, 1_400, 1_400])),
        [3, 2]
    );
    assert_eq!(counts(&datagrams(9, &[99, 100, 100])), [1, 2]);
    // PSH ends a super-segment, too.
    let [a, b, c] = TCP4.packets();
    let mut pushed = b.clone();
    pushed[33] |= Flags::PSH.0;
    mend(&mut pushed, true);
    assert_eq!(counts(&[a, pushed, c]), [2, 1]);
}

#[test]
fn flows_by_turns_are_joined_each() {
    let flows = [1, 2, 3].map(|port| datagrams(port, &[500; 4]));
    let by_turns: Vec<_> = (0..4)
        .flat_map(|n| flows.iter().map(move |flow| flow[n].clone()))
        .collect();
    let order = [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11];
    assert_eq!(counts_in_order(&by_turns, &order), [4, 4, 4]);
}

#[test]
fn packets_of_a_flow_stay_in_order() {
    let mut packets = datagrams(9, &[100; 4]);
    // A fragment, which has no ports, and an answer to a packet with the same addresses.
    let mut fragment = packets[0].clone();
    fragment[6] = 0x20;
    mend(&mut fragment, false);
    packets.insert(2, fragment);
    assert_eq!(counts(&packets), [2, 1, 2]);
    let mut other = packets[2].clone();
    other[15] ^= 1;
    mend(&mut other, false);
    packets[2] = other;
    // A fragment of other hosts does not hold up the flow.
    assert_eq!(counts_in_order(&packets, &[2, 0, 1, 3, 4]), [1, 4]);
}

#[test]
fn a_super_segment_is_bounded() {
    assert_eq!(
        counts(&datagrams(9, &[10; 150])),
        [MAX_JOINED, MAX_JOINED, 22]
    );
    // 46 x 1,400 and 28 bytes of headers are 64,428 bytes.
    assert_eq!(counts(&datagrams(9, &[1_400; 50])), [46, 4]);
    let largest = &datagrams(9, &[65_535 - 28; 2]);
    assert_eq!(counts(largest), [1, 1]);
}

#[test]
fn the_oldest_flow_makes_room() {
    let count = MAX_HELD + 1;
    let mut packets: Vec<_> = (0..count)
        .map(|port| datagrams(port as u16, &[100; 1]).remove(0))
        .collect();
    // The first flow is written when the last one comes, so its next packet begins anew.
    packets.push(datagrams(0, &[100; 2]).remove(1));
    packets.push(datagrams(2, &[100; 2]).remove(1));
    let order: Vec<_> = [0, 1, 2]
        .into_iter()
        .chain([count + 1])
        .chain(3..=count)
        .collect();
    let expected = [vec![1, 1, 2], vec![1; MAX_HELD - 1]].concat();
    assert_eq!(counts_in_order(&packets, &order), expected);
}

#[test]
fn a_packet_that_is_not_joined_needs_no_place() {
    let mut packets: Vec<_> = (0..MAX_HELD)
        .map(|port| datagrams(port as u16, &[100; 1]).remove(0))
        .collect();
    let mut other = packets[0].clone();
    other[15] ^= 1;
    // ICMP.
    other[9] = 1;
    mend(&mut other, false);
    packets.push(other);
    let order: Vec<_> = [MAX_HELD].into_iter().chain(0..MAX_HELD).collect();
    assert_eq!(counts_in_order(&packets, &order), [1; MAX_HELD + 1]);
}

/// Whatever comes from a peer, nothing panics, and nothing is lost.
#[test]
fn any_bytes_are_written() {
    for example in [UDP4, UDP6, TCP4] {
        let packet = example.packets()[0].clone();
        for len in 0..packet.len() {
            let found = written(&[packet.clone(), packet[..len].to_vec()], ALL);
            assert_eq!(found.len(), 2);
        }
        for at in 0..packet.len() {
            let mut other = packet.clone();
            other[at] = !other[at];
            let found = written(&[packet.clone(), other], ALL);
            assert_eq!(found.iter().map(|(_, count)| count).sum::<usize>(), 2);
        }
    }
}
