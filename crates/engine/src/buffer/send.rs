//! The data that the application has written and the peer has not acknowledged.

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

/// The maximum number of slices of [`SendBuffer::write_slices`]. The slices are seven whole blocks and the rest of
/// another block: at least 224 KiB.
pub const WRITE_SLICES: usize = 8;

/// The maximum number of slices of [`SendBuffer::slices`]. Bytes written with one urgency are contiguous in their
/// blocks, so these slices have far more bytes than a packet. There are as many slices as urgencies, so that each
/// urgency can fill the room that more urgent bytes leave in a packet.
pub const SEND_SLICES: usize = 8;

/// The capacity above which lists of spans are reduced when they become empty, so that idle connections hold
/// little memory. The value is a guess.
const MAX_KEPT_CAPACITY: usize = 64;

/// Contiguous bytes that have an offset in the stream.
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

/// The block that the next bytes of one urgency are written to, and the number of its bytes in use.
#[derive(Debug, Clone, Copy)]
struct Tail {
    slot: u32,
    used: usize,
}

/// The bytes of a stream from the first unacknowledged byte to the last written one. Acknowledged bytes remain
/// as long as a subflow has to retransmit them.
///
/// A byte gets its offset in the stream when it is first sent ([`map_next`](Self::map_next)). Until then more
/// urgent bytes may overtake it. These rules hold:
///
/// - Bytes of higher urgency are sent first. Bytes of the same urgency are sent in the order in which they were
///   written.
/// - The bytes of one write stay together: once the first of these bytes is mapped, no other bytes are mapped
///   until the last one is. So a reader can parse frames. A writer whose data may be overtaken has to write little
///   at a time.
/// - The bytes of one stream keep their order. A more urgent write raises the urgency of the stream's waiting
///   bytes, because these bytes are sent before the write.
///
/// Bytes of the same urgency share blocks, and bytes are never moved. An empty buffer that retains nothing holds
/// no block. If all data is of one class, the blocks are full, except for the first and the last one.
#[derive(Debug, Default)]
pub struct SendBuffer {
    blocks: Blocks,
    /// The acknowledged bytes that subflows still need, in the order of their offsets.
    retained: VecDeque<Mapped>,
    retained_bytes: usize,
    /// The mapped bytes up to `nxt`, in the order of their offsets and without gaps. The first span may be partly
    /// acknowledged.
    mapped: VecDeque<Mapped>,
    /// The first unacknowledged offset.
    start: u64,
    /// The next offset to map.
    nxt: u64,
    /// The end of the stream once all waiting bytes are mapped.
    end: u64,
    queue: Queue,
    tails: [Option<Tail>; Urgency::COUNT],
    /// The length of the last [`write_slices`](Self::write_slices). No more bytes may be committed, because the
    /// memory after the slices holds stale bytes of its last user.
    offered: usize,
    /// The class of the last [`write_slices`](Self::write_slices).
    class: Class,
    /// The blocks of the last [`write_slices`](Self::write_slices) that have no committed bytes.
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

    /// Returns the first unacknowledged offset.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the next offset to map.
    pub fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Returns the end of the stream once all waiting bytes are mapped.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the number of unacknowledged bytes, mapped or waiting.
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Returns whether all bytes are acknowledged.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns the number of acknowledged bytes that remain because subflows need them.
    pub fn retained(&self) -> usize {
        self.retained_bytes
    }

    /// Returns the number of bytes of memory in use: that of whole blocks, and of the lists of spans.
    pub fn memory(&self) -> usize {
        let spans = self.mapped.len() + self.retained.len();
        let lists = spans * size_of::<Mapped>() + self.queue.overhead();
        (self.blocks.len() + self.fresh.len()) * BLOCK_SIZE + lists
    }

    /// Returns the number of blocks held.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the number of bytes not mapped yet, by urgency.
    pub fn unmapped(&self) -> [u64; Urgency::COUNT] {
        self.queue.bytes()
    }

    /// Returns the highest urgency of the unmapped bytes.
    pub fn most_urgent(&self) -> Option<Urgency> {
        self.queue.most_urgent()
    }

    // --- writing

    /// Returns memory for up to `max` further bytes of `class`. The caller fills the memory from its start and
    /// then calls [`commit`](Self::commit). The memory is shorter than `max`, or empty, if the pool has too
    /// little or more than [`WRITE_SLICES`] slices would be needed.
    ///
    /// The slices hold stale bytes, but only committed bytes are ever read.
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

    /// Adds the first `n` bytes of the last [`write_slices`](Self::write_slices) to the queue as one write, and
    /// returns unneeded blocks to the pool. `n` must not exceed the length of the slices.
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

    /// Copies `data` in, as far as the pool has room, as one write for each [`WRITE_SLICES`] slices. Returns the
    /// number of bytes copied.
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

