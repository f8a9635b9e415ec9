//! The scoreboard of a subflow: a record for each transmission in flight, with its MPTCP mapping (RFC 6675,
//! RFC 8684 section 3.3).

use core::ops::Range;
use std::collections::VecDeque;

use braid_wire::Instant;

use super::rate::PacketState;

/// The most records of a scoreboard. Only acknowledgements split records; past the bound a partial SACK is
/// ignored, at the cost of a needless retransmission.
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
    /// Set if DATA_FIN follows the last byte.
    pub fin: bool,
    /// The checksum as carried, if checksums are in use (RFC 8684 section 3.3.1).
    pub checksum: Option<u16>,
}

impl Mapping {
    /// Returns the subflow sequence number as carried, on a subflow whose SYN carried `in_syn` bytes, which
    /// are not counted (RFC 8684 appendix B.2). A DATA_FIN without data maps no subflow byte (RFC 8684
    /// section 3.3.3).
    // Conforms: 8684-3.3.3-1, 8684-B.2-2
    pub fn wire_seq(&self, in_syn: u64) -> u32 {
        match self.len {
            0 => 0,
            _ => self.sub.wrapping_sub(in_syn) as u32,
        }
    }

    /// Returns the length as carried: DATA_FIN counts as one.
    // Conforms: 8684-3.3.3-1
    pub fn wire_len(&self) -> u16 {
        (self.len + u32::from(self.fin)) as u16
    }

    /// Returns whether the bytes have the place that they would have on a subflow that carries only the
    /// stream, in order.
    pub fn is_aligned(&self) -> bool {
        self.sub == self.data + 1
    }

    /// Returns the offset past the last byte in the subflow's stream.
    pub fn sub_end(&self) -> u64 {
        self.sub + u64::from(self.len)
    }
}

/// Bytes sent at once and not yet acknowledged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub start: u64,
    pub end: u64,
    /// The original mapping, possibly larger than this record: a retransmission repeats it.
    pub map: Mapping,
    pub sent_at: Instant,
    /// The rate estimator's state at the last transmission.
    pub packet: PacketState,
    pub retransmitted: bool,
    pub sacked: bool,
    /// Set if the record is deemed lost and was not retransmitted since.
    pub lost: bool,
    /// Set for the subflow's FIN, which carries no payload.
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

/// The news of an acknowledgement.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Delivered {
    /// The number of bytes newly delivered.
    pub bytes: u64,
    /// The most contiguous bytes among them within one record.
    pub largest: u64,
    /// The most recently sent of the delivered records (RFC 8985 section 6.2, step 2).
    pub newest: Option<Newest>,
    /// The send time of the most recently sent delivered record that was never retransmitted.
    pub rtt_from: Option<Instant>,
    /// Set if a record that was never retransmitted was delivered below the highest delivered one.
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

/// The records in order of sequence.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    records: VecDeque<Sent>,
    in_flight: u64,
    sacked: u64,
    lost: u64,
    /// The end of the highest delivered range.
    highest_delivered: u64,
    /// The ranges of the connection's stream that were newly delivered.
    arrived: Vec<Range<u64>>,
    /// The end of the connection's data sent here so far.
    data_end: u64,
    /// Set if data was sent that lies before data sent here earlier (a copy).
    disordered: bool,
    /// Set if data was sent that is not aligned with the stream.
    shuffled: bool,
}

impl Scoreboard {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the bytes in flight: sent, neither delivered nor deemed lost.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Returns the bytes delivered out of order.
    pub fn sacked(&self) -> u64 {
        self.sacked
    }

