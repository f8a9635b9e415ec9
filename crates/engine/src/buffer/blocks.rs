//! The blocks that a send buffer has written to: each goes back to the pool with its last byte.

use std::ops::Range;

use super::pool::{BLOCK_SIZE, Block, Pool};

/// Slot lists longer than this are given back when no block is held.
const KEEP_CAPACITY: usize = 32;

const _: () = assert!(BLOCK_SIZE <= u16::MAX as usize);

/// Bytes of one block. Never copied: what moves from one queue to the next is this.
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

    /// Where it ends in its block.
    pub fn end(&self) -> usize {
        usize::from(self.start) + self.len()
    }

    /// Takes the first `n` bytes off, or all.
    pub fn cut(&mut self, n: usize) -> Span {
        let len = n.min(self.len()) as u16;
        let front = Span { len, ..*self };
        self.start += len;
        self.len -= len;
        front
    }

    /// Takes `next` in if it continues this one in the same block; returns whether it does.
    pub fn join(&mut self, next: Span) -> bool {
        let joins = self.slot == next.slot && self.end() == usize::from(next.start);
        self.len += if joins { next.len } else { 0 };
        joins
    }
}

#[derive(Debug)]
struct Slot {
    block: Option<Block>,
    /// Bytes written and not released.
    live: usize,
}

/// Blocks by slot.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
}

impl Blocks {
    /// Blocks held.
    pub fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    /// Keeps `block`, of which nothing counts yet.
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

    /// The `n` bytes from `start` on count from now on.
    pub fn take(&mut self, slot: u32, start: usize, n: usize) -> Span {
        self.slots[slot as usize].live += n;
        Span {
            slot,
            start: start as u16,
            len: n as u16,
        }
    }

    /// The bytes of `span`.
    pub fn bytes(&self, span: &Span) -> &[u8] {
        match &self.slots[span.slot as usize].block {
            Some(block) => &block.bytes()[usize::from(span.start)..span.end()],
            None => &[],
        }
    }

    /// The bytes `range` of the block in `slot`, to be written.
    pub fn bytes_mut(&mut self, slot: u32, range: Range<usize>) -> &mut [u8] {
        match &mut self.slots[slot as usize].block {
            Some(block) => block.bytes_mut(range),
            None => &mut [],
        }
    }

    /// The bytes of `span` count no longer. Returns whether their block went back to the pool.
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

    /// Gives all blocks back.
    pub fn clear(&mut self, pool: &mut Pool) {
        let blocks = self.slots.drain(..).filter_map(|s| s.block);
        blocks.for_each(|b| pool.free(b));
        self.vacant.clear();
        if self.slots.capacity() > KEEP_CAPACITY {
            *self = Blocks::default();
        }
    }
}
