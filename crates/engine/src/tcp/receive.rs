//! The receiving half of a subflow: the arrived ranges, and the content and time of acknowledgements (RFC
//! 9293, RFC 2018, RFC 2883, RFC 5681 section 4.2).

use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;

use arrayvec::ArrayVec;
use braid_wire::tcp::SackBlocks;
use braid_wire::{Instant, Seq32};

use super::arriving::ArrivalStats;
use super::scoreboard::Mapping;
use crate::DelayedAck;
use crate::buffer::{Pool, RangeSet, RecvBuffer};

/// The minimum time between answers to unacceptable segments, as in Linux (`tcp_invalid_ratelimit`).
const CHALLENGE_INTERVAL: Duration = Duration::from_millis(500);
/// The maximum number of mappings stored for bytes not received yet. The limit bounds the memory that a peer can
/// occupy. The value is a guess: the lost data of one window needs far fewer mappings.
const MAX_MAPPINGS: usize = 512;
/// The maximum number of stored mappings with checksums, a guess too. It is higher than [`MAX_MAPPINGS`] because
/// these mappings cannot be merged: each of them is verified on its own.
const MAX_CHECKED_MAPPINGS: usize = 4096;
/// The maximum number of disjoint ranges stored out of order. The limit bounds the memory that a peer occupies by
/// sending every second byte. The value is a guess.
const MAX_OUT_OF_ORDER_RANGES: usize = 4096;

/// The time at which the next acknowledgement is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AckDue {
    Never,
    At(Instant),
    Now,
}

/// The receiving half of a subflow.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// The peer's initial sequence number.
    pub irs: Seq32,
    /// The next offset expected.
    pub nxt: u64,
    pub due: AckDue,
    /// The offset that the last acknowledgement covered.
    pub ack_sent: u64,
    /// The highest end of the windows that were announced to the peer on this subflow.
    pub advertised_end: u64,
    /// The offset of the peer's FIN, once known.
    pub fin: Option<u64>,
    /// The timestamp to echo (RFC 7323 section 4.3).
    pub ts_recent: u32,
    /// The timestamp of a retransmission of data that has arrived already. Such a segment does not update
    /// `ts_recent`, so its timestamp is echoed once instead. Otherwise the peer would measure an outage as a round
    /// trip.
    pub echo_once: Option<u32>,
    /// The measurements of the direction from the peer to this end.
    pub arriving: ArrivalStats,
    /// The payload ranges received above `nxt`.
    out_of_order: RangeSet,
    /// The starts of the out-of-order ranges that changed last, newest first: SACK reports these first (RFC 2018
    /// section 4). An acknowledgement with timestamps has room for three blocks.
    recent: ArrayVec<u64, 3>,
    /// A range received twice that the peer does not know of yet (D-SACK).
    duplicate: Option<Range<u64>>,
    /// The mappings of bytes that are not delivered yet, in order and without overlaps.
    mappings: VecDeque<Mapping>,
    /// True once a mapping arrived that is not aligned with the stream.
    has_unaligned: bool,
    /// The payload, by subflow offset, that waits for the end of its mapping, if mappings have checksums.
    pub held: Option<RecvBuffer>,
    /// The payload bytes received since the last acknowledgement.
    unacked: u64,
    policy: DelayedAck,
    /// The number of further segments that are acknowledged at once, so that the peer's slow start grows fast.
    quick_acks: u32,
    /// The earliest time of the next answer to an unacceptable segment.
    next_challenge_at: Instant,
}

impl Receiver {
    pub fn new(irs: Seq32, policy: DelayedAck) -> Self {
        Receiver {
            irs,
            nxt: 1,
            ack_sent: 1,
            advertised_end: 1,
            due: AckDue::Never,
            fin: None,
            ts_recent: 0,
            echo_once: None,
            arriving: ArrivalStats::default(),
            out_of_order: RangeSet::default(),
            recent: ArrayVec::new(),
            duplicate: None,
            mappings: VecDeque::new(),
            has_unaligned: false,
            held: None,
            unacked: 0,
            policy,
            quick_acks: policy.quick,
            next_challenge_at: Instant::ZERO,
        }
    }

    /// Returns the sequence number expected next.
    pub fn expected(&self) -> Seq32 {
        self.irs.add(self.nxt as u32)
    }

