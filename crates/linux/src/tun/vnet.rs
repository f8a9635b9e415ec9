//! The `virtio_net_hdr` in front of each packet of a TUN device (linux/virtio_net.h).

use braid_engine::{RxMeta, Transmit, TxChecksum};

/// Length of the `virtio_net_hdr` in front of each packet in bytes. This is the device's default: the length of
/// a header without the field `num_buffers`.
pub const VNET_HDR_LEN: usize = 10;

/// Flag of the header's first byte: the checksum of the packet is not complete. The field of the checksum has
/// only the sum over the pseudo-header.
pub const VIRTIO_NET_HDR_F_NEEDS_CSUM: u8 = 1;
/// Flag of the header's first byte: the checksum was verified.
const VIRTIO_NET_HDR_F_DATA_VALID: u8 = 2;
/// A single packet.
pub(super) const VIRTIO_NET_HDR_GSO_NONE: u8 = 0;
/// A super-segment of TCP over IPv4.
pub(super) const VIRTIO_NET_HDR_GSO_TCPV4: u8 = 1;
/// A super-segment of TCP over IPv6.
pub(super) const VIRTIO_NET_HDR_GSO_TCPV6: u8 = 4;
/// Datagrams of UDP over either version of IP (since Linux 6.2).
pub(super) const VIRTIO_NET_HDR_GSO_UDP_L4: u8 = 5;
/// A bit that marks the kind of a super-segment with CWR (ECN).
const VIRTIO_NET_HDR_GSO_ECN: u8 = 0x80;

/// `struct virtio_net_hdr`, in the byte order of the machine (the TUN default).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct VnetHdr {
    pub flags: u8,
    pub gso_type: u8,
    pub hdr_len: u16,
    pub gso_size: u16,
    pub csum_start: u16,
    pub csum_offset: u16,
}

impl VnetHdr {
    pub fn of(transmit: &Transmit<'_>) -> VnetHdr {
        let mut hdr = VnetHdr {
            // The number of bytes that the kernel stores contiguously. The kernel parses and rewrites headers, so
            // these must be contiguous, and the payload need not be. Headers have at most 100 bytes, so the
            // conversion does not fail. 0 would be valid too: the kernel then chooses the number itself.
            hdr_len: u16::try_from(transmit.header.len()).unwrap_or(0),
            ..VnetHdr::default()
        };
        if let TxChecksum::Partial { start, offset } = transmit.checksum {
            hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
            hdr.csum_start = start;
            hdr.csum_offset = offset;
        }
        // A super-segment always has a partial checksum, since only the device that cuts it can compute the
        // checksums of its packets. If the device's self-test fails, the engine makes neither super-segments nor
        // partial checksums.
        if transmit.gso_size > 0 {
            hdr.gso_size = transmit.gso_size;
            hdr.gso_type = if transmit.v6 {
                VIRTIO_NET_HDR_GSO_TCPV6
            } else {
                VIRTIO_NET_HDR_GSO_TCPV4
            };
        }
        hdr
    }

    pub fn emit(&self) -> [u8; VNET_HDR_LEN] {
        let mut out = [0; VNET_HDR_LEN];
        out[0] = self.flags;
        out[1] = self.gso_type;
        out[2..4].copy_from_slice(&self.hdr_len.to_ne_bytes());
        out[4..6].copy_from_slice(&self.gso_size.to_ne_bytes());
        out[6..8].copy_from_slice(&self.csum_start.to_ne_bytes());
        out[8..10].copy_from_slice(&self.csum_offset.to_ne_bytes());
        out
    }

    pub fn parse(bytes: &[u8; VNET_HDR_LEN]) -> VnetHdr {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        VnetHdr {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    /// Returns the kind of segmentation.
    pub fn kind(&self) -> u8 {
        self.gso_type & !VIRTIO_NET_HDR_GSO_ECN
    }

    /// Returns true if the checksum of the packet is not complete.
    pub fn needs_checksum(&self) -> bool {
        self.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM != 0
    }

    /// Returns the offload state of a packet for the engine; `None` for a kind of segmentation that the engine does not
    /// know. Super-segments of TCP are accepted whatever the offloads of the device are, because packets that are in
    /// its queue when the offloads change were made with the earlier ones.
    pub fn meta(&self) -> Option<RxMeta> {
        let gso_size = match self.kind() {
            VIRTIO_NET_HDR_GSO_NONE => 0,
            VIRTIO_NET_HDR_GSO_TCPV4 | VIRTIO_NET_HDR_GSO_TCPV6 => self.gso_size,
            _ => return None,
        };
        // NEEDS_CSUM means that the checksum was never completed. So the packet has not left this machine, and
        // no link can have damaged it.
        let trusted = VIRTIO_NET_HDR_F_NEEDS_CSUM | VIRTIO_NET_HDR_F_DATA_VALID;
        Some(RxMeta {
            checksum_ok: self.flags & trusted != 0,
            gso_size,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vnet_header_round_trips_and_names_the_gso_type() {
        let payload = [0u8; 3000];
        let transmit = Transmit {
            path: braid_engine::PathId(0),
            header: &[0; 52],
            payload: [&payload[..]].into_iter().collect(),
            gso_size: 1400,
            checksum: TxChecksum::Partial {
                start: 20,
                offset: 16,
            },
            v6: false,
            info: None,
        };
        let hdr = VnetHdr::of(&transmit);
        assert_eq!(VnetHdr::parse(&hdr.emit()), hdr);
        assert_eq!(hdr.gso_type, VIRTIO_NET_HDR_GSO_TCPV4);
        assert_eq!((hdr.hdr_len, hdr.csum_start, hdr.csum_offset), (52, 20, 16));
        assert_eq!(
            hdr.meta(),
            Some(RxMeta {
                checksum_ok: true,
                gso_size: 1400
            })
        );
    }

    #[test]
    fn a_packet_without_flags_has_no_verified_checksum() {
        let hdr = VnetHdr::default();
        assert_eq!(hdr.meta(), Some(RxMeta::default()));
        let udp_gso = VnetHdr {
            // A kind of segmentation that the engine never requests.
            gso_type: VIRTIO_NET_HDR_GSO_UDP_L4,
            ..VnetHdr::default()
        };
        assert_eq!(udp_gso.meta(), None);
    }
}
