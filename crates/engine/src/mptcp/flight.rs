//! What is in flight at the data level: which subflows carry it, and what of it is known to have
//! arrived although DATA_ACK, which tells of no gaps, does not say so yet.

use core::ops::Range;
use std::collections::VecDeque;

use braid_wire::Instant;

use crate::SubflowId;
use crate::strategy::{Copies, InFlight};

/// Most pieces. Past the bound none is divided: an arrival or a copy of a part goes unnoticed,
/// which costs a needless copy and nothing else.
const MAX_PIECES: usize = 32_768;

/// Most subflows that a connection can tell apart.
pub(crate) const MAX_SUBFLOWS: usize = 32;

/// A subflow in the sets of carriers: a number below 32 that no other living one has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Slot(u8);

impl Slot {
    /// The lowest slot that is not among `taken`, which are fewer than [`MAX_SUBFLOWS`].
    pub fn free(taken: impl Iterator<Item = Slot>) -> Slot {
        let taken = taken.fold(0, |set, slot| set | slot.bit());
        debug_assert!(taken != u32::MAX, "more subflows than slots");
        Slot(u32::trailing_ones(taken).min(u32::BITS - 1) as u8)
    }

    fn bit(self) -> u32 {
        1 << self.0
    }
}

/// Bytes with one history.
#[derive(Debug, Clone, Copy)]
struct Piece {
    start: u64,
    end: u64,
    sent_at: Instant,
    /// The subflow that it was sent on last.
    carrier: SubflowId,
    /// Subflows it was ever sent on: they repeat it by themselves.
    sent_on: u32,
    /// Of these, those that did not time out since.
    carried_by: u32,
    arrived: bool,
}

impl Piece {
    fn len(&self) -> u64 {
        self.end - self.start
    }

    fn is_lost(&self) -> bool {
        !self.arrived && self.carried_by == 0
    }

    fn shown(&self) -> InFlight {
        InFlight {
            start: self.start,
            end: self.end,
            carrier: self.carrier,
            sent_at: self.sent_at,
        }
    }
}

/// How far a subflow has looked for something to copy: nothing below is of any use to it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursors {
    lost: u64,
    single: u64,
    any: u64,
    /// The [`Flight::epoch`] they belong to.
    epoch: u32,
}

/// Everything sent and not acknowledged at the data level, in order of the stream.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    pieces: VecDeque<Piece>,
    /// Bytes that no subflow carries any more.
    lost: u64,
    /// Bytes that are known to have arrived.
    arrived: u64,
    /// Everything below has arrived.
    open_from: u64,
    /// Counts what makes old pieces worth looking at again.
    epoch: u32,
}

impl Flight {
    /// Bytes to be sent again: every subflow that carried them timed out or is gone.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether anything is not known to have arrived.
    pub fn is_open(&self) -> bool {
        match (self.pieces.front(), self.pieces.back()) {
            (Some(first), Some(last)) => last.end - first.start > self.arrived,
            _ => false,
        }
    }

    /// `range` leaves on the subflow `id` at `slot`. It begins at or below the end of what was
    /// sent before.
    pub fn on_sent(&mut self, now: Instant, range: Range<u64>, id: SubflowId, slot: Slot) {
        let known = self.pieces.back().map_or(range.start, |last| last.end);
        let copied = range.start..range.end.min(known);
        self.change(copied, |p| {
            p.carrier = id;
            p.sent_at = now;
            p.sent_on |= slot.bit();
            p.carried_by |= slot.bit();
        });
        let start = range.start.max(known);
        if start < range.end {
            self.pieces.push_back(Piece {
                start,
                end: range.end,
                sent_at: now,
                carrier: id,
                sent_on: slot.bit(),
                carried_by: slot.bit(),
                arrived: false,
            });
        }
    }

    /// A subflow acknowledged `range`.
    pub fn on_arrived(&mut self, range: Range<u64>) {
        self.change(range, |p| p.arrived = true);
    }

    /// The subflow at `slot` timed out, its path went down, or it was closed.
    pub fn on_failed(&mut self, slot: Slot) {
        for piece in &mut self.pieces {
            let was_lost = piece.is_lost();
            piece.carried_by &= !slot.bit();
            if piece.is_lost() && !was_lost {
                self.lost += piece.len();
            }
        }
        self.epoch += 1;
    }

