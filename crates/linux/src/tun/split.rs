//! The cutting of super-segments into the packets that they stand for, for readers that look at each packet.

use arrayvec::ArrayVec;
use braid_wire::tcp::Flags;

use super::headers::{Layout, Transport, V4_LEN, V6_LEN, complete_checksum};
use super::vnet::{
    VIRTIO_NET_HDR_GSO_NONE, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6,
    VIRTIO_NET_HDR_GSO_UDP_L4, VnetHdr,
};

/// Maximum length of the headers of a super-segment in bytes: IPv6 (40) with 76 bytes of extension headers, and TCP
/// (60).
const MAX_HEAD: usize = 176;

/// A single packet, or the packets of a super-segment. Each is made in place, when it is asked for.
#[derive(Debug)]
pub struct Packets<'a> {
    bytes: &'a mut [u8],
    /// The state of a super-segment; `None` for a single packet.
    cut: Option<Cut>,
    is_done: bool,
}

#[derive(Debug)]
struct Cut {
    layout: Layout,
    /// The headers of the super-segment, which are overwritten in the buffer.
    head: ArrayVec<u8, MAX_HEAD>,
    /// Bytes of payload of a packet; the last one may have fewer.
    size: usize,
    /// Bytes of payload of the packets so far.
    at: usize,
    /// Number of packets so far.
    count: u16,
}

impl<'a> Packets<'a> {
    /// Reads what the kernel delivered with the header `vnet`. Returns `None` if it is malformed, or of a kind that was
    /// not asked for.
    pub(super) fn new(vnet: &VnetHdr, bytes: &'a mut [u8]) -> Option<Packets<'a>> {
        let (start, offset) = (vnet.csum_start.into(), vnet.csum_offset.into());
        let transport = match vnet.kind() {
            VIRTIO_NET_HDR_GSO_NONE => {
                if vnet.needs_checksum() {
                    let covered = bytes.get_mut(start..)?;
                    (covered.len() >= offset + 2).then(|| complete_checksum(covered, offset))?;
                }
                return Some(Packets {
                    bytes,
                    cut: None,
                    is_done: false,
                });
            }
            VIRTIO_NET_HDR_GSO_TCPV4 | VIRTIO_NET_HDR_GSO_TCPV6 => Transport::Tcp,
            VIRTIO_NET_HDR_GSO_UDP_L4 => Transport::Udp,
            _ => return None,
        };
        // The kernel leaves the checksums of all super-segments to those that cut them.
        if !vnet.needs_checksum() || offset != transport.checksum_offset() || vnet.gso_size == 0 {
            return None;
        }
        let v6 = bytes.first()? >> 4 == 6;
        let l3_len = if v6 {
            (start >= V6_LEN).then_some(start)?
        } else {
            let is_whole = start >= V4_LEN && usize::from(bytes[0] & 0x0f) * 4 == start;
            is_whole.then_some(start)?
        };
        let layout = Layout {
            v6,
            transport,
            l3_len,
            head_len: l3_len + transport.header_len(bytes.get(l3_len..)?)?,
        };
        let head = bytes.get(..layout.head_len)?;
        let cut = Cut {
            layout,
            head: head.try_into().ok()?,
            size: vnet.gso_size.into(),
            at: 0,
            count: 0,
        };
        Some(Packets {
            bytes,
            cut: Some(cut),
            is_done: false,
        })
    }

    /// Returns the next packet, with complete checksums.
    #[expect(
        clippy::should_implement_trait,
        reason = "a packet is in the buffer until the next one"
    )]
    pub fn next(&mut self) -> Option<&[u8]> {
        if self.is_done {
            return None;
        }
        let Some(cut) = &mut self.cut else {
            self.is_done = true;
            return Some(self.bytes);
        };
        let payload = self.bytes.len() - cut.layout.head_len;
        let len = cut.size.min(payload - cut.at);
        let is_last = cut.at + len == payload;
        // The headers go right before the payload, over the payload of earlier packets.
        let packet = &mut self.bytes[cut.at..cut.at + cut.layout.head_len + len];
        cut.write_headers(packet, is_last);
        cut.at += len;
        cut.count = cut.count.wrapping_add(1);
        self.is_done = is_last;
        Some(packet)
    }
}

impl Cut {
    fn write_headers(&self, packet: &mut [u8], is_last: bool) {
        let layout = &self.layout;
        packet[..self.head.len()].copy_from_slice(&self.head);
        if !layout.v6 {
            let id = u16::from_be_bytes([packet[4], packet[5]]).wrapping_add(self.count);
            packet[4..6].copy_from_slice(&id.to_be_bytes());
        }
        layout.set_lengths(packet, packet.len());
        let segment = &mut packet[layout.l3_len..];
        if layout.transport == Transport::Tcp {
            let sequence = segment[4..8].first_chunk().copied().unwrap_or_default();
            let sequence = u32::from_be_bytes(sequence).wrapping_add(self.at as u32);
            segment[4..8].copy_from_slice(&sequence.to_be_bytes());
            let mut flags = Flags(segment[13]);
            if !is_last {
                flags = flags.without(Flags::FIN | Flags::PSH);
            }
            // The kernel itself cuts super-segments with CWR, as TUN_F_TSO_ECN is never set.
            if self.count > 0 {
                flags = flags.without(Flags::CWR);
            }
            segment[13] = flags.0;
        }
        layout.set_partial_checksum(packet, packet.len());
        let segment = &mut packet[layout.l3_len..];
        complete_checksum(segment, layout.transport.checksum_offset());
    }
}

#[cfg(test)]
mod tests;
