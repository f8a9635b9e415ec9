//! The data that a connection has written and its peer has not acknowledged.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::ops::Range;

use arrayvec::ArrayVec;

use braid_wire::Instant;

use super::RangeSet;
use super::blocks::{Blocks, Span};
use super::pool::{BLOCK_SIZE, Block, Pool};
use super::queue::Queue;
use crate::{Class, Urgency};

/// The most slices of [`SendBuffer::write_slices`]: at least 224 KiB.
pub const WRITE_SLICES: usize = 8;

/// The most slices of [`SendBuffer::slices`]. Bytes written with one urgency are contiguous, so this many
/// slices are 224 KiB.
pub const SEND_SLICES: usize = 8;

/// The capacity above which slice lists are freed when the buffer becomes empty.
const MAX_KEPT_CAPACITY: usize = 64;

/// Bytes that have an offset in the stream.
#[derive(Debug)]
struct Mapped {
    offset: u64,
    span: Span,
}

impl Mapped {
    fn end(&self) -> u64 {
        self.offset + self.span.len() as u64
    }
}

/// The block that the next bytes of one urgency go to.
#[derive(Debug, Clone, Copy)]
struct Tail {
    slot: u32,
    used: usize,
}

/// The bytes of a stream from the first unacknowledged one to the last one written. Acknowledged bytes are
/// kept while a subflow still needs them.
///
/// A byte gets its offset in the stream, by which it is addressed, when it is first sent
/// ([`map_next`](Self::map_next)). Until then more urgent bytes may overtake it. These rules hold:
///
/// - Bytes of higher urgency go first; within one urgency, those written first.
/// - The bytes of one write stay together: once the first is mapped, nothing comes between it and the
///   others. So a reader can parse frames, and a writer that wants to be overtaken writes little at a time.
/// - The bytes of one stream keep their order. Waiting bytes of a stream are raised with its more urgent
///   writes, and go before them.
///
/// Bytes of one urgency share blocks, and no bytes are ever moved. An empty buffer that keeps nothing holds
/// no block; a buffer with a single class holds no more than the blocks that its bytes fill, the first and
/// last in part.
#[derive(Debug, Default)]
pub struct SendBuffer {
    blocks: Blocks,
    /// The acknowledged bytes that are still needed, in order of offset.
    retained: VecDeque<Mapped>,
    retained_bytes: usize,
    /// The mapped bytes, in order of offset and without gaps, up to `nxt`; the first span may be partly
    /// acknowledged.
    mapped: VecDeque<Mapped>,
    start: u64,
    nxt: u64,
    /// The end of the stream when all waiting bytes are mapped.
    end: u64,
    queue: Queue,
    tails: [Option<Tail>; Urgency::COUNT],
    /// The number of bytes offered last. Only these may be committed, since blocks hold stale bytes of
    /// their last user.
    offered: usize,
    class: Class,
    fresh: ArrayVec<Block, WRITE_SLICES>,
}

impl SendBuffer {
    /// Creates an empty buffer whose first byte will be at `offset`.
    pub fn new(offset: u64) -> Self {
        SendBuffer {
            start: offset,
            nxt: offset,
            end: offset,
            ..SendBuffer::default()
        }
    }

    /// Returns the first offset not released.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the offset past the last one mapped.
    pub fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Returns the end of the stream when all bytes are mapped.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the number of bytes not released.
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Returns whether every byte is released.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns the number of acknowledged bytes kept because a subflow needs them.
    pub fn retained(&self) -> usize {
        self.retained_bytes
    }

    /// Returns the bytes of memory in use: whole blocks, and the lists of spans.
    pub fn memory(&self) -> usize {
        let spans = self.mapped.len() + self.retained.len();
        let lists = spans * size_of::<Mapped>() + self.queue.overhead();
        (self.blocks.len() + self.fresh.len()) * BLOCK_SIZE + lists
    }

    /// Returns the number of blocks held.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the bytes not mapped yet, by urgency.
    pub fn unmapped(&self) -> [u64; Urgency::COUNT] {
        self.queue.bytes()
    }

    /// Returns the most urgent urgency among the unmapped bytes.
    pub fn most_urgent(&self) -> Option<Urgency> {
        self.queue.most_urgent()
    }

    // --- writing

