//! The scoreboard of the data level. It records which subflows carry each range that no DATA_ACK covers yet. It
//! also records whether a subflow's acknowledgement shows that the range has arrived, because a DATA_ACK does not
//! report what arrived behind a gap.

use core::ops::Range;
use std::collections::VecDeque;

use braid_wire::Instant;

use crate::SubflowId;
use crate::strategy::{Copies, InFlight};

/// The number of ranges at which acknowledgements stop dividing ranges, so that the peer cannot grow the list
/// without bound. If then only a part of a range arrives, its arrival goes unnoticed and costs a needless copy.
/// Sends still divide ranges: otherwise a range of which only a part was copied would look uncopied, and the
/// same part would be copied for ever. The value is a guess; a window of 8 MiB has 6,000 segments.
const MAX_RANGES: usize = 32_768;

/// The maximum number of subflows of a connection: a set of subflows is a `u32` with one bit for each.
pub(crate) const MAX_SUBFLOWS: usize = 32;

/// The bit of a subflow in a set of subflows: a number below 32 that no other current subflow of the
/// connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Slot(u8);

impl Slot {
    /// Returns the lowest slot that is not in `taken`, which has fewer than [`MAX_SUBFLOWS`] slots.
    pub fn free(taken: impl Iterator<Item = Slot>) -> Slot {
        let taken = taken.fold(0, |set, slot| set | slot.bit());
        debug_assert!(taken != u32::MAX, "more subflows than slots");
        Slot(u32::trailing_ones(taken).min(u32::BITS - 1) as u8)
    }

    fn bit(self) -> u32 {
        1 << self.0
    }
}

/// A range of consecutive bytes that were sent on the same subflows at the same times.
#[derive(Debug, Clone, Copy)]
struct SentRange {
    start: u64,
    end: u64,
    sent_at: Instant,
    /// The subflow that the range was last sent on.
    last_sender: SubflowId,
    /// The set of subflows that the range was ever sent on. Each of these subflows retransmits the range by
    /// itself, so the range is never copied to one of them.
    sent_on: u32,
    /// The subflows in `sent_on` that have not timed out or failed since the range was sent on them.
    carried_by: u32,
    /// Set once a subflow's acknowledgement shows that the peer has the range.
    arrived: bool,
}

impl SentRange {
    fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Returns whether the range has to be sent again, because no subflow carries it any more.
    fn is_lost(&self) -> bool {
        !self.arrived && self.carried_by == 0
    }

    fn as_in_flight(&self) -> InFlight {
        InFlight {
            start: self.start,
            end: self.end,
            last_sender: self.last_sender,
            sent_at: self.sent_at,
        }
    }
}

/// An offset in the stream. `range_number` is a hint: the number of the range that held the offset when the
/// cursor was set.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    offset: u64,
    range_number: u64,
}

/// The progress of a subflow's search for data to copy: nothing below a cursor can be copied to the subflow.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursors {
    lost: Cursor,
    single: Cursor,
    any: Cursor,
    /// The [`Scoreboard::epoch`] that the cursors belong to.
    epoch: u32,
}

/// The place of a subflow in the scoreboard.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place {
    pub slot: Slot,
    /// The progress of the subflow's search for data to copy.
    pub cursors: Cursors,
}

/// All data sent and not acknowledged at the data level, in stream order.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    ranges: VecDeque<SentRange>,
    /// The number of bytes that have not arrived and that no subflow carries any more.
    lost: u64,
    /// The number of bytes in `ranges` that are known to have arrived.
    arrived: u64,
    /// The number of bytes ever sent as copies.
    copied: u64,
    /// The cursor below which everything has arrived.
    first_outstanding: Cursor,
    /// The number of the first range; the following ranges have the following numbers. The division of a
    /// range shifts the numbers of later ones, so a cursor's hint may be wrong, which only costs a search.
    first: u64,
    /// The count of events after which ranges below the cursors may qualify again.
    epoch: u32,
}