    /// Returns the bytes deemed lost that wait for retransmission.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Sent> {
        self.records.iter()
    }

    /// Returns whether all data ever sent is aligned with the stream.
    pub fn is_aligned(&self) -> bool {
        !self.shuffled
    }

    pub fn push(&mut self, sent: Sent) {
        self.in_flight += sent.len();
        let data = sent.data();
        self.disordered &= !self.records.is_empty();
        self.disordered |= data.start < self.data_end && !sent.fin;
        self.data_end = self.data_end.max(data.end);
        self.shuffled |= !sent.fin && !sent.map.is_aligned();
        self.records.push_back(sent);
    }

    fn note(&mut self, record: &Sent, out: &mut Delivered) {
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
        let newer = out
            .newest
            .is_none_or(|n| (record.sent_at, record.end) > (n.sent_at, n.end));
        if newer {
            out.newest = Some(Newest {
                sent_at: record.sent_at,
                packet: record.packet,
                end: record.end,
                retransmitted: record.retransmitted,
            });
        }
    }

    fn leave(&mut self, record: &Sent) {
        if record.sacked {
            self.sacked -= record.len();
        } else if record.lost {
            self.lost -= record.len();
        } else {
            self.in_flight -= record.len();
        }
    }

    /// Notes that everything below `una` arrived.
    pub fn ack_to(&mut self, una: u64, out: &mut Delivered) {
        while let Some(&front) = self.records.front() {
            if front.start >= una {
                break;
            }
            let mut acked = front;
            acked.end = front.end.min(una);
            self.leave(&acked);
            if !acked.sacked {
                self.note(&acked, out);
            }
            if front.end > una {
                self.records[0].start = una;
                break;
            }
            self.records.pop_front();
        }
        self.highest_delivered = self.highest_delivered.max(una);
    }

    /// Splits the record at `index` at `offset`, which lies inside it.
    fn split(&mut self, index: usize, offset: u64) {
        let mut tail = self.records[index];
        tail.start = offset;
        self.records[index].end = offset;
        self.records.insert(index + 1, tail);
    }

    /// Notes that `start..end` arrived out of order (one SACK block).
    pub fn sack(&mut self, start: u64, end: u64, out: &mut Delivered) {
        let mut i = self.records.partition_point(|r| r.end <= start);
        loop {
            // Most of a block was reported before.
            let sacked = self
                .records
                .range(i..)
                .take_while(|r| r.sacked && r.end <= end);
            i += sacked.count();
            let Some(record) = self.records.get(i).filter(|r| r.start < end) else {
                return;
            };
            let partial = record.start < start || record.end > end;
            let unsplittable = partial && (self.records.len() >= MAX_RECORDS || record.fin);
            if record.sacked || unsplittable {
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
            self.leave(&record);
            self.sacked += record.len();
            self.records[i].sacked = true;
            self.records[i].lost = false;
            self.note(&record, out);
            i += 1;
        }
    }

    /// Marks everything in flight as lost, and returns the bytes.
    pub fn mark_all_lost(&mut self) -> u64 {
        self.mark_lost((Instant::FAR_FUTURE, u64::MAX), |_| true)
    }

    /// Marks the first `max` bytes as lost if they are in flight, and returns their record.
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

    /// Marks every record in flight as lost that was sent before `newest`, a send time and the end of its
    /// record, and matches `is_lost`. Returns the bytes.
    pub fn mark_lost(
        &mut self,
        newest: (Instant, u64),
        mut is_lost: impl FnMut(&Sent) -> bool,
    ) -> u64 {
        let mut bytes = 0;
        for record in self.records.iter_mut().filter(|r| r.in_flight()) {
            let early = (record.sent_at, record.end) < newest;
            if !early && !record.retransmitted {
                // The records behind it were sent later still.
                break;
            }
            if early && is_lost(record) {
                record.lost = true;
                bytes += record.len();
            }
        }
        self.in_flight -= bytes;
        self.lost += bytes;
        bytes
    }

    /// Takes all SACK marks back if the first record has one: had the peer kept the reported data, it would
    /// have acknowledged it (RFC 2018 section 8).
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

    /// Takes the loss marks back, because the timeout was spurious.
    pub fn unmark_lost(&mut self) {
        for record in self.records.iter_mut().filter(|r| r.lost) {
            record.lost = false;
        }
        self.in_flight += self.lost;
        self.lost = 0;
    }

    /// Returns the first lost record, cut to at most `max` bytes and marked as sent again at `now`.
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

    /// Returns the last undelivered record, cut to its last `max` bytes and marked as sent again: a tail
    /// loss probe (RFC 8985 section 7.3).
    pub fn take_last(&mut self, now: Instant, packet: PacketState, max: u64) -> Option<Sent> {
        let mut i = self.records.iter().rposition(|r| !r.sacked)?;
        let record = self.records[i];
        if record.len() > max && max > 0 {
            self.split(i, record.end - max);
            i += 1;
        }
        Some(self.resend(i, now, packet))
    }

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

    /// Returns the ranges of the connection's stream below `una` that are in records.
    pub fn data_below(&self, una: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let data = self.records.iter().filter(|sent| !sent.fin).map(Sent::data);
        let ordered = !self.disordered;
        data.take_while(move |data| !ordered || data.start < una)
            .map(move |data| data.start..data.end.min(una))
            .filter(|data| !data.is_empty())
    }

    /// Returns the time at which the oldest undelivered bytes were last sent.
    pub fn oldest_sent(&self) -> Option<Instant> {
        self.records.front().map(|first| first.sent_at)
    }

    /// Asserts the invariants: the records are the bytes from `una` to `nxt`, without gaps, and the sums
    /// match them.
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