    /// Returns memory for up to `max` further bytes of `class`, to be filled from its start and then
    /// announced by [`commit`](Self::commit). Shorter, or empty, if the pool or [`WRITE_SLICES`] ends
    /// first.
    ///
    /// The slices hold stale bytes; only committed ones are ever read.
    pub fn write_slices(
        &mut self,
        pool: &mut Pool,
        class: Class,
        max: usize,
    ) -> ArrayVec<IoSliceMut<'_>, WRITE_SLICES> {
        self.class = class;
        let held = self.blocks.len();
        let mut slices = ArrayVec::new();
        let mut left = max;
        if let Some(tail) = self.tails[class.urgency.index()]
            && tail.used < BLOCK_SIZE
            && left > 0
        {
            let take = left.min(BLOCK_SIZE - tail.used);
            let rest = tail.used..tail.used + take;
            slices.push(IoSliceMut::new(self.blocks.bytes_mut(tail.slot, rest)));
            left -= take;
        }
        let wanted = left.div_ceil(BLOCK_SIZE).min(WRITE_SLICES - slices.len());
        while self.fresh.len() < wanted
            && let Some(block) = pool.alloc_within(held + self.fresh.len())
        {
            self.fresh.push(block);
        }
        for block in self.fresh.iter_mut().take(wanted) {
            let take = left.min(BLOCK_SIZE);
            slices.push(IoSliceMut::new(block.bytes_mut(0..take)));
            left -= take;
        }
        self.offered = max - left;
        slices
    }

    /// Moves the first `n` bytes of the last [`write_slices`](Self::write_slices) into the queue, at most
    /// as many as were offered, and returns unneeded blocks to the pool.
    pub fn commit(&mut self, n: usize, pool: &mut Pool) {
        let offered = std::mem::take(&mut self.offered);
        debug_assert!(n <= offered, "committed {n} bytes, {offered} were offered");
        let mut left = n.min(offered);
        self.end += left as u64;
        let class = self.class;
        if left > 0 {
            self.queue.raise(class);
        }
        let tail = &mut self.tails[class.urgency.index()];
        let mut fresh = self.fresh.drain(..);
        while left > 0 {
            let (slot, used) = match *tail {
                Some(tail) if tail.used < BLOCK_SIZE => (tail.slot, tail.used),
                _ => match fresh.next() {
                    Some(block) => (self.blocks.add(block), 0),
                    None => break,
                },
            };
            let take = left.min(BLOCK_SIZE - used);
            left -= take;
            let span = self.blocks.take(slot, used, take);
            self.queue.push(class, span, left > 0);
            *tail = Some(Tail {
                slot,
                used: used + take,
            });
        }
        fresh.for_each(|b| pool.free(b));
    }

    /// Copies in as much of `data` as the pool has room for, as one write for each [`WRITE_SLICES`] slices,
    /// and returns the number of bytes.
    pub fn write(&mut self, pool: &mut Pool, class: Class, data: &[u8]) -> usize {
        let mut written = 0;
        while written < data.len() {
            let mut n = 0;
            for mut slice in self.write_slices(pool, class, data.len() - written) {
                let from = &data[written + n..];
                let take = slice.len().min(from.len());
                slice[..take].copy_from_slice(&from[..take]);
                n += take;
            }
            self.commit(n, pool);
            written += n;
            if n == 0 {
                break;
            }
        }
        written
    }

    /// Drops writes whose deadline passed by `now` and of which nothing is mapped. Returns the number of
    /// bytes.
    pub fn drop_late(&mut self, now: Instant, pool: &mut Pool) -> u64 {
        let before = self.end;
        self.queue.drop_late(now, |span| {
            self.end -= span.len() as u64;
            give_back(&mut self.blocks, &mut self.tails, span, pool);
        });
        before - self.end
    }

    // --- sending

    /// Returns the number of next bytes of one urgency, the most that [`map_next`](Self::map_next) maps.
    pub fn next_run(&self) -> u64 {
        self.queue.run()
    }

    /// Assigns the next offsets of the stream to up to `max` bytes, and returns their range. They are of
    /// one urgency, and one packet can carry them. The range is empty if nothing waits.
    pub fn map_next(&mut self, max: u64) -> Range<u64> {
        let start = self.nxt;
        let mut left = max.min(self.next_run()) as usize;
        let mut slices = 0;
        while left > 0
            && slices < SEND_SLICES
            && let Some(span) = self.queue.pop(left)
        {
            left -= span.len();
            let last = self.mapped.back_mut();
            let joined = last.is_some_and(|last| last.span.join(span));
            if !joined {
                let offset = self.nxt;
                self.mapped.push_back(Mapped { offset, span });
            }
            slices += usize::from(!joined || slices == 0);
            self.nxt += span.len() as u64;
        }
        start..self.nxt
    }

    /// Unmaps all bytes from `offset` on: they are next again, with `urgency` and before all other waiting
    /// bytes, as the rest of a write.
    pub fn unmap_from(&mut self, offset: u64, urgency: Urgency) {
        let offset = offset.max(self.start);
        while let Some(last) = self.mapped.back_mut()
            && last.end() > offset
        {
            let stays = last.span.cut(offset.saturating_sub(last.offset) as usize);
            self.queue.push_front(last.span, urgency);
            match stays.len() {
                0 => drop(self.mapped.pop_back()),
                _ => last.span = stays,
            }
        }
        self.nxt = self.nxt.min(offset);
    }

    /// Returns the index of the first of `mapped` that reaches beyond `offset`.
    fn find(&self, offset: u64) -> usize {
        // New data lies at the end.
        match self.mapped.back() {
            Some(last) if last.offset <= offset => self.mapped.len() - 1,
            _ => self.mapped.partition_point(|m| m.end() <= offset),
        }
    }

    /// Returns the bytes of `range`, in order. Bytes that are not mapped, are not here any more, or lie
    /// behind the last of [`SEND_SLICES`] slices are left out.
    pub fn slices(&self, range: Range<u64>) -> ArrayVec<&[u8], SEND_SLICES> {
        let retained = self.retained.partition_point(|k| k.end() <= range.start);
        let spans = self.retained.range(retained..);
        let spans = spans.chain(self.mapped.range(self.find(range.start)..));
        let mut slices = ArrayVec::new();
        let end = range.end.min(self.nxt);
        for mapped in spans.take(SEND_SLICES) {
            if mapped.offset >= end || range.start >= end {
                break;
            }
            let bytes = self.blocks.bytes(&mapped.span);
            let from = range.start.saturating_sub(mapped.offset) as usize;
            let to = bytes.len().min((end - mapped.offset) as usize);
            slices.push(&bytes[from..to]);
        }
        slices
    }

    /// Returns the part of `range`, from its start on, that one packet can carry: less than all if the
    /// bytes were written with many urgencies.
    pub fn reach(&self, range: Range<u64>) -> Range<u64> {
        let first = self.find(range.start.max(self.start));
        let end = self
            .mapped
            .get(first + SEND_SLICES)
            .map_or(range.end, |m| m.offset.min(range.end));
        range.start..end
    }

    /// Releases all mapped bytes below `offset`, except those that are `needed`. `needed` is called only if
    /// anything could be released.
    pub fn release_to(&mut self, offset: u64, needed: impl FnOnce() -> RangeSet, pool: &mut Pool) {
        self.start = offset.clamp(self.start, self.nxt);
        let before = self.retained.len();
        while self.mapped.front().is_some_and(|m| m.end() <= self.start) {
            let first = self.mapped.pop_front();
            self.retained_bytes += first.as_ref().map_or(0, |m| m.span.len());
            self.retained.extend(first);
        }
        if self.retained.len() > before {
            self.forget(&needed(), pool);
        }
    }

    /// Frees the released bytes that are not `needed` any more.
    pub fn forget(&mut self, needed: &RangeSet, pool: &mut Pool) {
        for _ in 0..self.retained.len() {
            let Some(retained) = self.retained.pop_front() else {
                break;
            };
            let range = retained.offset..retained.end();
            let useless = needed.gaps(range.clone()).next() == Some(range);
            if !useless {
                self.retained.push_back(retained);
                continue;
            }
            self.retained_bytes -= retained.span.len();
            give_back(&mut self.blocks, &mut self.tails, retained.span, pool);
        }
        for list in [&mut self.retained, &mut self.mapped] {
            if list.is_empty() {
                list.shrink_to(MAX_KEPT_CAPACITY);
            }
        }
    }

    /// Releases everything, mapped or not; the next byte written keeps the offset that it would have had.
    pub fn clear(&mut self, pool: &mut Pool) {
        self.blocks.clear(pool);
        self.fresh.drain(..).for_each(|b| pool.free(b));
        for list in [&mut self.retained, &mut self.mapped] {
            list.clear();
            list.shrink_to(MAX_KEPT_CAPACITY);
        }
        self.retained_bytes = 0;
        self.queue.clear();
        self.tails = [None; Urgency::COUNT];
        self.start = self.end;
        self.nxt = self.end;
    }
}

/// Releases the bytes of `span`.
fn give_back(
    blocks: &mut Blocks,
    tails: &mut [Option<Tail>; Urgency::COUNT],
    span: Span,
    pool: &mut Pool,
) {
    if blocks.release(span, pool) {
        let gone = |t: &&mut Option<Tail>| t.is_some_and(|t| t.slot == span.slot());
        tails.iter_mut().filter(gone).for_each(|tail| *tail = None);
    }
}