impl Scoreboard {
    /// Returns the number of bytes to be sent again, because every subflow that carried them timed out or
    /// is gone.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the number of bytes ever sent as copies.
    pub fn copied(&self) -> u64 {
        self.copied
    }

    /// Returns whether there are sent bytes that are not known to have arrived.
    pub fn has_outstanding(&self) -> bool {
        match (self.ranges.front(), self.ranges.back()) {
            (Some(first), Some(last)) => last.end - first.start > self.arrived,
            _ => false,
        }
    }

    /// Notes that `range` is sent on subflow `id` at `slot`. The part of `range` that was sent before is a copy,
    /// and the rest is new; there is no gap between all sent data and the new part.
    pub fn on_sent(&mut self, now: Instant, range: Range<u64>, id: SubflowId, slot: Slot) {
        let sent_end = self.ranges.back().map_or(range.start, |last| last.end);
        let copied = range.start..range.end.min(sent_end);
        self.copied += copied.end.saturating_sub(copied.start);
        self.change(copied, true, |p| {
            p.last_sender = id;
            p.sent_at = now;
            p.sent_on |= slot.bit();
            p.carried_by |= slot.bit();
        });
        let start = range.start.max(sent_end);
        if start < range.end {
            self.ranges.push_back(SentRange {
                start,
                end: range.end,
                sent_at: now,
                last_sender: id,
                sent_on: slot.bit(),
                carried_by: slot.bit(),
                arrived: false,
            });
        }
    }

    /// Notes that the peer acknowledged `range` on a subflow.
    pub fn on_arrived(&mut self, range: Range<u64>) {
        let divide = self.ranges.len() < MAX_RANGES;
        self.change(range, divide, |p| p.arrived = true);
    }

    /// Notes that the subflow at `slot` timed out, lost its path, or was closed: it carries nothing any more.
    pub fn on_failed(&mut self, slot: Slot) {
        for sent in &mut self.ranges {
            let was_lost = sent.is_lost();
            sent.carried_by &= !slot.bit();
            if sent.is_lost() && !was_lost {
                self.lost += sent.len();
            }
        }
        self.epoch += 1;
    }

    /// Notes that the subflow at `slot` is gone, and frees the slot for another subflow.
    pub fn on_gone(&mut self, slot: Slot) {
        self.on_failed(slot);
        for sent in &mut self.ranges {
            sent.sent_on &= !slot.bit();
        }
    }

    /// Notes that the peer dropped `range` at the data level. All of it has to be sent again, also the parts
    /// that were acknowledged on a subflow.
    pub fn on_discarded(&mut self, range: Range<u64>) {
        self.first_outstanding = Cursor::default();
        self.change(range, true, |p| {
            p.sent_on = 0;
            p.carried_by = 0;
            p.arrived = false;
        });
        self.epoch += 1;
    }

    /// Notes that data sent on the subflow at `slot` arrived corrupted, from byte `from` on. That data has to be
    /// sent again, even if it was acknowledged on the subflow.
    pub fn on_corrupted(&mut self, from: u64, slot: Slot) {
        self.first_outstanding = Cursor::default();
        let corrupted = |p: &&mut SentRange| p.end > from && p.sent_on & slot.bit() != 0;
        for sent in self.ranges.iter_mut().filter(corrupted) {
            self.lost += if sent.is_lost() { 0 } else { sent.len() };
            self.arrived -= if sent.arrived { sent.len() } else { 0 };
            sent.sent_on = 0;
            sent.carried_by = 0;
            sent.arrived = false;
        }
        self.epoch += 1;
    }

    /// Removes everything below `una`, which is acknowledged at the data level.
    pub fn release_to(&mut self, una: u64) {
        while let Some(first) = self.ranges.front_mut() {
            if first.start >= una {
                break;
            }
            let gone = first.end.min(una) - first.start;
            if first.arrived {
                self.arrived -= gone;
            } else if first.carried_by == 0 {
                self.lost -= gone;
            }
            first.start += gone;
            if first.start < first.end {
                break;
            }
            self.ranges.pop_front();
            self.first += 1;
        }
    }

