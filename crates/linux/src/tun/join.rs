//! The joining of packets to super-segments, which the kernel handles as one packet (GRO in user space).
//!
//! Packets are joined if the kernel can cut them again into the same packets: those of one flow with equal headers and
//! payload of equal length, of which the last may be shorter. Only packets whose checksums are right are joined, since
//! the checksums are computed anew when the super-segment is cut. Packets of a flow stay in order.

use arrayvec::ArrayVec;
use braid_wire::ip;
use braid_wire::tcp::Flags;

use super::headers::{Layout, Transport, UDP_LEN, V4_LEN, V6_LEN};
use super::vnet::{
    VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_TCPV4, VIRTIO_NET_HDR_GSO_TCPV6,
    VIRTIO_NET_HDR_GSO_UDP_L4, VNET_HDR_LEN, VnetHdr,
};

/// Maximum number of flows whose packets wait to be joined. The sender serves its flows by turns, so if one more flow had
/// packets, none of them would find an earlier one here. A guess: more flows than a household has busy at once.
const MAX_HELD: usize = 32;
/// Maximum number of packets in a super-segment: what Linux makes of one call with `UDP_SEGMENT` (`UDP_MAX_SEGMENTS`).
const MAX_JOINED: usize = 64;
/// Maximum length of a super-segment in bytes, which an IPv4 header can express.
const MAX_LEN: usize = 65_535;

/// The protocols that the kernel cuts for the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Joinable {
    pub tcp: bool,
    pub udp: bool,
}

/// Packets of one flow that wait to be joined with later ones.
#[derive(Debug)]
struct Held {
    /// Room for a `virtio_net_hdr`, the headers of the first packet, and the payload of all.
    bytes: Vec<u8>,
    layout: Layout,
    /// Bytes of payload of the first packet.
    size: usize,
    count: usize,
    /// True after a packet that is the last of a super-segment: a shorter one, or one with PSH.
    is_complete: bool,
}

/// Packets that wait to be joined with later ones, until the end of a batch.
#[derive(Debug, Default)]
pub(super) struct Joiner {
    /// By the time of their first packets.
    held: ArrayVec<Held, MAX_HELD>,
    /// Buffers that are used again.
    spare: ArrayVec<Vec<u8>, MAX_HELD>,
}

/// Writes to the device: takes a `virtio_net_hdr` with a packet or super-segment behind it, and the number of packets.
pub(super) type Write<'a> = &'a mut dyn FnMut(&mut [u8], usize);

impl Joiner {
    /// Takes a packet. Writes it, and others, once nothing can be joined with them.
    pub fn push(&mut self, packet: &[u8], joinable: Joinable, write: Write<'_>) {
        let Some(layout) = layout_of(packet, joinable) else {
            // It may be of a flow of which packets wait, for example a fragment.
            while let Some(at) = self.held.iter().position(|h| h.has_hosts_of(packet)) {
                self.write(at, write);
            }
            let mut bytes = self.spare.pop().unwrap_or_default();
            fill(&mut bytes, packet);
            write(&mut bytes, 1);
            self.recycle(bytes);
            return;
        };
        if let Some(at) = self
            .held
            .iter()
            .position(|h| h.has_flow_of(&layout, packet))
        {
            if self.held[at].append(&layout, packet) {
                return;
            }
            self.write(at, write);
        } else if self.held.is_full() {
            self.write(0, write);
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        fill(&mut bytes, packet);
        self.held.push(Held {
            bytes,
            layout,
            size: packet.len() - layout.head_len,
            count: 1,
            is_complete: has_push(&layout, packet),
        });
    }

    /// Writes all packets that wait.
    pub fn flush(&mut self, write: Write<'_>) {
        while !self.held.is_empty() {
            self.write(0, write);
        }
    }

    fn write(&mut self, at: usize, write: Write<'_>) {
        let mut held = self.held.remove(at);
        if held.count > 1 {
            held.make_super_segment();
        }
        write(&mut held.bytes, held.count);
        self.recycle(held.bytes);
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        // With all places for packets in use, a packet that is not joined has a buffer of its own.
        let _ = self.spare.try_push(bytes);
    }
}

fn fill(bytes: &mut Vec<u8>, packet: &[u8]) {
    bytes.clear();
    bytes.extend_from_slice(&[0; VNET_HDR_LEN]);
    bytes.extend_from_slice(packet);
}

impl Held {
    fn packet(&self) -> &[u8] {
        &self.bytes[VNET_HDR_LEN..]
    }

    /// Returns true if the packet has the same addresses.
    fn has_hosts_of(&self, packet: &[u8]) -> bool {
        let addresses = if self.layout.v6 {
            8..V6_LEN
        } else {
            12..V4_LEN
        };
        packet
            .first()
            .is_some_and(|first| first >> 4 == self.packet()[0] >> 4)
            && packet.get(addresses.clone()) == self.packet().get(addresses)
    }

    /// Returns true if the packet has the same protocol, addresses and ports.
    fn has_flow_of(&self, layout: &Layout, packet: &[u8]) -> bool {
        let ports = self.layout.l3_len..self.layout.l3_len + 4;
        (layout.v6, layout.transport) == (self.layout.v6, self.layout.transport)
            && self.has_hosts_of(packet)
            && packet[ports.clone()] == self.packet()[ports]
    }

