//! The blocks of a send buffer. A block returns to the pool when its last byte is freed.

use std::ops::Range;

use super::pool::{BLOCK_SIZE, Block, Pool};

/// The capacity above which the lists of slots are freed when all blocks are returned. The value is a guess: with
/// it, 1 MiB of data fits without a new allocation.
const MAX_KEPT_CAPACITY: usize = 32;

// The positions and the length of a `Span` have 16 bits.
const _: () = assert!(BLOCK_SIZE <= u16::MAX as usize);

/// A range of bytes in one block. Queues contain spans, so that bytes are never copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    slot: u32,
    start: u16,
    len: u16,
}

impl Span {
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Returns the end of the span in its block.
    pub fn end(&self) -> usize {
        usize::from(self.start) + self.len()
    }

    /// Removes and returns the first `n` bytes, or all if there are fewer.
    pub fn cut(&mut self, n: usize) -> Span {
        let len = n.min(self.len()) as u16;
        let front = Span { len, ..*self };
        self.start += len;
        self.len -= len;
        front
    }

    /// Extends the span by `next` if `next` continues the span in the same block. Returns whether the span was
    /// extended.
    pub fn join(&mut self, next: Span) -> bool {
        let is_contiguous = self.slot == next.slot && self.end() == usize::from(next.start);
        self.len += if is_contiguous { next.len } else { 0 };
        is_contiguous
    }
}

/// A block with the number of its bytes in use.
#[derive(Debug)]
struct Slot {
    /// The block; `None` if the slot is vacant.
    block: Option<Block>,
    /// The number of bytes that were taken and not released.
    live: usize,
}

/// The blocks by slot.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    slots: Vec<Slot>,
    /// The slots without a block, for reuse.
    vacant: Vec<u32>,
}

impl Blocks {
    /// Returns the number of blocks held.
    pub fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// Adds `block`, of which no bytes are in use yet. Returns its slot.
    pub fn add(&mut self, block: Block) -> u32 {
        let slot = Slot {
            block: Some(block),
            live: 0,
        };
        match self.vacant.pop() {
            Some(n) => {
                self.slots[n as usize] = slot;
                n
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        }
    }

    /// Marks `n` bytes of the block in `slot`, beginning at position `start`, as in use.
    pub fn take(&mut self, slot: u32, start: usize, n: usize) -> Span {
        self.slots[slot as usize].live += n;
        Span {
            slot,
            start: start as u16,
            len: n as u16,
        }
    }

    /// Returns the bytes of `span`.
    pub fn bytes(&self, span: &Span) -> &[u8] {
        match &self.slots[span.slot as usize].block {
            Some(block) => &block.bytes()[usize::from(span.start)..span.end()],
            None => &[],
        }
    }

    /// Returns the bytes `range` of the block in `slot`, for writing.
    pub fn bytes_mut(&mut self, slot: u32, range: Range<usize>) -> &mut [u8] {
        match &mut self.slots[slot as usize].block {
            Some(block) => block.bytes_mut(range),
            None => &mut [],
        }
    }

    /// Marks the bytes of `span` as no longer in use. Returns whether their block returned to the pool.
    pub fn release(&mut self, span: Span, pool: &mut Pool) -> bool {
        let slot = &mut self.slots[span.slot as usize];
        slot.live -= span.len();
        if slot.live > 0 {
            return false;
        }
        slot.block.take().into_iter().for_each(|b| pool.free(b));
        self.vacant.push(span.slot);
        true
    }

    /// Returns all blocks to the pool.
    pub fn clear(&mut self, pool: &mut Pool) {
        let blocks = self.slots.drain(..).filter_map(|s| s.block);
        blocks.for_each(|b| pool.free(b));
        self.vacant.clear();
        if self.slots.capacity() > MAX_KEPT_CAPACITY {
            *self = Blocks::default();
        }
    }
}
