//! Reassembly: received data is stored at its place in the stream, in whatever order it arrives.
//!
//! Data arrives in a block of a [`PacketBuffer`](super::PacketBuffer). To *adopt* this block means to make it part of
//! the buffer, so that the data in it need not be copied, and to replace it by a free block of the pool. A block is
//! adopted if the data fills at least half of it and little memory is wasted. Other data is copied once.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::ops::Range;

use arrayvec::ArrayVec;

use super::packet::Data;
use super::pool::{BLOCK_SIZE, Block, Pool};
use super::ranges::RangeSet;

/// The maximum number of slices of [`RecvBuffer::slices`], each of one block. If enough is readable, they have at
/// least 64 KiB together (see `MIN_ADOPTED_BYTES`), and mostly more than 256 KiB: 16 adopted blocks of at least
/// 16 KiB. That is enough for one system call, such as the `writev` that passes the bytes on; more would save little
/// for each byte. The value is a guess.
pub const READ_SLICES: usize = 16;

/// The maximum number of disjoint ranges stored out of order. Without a limit, the list of ranges could grow
/// larger than the data if a peer sends every second byte. The value is a guess.
pub const MAX_HOLES: usize = 4096;

/// The capacity above which the list of blocks is freed when the buffer becomes empty, so that idle connections
/// hold little memory. The value is a guess: with it, 1 MiB of data fits without a new allocation.
const MAX_KEPT_CAPACITY: usize = 32;

const BLOCK_BYTES: u64 = BLOCK_SIZE as u64;

/// The minimum number of bytes with which a block is adopted (16 KiB); fewer bytes are copied. This bounds the number
/// of slices. In any 32 KiB of the stream at most five blocks begin: two adopted, and a copied one behind each and at
/// the multiple of 32 KiB. So 16 blocks ([`READ_SLICES`]) span at least 96 KiB, of which the application has consumed
/// less than 32 KiB, a part of the first block.
const MIN_ADOPTED_BYTES: u64 = BLOCK_BYTES / 2;

/// The result of [`RecvBuffer::insert`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Inserted {
    /// The number of bytes stored, without duplicates and refused bytes.
    pub new_bytes: u64,
    /// True if [`RecvBuffer::rcv_nxt`] advanced, so that the application can read more.
    pub in_order_advanced: bool,
    /// The number of bytes at the end of the data that lie above the limit and were not stored.
    pub refused: usize,
}

/// The reason why [`RecvBuffer::insert`] stored nothing. The peer has to retransmit the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InsertError {
    /// The pool is exhausted.
    PoolExhausted,
    /// The number of out-of-order ranges is [`MAX_HOLES`], and the data would be another range.
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

/// A block and the range of the stream that it is for. The ranges of two places do not overlap.
#[derive(Debug)]
struct Place {
    start: u64,
    end: u64,
    /// The position in the block of the byte with the stream offset `start`.
    block_start: usize,
    block: Block,
}

impl Place {
    /// Returns the position in the block of the byte with the stream offset `offset`.
    fn index(&self, offset: u64) -> usize {
        self.block_start + (offset - self.start) as usize
    }
}

/// The received bytes of a stream from the first one that the application has not read, addressed by stream offset.
///
/// A block is taken only for data that has arrived, and an empty buffer holds no block. A new block for copied data
/// begins at a multiple of [`BLOCK_SIZE`], counted from the offset at which the buffer was last empty. The part before
/// the end of the previous block's range, or before [`rcv_nxt`](Self::rcv_nxt), is left out, because nothing will be
/// written there; the block then begins behind that part. Thanks to the multiples, data that arrives in small parts and
/// out of order takes hardly more blocks than the same data in order.
#[derive(Debug)]
pub struct RecvBuffer {
    /// The blocks in the order of their ranges.
    places: VecDeque<Place>,
    /// The offset at which the buffer was last empty.
    base: u64,
    /// The offset of the next byte that the application reads.
    read: u64,
    /// The offset of the first missing byte.
    rcv_nxt: u64,
    /// The ranges received above `rcv_nxt`. The byte at `rcv_nxt` itself is missing.
    out_of_order: RangeSet,
    /// The maximum number of bytes above `read`.
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

    /// Returns the offset of the next byte that the application reads.
    pub fn next(&self) -> u64 {
        self.read
    }

    /// Returns the offset of the first missing byte.
    pub fn rcv_nxt(&self) -> u64 {
        self.rcv_nxt
    }

    /// Returns the end of the range that can be stored.
    pub fn max_offset(&self) -> u64 {
        self.read.saturating_add(self.limit)
    }

    /// Sets the maximum number of bytes above the read offset. Bytes stored before remain, even above a lower
    /// limit. The right edge of an advertised window must not move back (RFC 9293 section 3.8.6); the caller ensures
    /// that, because the buffer does not know which window was advertised.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Returns the number of bytes that can be read.
    pub fn readable(&self) -> usize {
        (self.rcv_nxt - self.read) as usize
    }

