use super::*;
use crate::tun::examples::{Example, TCP4, TCP6, UDP4, UDP6};
use crate::tun::vnet::VIRTIO_NET_HDR_F_NEEDS_CSUM;

fn packets(vnet: &VnetHdr, mut bytes: Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let mut packets = Packets::new(vnet, &mut bytes)?;
    let mut found = Vec::new();
    while let Some(packet) = packets.next() {
        found.push(packet.to_vec());
    }
    assert!(packets.next().is_none());
    Some(found)
}

#[test]
fn a_super_segment_is_cut_into_its_packets() {
    for (name, example) in [
        ("UDP4", UDP4),
        ("UDP6", UDP6),
        ("TCP4", TCP4),
        ("TCP6", TCP6),
    ] {
        let (vnet, whole) = example.whole();
        assert_eq!(packets(&vnet, whole).unwrap(), example.packets(), "{name}");
    }
}

#[test]
fn a_single_packet_passes_as_it_is() {
    let packet = UDP4.packets()[0].clone();
    assert_eq!(
        packets(&VnetHdr::default(), packet.clone()).unwrap(),
        [packet]
    );
    assert_eq!(packets(&VnetHdr::default(), vec![1]).unwrap(), [[1]]);
}

#[test]
fn a_partial_checksum_is_completed() {
    for example in [UDP4, TCP4, UDP6, TCP6] {
        let (vnet, whole) = example.whole();
        // A payload of at most `gso_size` bytes is one packet.
        let complete = packets(
            &VnetHdr {
                gso_size: 10,
                ..vnet
            },
            whole.clone(),
        )
        .unwrap();
        let vnet = VnetHdr {
            gso_type: VIRTIO_NET_HDR_GSO_NONE,
            gso_size: 0,
            ..vnet
        };
        assert_eq!(packets(&vnet, whole).unwrap(), complete);
        assert_eq!(complete.len(), 1);
    }
}

/// UDP says by a checksum of zero that there is none (RFC 768).
#[test]
fn a_sum_of_zero_is_written_as_all_ones() {
    let vnet = VnetHdr {
        flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
        csum_start: 1,
        csum_offset: 2,
        ..VnetHdr::default()
    };
    // 0xfffe and the partial sum of 1 add up to 0xffff.
    let found = packets(&vnet, vec![9, 0xff, 0xfe, 0, 1]).unwrap();
    assert_eq!(found, [[9, 0xff, 0xfe, 0xff, 0xff]]);
}

#[test]
fn malformed_headers_are_refused() {
    let refused = |example: &Example, change: fn(&mut VnetHdr, &mut Vec<u8>)| {
        let (mut vnet, mut bytes) = example.whole();
        change(&mut vnet, &mut bytes);
        packets(&vnet, bytes).is_none()
    };
    for example in [UDP4, TCP4, UDP6, TCP6] {
        assert!(refused(&example, |vnet, _| vnet.flags = 0), "no checksum");
        assert!(refused(&example, |vnet, _| vnet.gso_size = 0), "no size");
        assert!(refused(&example, |vnet, _| vnet.csum_offset += 1), "offset");
        assert!(refused(&example, |vnet, _| vnet.csum_start -= 1), "start");
        assert!(refused(&example, |vnet, _| vnet.gso_type = 3), "UFO");
        assert!(refused(&example, |_, bytes| bytes.truncate(27)), "cut off");
        assert!(refused(&example, |_, bytes| bytes.clear()), "empty");
    }
    assert!(
        refused(&TCP4, |_, bytes| bytes[32] = 0x40),
        "TCP's header is too short"
    );
    assert!(
        refused(&TCP4, |_, bytes| bytes[32] = 0xf0),
        "TCP's header is too long"
    );
    assert!(
        refused(&UDP4, |_, bytes| bytes[0] = 0x46),
        "options that are not there"
    );
    let vnet = VnetHdr {
        flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
        csum_start: 2,
        csum_offset: 1,
        ..VnetHdr::default()
    };
    assert!(
        packets(&vnet, vec![0; 4]).is_none(),
        "the checksum is behind the end"
    );
}

/// Whatever a header says, nothing panics, and no packet is longer than what was read.
#[test]
fn any_header_is_taken_or_refused() {
    for example in [UDP4, TCP4, UDP6, TCP6] {
        let (vnet, whole) = example.whole();
        for len in 0..=whole.len() {
            for csum_start in 0..=70 {
                for gso_size in [0, 1, 4, u16::MAX] {
                    let vnet = VnetHdr {
                        csum_start,
                        gso_size,
                        ..vnet
                    };
                    let found = packets(&vnet, whole[..len].to_vec()).unwrap_or_default();
                    assert!(found.iter().all(|packet| packet.len() <= len));
                }
            }
        }
    }
}
