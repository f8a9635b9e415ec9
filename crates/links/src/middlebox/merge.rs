//! Middleboxes that merge segments.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::Instant;
use braid_wire::tcp::Flags;

use super::segment::Segment;
use super::split::finish;
use super::{Direction, Middlebox, Output, Packet};

/// The segment whose header the merged segment gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The first segment.
    First,
    /// The last segment.
    Last,
}

/// Maximum number of flows of which a segment is held back. The limit bounds memory. 1024 is a guess: tests have
/// fewer flows.
const MAX_FLOWS: usize = 1024;
/// Maximum number of payload bytes in an IP packet with the longest headers: 60 bytes each for IPv4 and TCP.
const MAX_PAYLOAD: usize = 65_535 - 60 - 60;

/// A middlebox that merges adjacent segments, like a network card with GRO. Unlike GRO it also merges segments
/// with different options. Only the options of one segment remain.
#[derive(Debug)]
pub struct Merge {
    max_payload: usize,
    hold: Duration,
    keep: Keep,
    /// The segment of each flow that waits for its successor.
    held: BTreeMap<Flow, HeldSegment>,
    merged: u64,
}

/// One direction of a connection: direction, source and destination.
type Flow = (Direction, SocketAddr, SocketAddr);

#[derive(Debug)]
struct HeldSegment {
    packet: Packet,
    segment: Segment,
    /// The time at which the segment leaves if no successor comes.
    until: Instant,
}

impl Merge {
    /// Creates a middlebox that merges segments. A merged segment has at most `max_payload` bytes of payload, and
    /// no more than an IP packet can hold. The middlebox holds a segment back for up to `hold` to wait for the
    /// next one.
    pub fn new(max_payload: usize, hold: Duration, keep: Keep) -> Self {
        Merge {
            max_payload: max_payload.min(MAX_PAYLOAD),
            hold,
            keep,
            held: BTreeMap::new(),
            merged: 0,
        }
    }

    /// Returns the number of segments that were appended to an earlier one so far.
    pub fn merged(&self) -> u64 {
        self.merged
    }

    /// Returns whether `segment` follows `held` directly and may be merged with it. Segments with different ECN
    /// bits are not merged, because a mark concerns its own packet only (RFC 3168 section 5.3).
    fn may_merge(&self, held: &HeldSegment, segment: &Segment) -> bool {
        held.segment.end() == segment.seq
            && held.segment.class == segment.class
            && held.segment.payload_len + segment.payload_len <= self.max_payload
    }

    /// Appends the payload of `segment` to `held`.
    fn merge(&mut self, held: &mut HeldSegment, packet: &Packet, segment: &Segment) {
        self.merged += 1;
        let (first, last) = (held.segment, *segment);
        let (fields, header) = match self.keep {
            Keep::First => (first, &held.packet.bytes[..first.header_end()]),
            Keep::Last => (last, &packet.bytes[..last.header_end()]),
        };
        let payloads = [
            &held.packet.bytes[first.header_end()..],
            &packet.bytes[last.header_end()..],
        ];
        let bytes = [header, payloads[0], payloads[1]].concat();
        let segment = Segment {
            seq: first.seq,
            flags: first.flags | last.flags,
            payload_len: payloads[0].len() + payloads[1].len(),
            ..fields
        };
        held.packet.bytes = bytes;
        finish(&mut held.packet.bytes, &segment, segment.seq, segment.flags);
        held.segment = segment;
    }
}

impl Middlebox for Merge {
    fn process(
        &mut self,
        now: Instant,
        direction: Direction,
        mut packet: Packet,
        out: &mut Output,
    ) {
        let Some(segment) = Segment::find(&mut packet.bytes) else {
            out.push_back((direction, packet));
            return;
        };
        let flow = (direction, segment.src, segment.dst);
        let mergeable = segment.is_plain_data() && segment.is_intact(&packet.bytes);
        let held = self.held.remove(&flow);
        let next = match held {
            Some(mut held) if mergeable && self.may_merge(&held, &segment) => {
                self.merge(&mut held, &packet, &segment);
                held
            }
            other => {
                out.extend(other.map(|held| (direction, held.packet)));
                HeldSegment {
                    packet,
                    segment,
                    until: now + self.hold,
                }
            }
        };
        // A segment with PSH or FIN is not held back, because no successor is expected soon. If the table is full, no
        // segment is held back.
        let ends_burst = next.segment.flags.intersects(Flags::PSH | Flags::FIN);
        if !mergeable || ends_burst || self.held.len() >= MAX_FLOWS {
            out.push_back((direction, next.packet));
        } else {
            self.held.insert(flow, next);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.held.values().map(|held| held.until).min()
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Output) {
        self.held.retain(|(direction, ..), held| {
            let is_due = held.until <= now;
            if is_due {
                out.push_back((*direction, core::mem::take(&mut held.packet)));
            }
            !is_due
        });
    }
}
