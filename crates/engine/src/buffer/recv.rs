//! Reassembly: received data goes to its place in the stream, in whatever order it comes. Large blocks stay
//! in the block that they were read into; others are copied, once.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::ops::Range;

use arrayvec::ArrayVec;

use super::packet::Data;
use super::pool::{BLOCK_SIZE, Block, Pool};
use super::ranges::RangeSet;

/// The most slices of [`RecvBuffer::slices`]: at least 64 KiB, mostly more than 256 KiB.
pub const READ_SLICES: usize = 16;

/// The most disjoint ranges kept out of order. Otherwise a peer that sends every second byte could make the
/// bookkeeping larger than the data.
pub const MAX_HOLES: usize = 4096;

/// The capacity above which block lists are freed when the buffer becomes empty.
const MAX_KEPT_CAPACITY: usize = 32;

const BLOCK_BYTES: u64 = BLOCK_SIZE as u64;

/// The least bytes for which a block is taken; fewer are copied. So taken blocks have a distance, few other
/// blocks lie between them, and [`READ_SLICES`] slices reach at least 64 KiB.
const MIN_TAKEN_BYTES: u64 = BLOCK_BYTES / 2;

/// The result of [`RecvBuffer::insert`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inserted {
    /// The bytes that were not there before, duplicates and refused ones excluded.
    pub new_bytes: u64,
    /// Set if [`RecvBuffer::rcv_nxt`] moved, so that there is more to read.
    pub in_order_advanced: bool,
    /// The bytes at the end of the data that lie past the limit and were not stored.
    pub refused: usize,
}

/// The reason for which [`RecvBuffer::insert`] stored nothing. The peer has to send the data again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InsertError {
    /// The pool is exhausted.
    PoolExhausted,
    /// [`MAX_HOLES`] is reached and the data would open another one.
    TooFragmented,
}

impl fmt::Display for InsertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InsertError::PoolExhausted => "no memory left for received data",
            InsertError::TooFragmented => "too many holes in received data",
        })
    }
}

impl std::error::Error for InsertError {}

/// A block, and the part of the stream that it holds; neighbours do not overlap.
#[derive(Debug)]
struct Place {
    start: u64,
    end: u64,
    /// The position of `start` in the block.
    at: usize,
    block: Block,
}

impl Place {
    /// Returns the position in the block of the byte at `offset`.
    fn index(&self, offset: u64) -> usize {
        self.at + (offset - self.start) as usize
    }
}

/// Received bytes of a stream, from the first one not read yet, addressed by stream offset.
///
/// Blocks exist only where there is data. Data copied behind a hole costs its length rounded up to blocks:
/// these begin at multiples of [`BLOCK_SIZE`] from the offset at which the buffer was empty, so that the
/// order of arrival does not matter. A block that was read into is taken as it is if that wastes at most as
/// much memory as it brings bytes. An empty buffer holds no block.
#[derive(Debug)]
pub struct RecvBuffer {
    places: VecDeque<Place>,
    base: u64,
    read: u64,
    rcv_nxt: u64,
    /// The ranges received past `rcv_nxt`; none touches it.
    out_of_order: RangeSet,
    limit: u64,
}

impl RecvBuffer {
    /// Creates an empty buffer that expects the byte at `offset` next and holds at most `limit` bytes.
    pub const fn new(offset: u64, limit: u64) -> Self {
        RecvBuffer {
            places: VecDeque::new(),
            base: offset,
            read: offset,
            rcv_nxt: offset,
            out_of_order: RangeSet::new(),
            limit,
        }
    }

    /// Returns the offset of the next byte to be read.
    pub fn next(&self) -> u64 {
        self.read
    }

    /// Returns the offset of the first byte not received.
    pub fn rcv_nxt(&self) -> u64 {
        self.rcv_nxt
    }

    /// Returns the offset past the last one that can be stored.
    pub fn max_offset(&self) -> u64 {
        self.read.saturating_add(self.limit)
    }

    /// Sets the number of bytes accepted past the read offset. Stored bytes stay.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Returns the number of in-order bytes that wait to be read.
    pub fn readable(&self) -> usize {
        (self.rcv_nxt - self.read) as usize
    }

    /// Returns the number of bytes that wait behind a hole.
    pub fn out_of_order_bytes(&self) -> u64 {
        self.out_of_order.bytes()
    }

    /// Returns the ranges received past [`rcv_nxt`](Self::rcv_nxt).
    pub fn out_of_order(&self) -> &RangeSet {
        &self.out_of_order
    }

