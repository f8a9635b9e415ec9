//! Reassembly: every byte is copied once, to its place, whatever order it comes in.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

use arrayvec::ArrayVec;

use super::pool::{BLOCK_SIZE, Block, Pool, slices_of};
use super::ranges::RangeSet;

/// Most slices of [`RecvBuffer::slices`]: 480 KiB at least.
pub const READ_SLICES: usize = 16;

/// Most disjoint ranges kept out of order. A peer that sends every second byte could otherwise
/// make the bookkeeping larger than the data.
pub const MAX_HOLES: usize = 4096;

/// Block lists longer than this are given back when the buffer becomes empty.
const KEEP_CAPACITY: usize = 32;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// What [`RecvBuffer::insert`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inserted {
    /// Bytes that were not there before, duplicates and refused ones excluded.
    pub new_bytes: u64,
    /// [`RecvBuffer::rcv_nxt`] moved: there is more to read.
    pub in_order_advanced: bool,
    /// Bytes at the end of the data that lie past the limit and were not stored.
    pub refused: usize,
}

/// Why [`RecvBuffer::insert`] stored nothing. The peer has to send the data again.
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

/// Received bytes of a stream, from the first one not read yet, addressed by stream offset.
///
/// Blocks exist only where there is data, so data behind a hole costs what it is long, rounded up
/// to blocks. An empty buffer holds no block.
#[derive(Debug)]
pub struct RecvBuffer {
    /// Block `i` holds the offsets from `base + i * BLOCK`.
    blocks: VecDeque<Option<Block>>,
    base: u64,
    read: u64,
    rcv_nxt: u64,
    /// What was received past `rcv_nxt`; never touches it.
    out_of_order: RangeSet,
    limit: u64,
}

impl RecvBuffer {
    /// An empty buffer that expects the byte at `offset` next and holds at most `limit` bytes.
    pub const fn new(offset: u64, limit: u64) -> Self {
        RecvBuffer {
            blocks: VecDeque::new(),
            base: offset,
            read: offset,
            rcv_nxt: offset,
            out_of_order: RangeSet::new(),
            limit,
        }
    }

    /// Offset of the next byte to be read.
    pub fn next(&self) -> u64 {
        self.read
    }

    /// Offset of the first byte not received.
    pub fn rcv_nxt(&self) -> u64 {
        self.rcv_nxt
    }

    /// One past the last offset that can be stored.
    pub fn max_offset(&self) -> u64 {
        self.read.saturating_add(self.limit)
    }

    /// Changes how many bytes past the read offset are taken. What is stored stays. The list of
    /// blocks grows with it, by 24 bytes per [`BLOCK_SIZE`].
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// In-order bytes waiting to be read.
    pub fn readable(&self) -> usize {
        (self.rcv_nxt - self.read) as usize
    }

    /// Bytes waiting behind a hole.
    pub fn out_of_order_bytes(&self) -> u64 {
        self.out_of_order.bytes()
    }

    /// The ranges received past [`rcv_nxt`](Self::rcv_nxt).
    pub fn out_of_order(&self) -> &RangeSet {
        &self.out_of_order
    }

    /// Stores those bytes of `data`, whose first byte has stream offset `offset`, that are new and
    /// lie below [`max_offset`](Self::max_offset). Bytes received before are never overwritten.
    ///
    /// # Errors
    ///
    /// Nothing was stored. Data that does not continue the stream leaves the pool's reserve
    /// untouched.
    pub fn insert(
        &mut self,
        offset: u64,
        data: &[u8],
        pool: &mut Pool,
    ) -> Result<Inserted, InsertError> {
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
            self.reserve(range.clone(), true, pool)?;
            copy_in(&mut self.blocks, self.base, range.clone(), offset, data);
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
        self.reserve(range.clone(), in_order, pool)?;
        for gap in self.out_of_order.gaps(range.clone()) {
            copy_in(&mut self.blocks, self.base, gap, offset, data);
        }
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

    /// Makes sure every block that `range` touches exists, or changes nothing.
    fn reserve(
        &mut self,
        range: Range<u64>,
        in_order: bool,
        pool: &mut Pool,
    ) -> Result<(), InsertError> {
        let first = ((range.start - self.base) / BLOCK) as usize;
        let last = ((range.end - 1 - self.base) / BLOCK) as usize;
        let missing = (first..=last).filter(|&i| !matches!(self.blocks.get(i), Some(Some(_))));
        let missing = missing.count();
        if missing == 0 {
            return Ok(());
        }
        let room = if in_order {
            pool.available()
        } else {
            pool.unreserved()
        };
        if missing > room {
            return Err(InsertError::PoolExhausted);
        }
        if self.blocks.len() <= last {
            self.blocks.resize_with(last + 1, || None);
        }
        for slot in self.blocks.range_mut(first..=last) {
            if slot.is_none() {
                *slot = pool.alloc();
            }
        }
        Ok(())
    }

    /// In-order bytes from the read offset on, as far as [`READ_SLICES`] slices reach.
    pub fn slices(&self) -> ArrayVec<&[u8], READ_SLICES> {
        let skip = (self.read - self.base) as usize;
        let blocks = self.blocks.iter().take(READ_SLICES).flatten();
        slices_of(blocks, skip, self.readable())
    }

    /// Releases the first `n` readable bytes; at most as many as there are.
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
        while self.base + BLOCK <= self.read {
            self.blocks
                .pop_front()
                .flatten()
                .into_iter()
                .for_each(|b| pool.free(b));
            self.base += BLOCK;
        }
    }

    /// Releases everything, read or not: the reader has no interest any more. What was received
    /// in order counts as read; what was not is forgotten.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.blocks.drain(..).flatten().for_each(|b| pool.free(b));
        if self.blocks.capacity() > KEEP_CAPACITY {
            self.blocks = VecDeque::new();
        }
        self.out_of_order.clear();
        self.read = self.rcv_nxt;
        self.base = self.read;
    }
}

/// Copies the part of `data` (first byte at `offset`) that belongs to `range`; its blocks exist.
fn copy_in(
    blocks: &mut VecDeque<Option<Block>>,
    base: u64,
    range: Range<u64>,
    offset: u64,
    data: &[u8],
) {
    let mut from = &data[(range.start - offset) as usize..(range.end - offset) as usize];
    let mut skip = ((range.start - base) % BLOCK) as usize;
    let first = ((range.start - base) / BLOCK) as usize;
    for block in blocks.range_mut(first..).flatten() {
        let take = from.len().min(BLOCK_SIZE - skip);
        if take == 0 {
            break;
        }
        let (now, later) = from.split_at(take);
        block.put(skip, now);
        from = later;
        skip = 0;
    }
}
