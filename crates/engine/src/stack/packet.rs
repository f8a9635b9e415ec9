//! Packets as the driver sees them.

use core::ops::Range;

use arrayvec::ArrayVec;
use braid_wire::{Dsn64, Instant};

use crate::buffer::SEND_SLICES;
use crate::{ConnId, PathId, SubflowId};

/// The properties of a received packet that the driver knows and that are not in the packet itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxMeta {
    /// Set if the checksum was verified, or the packet never left this machine; otherwise the engine
    /// verifies it.
    pub checksum_ok: bool,
    /// The payload bytes per original packet if several were merged (GRO); 0 for a single packet.
    pub gso_size: u16,
}

/// The properties of an IP packet, outside its segment, that matter for the processing of the segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outside {
    /// The payload bytes per original packet if several were merged (GRO); 0 for a single packet.
    pub gso_size: u16,
    /// Set if a queue marked congestion (CE, RFC 3168 section 5). The mark is valid for all merged packets,
    /// because the kernel (GRO) does not merge packets with different marks.
    pub marked: bool,
}

/// The remaining checksum work of a [`Transmit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxChecksum {
    /// The checksum is complete.
    Done,
    /// The checksum field has the sum over the pseudo-header. The device adds the bytes from `start` on, and
    /// writes the checksum at `start + offset` (as with `virtio_net_hdr`).
    Partial {
        /// The first byte to be summed, counted from the start of the packet.
        start: u16,
        /// The place of the checksum field, in bytes after `start`.
        offset: u16,
    },
}

/// The reason for sending a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentKind {
    /// Payload that was never sent before.
    New,
    /// Payload that was sent before on another subflow, where it is in flight or was lost, and is now sent for
    /// the first time under this mapping.
    Copy,
    /// Payload that is sent again on the same subflow under the same mapping.
    Retransmission,
    /// A SYN with MP_JOIN, first or repeated.
    JoinSyn,
    /// All other segments: SYNs without MP_JOIN (with or without payload), acknowledgements, probes, a DATA_FIN
    /// without payload, FIN, RST.
    Control,
}

/// The description of a packet of a connection, for logs, counters and test oracles.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransmitInfo {
    /// The connection.
    pub conn: ConnId,
    /// The subflow.
    pub subflow: SubflowId,
    /// The reason for sending the packet.
    pub kind: SegmentKind,
    /// The payload's range in the connection's stream, in bytes from 0; empty if there is no payload.
    pub data: Range<u64>,
    /// The data sequence number of `data.start`; `None` without payload or with regular TCP.
    pub dsn: Option<Dsn64>,
    /// The arrival that the strategy expects, if it has estimated the time: see
    /// [`Strategy::expected_arrival`](crate::strategy::Strategy::expected_arrival). If the packet is divided, the
    /// time is that of the first segment.
    pub expected_arrival: Option<Instant>,
    /// The packet's offset in the subflow's sequence, where the SYN is 0 and the first byte of payload is 1.
    pub subflow_seq: u64,
}

/// A packet to send: `header` followed by the parts of `payload`, which the driver can write without copying
/// them together (`writev`).
#[derive(Debug)]
pub struct Transmit<'a> {
    /// The path whose local address is the source.
    pub path: PathId,
    /// The IP and TCP headers.
    pub header: &'a [u8],
    /// The parts of the payload, in order.
    pub payload: ArrayVec<&'a [u8], SEND_SLICES>,
    /// The payload bytes per packet if this is a super-segment that the device has to cut (GSO); otherwise 0.
    pub gso_size: u16,
    /// The remaining checksum work.
    pub checksum: TxChecksum,
    /// Set if the packet is IPv6; otherwise it is IPv4.
    pub v6: bool,
    /// The description; `None` if the packet answers a segment of no connection.
    pub info: Option<TransmitInfo>,
}