    /// Stores the bytes of `data`, whose first byte has stream offset `offset`, that are new and lie below
    /// [`max_offset`](Self::max_offset). Bytes received before are never overwritten.
    ///
    /// # Errors
    ///
    /// Nothing was stored. Data that does not continue the stream leaves the pool's reserve untouched.
    pub fn insert<'a>(
        &mut self,
        offset: u64,
        data: impl Into<Data<'a>>,
        pool: &mut Pool,
    ) -> Result<Inserted, InsertError> {
        let data = data.into();
        let end = offset.saturating_add(data.len() as u64);
        let fitting = end.min(self.max_offset());
        let refused = (end - fitting.max(offset)) as usize;
        let range = offset.max(self.rcv_nxt)..fitting;
        if range.start >= range.end {
            return Ok(Inserted {
                refused,
                ..Inserted::default()
            });
        }
        let in_order = range.start == self.rcv_nxt;
        // Without reordering this stays the only path taken.
        if in_order && self.out_of_order.is_empty() {
            self.put(range.clone(), offset, data, pool)?;
            self.rcv_nxt = range.end;
            return Ok(Inserted {
                new_bytes: range.end - range.start,
                in_order_advanced: true,
                refused,
            });
        }
        if !in_order && self.out_of_order.len() >= MAX_HOLES {
            // Data that touches a stored range opens no hole.
            let around = range.start - 1..range.end.saturating_add(1);
            if self.out_of_order.gaps(around.clone()).next() == Some(around) {
                return Err(InsertError::TooFragmented);
            }
        }
        self.put(range.clone(), offset, data, pool)?;
        let new_bytes = self.out_of_order.insert(range);
        if in_order && let Some(first) = self.out_of_order.pop_front_up_to(self.rcv_nxt) {
            self.rcv_nxt = first.end;
        }
        Ok(Inserted {
            new_bytes,
            in_order_advanced: in_order,
            refused,
        })
    }

    /// Stores the new bytes in `range` of `data`, whose first byte is at `offset`, or changes nothing.
    fn put(
        &mut self,
        range: Range<u64>,
        offset: u64,
        data: Data<'_>,
        pool: &mut Pool,
    ) -> Result<(), InsertError> {
        let room = match range.start == self.rcv_nxt {
            true => pool.available(),
            false => pool.unreserved(),
        };
        let bytes = match data {
            Data::Bytes(bytes) => bytes,
            Data::Block(block, within) => {
                // If no block is left to take its place, there may still be room in another block.
                if room > 0
                    && let Some(i) = self.place_to_take(&range)
                    && let Some(spare) = pool.alloc()
                {
                    let at = within.start + (range.start - offset) as usize;
                    self.take(i, range, at, mem::replace(block, spare));
                    return Ok(());
                }
                &block.bytes()[within]
            }
        };
        self.reserve(range.clone(), room, pool)?;
        for gap in self.out_of_order.gaps(range) {
            copy_in(&mut self.places, gap, offset, bytes);
        }
        Ok(())
    }

    /// Returns the index of the first place that ends behind `offset`.
    fn find(&self, offset: u64) -> usize {
        match self.places.back() {
            // New data lies at the end.
            Some(last) if last.start <= offset => {
                self.places.len() - usize::from(offset < last.end)
            }
            _ => self.places.partition_point(|p| p.end <= offset),
        }
    }

    /// Returns the index of the place for a block with just the bytes of `range`. `None` if they are to be
    /// copied: they are few, some are here, or too much memory would be wasted, namely room of the block
    /// before, which is cut off, and of this one before the next.
    fn place_to_take(&self, range: &Range<u64>) -> Option<usize> {
        let len = range.end - range.start;
        let mut i = self.find(range.start);
        let mut end = range.end;
        let mut wasted = 0;
        if let Some(before) = self.places.get(i).filter(|p| p.start < range.start) {
            wasted += before.end - range.start;
            end = end.max(before.end);
            i += 1;
        }
        let next = self.places.get(i).map(|next| next.start);
        if let Some(next) = next {
            wasted += BLOCK_BYTES.saturating_sub(next.saturating_sub(range.start));
        }
        let free = next.is_none_or(|next| range.end <= next)
            && self.out_of_order.gaps(range.start..end).next() == Some(range.start..end);
        (free && len >= MIN_TAKEN_BYTES && wasted <= len).then_some(i)
    }

    /// Makes `block`, which holds the bytes of `range` from byte `at` on, the place number `i`. Room behind
    /// them in the block is for the data that follows.
    fn take(&mut self, i: usize, range: Range<u64>, at: usize, block: Block) {
        if let Some(before) = i.checked_sub(1).and_then(|i| self.places.get_mut(i)) {
            before.end = before.end.min(range.start);
        }
        let next = self.places.get(i).map_or(u64::MAX, |next| next.start);
        let place = Place {
            start: range.start,
            end: next.min(range.start + (BLOCK_SIZE - at) as u64),
            at,
            block,
        };
        self.places.insert(i, place);
    }

    /// Returns the first bytes of `range` that no block covers: the index of the missing place, and the
    /// range it would have.
    fn missing(&self, range: &Range<u64>) -> Option<(usize, Range<u64>)> {
        let mut i = self.find(range.start);
        let mut at = range.start;
        while let Some(place) = self.places.get(i).filter(|p| p.start <= at) {
            at = place.end;
            i += 1;
        }
        if at >= range.end {
            return None;
        }
        let before = i.checked_sub(1).map_or(0, |i| self.places[i].end);
        let start = (at - (at - self.base) % BLOCK_BYTES)
            .max(before)
            .max(self.rcv_nxt);
        let next = self.places.get(i).map_or(u64::MAX, |next| next.start);
        Some((i, start..next.min(start.saturating_add(BLOCK_BYTES))))
    }

    /// Ensures that a block covers every byte of `range`, with at most `room` new ones, or changes nothing.
    fn reserve(
        &mut self,
        range: Range<u64>,
        room: usize,
        pool: &mut Pool,
    ) -> Result<(), InsertError> {
        let mut rest = range.clone();
        let mut missing = 0;
        while let Some((_, place)) = self.missing(&rest) {
            rest.start = place.end;
            missing += 1;
        }
        if missing > room {
            return Err(InsertError::PoolExhausted);
        }
        while let Some((i, Range { start, end })) = self.missing(&range)
            && let Some(block) = pool.alloc()
        {
            let place = Place {
                start,
                end,
                at: 0,
                block,
            };
            self.places.insert(i, place);
        }
        Ok(())
    }

    /// Returns the in-order bytes from the read offset on, as far as [`READ_SLICES`] slices reach.
    pub fn slices(&self) -> ArrayVec<&[u8], READ_SLICES> {
        let places = self.places.iter().take(READ_SLICES);
        let places = places.take_while(|p| p.start < self.rcv_nxt);
        let slice = |p: &'_ Place| {
            let from = p.index(p.start.max(self.read));
            from..p.index(p.end.min(self.rcv_nxt))
        };
        places.map(|p| &p.block.bytes()[slice(p)]).collect()
    }

    /// Returns the memory held, in bytes.
    pub fn memory(&self) -> usize {
        self.places.len() * BLOCK_SIZE
    }

    /// Releases the first `n` readable bytes, at most as many as there are.
    pub fn consume(&mut self, n: usize, pool: &mut Pool) {
        debug_assert!(
            n <= self.readable(),
            "consumed {n} bytes of {}",
            self.readable()
        );
        self.read += n.min(self.readable()) as u64;
        if self.read == self.rcv_nxt && self.out_of_order.is_empty() {
            return self.clear(pool);
        }
        while self.places.front().is_some_and(|p| p.end <= self.read) {
            let first = self.places.pop_front();
            first.into_iter().for_each(|p| pool.free(p.block));
        }
    }

    /// Releases everything, read or not, when the reader has lost interest. In-order data counts as read;
    /// the rest is forgotten.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.places.drain(..).for_each(|p| pool.free(p.block));
        if self.places.capacity() > MAX_KEPT_CAPACITY {
            self.places = VecDeque::new();
        }
        self.out_of_order.clear();
        self.read = self.rcv_nxt;
        self.base = self.read;
    }
}

/// Copies the part of `data` (first byte at `offset`) that belongs to `range`, for which blocks exist.
fn copy_in(places: &mut VecDeque<Place>, range: Range<u64>, offset: u64, data: &[u8]) {
    let first = places.partition_point(|p| p.end <= range.start);
    let mut at = range.start;
    for place in places.range_mut(first..) {
        let end = place.end.min(range.end);
        if at >= end {
            break;
        }
        let bytes = &data[(at - offset) as usize..(end - offset) as usize];
        place.block.put(place.index(at), bytes);
        at = end;
    }
}