    /// Returns the number of bytes received above a missing byte.
    pub fn out_of_order_bytes(&self) -> u64 {
        self.out_of_order.bytes()
    }

    /// Returns the ranges received above [`rcv_nxt`](Self::rcv_nxt).
    pub fn out_of_order(&self) -> &RangeSet {
        &self.out_of_order
    }

    /// Stores the bytes of `data` that are new and lie below [`max_offset`](Self::max_offset). The first byte of
    /// `data` has the stream offset `offset`. Bytes received before are never overwritten.
    ///
    /// # Errors
    ///
    /// Fails, and stores nothing, if the pool has no block left or there are too many holes. Out-of-order data
    /// cannot use the pool's reserve.
    pub fn insert<'a>(
        &mut self,
        offset: u64,
        data: impl Into<Data<'a>>,
        pool: &mut Pool,
    ) -> Result<Inserted, InsertError> {
        let data = data.into();
        let end = offset.saturating_add(data.len() as u64);
        let accepted_end = end.min(self.max_offset());
        let refused = (end - accepted_end.max(offset)) as usize;
        let range = offset.max(self.rcv_nxt)..accepted_end;
        if range.start >= range.end {
            return Ok(Inserted {
                refused,
                ..Inserted::default()
            });
        }
        let in_order = range.start == self.rcv_nxt;
        // The fast path, which all new data takes if no packet was lost or reordered.
        if in_order && self.out_of_order.is_empty() {
            self.put(range.clone(), offset, data, pool)?;
            self.rcv_nxt = range.end;
            return Ok(Inserted {
                new_bytes: range.end - range.start,
                in_order_advanced: true,
                refused,
            });
        }
        // In-order data never adds a range: it moves `rcv_nxt`.
        if !in_order && self.out_of_order.len() >= MAX_HOLES {
            // Data that touches a stored range extends that range and adds no further one. The byte before
            // `range.start` exists, because `rcv_nxt` is lower.
            let with_neighbours = range.start - 1..range.end.saturating_add(1);
            let gap = self.out_of_order.gaps(with_neighbours.clone()).next();
            if gap == Some(with_neighbours) {
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

    /// Stores those bytes of `range` that are missing, out of `data`, whose first byte is at `offset`. Without memory
    /// for all of them, changes nothing and fails.
    fn put(
        &mut self,
        range: Range<u64>,
        offset: u64,
        data: Data<'_>,
        pool: &mut Pool,
    ) -> Result<(), InsertError> {
        // Only in-order data may use the reserve, because the application can read it, which frees its memory.
        let room = if range.start == self.rcv_nxt {
            pool.available()
        } else {
            pool.unreserved()
        };
        let bytes = match data {
            Data::Bytes(bytes) => bytes,
            Data::Block(block, within) => {
                // A block can be adopted only if the pool has another block to replace it. Otherwise the data may
                // still fit into blocks that the buffer has.
                if room > 0
                    && let Some(i) = self.index_to_adopt(&range)
                    && let Some(spare) = pool.alloc()
                {
                    let at = within.start + (range.start - offset) as usize;
                    self.adopt(i, range, at, mem::replace(block, spare));
                    return Ok(());
                }
                &block.bytes()[within]
            }
        };
        self.reserve(range.clone(), room, pool)?;
        // Usually nothing is out of order, and no search for gaps is needed.
        if self.out_of_order.is_empty() {
            copy_in(&mut self.places, range, offset, bytes);
            return Ok(());
        }
        for gap in self.out_of_order.gaps(range) {
            copy_in(&mut self.places, gap, offset, bytes);
        }
        Ok(())
    }

    /// Returns the index of the new place if the block with the bytes of `range` is to be adopted. Returns `None` if
    /// the bytes are to be copied: there are too few, some of them have arrived already, or more memory would be
    /// wasted than they fill. Two parts of memory may be wasted: the free end of the place before, if it reaches into
    /// `range`, and the end of the adopted block, if it reaches into the next place.
    fn index_to_adopt(&self, range: &Range<u64>) -> Option<usize> {
        let len = range.end - range.start;
        let mut i = find(&self.places, range.start);
        let mut end = range.end;
        let mut wasted = 0;
        if let Some(before) = self.places.get(i).filter(|p| p.start < range.start) {
            wasted += before.end - range.start;
            // The place before will be cut off at `range.start`. So it must hold no data from there to its end, which
            // may lie beyond `range`.
            end = end.max(before.end);
            i += 1;
        }
        let next = self.places.get(i).map(|next| next.start);
        if let Some(next) = next {
            // This counts the headers in front of the data as waste too; they are few bytes.
            wasted += BLOCK_BYTES.saturating_sub(next.saturating_sub(range.start));
        }
        let is_range_free = next.is_none_or(|next| range.end <= next)
            && self.out_of_order.gaps(range.start..end).next() == Some(range.start..end);
        (is_range_free && len >= MIN_ADOPTED_BYTES && wasted <= len).then_some(i)
    }

    /// Inserts `block` as the place with index `i`. In the block, the bytes of `range` begin at position `at`. The
    /// place extends to the end of the block or to the next place, so that data that follows in the stream can be
    /// copied into it.
    fn adopt(&mut self, i: usize, range: Range<u64>, at: usize, block: Block) {
        if let Some(before) = i.checked_sub(1).and_then(|i| self.places.get_mut(i)) {
            before.end = before.end.min(range.start);
        }
        let next = self.places.get(i).map_or(u64::MAX, |next| next.start);
        let place = Place {
            start: range.start,
            end: next.min(range.start + (BLOCK_SIZE - at) as u64),
            block_start: at,
            block,
        };
        self.places.insert(i, place);
    }

    /// Returns the first place that has to be added so that places cover `range`: its index and its own range. Returns
    /// `None` if places cover all of `range`.
    fn missing_place(&self, range: &Range<u64>) -> Option<(usize, Range<u64>)> {
        let mut i = find(&self.places, range.start);
        let mut at = range.start;
        while let Some(place) = self.places.get(i).filter(|p| p.start <= at) {
            at = place.end;
            i += 1;
        }
        if at >= range.end {
            return None;
        }
        let before = i.checked_sub(1).map_or(0, |i| self.places[i].end);
        // No memory is needed below the end of the place before and below `rcv_nxt`.
        let start = (at - (at - self.base) % BLOCK_BYTES)
            .max(before)
            .max(self.rcv_nxt);
        let next = self.places.get(i).map_or(u64::MAX, |next| next.start);
        Some((i, start..next.min(start.saturating_add(BLOCK_BYTES))))
    }

    /// Adds places until they cover all of `range`. Changes nothing and fails if this takes more than `room`
    /// blocks.
    fn reserve(
        &mut self,
        range: Range<u64>,
        room: usize,
        pool: &mut Pool,
    ) -> Result<(), InsertError> {
        let mut rest = range.clone();
        let mut missing = 0;
        while let Some((_, place)) = self.missing_place(&rest) {
            rest.start = place.end;
            missing += 1;
        }
        if missing == 0 {
            return Ok(());
        }
        if missing > room {
            return Err(InsertError::PoolExhausted);
        }
        // `alloc` does not fail, because the pool has at least `room` blocks left.
        while let Some((i, Range { start, end })) = self.missing_place(&range)
            && let Some(block) = pool.alloc()
        {
            let place = Place {
                start,
                end,
                block_start: 0,
                block,
            };
            self.places.insert(i, place);
        }
        Ok(())
    }

    /// Returns the readable bytes, the next one first, in at most [`READ_SLICES`] slices.
    pub fn slices(&self) -> ArrayVec<&[u8], READ_SLICES> {
        let places = self.places.iter().take(READ_SLICES);
        let places = places.take_while(|p| p.start < self.rcv_nxt);
        let slice = |p: &'_ Place| {
            let from = p.index(p.start.max(self.read));
            from..p.index(p.end.min(self.rcv_nxt))
        };
        places.map(|p| &p.block.bytes()[slice(p)]).collect()
    }

    /// Returns the number of bytes of memory held.
    pub fn memory(&self) -> usize {
        self.places.len() * BLOCK_SIZE
    }

    /// Frees the first `n` readable bytes, after the application has read them. `n` must not exceed
    /// [`readable`](Self::readable); a release build frees all readable bytes if it does.
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

    /// Empties the buffer and frees all blocks. Readable data counts as read; out-of-order data is dropped as if it
    /// had not arrived. Data may be inserted afterwards, at `rcv_nxt` or above.
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

/// Returns the index of the first place that ends above `offset`, or the number of places if none does.
fn find(places: &VecDeque<Place>, offset: u64) -> usize {
    match places.back() {
        // The most frequent case: new data lies in or after the last place.
        Some(last) if last.start <= offset => places.len() - usize::from(offset < last.end),
        _ => places.partition_point(|p| p.end <= offset),
    }
}

/// Copies the bytes of `range` from `data`, whose first byte has the stream offset `offset`. Places must cover
/// `range`.
fn copy_in(places: &mut VecDeque<Place>, range: Range<u64>, offset: u64, data: &[u8]) {
    let mut i = find(places, range.start);
    let mut at = range.start;
    while at < range.end
        && let Some(place) = places.get_mut(i)
    {
        let end = place.end.min(range.end);
        let bytes = &data[(at - offset) as usize..(end - offset) as usize];
        place.block.put(place.index(at), bytes);
        at = end;
        i += 1;
    }
}