    /// Asserts the invariants: the ranges are contiguous and lie within `outstanding`, and the counts of
    /// bytes match the ranges.
    pub fn invariants(&self, outstanding: Range<u64>) {
        let mut at = self.ranges.front().map_or(outstanding.end, |p| p.start);
        debug_assert!(at >= outstanding.start, "{at} of {outstanding:?}");
        let (mut arrived, mut lost) = (0, 0);
        for sent in &self.ranges {
            debug_assert!(sent.start == at && sent.end > at, "{sent:?} at {at}");
            debug_assert!(sent.carried_by & !sent.sent_on == 0, "{sent:?}");
            at = sent.end;
            arrived += if sent.arrived { sent.len() } else { 0 };
            lost += if sent.is_lost() { sent.len() } else { 0 };
        }
        debug_assert!(at <= outstanding.end, "{at} of {outstanding:?}");
        debug_assert_eq!((arrived, lost), (self.arrived, self.lost));
    }

    /// Clears the scoreboard. The numbers of ranges and epochs continue, so that old cursors are recognised
    /// as stale.
    pub fn clear(&mut self) {
        *self = Scoreboard {
            first: self.first + self.ranges.len() as u64,
            epoch: self.epoch + 1,
            copied: self.copied,
            ..Scoreboard::default()
        };
    }

    /// Returns the data that the ready subflow at `slot` may carry as copies; `cursors` belong to this subflow.
    pub fn copies(&self, cursors: &mut Cursors, slot: Slot) -> Copies {
        if !self.has_outstanding() {
            return Copies::default();
        }
        if cursors.epoch != self.epoch {
            *cursors = Cursors {
                epoch: self.epoch,
                ..Cursors::default()
            };
        }
        // A set with one element is a power of two.
        let is_sent_once = |p: &SentRange| p.sent_on.is_power_of_two();
        let lost = (self.lost > 0).then(|| self.find(&mut cursors.lost, slot, SentRange::is_lost));
        let any = self.find(&mut cursors.any, slot, |_| true);
        // Usually the first range found was sent on one subflow only, which saves a second search.
        let single = match any {
            Some(sent) if !is_sent_once(sent) => self.find(&mut cursors.single, slot, is_sent_once),
            _ => {
                cursors.single = cursors.any;
                any
            }
        };
        Copies {
            lost: lost.flatten().map(SentRange::as_in_flight),
            single: single.map(SentRange::as_in_flight),
            any: any.map(SentRange::as_in_flight),
        }
    }

    /// Returns the oldest range that is not known to have arrived.
    pub fn oldest(&mut self) -> Option<InFlight> {
        let from = self.index_of(self.first_outstanding);
        let i = from + self.ranges.range(from..).position(|p| !p.arrived)?;
        self.first_outstanding = self.cursor_at(i);
        Some(self.ranges[i].as_in_flight())
    }

    /// Returns the index of the range that contains the cursor's offset, or else of the first range behind
    /// that offset.
    fn index_of(&self, cursor: Cursor) -> usize {
        let hint = cursor.range_number.saturating_sub(self.first) as usize;
        match self.ranges.get(hint) {
            Some(p) if p.start <= cursor.offset && cursor.offset < p.end => hint,
            _ => self.ranges.partition_point(|p| p.end <= cursor.offset),
        }
    }

    /// Returns the cursor at the start of range `i`.
    fn cursor_at(&self, i: usize) -> Cursor {
        Cursor {
            offset: self.ranges[i].start,
            range_number: self.first + i as u64,
        }
    }

    /// Returns the first range at or behind `cursor` that has not arrived, was never sent on `slot` and is
    /// `wanted`, and moves the cursor to this range. The ranges below the cursor cannot qualify before the next
    /// epoch, so no range is looked at twice.
    fn find(
        &self,
        cursor: &mut Cursor,
        slot: Slot,
        wanted: impl Fn(&SentRange) -> bool,
    ) -> Option<&SentRange> {
        let last = self.ranges.back().filter(|last| last.end > cursor.offset)?;
        let from = self.index_of(*cursor);
        let mut rest = self.ranges.range(from..);
        let found = rest.position(|p| !p.arrived && p.sent_on & slot.bit() == 0 && wanted(p));
        *cursor = match found {
            Some(n) => self.cursor_at(from + n),
            None => Cursor {
                offset: last.end,
                range_number: self.first + self.ranges.len() as u64,
            },
        };
        found.map(|n| &self.ranges[from + n])
    }

