//! The records of a log. Each is one line of JSON with these fields.

use std::borrow::Cow;

use serde::Serialize;

/// A line of a log; its field `type` is the variant's name in small letters.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record<'a> {
    /// The first line.
    Header(Header<'a>),
    /// A segment with payload, written when its fate is final.
    Segment(Segment<'a>),
    /// The state of a sender after a segment of its peer arrived.
    Ack(Ack<'a>),
    /// A sample of a link, at fixed intervals.
    Link(LinkSample),
    /// A sample of a connection at one of its ends, at fixed intervals.
    Conn(ConnSample<'a>),
    /// An event of an engine.
    Event(EngineEvent<'a>),
}

/// The facts that a reader needs to interpret the other records.
#[derive(Debug, Clone, Serialize)]
pub struct Header<'a> {
    /// Version of the format: 1.
    pub version: u32,
    /// Seed of the world.
    pub seed: u64,
    /// Time of the world when the log began.
    pub start_ns: u64,
    /// The time between samples.
    pub sample_ns: u64,
    /// The hosts that are logged.
    pub hosts: Vec<&'a str>,
    /// The links of the world; fields named `link` are indices into this list.
    pub links: Vec<LinkEnds<'a>>,
}

/// One direction of a link.
#[derive(Debug, Clone, Serialize)]
pub struct LinkEnds<'a> {
    /// The node at the start: the name of a logged host, or `node 3`.
    pub from: Cow<'a, str>,
    /// The node at the end.
    pub to: Cow<'a, str>,
}

/// One transmission of a range of bytes; a retransmission is another record. If a middlebox cuts a segment, its
/// parts count as one. If a middlebox merges two segments, the second one has no arrival.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Segment<'a> {
    /// Number of the packet in the world, by time of sending.
    pub id: u64,
    /// The host that sent the segment.
    pub host: &'a str,
    /// The connection, as numbered at that host.
    pub conn: u64,
    /// The subflow, as numbered at that host.
    pub subflow: u32,
    /// The subflow's local path.
    pub path: u8,
    /// The link by which the segment left; `null` if it has not left. If the host has one address only, the link
    /// identifies the path.
    pub link: Option<u32>,
    /// The kind of transmission.
    pub kind: Kind,
    /// The offset of the first byte in the connection's stream, from 0: its data sequence number minus the initial
    /// data sequence number minus 1.
    pub dsn: u64,
    /// The offset of the first byte in the subflow, from 1: its sequence number minus the initial sequence number.
    /// The SYN has offset 0.
    pub ssn: u64,
    /// Payload bytes.
    pub len: u64,
    /// The time of sending.
    pub sent_ns: u64,
    /// The time of arrival that the strategy expected when the segment was sent; `null` if the strategy estimated
    /// none, and for every segment of a super-segment except the first.
    pub expected_ns: Option<u64>,
    /// The time at which a packet of the segment was last dropped; `null` if none was dropped, or if one arrived.
    pub dropped_ns: Option<u64>,
    /// The link that dropped the segment.
    pub dropped_by: Option<u32>,
    /// The reason of the drop: `queue`, `codel`, `loss` or `down`. `corruption` means that the receiving host
    /// dropped the segment because of a wrong checksum.
    pub dropped_for: Option<&'static str>,
    /// The host that received the segment first.
    pub to: Option<&'a str>,
    /// The connection, as numbered at the host `to`; `null` if the connection had ended.
    pub to_conn: Option<u64>,
    /// The time of arrival; `null` if the segment never arrived at a logged host.
    pub arrived_ns: Option<u64>,
    /// Payload bytes that the receiver had not received before this segment. Summed over all segments, every byte
    /// of a stream counts once.
    pub fresh: u64,
    /// The time at which the receiver had the whole stream up to the end of the segment; `null` if the receiver
    /// never had it, or if `fresh` is 0.
    pub delivered_ns: Option<u64>,
}

/// The kinds of transmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The bytes are sent for the first time.
    #[default]
    New,
    /// The bytes were sent before with another mapping, usually on another subflow.
    Copy,
    /// The bytes were sent before on the same subflow with the same mapping.
    Retransmission,
}

/// The state of a sender of payload after a segment of its peer arrived. Only segments that arrive while
/// payload is in flight on their subflow are recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ack<'a> {
    /// The time of arrival.
    pub at_ns: u64,
    /// The host that received the acknowledgement. It is the sender of the payload.
    pub host: &'a str,
    /// The connection, as numbered at that host.
    pub conn: u64,
    /// The subflow.
    pub subflow: u32,
    /// The subflow's local path.
    pub path: u8,
    /// The first byte that is not acknowledged, as an offset in the subflow's sequence.
    pub una: u64,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Slow-start threshold, bytes; `null` before it is set for the first time.
    pub ssthresh: Option<u64>,
    /// Smoothed round-trip time.
    pub srtt_ns: u64,
    /// Retransmission timeout, including backoff.
    pub rto_ns: u64,
    /// Payload bytes in flight: neither acknowledged nor considered lost.
    pub in_flight: u64,
}

/// A link at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LinkSample {
    /// The time of the sample.
    pub at_ns: u64,
    /// The link.
    pub link: u32,
    /// Packets in the link's queue, without the packet that the link is transmitting.
    pub queue_packets: u64,
    /// Bytes of the packets in the queue, including IP headers.
    pub queue_bytes: u64,
}

/// A connection at one of its ends at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConnSample<'a> {
    /// The time of the sample.
    pub at_ns: u64,
    /// The host.
    pub host: &'a str,
    /// The connection, as numbered at that host.
    pub conn: u64,
    /// Bytes written and never sent.
    pub unsent: u64,
    /// Bytes sent and not acknowledged at the data level.
    pub outstanding: u64,
    /// Bytes that this end may still send within the peer's window.
    pub peer_window: u64,
    /// Bytes that the peer may still send within the window of this end.
    pub recv_window: u64,
    /// Bytes received behind a hole in the stream, that is, out of order at the data level.
    pub out_of_order: u64,
    /// Bytes received in order and not read.
    pub unread: u64,
    /// The subflows that exist.
    pub subflows: Vec<SubflowSample>,
}

/// A subflow at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SubflowSample {
    /// The subflow.
    pub subflow: u32,
    /// The subflow's local path.
    pub path: u8,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Payload bytes in flight.
    pub in_flight: u64,
    /// Bytes received behind a hole in the subflow's sequence.
    pub out_of_order: u64,
}

/// An event of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EngineEvent<'a> {
    /// The time of the event.
    pub at_ns: u64,
    /// The host.
    pub host: &'a str,
    /// The connection, as numbered at that host.
    pub conn: u64,
    /// `accepted`, `connected`, `fell_back`, `subflow_established`, `subflow_closed` or `closed`.
    pub event: &'static str,
    /// The subflow, if the event is about one.
    pub subflow: Option<u32>,
    /// The subflow's local path.
    pub path: Option<u8>,
    /// The reason by its name in the engine, if there is one.
    pub reason: Option<String>,
}