    /// Returns the offset of a sequence number near the expected one.
    pub fn offset(&self, seq: Seq32) -> Option<u64> {
        seq.offset_near(self.irs, self.nxt)
    }

    /// Makes an acknowledgement due now.
    pub fn ack_now(&mut self) {
        self.due = AckDue::Now;
    }

    /// Makes a delayed acknowledgement due now, if there is one.
    pub fn delay_no_more(&mut self) {
        if matches!(self.due, AckDue::At(_)) {
            self.ack_now();
        }
    }

    /// Answers an unacceptable segment by an acknowledgement, at a limited rate. The limit is needed because the
    /// peer may find the answer unacceptable too: both ends would then answer each other without end (RFC 5961
    /// section 7).
    // Conforms: 5961-7-1
    pub fn challenge(&mut self, now: Instant) {
        if now >= self.next_challenge_at {
            self.next_challenge_at = now + CHALLENGE_INTERVAL;
            self.ack_now();
        }
    }

    /// Returns whether the data that the peer has sent may end at the offset `seq`. `seq` must be the next expected
    /// offset, or the end of the highest range received out of order.
    pub fn is_end(&self, seq: u64) -> bool {
        seq == self.nxt || self.out_of_order.max_end() == Some(seq)
    }

    /// Returns whether the peer's FIN has been processed.
    pub fn finished(&self) -> bool {
        self.fin.is_some_and(|fin| self.nxt > fin)
    }

    /// Returns the number of payload bytes received in order.
    pub fn bytes_received(&self) -> u64 {
        self.nxt - 1 - u64::from(self.finished())
    }

    /// Returns the number of payload bytes received out of order.
    pub fn out_of_order_bytes(&self) -> u64 {
        self.out_of_order.bytes()
    }

    /// Returns whether an acknowledgement needs SACK blocks.
    pub fn has_gaps(&self) -> bool {
        !self.out_of_order.is_empty() || self.duplicate.is_some()
    }

    /// Stores a mapping for bytes that may still arrive. Repeated mappings are normal, because segmentation
    /// offload copies the option to every segment. Consistent mappings are merged, so that mappings do not
    /// overlap. Returns `false` if the mapping gives a byte another place in the stream than an earlier one did
    /// (RFC 8684 section 3.3.1).
    // Conforms: 8684-3.3.1-2
    pub fn add_mapping(&mut self, map: Mapping) -> bool {
        if map.len == 0 || map.sub_end() <= self.nxt {
            return true;
        }
        self.has_unaligned |= !map.is_aligned();
        if self.checks() {
            return self.add_checked(map);
        }
        match self.mappings.back() {
            Some(last) if *last == map => return true,
            Some(last) if last.sub_end() > map.sub => {}
            _ => {
                self.mappings.push_back(map);
                self.bound_mappings();
                return true;
            }
        }
        let from = self.mappings.partition_point(|m| m.sub_end() <= map.sub);
        let to = self.mappings.partition_point(|m| m.sub < map.sub_end());
        let mut merged = map;
        for known in self.mappings.range(from..to) {
            if known.data.wrapping_sub(known.sub) != map.data.wrapping_sub(map.sub) {
                return false;
            }
            let end = merged.sub_end().max(known.sub_end());
            if known.sub < merged.sub {
                merged = *known;
            }
            match u32::try_from(end - merged.sub) {
                Ok(len) => merged.len = len,
                // Honest peers send no mappings that merge to 4 GiB or more. Ignore the new mapping.
                Err(_) => return true,
            }
        }
        if to > from {
            self.mappings[from] = merged;
            self.mappings.drain(from + 1..to);
        } else {
            self.mappings.insert(from, merged);
            self.bound_mappings();
        }
        true
    }

    /// Stores a mapping with a checksum, which cannot be merged with others. A stored mapping may arrive again
    /// with a DATA_FIN that it did not have before. Once the number of mappings has reached its limit, only the
    /// mapping of the next bytes is stored. Data without a stored mapping is not accepted, and the peer
    /// retransmits it with the mapping. Returns `false` if the mapping contradicts an earlier one.
    fn add_checked(&mut self, map: Mapping) -> bool {
        let from = self.mappings.partition_point(|m| m.sub_end() <= map.sub);
        let known = self.mappings.get_mut(from);
        let Some(known) = known.filter(|known| known.sub < map.sub_end()) else {
            if self.mappings.len() < MAX_CHECKED_MAPPINGS || map.sub <= self.placed() {
                self.mappings.insert(from, map);
            }
            return true;
        };
        let is_repeated = (known.data, known.sub, known.len) == (map.data, map.sub, map.len);
        if is_repeated {
            *known = map;
        }
        is_repeated
    }