    /// Applies `f` to every range within `range`, and updates the counts of bytes. A range that lies across an
    /// end of `range` is divided if `divide` is set, and skipped otherwise.
    fn change(&mut self, range: Range<u64>, divide: bool, f: impl Fn(&mut SentRange)) {
        if range.start >= range.end {
            return;
        }
        // Most changes are to the oldest range, so no search is needed for it.
        let mut i = match self.ranges.front() {
            Some(first) if range.start < first.end => 0,
            _ => self.ranges.partition_point(|p| p.end <= range.start),
        };
        while let Some(&sent) = self.ranges.get(i) {
            if sent.start >= range.end {
                break;
            }
            let outside = sent.start < range.start || sent.end > range.end;
            if outside && !divide {
                i += 1;
                continue;
            }
            if sent.start < range.start {
                self.split(i, range.start);
                i += 1;
                continue;
            }
            if sent.end > range.end {
                self.split(i, range.end);
            }
            let sent = &mut self.ranges[i];
            let (arrived, lost) = (sent.arrived, sent.is_lost());
            f(sent);
            let sent = *sent;
            count(&mut self.arrived, sent.len(), arrived, sent.arrived);
            count(&mut self.lost, sent.len(), lost, sent.is_lost());
            i += 1;
        }
    }

    /// Divides range `i` at offset `at`.
    fn split(&mut self, i: usize, at: u64) {
        let mut tail = self.ranges[i];
        tail.start = at;
        self.ranges[i].end = at;
        self.ranges.insert(i + 1, tail);
    }
}

