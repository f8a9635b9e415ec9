//! The lines of a log.

use std::borrow::Cow;

use serde::Serialize;

/// A line of a log; its field `type` is the variant's name in small letters.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record<'a> {
    /// The first line.
    Header(Header<'a>),
    /// A segment with payload, written once its fate is settled.
    Segment(Segment<'a>),
    /// A segment that acknowledged something arrived.
    Ack(Ack<'a>),
    /// A link, at fixed intervals.
    Link(LinkSample),
    /// A connection at one of its ends, at fixed intervals.
    Conn(ConnSample<'a>),
    /// An event of an engine.
    Event(EngineEvent<'a>),
}

/// What the numbers of a log mean.
#[derive(Debug, Clone, Serialize)]
pub struct Header<'a> {
    /// Version of the format: 1.
    pub version: u32,
    /// Seed of the world.
    pub seed: u64,
    /// Time of the world when the log began.
    pub start_ns: u64,
    /// Distance of the samples.
    pub sample_ns: u64,
    /// The hosts that are logged.
    pub hosts: Vec<&'a str>,
    /// The links of the world: `link` counts them from 0.
    pub links: Vec<LinkEnds<'a>>,
}

/// One direction of a link.
#[derive(Debug, Clone, Serialize)]
pub struct LinkEnds<'a> {
    /// Where it comes from: a host that is logged, or `node 3`.
    pub from: Cow<'a, str>,
    /// Where it leads.
    pub to: Cow<'a, str>,
}

/// One transmission of a range of bytes: what is sent again is another segment. Where a middlebox
/// cuts a segment up, its pieces count as one; where it joins two, the second is never seen to
/// arrive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Segment<'a> {
    /// Number of the packet in the world, by time of sending.
    pub id: u64,
    /// The host that sent it.
    pub host: &'a str,
    /// The connection, as numbered there.
    pub conn: u64,
    /// The subflow, as numbered there.
    pub subflow: u32,
    /// Its local path.
    pub path: u8,
    /// The link it left by, which tells the paths of a host with one address apart; `null` if it
    /// has not left.
    pub link: Option<u32>,
    /// What it is.
    pub kind: Kind,
    /// Place of the first byte in the connection's stream, from 0: the data sequence number less
    /// the initial one less 1.
    pub dsn: u64,
    /// Place of the first byte in the subflow's sequence, from 1: the sequence number less the
    /// initial one.
    pub ssn: u64,
    /// Payload bytes.
    pub len: u64,
    /// When it was sent.
    pub sent_ns: u64,
    /// When a link dropped it; `null` unless its last copy was dropped.
    pub dropped_ns: Option<u64>,
    /// That link.
    pub dropped_by: Option<u32>,
    /// Why: `queue`, `codel`, `loss` or `down`; `corruption` where the receiver found the checksum
    /// wrong, and no link dropped it.
    pub dropped_for: Option<&'static str>,
    /// The host it arrived at first.
    pub to: Option<&'a str>,
    /// The connection, as numbered there; `null` where it had ended.
    pub to_conn: Option<u64>,
    /// When; `null` if it never arrived at a host that is logged.
    pub arrived_ns: Option<u64>,
    /// Payload bytes the receiver took from it, which it had not from any other. Over all segments
    /// every byte of a stream counts once.
    pub fresh: u64,
    /// When the receiver had the stream up to the end of the segment without a hole; `null` where
    /// that never happened or `fresh` is 0.
    pub delivered_ns: Option<u64>,
}

/// What a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Bytes that were never sent before.
    New,
    /// Bytes sent before under another mapping, mostly on another subflow.
    Copy,
    /// Bytes sent before on the same subflow under the same mapping.
    Retransmission,
}

/// The sender's state after an acknowledgement: a segment that arrived while payload was in flight
/// on its subflow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ack<'a> {
    /// When it arrived.
    pub at_ns: u64,
    /// The host at which it arrived, which is the sender of the payload.
    pub host: &'a str,
    /// The connection, as numbered there.
    pub conn: u64,
    /// The subflow.
    pub subflow: u32,
    /// Its local path.
    pub path: u8,
    /// Place in the subflow's sequence of the first byte that is not acknowledged.
    pub una: u64,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Slow-start threshold, bytes; `null` before it is set for the first time.
    pub ssthresh: Option<u64>,
    /// Smoothed round-trip time.
    pub srtt_ns: u64,
    /// Retransmission timeout, backoff included.
    pub rto_ns: u64,
    /// Payload bytes in flight: neither acknowledged nor deemed lost.
    pub in_flight: u64,
}

/// A link at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LinkSample {
    /// When.
    pub at_ns: u64,
    /// The link.
    pub link: u32,
    /// Packets in its queue, without the one on the line.
    pub queue_packets: u64,
    /// Bytes of these, with IP headers.
    pub queue_bytes: u64,
}

/// A connection at one of its ends at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConnSample<'a> {
    /// When.
    pub at_ns: u64,
    /// The host.
    pub host: &'a str,
    /// The connection, as numbered there.
    pub conn: u64,
    /// Bytes written and never sent.
    pub unsent: u64,
    /// Bytes sent and not acknowledged at the data level.
    pub outstanding: u64,
    /// Bytes of the peer's window not used yet.
    pub peer_window: u64,
    /// Bytes that may still come within the window announced to the peer.
    pub recv_window: u64,
    /// Bytes received behind a hole in the stream: out of order at the data level.
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
    /// Its local path.
    pub path: u8,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Payload bytes in flight.
    pub in_flight: u64,
    /// Bytes received behind a hole in the subflow's own sequence.
    pub out_of_order: u64,
}

/// An event of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EngineEvent<'a> {
    /// When.
    pub at_ns: u64,
    /// The host.
    pub host: &'a str,
    /// The connection, as numbered there.
    pub conn: u64,
    /// `accepted`, `connected`, `fell_back`, `subflow_established`, `subflow_closed` or `closed`.
    pub event: &'static str,
    /// The subflow, where it is about one.
    pub subflow: Option<u32>,
    /// Its local path.
    pub path: Option<u8>,
    /// The reason, where there is one, by its name in the engine.
    pub reason: Option<String>,
}