    /// Frees the payload that waits for the end of its mapping, and stops verifying checksums.
    pub fn drop_held(&mut self, pool: &mut Pool) {
        if let Some(mut held) = self.held.take() {
            held.clear(pool);
            self.mappings.clear();
        }
    }

    /// Returns whether mappings have checksums, so that payload waits for the end of its mapping.
    pub fn checks(&self) -> bool {
        self.held.is_some()
    }

    /// Makes payload wait for the end of its mapping from now on. At most `limit` bytes wait.
    pub fn check_mappings(&mut self, limit: u64) {
        self.held = Some(RecvBuffer::new(self.nxt, limit));
    }

    /// Returns the mapping of the next waiting bytes if all payload of the mapping has arrived.
    pub fn whole_mapping(&self) -> Option<Mapping> {
        let held = self.held.as_ref()?;
        let map = self.mapping_at(held.next())?;
        (map.sub_end() <= held.rcv_nxt()).then_some(map)
    }

    /// Returns the offset up to which all payload was delivered to the stream of the connection.
    pub fn placed(&self) -> u64 {
        let nxt = self.nxt - u64::from(self.finished());
        self.held.as_ref().map_or(nxt, RecvBuffer::next)
    }

    /// Returns whether all received mappings are aligned with the stream.
    pub fn is_aligned(&self) -> bool {
        !self.has_unaligned
    }

    /// Drops the first `len` waiting bytes, which were delivered or are not needed.
    pub fn advance_held(&mut self, len: usize, pool: &mut Pool) {
        if let Some(held) = &mut self.held {
            held.consume(len, pool);
            self.drop_placed();
        }
    }

    /// Drops the mappings of data that was delivered.
    pub fn drop_placed(&mut self) {
        let placed = self.placed();
        let is_delivered = |m: &Mapping| m.sub_end() <= placed;
        while self.mappings.front().is_some_and(is_delivered) {
            self.mappings.pop_front();
        }
    }

    /// Limits the number of mappings. Mappings of data that has arrived are dropped first. If too many remain, the
    /// mappings with the highest offsets are dropped, because these mappings arrive again with their data. The
    /// mapping of the first missing bytes must be kept, or the subflow could not proceed.
    fn bound_mappings(&mut self) {
        if self.mappings.len() <= MAX_MAPPINGS {
            return;
        }
        let received = &self.out_of_order;
        self.mappings
            .retain(|m| !received.covered(&(m.sub..m.sub_end())));
        self.mappings.truncate(MAX_MAPPINGS);
    }

    /// Returns the mapping that covers the subflow offset `sub`.
    pub fn mapping_at(&self, sub: u64) -> Option<Mapping> {
        let at = self.mappings.partition_point(|m| m.sub <= sub);
        let map = *self.mappings.get(at.checked_sub(1)?)?;
        (sub < map.sub_end()).then_some(map)
    }

    /// Returns whether all of the payload range has arrived already.
    pub fn has(&self, range: &Range<u64>) -> bool {
        range.end <= self.nxt || self.out_of_order.covered(range)
    }

    /// Returns whether the payload range can be accepted: it does not go beyond the FIN, and the number of
    /// out-of-order ranges is below its limit.
    pub fn can_note(&self, range: &Range<u64>) -> bool {
        let is_before_fin = self.fin.is_none_or(|fin| range.end <= fin);
        is_before_fin
            && (range.start <= self.nxt || self.out_of_order.len() < MAX_OUT_OF_ORDER_RANGES)
    }

    /// Notes that payload `range` arrived a second time (D-SACK, RFC 2883).
    pub fn on_duplicate(&mut self, range: Range<u64>) {
        self.duplicate = Some(range);
        self.due = AckDue::Now;
    }

