//! Middleboxes that join segments.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::Instant;
use braid_wire::tcp::Flags;

use super::segment::Segment;
use super::split::finish;
use super::{Direction, Middlebox, Output, Packet};

/// The segment whose header a joined segment gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The first segment.
    First,
    /// The last segment.
    Last,
}

/// Most flows that have a segment held.
const MAX_FLOWS: usize = 1024;
/// Most bytes of payload in an IP packet with the longest headers: 60 bytes each of IPv4 and TCP.
const MAX_PAYLOAD: usize = 65_535 - 60 - 60;

/// A box that joins adjacent segments, like a network card with GRO, but whatever their options: the
/// options of one segment stay, those of the others are lost.
#[derive(Debug)]
pub struct Merge {
    most: usize,
    hold: Duration,
    keep: Keep,
    held: BTreeMap<Flow, HeldSegment>,
    merged: u64,
}

/// One direction of a connection.
type Flow = (Direction, SocketAddr, SocketAddr);

#[derive(Debug)]
struct HeldSegment {
    packet: Packet,
    segment: Segment,
    until: Instant,
}

impl Merge {
    /// Makes a box that joins up to `most` bytes of payload (at most those of an IP packet) and holds a
    /// segment for up to `hold` to see whether the next one follows.
    pub fn new(most: usize, hold: Duration, keep: Keep) -> Self {
        Merge {
            most: most.min(MAX_PAYLOAD),
            hold,
            keep,
            held: BTreeMap::new(),
            merged: 0,
        }
    }

    /// Returns the number of segments joined to an earlier one so far.
    pub fn merged(&self) -> u64 {
        self.merged
    }

    /// Returns whether `segment` continues `held` and both may become one. Segments with different ECN
    /// bits stay apart: a mark is about its packet alone (RFC 3168 section 5.3).
    fn joins(&self, held: &HeldSegment, segment: &Segment) -> bool {
        held.segment.end() == segment.seq
            && held.segment.class == segment.class
            && held.segment.payload_len + segment.payload_len <= self.most
    }

    fn join(&mut self, held: &mut HeldSegment, packet: &Packet, segment: &Segment) {
        self.merged += 1;
        let (first, last) = (held.segment, *segment);
        let header = match self.keep {
            Keep::First => (first, &held.packet.bytes[..first.header_end()]),
            Keep::Last => (last, &packet.bytes[..last.header_end()]),
        };
        let payloads = [
            &held.packet.bytes[first.header_end()..],
            &packet.bytes[last.header_end()..],
        ];
        let bytes = [header.1, payloads[0], payloads[1]].concat();
        let segment = Segment {
            seq: first.seq,
            flags: first.flags | last.flags,
            payload_len: payloads[0].len() + payloads[1].len(),
            ..header.0
        };
        held.packet.bytes = bytes;
        finish(&mut held.packet.bytes, &segment, segment.seq, segment.flags);
        held.segment = segment;
    }

    fn release(&mut self, flow: Flow, out: &mut Output) {
        if let Some(held) = self.held.remove(&flow) {
            out.push_back((flow.0, held.packet));
        }
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
            Some(mut held) if mergeable && self.joins(&held, &segment) => {
                self.join(&mut held, &packet, &segment);
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
        // A push or the end of the stream has no successor to wait for.
        // With a full table, segments of further flows pass unmerged.
        let ends = next.segment.flags.intersects(Flags::PSH | Flags::FIN);
        if !mergeable || ends || self.held.len() >= MAX_FLOWS {
            out.push_back((direction, next.packet));
        } else {
            self.held.insert(flow, next);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.held.values().map(|held| held.until).min()
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Output) {
        let due = self.held.iter().filter(|(_, held)| held.until <= now);
        let due: Vec<Flow> = due.map(|(flow, _)| *flow).collect();
        for flow in due {
            self.release(flow, out);
        }
    }
}
