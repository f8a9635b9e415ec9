//! The scoreboard of a subflow: a record for each transmission in flight, with its MPTCP mapping (RFC 6675,
//! RFC 8684 section 3.3).

use core::ops::Range;
use std::collections::VecDeque;

use braid_wire::Instant;

use super::rate::PacketState;

/// The number of records above which SACK blocks no longer split a record. Without a limit a peer could make the
/// scoreboard grow by acknowledging single bytes. An ignored block costs only a needless retransmission. The value
/// is a guess.
const MAX_RECORDS: usize = 16_384;

/// A mapping of subflow bytes to connection bytes, in offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// The first byte in the connection's stream.
    pub data: u64,
    /// The first byte in the subflow's stream.
    pub sub: u64,
    /// The number of payload bytes, DATA_FIN not counted.
    pub len: u32,
    /// True if DATA_FIN follows the last byte.
    pub fin: bool,
    /// The checksum as transmitted, if checksums are in use (RFC 8684 section 3.3.1).
    pub checksum: Option<u16>,
}

impl Mapping {
    /// Returns the subflow sequence number as transmitted. The `in_syn` bytes of payload that the SYN carried do
    /// not count (RFC 8684 appendix B.2). A DATA_FIN without data maps no subflow byte (RFC 8684 section 3.3.3).
    // Conforms: 8684-3.3.3-1, 8684-B.2-2
    pub fn wire_seq(&self, in_syn: u64) -> u32 {
        match self.len {
            0 => 0,
            _ => self.sub.wrapping_sub(in_syn) as u32,
        }
    }

    /// Returns the length as transmitted: DATA_FIN counts as one byte.
    // Conforms: 8684-3.3.3-1
    pub fn wire_len(&self) -> u16 {
        (self.len + u32::from(self.fin)) as u16
    }

    /// Returns whether the bytes have the same offsets on the subflow as in the stream of the connection. The
    /// subflow's offsets are higher by one, because the SYN has offset 0.
    pub fn is_aligned(&self) -> bool {
        self.sub == self.data + 1
    }

    /// Returns the offset past the last byte in the subflow's stream.
    pub fn sub_end(&self) -> u64 {
        self.sub + u64::from(self.len)
    }
}

/// A record: bytes that were sent together and are not cumulatively acknowledged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub start: u64,
    pub end: u64,
    /// The mapping as first sent. It may be larger than this record, because a record may be split.
    /// Retransmissions repeat the mapping unchanged.
    pub map: Mapping,
    pub sent_at: Instant,
    /// The rate estimator's state at the last transmission.
    pub packet: PacketState,
    pub retransmitted: bool,
    pub sacked: bool,
    /// True if the record is marked as lost and was not retransmitted since.
    pub lost: bool,
    /// True for the subflow's FIN, which carries no payload.
    pub fin: bool,
}

impl Sent {
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Returns the range of the connection's stream that this record carries.
    pub fn data(&self) -> Range<u64> {
        if self.fin {
            return 0..0;
        }
        let start = self.map.data + (self.start - self.map.sub);
        start..start + self.len()
    }

    fn in_flight(&self) -> bool {
        !self.sacked && !self.lost
    }
}

/// The deliveries that an acknowledgement reports for the first time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Delivered {
    /// The number of bytes newly delivered.
    pub bytes: u64,
    /// The length of the longest contiguous range of delivered bytes in one record.
    pub largest: u64,
    /// The delivered record that was sent last (RFC 8985 section 6.2, step 2).
    pub newest: Option<Newest>,
    /// The latest send time of the delivered records that were never retransmitted. Only these give a round trip
    /// (Karn's algorithm).
    pub rtt_from: Option<Instant>,
    /// True if a record that was never retransmitted was delivered after a record with higher offsets.
    pub reordered: bool,
}

/// A delivered record, for RACK and for the rate sample.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Newest {
    pub sent_at: Instant,
    pub packet: PacketState,
    pub end: u64,
    pub retransmitted: bool,
}

/// The records, sorted by their offsets.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    records: VecDeque<Sent>,
    /// The bytes in flight: sent, but neither delivered nor marked as lost.
    in_flight: u64,
    /// The bytes delivered out of order.
    sacked: u64,
    /// The bytes marked as lost that wait for retransmission.
    lost: u64,
    /// The end of the highest delivered range.
    highest_delivered: u64,
    /// The ranges of the connection's stream that were delivered since [`take_arrived`](Self::take_arrived).
    arrived: Vec<Range<u64>>,
    /// The highest offset in the connection's stream up to which data was sent on this subflow.
    data_end: u64,
    /// True if the order of the records may differ from the order of their data in the connection's stream,
    /// because a copy of earlier data was sent after later data.
    has_copies: bool,
    /// True if data was sent that is not aligned with the stream.
    has_unaligned: bool,
}