    /// Drops the writes whose deadline has passed by `now`, unless a part of the write is mapped already.
    /// Returns the number of dropped bytes.
    pub fn drop_late(&mut self, now: Instant, pool: &mut Pool) -> u64 {
        let before = self.end;
        self.queue.drop_late(now, |span| {
            self.end -= span.len() as u64;
            give_back(&mut self.blocks, &mut self.tails, span, pool);
        });
        before - self.end
    }

    // --- sending

    /// Returns the number of next bytes that have the same urgency.
    pub fn next_run(&self) -> u64 {
        self.queue.run()
    }

    /// Assigns the next offsets of the stream to up to `max` bytes, the most urgent ones first, and returns their
    /// range. The bytes fit into [`SEND_SLICES`] slices, so that one packet can carry them. The range is empty if
    /// no bytes wait.
    pub fn map_next(&mut self, max: u64) -> Range<u64> {
        let start = self.nxt;
        let mut left = usize::try_from(max).unwrap_or(usize::MAX);
        let mut slices = 0;
        while left > 0
            && slices < SEND_SLICES
            && let Some(span) = self.queue.pop(left)
        {
            left -= span.len();
            let last = self.mapped.back_mut();
            let is_merged = last.is_some_and(|last| last.span.join(span));
            if !is_merged {
                let offset = self.nxt;
                self.mapped.push_back(Mapped { offset, span });
            }
            // A span that is merged with a span of an earlier call is still the first slice of this call.
            slices += usize::from(!is_merged || slices == 0);
            self.nxt += span.len() as u64;
        }
        start..self.nxt
    }

    /// Unmaps all bytes at and above `offset`. These bytes wait again with the given urgency, ahead of all other
    /// bytes, and count as the rest of a partly sent write.
    pub fn unmap_from(&mut self, offset: u64, urgency: Urgency) {
        let offset = offset.max(self.start);
        while let Some(last) = self.mapped.back_mut()
            && last.end() > offset
        {
            let still_mapped = last.span.cut(offset.saturating_sub(last.offset) as usize);
            self.queue.push_front(last.span, urgency);
            match still_mapped.len() {
                0 => drop(self.mapped.pop_back()),
                _ => last.span = still_mapped,
            }
        }
        self.nxt = self.nxt.min(offset);
    }

    /// Returns the index of the first entry of `mapped` that ends above `offset`.
    fn find(&self, offset: u64) -> usize {
        // The most frequent case: new data lies in the last entry.
        match self.mapped.back() {
            Some(last) if last.offset <= offset => self.mapped.len() - 1,
            _ => self.mapped.partition_point(|m| m.end() <= offset),
        }
    }

    /// Returns the bytes of `range` in order, in at most [`SEND_SLICES`] slices. Bytes beyond the last slice are
    /// left out, and so are bytes that are not mapped or are freed already.
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

    /// Returns the first part of `range` that fits into [`SEND_SLICES`] slices, so that one packet can carry it.
    /// The part is shorter than `range` if the bytes were written with many urgencies.
    pub fn reach(&self, range: Range<u64>) -> Range<u64> {
        let first = self.find(range.start.max(self.start));
        let end = self
            .mapped
            .get(first + SEND_SLICES)
            .map_or(range.end, |m| m.offset.min(range.end));
        range.start..end
    }

    /// Notes that all mapped bytes below `offset` are acknowledged, and frees those that no subflow needs.
    /// `needed` returns the bytes that subflows still need. It is called only if there are bytes to free.
    pub fn release_to(&mut self, offset: u64, needed: impl FnOnce() -> RangeSet, pool: &mut Pool) {
        self.start = offset.clamp(self.start, self.nxt);
        let retained_before = self.retained.len();
        while self.mapped.front().is_some_and(|m| m.end() <= self.start) {
            let first = self.mapped.pop_front();
            self.retained_bytes += first.as_ref().map_or(0, |m| m.span.len());
            self.retained.extend(first);
        }
        if self.retained.len() > retained_before {
            self.forget(&needed(), pool);
        }
    }

    /// Frees the acknowledged bytes that are not `needed` any more.
    pub fn forget(&mut self, needed: &RangeSet, pool: &mut Pool) {
        // Each entry is popped once and pushed back if it is needed, so the order remains.
        for _ in 0..self.retained.len() {
            let Some(retained) = self.retained.pop_front() else {
                break;
            };
            let range = retained.offset..retained.end();
            let is_unneeded = needed.gaps(range.clone()).next() == Some(range);
            if !is_unneeded {
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

    /// Frees all bytes, mapped or not. The offset of the next written byte stays the same.
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

/// Frees the bytes of `span`. If their block returns to the pool, no further bytes are written to it.
fn give_back(
    blocks: &mut Blocks,
    tails: &mut [Option<Tail>; Urgency::COUNT],
    span: Span,
    pool: &mut Pool,
) {
    if blocks.release(span, pool) {
        let is_in_block = |t: &&mut Option<Tail>| t.is_some_and(|t| t.slot == span.slot());
        tails
            .iter_mut()
            .filter(is_in_block)
            .for_each(|tail| *tail = None);
    }
}
