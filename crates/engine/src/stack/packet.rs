//! Packets as the driver sees them.

use core::ops::Range;

use arrayvec::ArrayVec;
use braid_wire::Dsn64;

use crate::buffer::SEND_SLICES;
use crate::{ConnId, PathId, SubflowId};

/// What the driver knows of a received packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxMeta {
    /// The checksum was verified, or the packet never left this machine; otherwise the engine
    /// verifies it.
    pub checksum_ok: bool,
    /// Payload bytes per original packet where several were merged (GRO); 0 for a single packet.
    pub gso_size: u16,
}

/// What the outside of a packet says to the segment in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outside {
    /// Payload bytes per original packet where several were merged; 0 for a single packet.
    pub gso_size: u16,
    /// A queue marked congestion (CE, RFC 3168 section 5). Packets that are marked and packets that are not are not
    /// merged by the kernel (GRO).
    pub marked: bool,
}

/// What is left to do for the checksum of a [`Transmit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxChecksum {
    /// It is complete.
    Done,
    /// The field holds the pseudo-header sum; the device sums from `start` and writes at
    /// `start + offset` (`virtio_net_hdr`).
    Partial {
        /// Where summing starts, bytes into the packet.
        start: u16,
        /// Where the sum goes, bytes after `start`.
        offset: u16,
    },
}

/// Why a packet is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// Payload that was never sent before.
    New,
    /// Payload sent before under another mapping (in flight on another subflow, or lost with one),
    /// for the first time under this one.
    Copy,
    /// Payload sent again on the same subflow under the same mapping.
    Retransmission,
    /// A SYN with MP_JOIN, first or repeated.
    JoinSyn,
    /// All the rest: other SYNs, with payload or without, acknowledgements, probes, DATA_FIN by itself, FIN, RST.
    Control,
}

/// What a [`Transmit`] of a connection is. For logs, counters and oracles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransmitInfo {
    /// The connection.
    pub conn: ConnId,
    /// The subflow.
    pub subflow: SubflowId,
    /// Why it is sent.
    pub kind: SegmentKind,
    /// The payload's place in the connection's stream, offsets in bytes from 0; empty where none
    /// of the stream is carried.
    pub data: Range<u64>,
    /// Data sequence number of `data.start`; `None` where no mapping is carried or needed.
    pub dsn: Option<Dsn64>,
    /// The packet's place in the subflow's sequence, counted from the SYN, which is 0: 1 for the first byte
    /// of payload.
    pub subflow_seq: u64,
}

/// A packet to send: write `header` and then `payload`, without copying (`writev`).
#[derive(Debug)]
pub struct Transmit<'a> {
    /// The path whose local address is the source.
    pub path: PathId,
    /// IP and TCP header.
    pub header: &'a [u8],
    /// Payload in order.
    pub payload: ArrayVec<&'a [u8], SEND_SLICES>,
    /// Payload bytes per packet where this is a super-segment the device must cut; else 0.
    pub gso_size: u16,
    /// Checksum state.
    pub checksum: TxChecksum,
    /// IPv6.
    pub v6: bool,
    /// What it is; `None` for the RST that answers a segment of no connection.
    pub info: Option<TransmitInfo>,
}