    /// The subflow at `slot` is gone; another one may get its slot.
    pub fn on_gone(&mut self, slot: Slot) {
        self.on_failed(slot);
        for piece in &mut self.pieces {
            piece.sent_on &= !slot.bit();
        }
    }

    /// What of `range` arrived was dropped above the subflows: all of it has to be sent again.
    pub fn on_discarded(&mut self, range: Range<u64>) {
        self.open_from = self.open_from.min(range.start);
        self.change(range, |p| {
            p.sent_on = 0;
            p.carried_by = 0;
            p.arrived = false;
        });
        self.epoch += 1;
    }

    /// Everything below `una` is acknowledged at the data level.
    pub fn release_to(&mut self, una: u64) {
        while let Some(first) = self.pieces.front_mut() {
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
            self.pieces.pop_front();
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Flight::default();
    }

    /// What a subflow that is ready may carry beside others; `cursors` are its own.
    pub fn copies(&self, cursors: &mut Cursors, slot: Slot) -> Copies {
        if !self.is_open() {
            return Copies::default();
        }
        if cursors.epoch != self.epoch {
            *cursors = Cursors {
                epoch: self.epoch,
                ..Cursors::default()
            };
        }
        let once = |p: &Piece| p.sent_on.count_ones() == 1;
        let lost = (self.lost > 0).then(|| self.find(&mut cursors.lost, slot, Piece::is_lost));
        Copies {
            lost: lost.flatten(),
            single: self.find(&mut cursors.single, slot, once),
            any: self.find(&mut cursors.any, slot, |_| true),
        }
    }

    /// The oldest bytes that are not known to have arrived.
    pub fn oldest(&mut self) -> Option<InFlight> {
        let from = self.pieces.partition_point(|p| p.end <= self.open_from);
        let found = self.pieces.range(from..).find(|p| !p.arrived)?;
        self.open_from = found.start;
        Some(found.shown())
    }

    /// The first piece from `cursor` on that has not arrived, was never sent on `slot` and is
    /// `wanted`; moves the cursor there. What is passed over never qualifies again in this epoch.
    fn find(
        &self,
        cursor: &mut u64,
        slot: Slot,
        wanted: impl Fn(&Piece) -> bool,
    ) -> Option<InFlight> {
        if self.pieces.back().is_none_or(|last| last.end <= *cursor) {
            return None;
        }
        let first = self.pieces.partition_point(|p| p.end <= *cursor);
        let mut open = self.pieces.range(first..);
        let found = open.find(|p| !p.arrived && p.sent_on & slot.bit() == 0 && wanted(p));
        *cursor = match (found, self.pieces.back()) {
            (Some(piece), _) => piece.start,
            (None, Some(last)) => last.end,
            (None, None) => *cursor,
        };
        found.map(Piece::shown)
    }

    /// Does `f` to every piece of `range`, dividing those at its ends, and keeps the counts.
    fn change(&mut self, range: Range<u64>, f: impl Fn(&mut Piece)) {
        if range.start >= range.end {
            return;
        }
        let mut i = self.pieces.partition_point(|p| p.end <= range.start);
        while let Some(&piece) = self.pieces.get(i) {
            if piece.start >= range.end {
                break;
            }
            let outside = piece.start < range.start || piece.end > range.end;
            if outside && self.pieces.len() >= MAX_PIECES {
                i += 1;
                continue;
            }
            if piece.start < range.start {
                self.divide(i, range.start);
                i += 1;
                continue;
            }
            if piece.end > range.end {
                self.divide(i, range.end);
            }
            let piece = &mut self.pieces[i];
            let (arrived, lost) = (piece.arrived, piece.is_lost());
            f(piece);
            let piece = *piece;
            count(&mut self.arrived, piece.len(), arrived, piece.arrived);
            count(&mut self.lost, piece.len(), lost, piece.is_lost());
            i += 1;
        }
    }

    fn divide(&mut self, i: usize, at: u64) {
        let mut tail = self.pieces[i];
        tail.start = at;
        self.pieces[i].end = at;
        self.pieces.insert(i + 1, tail);
    }
}

fn count(total: &mut u64, bytes: u64, before: bool, after: bool) {
    match (before, after) {
        (false, true) => *total += bytes,
        (true, false) => *total -= bytes,
        _ => {}
    }
}
