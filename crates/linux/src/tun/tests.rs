use rustix::io::Errno;

use super::examples::{Example, TCP4, UDP4};
use super::*;

/// Sends the packets of `example` through a kernel that answers each write with `kernel`; the argument is true for a
/// super-segment. Returns what the kernel took, the outcome, and what may still be joined.
fn sent(
    example: &Example,
    kernel: impl Fn(bool) -> rustix::io::Result<usize>,
) -> (Vec<Vec<u8>>, Writer) {
    let mut writer = Writer {
        joinable: Joinable {
            tcp: true,
            udp: true,
        },
        written: Written::default(),
    };
    let mut taken = Vec::new();
    let mut put = |bytes: &[u8]| {
        let (vnet, packet) = bytes.split_first_chunk().unwrap();
        let is_super = VnetHdr::parse(vnet).kind() != vnet::VIRTIO_NET_HDR_GSO_NONE;
        kernel(is_super).inspect(|_| taken.push(packet.to_vec()))
    };
    let mut joiner = Joiner::default();
    for packet in example.packets() {
        let joinable = writer.joinable;
        let mut write = |bytes: &mut [u8], count| writer.write(bytes, count, &mut put);
        joiner.push(&packet, joinable, &mut write);
    }
    joiner.flush(&mut |bytes, count| writer.write(bytes, count, &mut put));
    (taken, writer)
}

#[test]
fn a_refused_super_segment_is_cut_and_none_follows() {
    let refuses_super = |is_super| if is_super { Err(Errno::INVAL) } else { Ok(0) };
    for (example, [tcp, udp]) in [(UDP4, [true, false]), (TCP4, [false, true])] {
        let (taken, writer) = sent(&example, refuses_super);
        assert_eq!(taken, example.packets());
        assert_eq!(writer.joinable, Joinable { tcp, udp });
        let expected = Written {
            packets: 3,
            writes: 3,
            refused: 0,
        };
        assert_eq!(writer.written, expected);
    }
}

/// A device that is down, or that refuses each packet, says nothing about super-segments.
#[test]
fn other_refusals_lose_the_packets() {
    for error in [Errno::IO, Errno::INVAL] {
        let (taken, writer) = sent(&UDP4, |_| Err(error));
        assert!(taken.is_empty() && writer.joinable.udp);
        assert_eq!((writer.written.packets, writer.written.refused), (0, 3));
    }
}