    /// Appends a packet of the flow. Returns false if it cannot be joined with those before it.
    fn append(&mut self, layout: &Layout, packet: &[u8]) -> bool {
        let payload = packet.len() - layout.head_len;
        let fits = !self.is_complete
            && self.count < MAX_JOINED
            && *layout == self.layout
            && payload <= self.size
            && self.packet().len() + payload <= MAX_LEN;
        // The first packet may be damaged too.
        let is_right = || {
            layout.checksums_hold(packet)
                && (self.count > 1 || layout.checksums_hold(self.packet()))
        };
        if !fits || !self.continues_in(packet) || !is_right() {
            return false;
        }
        self.bytes.extend_from_slice(&packet[layout.head_len..]);
        self.count += 1;
        if has_push(layout, packet) {
            self.bytes[VNET_HDR_LEN + layout.l3_len + 13] |= Flags::PSH.0;
            self.is_complete = true;
        }
        self.is_complete |= payload < self.size;
        true
    }

    /// Returns whether the packet's headers are those that the kernel makes for the next packet of the super-segment.
    fn continues_in(&self, packet: &[u8]) -> bool {
        let first = self.packet();
        let Layout {
            v6,
            l3_len,
            head_len,
            transport,
        } = self.layout;
        let is_same = |from: usize, to: usize| first[from..to] == packet[from..to];
        let word = |of: &[u8], at: usize| u16::from_be_bytes([of[at], of[at + 1]]);
        // All but the lengths, the identification and the checksum.
        let is_same_ip = if v6 {
            is_same(0, 4) && is_same(6, V6_LEN)
        } else {
            // The kernel counts identifications up. Without fragmentation they mean nothing (RFC 6864 section 4.1).
            let is_atomic = first[6] & 0x40 != 0;
            let next_id = word(first, 4).wrapping_add(self.count as u16);
            is_same(0, 2)
                && is_same(6, 10)
                && is_same(12, V4_LEN)
                && (is_atomic || word(packet, 4) == next_id)
        };
        let is_next = match transport {
            Transport::Udp => true,
            Transport::Tcp => {
                let sequence = |of: &[u8]| {
                    of[l3_len + 4..]
                        .first_chunk()
                        .map(|b| u32::from_be_bytes(*b))
                };
                let sent = (first.len() - head_len) as u32;
                // All but the checksum and PSH, which only the last packet has.
                sequence(packet) == sequence(first).map(|s| s.wrapping_add(sent))
                    && is_same(l3_len + 8, l3_len + 13)
                    && is_same(l3_len + 14, l3_len + 16)
                    && is_same(l3_len + 18, head_len)
            }
        };
        is_same_ip && is_next
    }

    /// Makes the packets a super-segment: its headers have the length of all, and the kernel computes the checksums.
    fn make_super_segment(&mut self) {
        let Layout {
            v6,
            transport,
            l3_len,
            head_len,
        } = self.layout;
        let vnet = VnetHdr {
            flags: VIRTIO_NET_HDR_F_NEEDS_CSUM,
            gso_type: match (transport, v6) {
                (Transport::Tcp, false) => VIRTIO_NET_HDR_GSO_TCPV4,
                (Transport::Tcp, true) => VIRTIO_NET_HDR_GSO_TCPV6,
                (Transport::Udp, _) => VIRTIO_NET_HDR_GSO_UDP_L4,
            },
            // All are far below 65,536.
            hdr_len: head_len as u16,
            gso_size: self.size as u16,
            csum_start: l3_len as u16,
            csum_offset: transport.checksum_offset() as u16,
        };
        let (header, packet) = self.bytes.split_at_mut(VNET_HDR_LEN);
        header.copy_from_slice(&vnet.emit());
        let len = packet.len();
        self.layout.set_lengths(packet, len);
        self.layout.set_partial_checksum(packet, len);
    }
}

fn has_push(layout: &Layout, packet: &[u8]) -> bool {
    layout.transport == Transport::Tcp && Flags(packet[layout.l3_len + 13]).contains(Flags::PSH)
}

/// Returns the places of the headers of a packet that may be joined with others; `None` for other packets.
fn layout_of(packet: &[u8], joinable: Joinable) -> Option<Layout> {
    let view = ip::Packet::new(packet).ok()?;
    if view.total_len() != packet.len() {
        return None;
    }
    // Neither options nor fragments. The highest bit of the flags of IPv4 is always zero.
    let v6 = view.is_v6();
    let l3_len = if v6 { V6_LEN } else { V4_LEN };
    if !v6 && (view.header_len() != V4_LEN || view.is_v4_fragment() || packet[6] & 0x80 != 0) {
        return None;
    }
    let transport = match view.next_header() {
        ip::PROTO_TCP if joinable.tcp => Transport::Tcp,
        ip::PROTO_UDP if joinable.udp => Transport::Udp,
        _ => return None,
    };
    let segment = &packet[l3_len..];
    let header_len = transport.header_len(segment)?;
    // A packet without payload adds nothing to a super-segment.
    if segment.len() <= header_len {
        return None;
    }
    let is_plain = match transport {
        Transport::Tcp => Flags(segment[13]).without(Flags::PSH) == Flags::ACK,
        Transport::Udp => {
            usize::from(u16::from_be_bytes([segment[4], segment[5]])) == segment.len()
                && segment[6..UDP_LEN] != [0, 0]
        }
    };
    is_plain.then_some(Layout {
        v6,
        transport,
        l3_len,
        head_len: l3_len + header_len,
    })
}

#[cfg(test)]
mod tests;