impl Scoreboard {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the number of bytes in flight: sent, but neither delivered nor marked as lost.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Returns the number of bytes delivered out of order.
    pub fn sacked(&self) -> u64 {
        self.sacked
    }

    /// Returns the number of bytes marked as lost that wait for retransmission.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Sent> {
        self.records.iter()
    }

    /// Returns whether all data ever sent is aligned with the stream.
    pub fn is_aligned(&self) -> bool {
        !self.has_unaligned
    }

    /// Appends the record of new data or of the FIN.
    pub fn push(&mut self, sent: Sent) {
        self.in_flight += sent.len();
        let data = sent.data();
        // In an empty scoreboard, no record is out of order.
        self.has_copies &= !self.records.is_empty();
        self.has_copies |= data.start < self.data_end && !sent.fin;
        self.data_end = self.data_end.max(data.end);
        self.has_unaligned |= !sent.fin && !sent.map.is_aligned();
        self.records.push_back(sent);
    }

    /// Adds a delivered record to `out`.
    fn note_delivered(&mut self, record: &Sent, out: &mut Delivered) {
        out.bytes += record.len();
        out.largest = out.largest.max(record.len());
        if !record.fin {
            self.arrived.push(record.data());
        }
        if !record.retransmitted {
            out.reordered |= record.end < self.highest_delivered;
            out.rtt_from = out.rtt_from.max(Some(record.sent_at));
        }
        self.highest_delivered = self.highest_delivered.max(record.end);
        let is_newest = out
            .newest
            .is_none_or(|n| (record.sent_at, record.end) > (n.sent_at, n.end));
        if is_newest {
            out.newest = Some(Newest {
                sent_at: record.sent_at,
                packet: record.packet,
                end: record.end,
                retransmitted: record.retransmitted,
            });
        }
    }

    /// Subtracts a record from the sum to which its state belongs.
    fn uncount(&mut self, record: &Sent) {
        if record.sacked {
            self.sacked -= record.len();
        } else if record.lost {
            self.lost -= record.len();
        } else {
            self.in_flight -= record.len();
        }
    }

    /// Removes the records below `una`, all of which arrived. Deliveries not reported before are added to `out`.
    pub fn ack_to(&mut self, una: u64, out: &mut Delivered) {
        while let Some(&front) = self.records.front() {
            if front.start >= una {
                break;
            }
            let mut acked = front;
            acked.end = front.end.min(una);
            self.uncount(&acked);
            if !acked.sacked {
                self.note_delivered(&acked, out);
            }
            if front.end > una {
                self.records[0].start = una;
                break;
            }
            self.records.pop_front();
        }
        self.highest_delivered = self.highest_delivered.max(una);
    }

    /// Splits the record with the given index into two at `offset`, which lies inside the record.
    fn split(&mut self, index: usize, offset: u64) {
        let mut tail = self.records[index];
        tail.start = offset;
        self.records[index].end = offset;
        self.records.insert(index + 1, tail);
    }

    /// Marks `start..end`, a SACK block, as delivered out of order. Deliveries not reported before are added to
    /// `out`.
    pub fn sack(&mut self, start: u64, end: u64, out: &mut Delivered) {
        let mut i = self.records.partition_point(|r| r.end <= start);
        loop {
            // Earlier acknowledgements have mostly reported the same block already. The records that they marked
            // are skipped.
            let sacked = self
                .records
                .range(i..)
                .take_while(|r| r.sacked && r.end <= end);
            i += sacked.count();
            let Some(record) = self.records.get(i).filter(|r| r.start < end) else {
                return;
            };
            let partial = record.start < start || record.end > end;
            // A FIN cannot be split.
            let is_unsplittable = partial && (self.records.len() >= MAX_RECORDS || record.fin);
            if record.sacked || is_unsplittable {
                i += 1;
                continue;
            }
            if record.start < start {
                self.split(i, start);
                i += 1;
                continue;
            }
            if record.end > end {
                self.split(i, end);
            }
            let record = self.records[i];
            self.uncount(&record);
            self.sacked += record.len();
            self.records[i].sacked = true;
            self.records[i].lost = false;
            self.note_delivered(&record, out);
            i += 1;
        }
    }

    /// Marks everything in flight as lost. Returns the number of bytes.
    pub fn mark_all_lost(&mut self) -> u64 {
        self.mark_lost((Instant::FAR_FUTURE, u64::MAX), |_| true)
    }

    /// Marks the first record, or its first `max` bytes, as lost if it is in flight. Returns the marked part.
    pub fn mark_first_lost(&mut self, max: u64) -> Option<Sent> {
        let first = *self.records.front().filter(|r| r.in_flight())?;
        if first.len() > max {
            self.split(0, first.start + max);
        }
        let first = &mut self.records[0];
        first.lost = true;
        self.in_flight -= first.len();
        self.lost += first.len();
        Some(*first)
    }

    /// Marks a record in flight as lost if it was sent before `newest` and `is_lost` returns true for it. `newest`
    /// is the send time and the end of a record; records with equal send times are ordered by their ends. Returns
    /// the number of bytes.
    pub fn mark_lost(
        &mut self,
        newest: (Instant, u64),
        mut is_lost: impl FnMut(&Sent) -> bool,
    ) -> u64 {
        let mut bytes = 0;
        for record in self.records.iter_mut().filter(|r| r.in_flight()) {
            let is_earlier = (record.sent_at, record.end) < newest;
            if !is_earlier && !record.retransmitted {
                // The following records were first sent even later, so none of them was sent before `newest`.
                break;
            }
            if is_earlier && is_lost(record) {
                record.lost = true;
                bytes += record.len();
            }
        }
        self.in_flight -= bytes;
        self.lost += bytes;
        bytes
    }

    /// Removes all SACK marks if the first record has one. A peer that still had the data of this record would
    /// have acknowledged the record cumulatively, so the peer has dropped data that it had reported (RFC 2018
    /// section 8).
    pub fn forget_false_sacks(&mut self) {
        if !self.records.front().is_some_and(|first| first.sacked) {
            return;
        }
        for record in &mut self.records {
            record.sacked = false;
        }
        self.in_flight += self.sacked;
        self.sacked = 0;
    }

    /// Removes all loss marks, because the recovery was spurious.
    pub fn unmark_lost(&mut self) {
        for record in self.records.iter_mut().filter(|r| r.lost) {
            record.lost = false;
        }
        self.in_flight += self.lost;
        self.lost = 0;
    }

    /// Returns the first lost record, or its first `max` bytes, and marks it as retransmitted at `now`.
    pub fn take_lost(&mut self, now: Instant, packet: PacketState, max: u64) -> Option<Sent> {
        if self.lost == 0 || max == 0 {
            return None;
        }
        let i = self.records.iter().position(|r| r.lost)?;
        let record = self.records[i];
        if record.len() > max {
            self.split(i, record.start + max);
        }
        Some(self.resend(i, now, packet))
    }

    /// Returns the last undelivered record, or its last `max` bytes, for use as a tail loss probe (RFC 8985
    /// section 7.3), and marks it as retransmitted.
    pub fn take_last(&mut self, now: Instant, packet: PacketState, max: u64) -> Option<Sent> {
        let mut i = self.records.iter().rposition(|r| !r.sacked)?;
        let record = self.records[i];
        if record.len() > max && max > 0 {
            self.split(i, record.end - max);
            i += 1;
        }
        Some(self.resend(i, now, packet))
    }

    /// Marks the record with index `i` as retransmitted at `now`, and returns it.
    fn resend(&mut self, i: usize, now: Instant, packet: PacketState) -> Sent {
        let record = &mut self.records[i];
        if record.lost {
            record.lost = false;
            self.lost -= record.end - record.start;
            self.in_flight += record.end - record.start;
        }
        record.sent_at = now;
        record.packet = packet;
        record.retransmitted = true;
        *record
    }

    /// Returns the ranges of the connection's stream that were delivered since the last call.
    pub fn take_arrived(&mut self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.arrived.drain(..)
    }

    /// Returns the ranges of the connection's stream below the connection's offset `una` that are in records.
    pub fn data_below(&self, una: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let data = self.records.iter().filter(|sent| !sent.fin).map(Sent::data);
        let is_ordered = !self.has_copies;
        data.take_while(move |data| !is_ordered || data.start < una)
            .map(move |data| data.start..data.end.min(una))
            .filter(|data| !data.is_empty())
    }

    /// Returns the time at which the first unacknowledged bytes were last sent.
    pub fn oldest_sent(&self) -> Option<Instant> {
        self.records.front().map(|first| first.sent_at)
    }

    /// Asserts the invariants: the records cover the bytes from `una` to `nxt` without gaps, and the sums match
    /// the records.
    pub fn invariants(&self, una: u64, nxt: u64) {
        let mut at = una;
        let (mut in_flight, mut sacked, mut lost) = (0, 0, 0);
        for record in &self.records {
            let (start, end, map) = (record.start, record.end, &record.map);
            debug_assert!(start == at && start < end, "{record:?} after {at}");
            debug_assert!(!(record.sacked && record.lost), "{record:?}");
            let mapped = record.fin || (map.sub <= start && end <= map.sub_end());
            debug_assert!(mapped, "{record:?}");
            match (record.sacked, record.lost) {
                (true, _) => sacked += record.len(),
                (false, true) => lost += record.len(),
                (false, false) => in_flight += record.len(),
            }
            at = end;
        }
        debug_assert!(self.records.is_empty() || at == nxt, "{at} of {nxt}");
        let sums = (self.in_flight, self.sacked, self.lost);
        debug_assert_eq!((in_flight, sacked, lost), sums);
        debug_assert!(self.highest_delivered <= nxt);
    }
}