/// Updates the count `total`, to which `bytes` bytes belonged if `before` is set, and belong now if `after` is
/// set.
fn count(total: &mut u64, bytes: u64, before: bool, after: bool) {
    match (before, after) {
        (false, true) => *total += bytes,
        (true, false) => *total -= bytes,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: (SubflowId, Slot) = (SubflowId(0), Slot(0));
    const B: (SubflowId, Slot) = (SubflowId(1), Slot(1));

    fn board(sent: &[(Range<u64>, (SubflowId, Slot))]) -> Scoreboard {
        let mut board = Scoreboard::default();
        for (range, (id, slot)) in sent {
            board.on_sent(Instant::ZERO, range.clone(), *id, *slot);
        }
        board
    }

    fn span(data: Option<InFlight>) -> Option<(u64, u64)> {
        data.map(|d| (d.start, d.end))
    }

    #[test]
    fn slots_are_used_again() {
        assert_eq!(Slot::free([].into_iter()), Slot(0));
        assert_eq!(Slot::free([Slot(0), Slot(2)].into_iter()), Slot(1));
    }

    /// Two subflows search the same data, each with its own cursor, and skip data that has arrived.
    #[test]
    fn each_subflow_has_a_cursor_of_its_own() {
        let mut board = board(&[(0..10, A), (10..20, B), (20..30, A)]);
        let (mut a, mut b) = (Cursors::default(), Cursors::default());
        assert_eq!(span(board.copies(&mut a, A.1).any), Some((10, 20)));
        assert_eq!(span(board.copies(&mut b, B.1).any), Some((0, 10)));
        board.on_arrived(0..4);
        assert_eq!(span(board.copies(&mut b, B.1).any), Some((4, 10)));
        assert_eq!(span(board.oldest()), Some((4, 10)));
        board.on_sent(Instant::ZERO, 4..8, B.0, B.1);
        assert_eq!(span(board.copies(&mut b, B.1).any), Some((8, 10)));
        board.on_arrived(8..10);
        assert_eq!(span(board.copies(&mut b, B.1).any), Some((20, 30)));
        board.on_sent(Instant::ZERO, 20..30, B.0, B.1);
        assert_eq!(board.copies(&mut b, B.1), Copies::default());
        // Data sent later is found from the cursor on.
        board.on_sent(Instant::ZERO, 30..40, A.0, A.1);
        assert_eq!(span(board.copies(&mut b, B.1).single), Some((30, 40)));
    }

    #[test]
    fn a_range_sent_twice_is_not_single() {
        let mut board = board(&[(0..10, A), (10..20, A), (0..10, B)]);
        let mut third = Cursors::default();
        let copies = board.copies(&mut third, Slot(2));
        assert_eq!(
            (span(copies.single), span(copies.any)),
            (Some((10, 20)), Some((0, 10)))
        );
        assert_eq!(copies.any.map(|d| d.last_sender), Some(B.0));
        board.on_arrived(0..20);
        assert!(!board.has_outstanding());
    }

    /// The failure of one subflow loses no data that another subflow carries or has delivered.
    #[test]
    fn a_range_is_lost_if_no_subflow_carries_it() {
        let mut board = board(&[(0..10, A), (10..20, A), (20..30, A), (10..20, B)]);
        board.on_arrived(0..5);
        board.on_failed(A.1);
        // The ranges 5..10 and 20..30 are lost: B carries 10..20, and 0..5 has arrived.
        assert_eq!(board.lost(), 15);
        let mut b = Cursors::default();
        assert_eq!(span(board.copies(&mut b, B.1).lost), Some((5, 10)));
        board.on_sent(Instant::ZERO, 5..10, B.0, B.1);
        assert_eq!(span(board.copies(&mut b, B.1).lost), Some((20, 30)));
        // Another timeout of A does not affect 5..20, which B carries; 20..30 is still lost.
        board.on_failed(A.1);
        assert_eq!(board.lost(), 10);
        board.on_arrived(20..30);
        assert_eq!(board.lost(), 0);
        // Once B is gone too, 5..20 is lost, of which 5..12 is then acknowledged.
        board.on_gone(B.1);
        assert_eq!(board.lost(), 15);
        board.release_to(12);
        assert_eq!(board.lost(), 8);
        let mut next = Cursors::default();
        assert_eq!(span(board.copies(&mut next, B.1).lost), Some((12, 20)));
    }

    /// Beyond the maximum number of ranges, sends still divide ranges, so copied data is not copied again.
    #[test]
    fn a_copy_is_noticed_past_the_bound() {
        let sent: Vec<_> = (0..MAX_RANGES as u64)
            .map(|n| (10 * n..10 * n + 10, A))
            .collect();
        let mut board = board(&sent);
        let mut b = Cursors::default();
        board.on_sent(Instant::ZERO, 0..4, B.0, B.1);
        assert_eq!(span(board.copies(&mut b, B.1).any), Some((4, 10)));
        // An acknowledgement no longer divides the range, so only an acknowledgement of all of it counts.
        board.on_arrived(4..6);
        assert_eq!(span(board.copies(&mut b, B.1).any), Some((4, 10)));
        board.on_arrived(4..10);
        assert_eq!(span(board.copies(&mut b, B.1).any), Some((10, 20)));
        board.invariants(0..10 * MAX_RANGES as u64);
    }

    #[test]
    fn a_discarded_range_may_be_sent_again_on_any_subflow() {
        let mut board = board(&[(0..10, A), (10..20, A)]);
        let mut a = Cursors::default();
        board.on_arrived(0..20);
        assert_eq!(board.oldest(), None);
        assert_eq!(board.copies(&mut a, A.1), Copies::default());
        board.on_discarded(0..5);
        assert_eq!(board.lost(), 5);
        assert_eq!(span(board.copies(&mut a, A.1).lost), Some((0, 5)));
        board.on_sent(Instant::ZERO, 0..5, A.0, A.1);
        assert_eq!((board.lost(), board.has_outstanding()), (0, true));
        assert_eq!(span(board.oldest()), Some((0, 5)));
        board.release_to(20);
        assert!(!board.has_outstanding());
    }
}