    /// Notes that payload `range` was stored, and decides when to acknowledge it. `mss` is the peer's segment
    /// size.
    // Conforms: 9293-3.8.6.3-1, 9293-3.8.6.3-2
    pub fn on_payload(&mut self, now: Instant, range: Range<u64>, mss: u64) {
        self.unacked += range.end - range.start;
        let newest = self.out_of_order.max_end().unwrap_or(0);
        let late = range.end <= newest;
        self.arriving.on_payload(now, range.end - range.start, late);
        if range.start > self.nxt {
            self.recent.retain(|s| *s != range.start);
            if self.recent.is_full() {
                self.recent.pop();
            }
            self.recent.insert(0, range.start);
            self.out_of_order.insert(range);
            self.due = AckDue::Now;
            return;
        }
        // A segment that fills a hole is acknowledged at once (RFC 5681 section 4.2).
        let fills_hole = !self.out_of_order.is_empty();
        self.nxt = self.nxt.max(range.end);
        if let Some(next) = self.out_of_order.range_containing(self.nxt) {
            self.nxt = next.end;
        }
        self.out_of_order.remove_below(self.nxt);
        self.drop_placed();
        if fills_hole || self.unacked >= u64::from(self.policy.every) * mss || self.quick_acks > 0 {
            self.quick_acks = self.quick_acks.saturating_sub(1);
            self.due = AckDue::Now;
        } else if self.due == AckDue::Never {
            self.due = AckDue::At(now + self.policy.timeout);
        }
    }

    /// Notes a FIN at offset `at`. A FIN below the end of the received data is stale or forged and is ignored,
    /// so that the real FIN can still be stored.
    pub fn on_fin(&mut self, at: u64) {
        if at >= self.out_of_order.max_end().unwrap_or(0).max(self.nxt) {
            self.fin.get_or_insert(at);
        }
        self.due = AckDue::Now;
    }

    /// Processes the FIN if all data before it has arrived. Returns whether the FIN was processed now.
    // Conforms: 9293-3.10.7.4-4
    pub fn take_fin(&mut self) -> bool {
        let is_next = self.fin == Some(self.nxt);
        if is_next {
            self.nxt += 1;
            self.due = AckDue::Now;
        }
        is_next
    }

    /// Returns at most `max` SACK blocks to report: D-SACK first, then the ranges that changed last, then the
    /// others.
    pub fn sack_blocks(&self, max: usize) -> SackBlocks {
        let mut blocks = SackBlocks::new();
        let wire = |r: &Range<u64>| (self.irs.add(r.start as u32), self.irs.add(r.end as u32));
        let max = max.min(blocks.capacity());
        if let Some(dup) = &self.duplicate
            && max > 0
        {
            blocks.push(wire(dup));
        }
        let newest = self
            .recent
            .iter()
            .filter_map(|s| self.out_of_order.range_containing(*s));
        for range in newest.chain(self.out_of_order.iter()) {
            let block = wire(&range);
            if blocks.len() >= max {
                break;
            }
            // The D-SACK block may equal a range that must be reported too.
            let is_repeated = blocks
                .iter()
                .skip(usize::from(self.duplicate.is_some()))
                .any(|b| *b == block);
            if !is_repeated {
                blocks.push(block);
            }
        }
        blocks
    }

    /// Notes that an acknowledgement was sent.
    pub fn on_ack_sent(&mut self) {
        self.due = AckDue::Never;
        self.echo_once = None;
        self.ack_sent = self.nxt;
        self.unacked = 0;
    }

    /// Notes that SACK blocks were sent.
    pub fn on_sack_sent(&mut self) {
        self.duplicate = None;
    }

    /// Asserts the invariants: out-of-order data lies above the data in order, and all lists are within their
    /// limits.
    pub fn invariants(&self) {
        debug_assert!(self.ack_sent <= self.nxt);
        let first = self.out_of_order.first();
        debug_assert!(first.is_none_or(|first| first.start > self.nxt));
        debug_assert!(self.out_of_order.len() <= MAX_OUT_OF_ORDER_RANGES);
        debug_assert!(self.fin.is_none_or(|fin| self.nxt <= fin + 1));
        // At the limit, the mapping of the next bytes is stored in addition.
        let max_mappings = match self.checks() {
            true => MAX_CHECKED_MAPPINGS + 1,
            false => MAX_MAPPINGS,
        };
        debug_assert!(self.mappings.len() <= max_mappings);
        let mut end = 0;
        for map in &self.mappings {
            debug_assert!(map.sub >= end && map.len > 0, "{map:?} after {end}");
            end = map.sub_end();
        }
    }
}
