//! Super-segments of payload "abcdefghij" in packets of up to four bytes, with partial checksums, and the packets that
//! they stand for, with complete ones. A program of its own has computed them (RFC 768, 791, 8200, 9293).

use super::headers::Transport;
use super::vnet::{
    VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6,
    VIRTIO_NET_HDR_GSO_UDP_L4, VnetHdr,
};

/// A super-segment and its packets, in hexadecimal digits.
pub(super) struct Example {
    whole: &'static str,
    packets: [&'static str; 3],
    transport: Transport,
    v6: bool,
}

/// UDP over IPv4.
pub(super) const UDP4: Example = Example {
    whole: "45b800261234400040115bd30a000001c000020701bbc3500012cc2b61626364\
         65666768696a",
    packets: [
        "45b800201234400040115bd90a000001c000020701bbc350000ca9fb61626364",
        "45b800201235400040115bd80a000001c000020701bbc350000ca1f365666768",
        "45b8001e1236400040115bd90a000001c000020701bbc350000a055c696a",
    ],
    transport: Transport::Udp,
    v6: false,
};

/// TCP over IPv4, with PSH and a sequence number that wraps.
pub(super) const TCP4: Example = Example {
    whole: "45b8003e1234400040065bc60a000001c000020701bbc350fffffffe00000007\
         801801f4cc3800000101080a00000001000000026162636465666768696a",
    packets: [
        "45b800381234400040065bcc0a000001c000020701bbc350fffffffe00000007\
         801001f41ee200000101080a000000010000000261626364",
        "45b800381235400040065bcb0a000001c000020701bbc3500000000200000007\
         801001f416d700000101080a000000010000000265666768",
        "45b800361236400040065bcc0a000001c000020701bbc3500000000600000007\
         801801f47a3100000101080a0000000100000002696a",
    ],
    transport: Transport::Tcp,
    v6: false,
};

/// UDP over IPv6.
pub(super) const UDP6: Example = Example {
    whole: "6b80000500121140fd00000000000000000000000000000120010db800000000\
         000000000000000701bbc35000122ae56162636465666768696a",
    packets: [
        "6b800005000c1140fd00000000000000000000000000000120010db800000000\
         000000000000000701bbc350000c4b4261626364",
        "6b800005000c1140fd00000000000000000000000000000120010db800000000\
         000000000000000701bbc350000c433a65666768",
        "6b800005000a1140fd00000000000000000000000000000120010db800000000\
         000000000000000701bbc350000aa6a2696a",
    ],
    transport: Transport::Udp,
    v6: true,
};

/// TCP over IPv6, with FIN, PSH and CWR.
pub(super) const TCP6: Example = Example {
    whole: "6b800005002a0640fd00000000000000000000000000000120010db800000000\
         000000000000000701bbc350fffffffe00000007809901f42af200000101080a\
         00000001000000026162636465666768696a",
    packets: [
        "6b80000500240640fd00000000000000000000000000000120010db800000000\
         000000000000000701bbc350fffffffe00000007809001f4bfa800000101080a\
         000000010000000261626364",
        "6b80000500240640fd00000000000000000000000000000120010db800000000\
         000000000000000701bbc3500000000200000007801001f4b81d00000101080a\
         000000010000000265666768",
        "6b80000500220640fd00000000000000000000000000000120010db800000000\
         000000000000000701bbc3500000000600000007801901f41b7700000101080a\
         0000000100000002696a",
    ],
    transport: Transport::Tcp,
    v6: true,
};

impl Example {
    /// Returns the super-segment with its header for the device.
    pub fn whole(&self) -> (VnetHdr, Vec<u8>) {
        let (transport, l3_len) = (self.transport, if self.v6 { 40 } else { 20 });
        let vnet = VnetHdr {
            flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
            gso_type: match (transport, self.v6) {
                (Transport::Tcp, false) => VIRTIO_NET_HDR_GSO_TCPV4,
                (Transport::Tcp, true) => VIRTIO_NET_HDR_GSO_TCPV6,
                (Transport::Udp, _) => VIRTIO_NET_HDR_GSO_UDP_L4,
            },
            hdr_len: l3_len + if transport == Transport::Tcp { 32 } else { 8 },
            gso_size: 4,
            csum_start: l3_len,
            csum_offset: if transport == Transport::Tcp { 16 } else { 6 },
        };
        (vnet, bytes(self.whole))
    }

    /// Returns the packets.
    pub fn packets(&self) -> [Vec<u8>; 3] {
        self.packets.map(bytes)
    }
}

fn bytes(digits: &str) -> Vec<u8> {
    let pairs = digits.as_bytes().chunks(2);
    let pairs = pairs.map(|pair| std::str::from_utf8(pair).unwrap());
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}
