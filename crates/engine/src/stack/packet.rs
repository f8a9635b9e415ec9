//! Packets as the driver sees them.

use core::ops::Range;

use arrayvec::ArrayVec;
use braid_wire::Dsn64;

use crate::buffer::SEND_SLICES;
use crate::{ConnId, PathId, SubflowId};

/// The driver's knowledge of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxMeta {
    /// Set if the checksum was verified, or the packet never left this machine; otherwise the engine
    /// verifies it.
    pub checksum_ok: bool,
    /// The payload bytes per original packet if several were merged (GRO); 0 for a single packet.
    pub gso_size: u16,
}

/// The properties of an IP packet that matter for the segment in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outside {
    /// The payload bytes per original packet if several were merged (GRO); 0 for a single packet.
    pub gso_size: u16,
    /// Set if a queue marked congestion (CE, RFC 3168 section 5). The kernel (GRO) does not merge marked
    /// packets with others.
    pub marked: bool,
}

/// The remaining checksum work of a [`Transmit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxChecksum {
    /// The checksum is complete.
    Done,
    /// The field holds the pseudo-header sum; the device sums from `start` and writes at `start + offset`
    /// (`virtio_net_hdr`).
    Partial {
        /// The start of the sum, in bytes into the packet.
        start: u16,
        /// The place of the sum, in bytes after `start`.
        offset: u16,
    },
}

/// The reason for sending a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentKind {
    /// Payload that was never sent before.
    New,
    /// Payload sent before under another mapping (in flight on another subflow, or lost with one), for the
    /// first time under this one.
    Copy,
    /// Payload sent again on the same subflow under the same mapping.
    Retransmission,
    /// A SYN with MP_JOIN, first or repeated.
    JoinSyn,
    /// Everything else: other SYNs, with payload or without, acknowledgements, probes, DATA_FIN by itself,
    /// FIN, RST.
    Control,
}

/// The description of a [`Transmit`] of a connection, for logs, counters and oracles.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransmitInfo {
    /// The connection.
    pub conn: ConnId,
    /// The subflow.
    pub subflow: SubflowId,
    /// The reason for sending it.
    pub kind: SegmentKind,
    /// The payload's range in the connection's stream, in bytes from 0; empty if it carries none of the
    /// stream.
    pub data: Range<u64>,
    /// The data sequence number of `data.start`; `None` if no mapping is carried or needed.
    pub dsn: Option<Dsn64>,
    /// The packet's offset in the subflow's sequence, where the SYN is 0 and the first byte of payload 1.
    pub subflow_seq: u64,
}

/// A packet to send: write `header` and then `payload`, without copying (`writev`).
#[derive(Debug)]
pub struct Transmit<'a> {
    /// The path whose local address is the source.
    pub path: PathId,
    /// The IP and TCP headers.
    pub header: &'a [u8],
    /// The payload in order.
    pub payload: ArrayVec<&'a [u8], SEND_SLICES>,
    /// The payload bytes per packet if this is a super-segment that the device must cut; otherwise 0.
    pub gso_size: u16,
    /// The remaining checksum work.
    pub checksum: TxChecksum,
    /// Set for IPv6.
    pub v6: bool,
    /// The description; `None` for an answer to a segment of no connection.
    pub info: Option<TransmitInfo>,
}
