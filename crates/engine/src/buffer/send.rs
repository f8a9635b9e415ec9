//! What a connection has written and its peer has not acknowledged.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::ops::Range;

use arrayvec::ArrayVec;

use super::RangeSet;
use super::pool::{BLOCK_SIZE, Block, Pool, slices_of};

/// Most slices of [`SendBuffer::write_slices`]: 224 KiB at least.
pub const WRITE_SLICES: usize = 8;

/// Most slices of [`SendBuffer::slices`]: 224 KiB at least, which a packet never needs.
pub const SEND_SLICES: usize = 8;

/// Block lists longer than this are given back when the buffer becomes empty.
const KEEP_CAPACITY: usize = 32;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// A block of acknowledged bytes and their offsets.
#[derive(Debug)]
struct Kept {
    range: Range<u64>,
    block: Block,
}

/// Bytes of a stream from the first unacknowledged one to the last one written, addressed by
/// stream offset. Acknowledged ones are kept where somebody still needs them, in whole blocks. A
/// buffer that is empty and keeps nothing holds no block.
#[derive(Debug, Default)]
pub struct SendBuffer {
    /// In order of offset, all below `base`.
    kept: VecDeque<Kept>,
    blocks: VecDeque<Block>,
    /// Offset of the first byte of `blocks[0]`; `base <= start`.
    base: u64,
    start: u64,
    end: u64,
    /// Bytes offered by the last `write_slices`: nothing else may become part of the stream, since
    /// blocks come with what their last user left.
    offered: usize,
}

impl SendBuffer {
    /// An empty buffer whose first byte will be `offset`.
    pub const fn new(offset: u64) -> Self {
        SendBuffer {
            kept: VecDeque::new(),
            blocks: VecDeque::new(),
            base: offset,
            start: offset,
            end: offset,
            offered: 0,
        }
    }

    /// The first offset not released.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The offset the next written byte gets.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Bytes not released.
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether every byte is released.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Bytes of memory held for what is released and still needed.
    pub fn kept(&self) -> usize {
        self.kept.len() * BLOCK_SIZE
    }

    /// Memory for up to `max` further bytes, to be filled from its start and then announced by
    /// [`commit`](Self::commit). Shorter, or empty, where the pool or [`WRITE_SLICES`] ends first.
    ///
    /// The slices hold stale bytes; only committed ones are ever read.
    pub fn write_slices(
        &mut self,
        pool: &mut Pool,
        max: usize,
    ) -> ArrayVec<IoSliceMut<'_>, WRITE_SLICES> {
        let used = (self.end - self.base) as usize;
        let first = used / BLOCK_SIZE;
        let mut skip = used % BLOCK_SIZE;
        let wanted = used
            .saturating_add(max)
            .div_ceil(BLOCK_SIZE)
            .min(first + WRITE_SLICES);
        while self.blocks.len() < wanted {
            let Some(block) = pool.alloc_unreserved() else {
                break;
            };
            self.blocks.push_back(block);
        }
        let mut left = max;
        let mut slices = ArrayVec::new();
        for block in self.blocks.iter_mut().skip(first).take(WRITE_SLICES) {
            let take = left.min(BLOCK_SIZE - skip);
            if take == 0 {
                break;
            }
            slices.push(IoSliceMut::new(&mut block.bytes_mut()[skip..skip + take]));
            left -= take;
            skip = 0;
        }
        self.offered = max - left;
        slices
    }

    /// Takes the first `n` bytes of the last [`write_slices`](Self::write_slices) into the stream
    /// and gives blocks that were not needed back. At most as many bytes as were offered.
    pub fn commit(&mut self, n: usize, pool: &mut Pool) {
        let offered = std::mem::take(&mut self.offered);
        debug_assert!(n <= offered, "committed {n} bytes, {offered} were offered");
        self.end += n.min(offered) as u64;
        let needed = (self.end - self.base).div_ceil(BLOCK) as usize;
        while self.blocks.len() > needed {
            self.blocks
                .pop_back()
                .into_iter()
                .for_each(|b| pool.free(b));
        }
    }

    /// Copies in as much of `data` as the pool has room for and returns how much.
    pub fn write(&mut self, pool: &mut Pool, data: &[u8]) -> usize {
        let mut written = 0;
        while written < data.len() {
            let mut n = 0;
            for mut slice in self.write_slices(pool, data.len() - written) {
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

    /// The bytes of `range`, in order. What is not there (any more), or lies behind the last of
    /// [`SEND_SLICES`] slices, is left out.
    pub fn slices(&self, range: Range<u64>) -> ArrayVec<&[u8], SEND_SLICES> {
        let mut slices = ArrayVec::new();
        if range.start < self.base {
            let first = self.kept.partition_point(|k| k.range.end <= range.start);
            let kept = self.kept.range(first..).take(SEND_SLICES);
            for Kept { range: at, block } in kept.take_while(|k| k.range.start < range.end) {
                let from = range.start.saturating_sub(at.start);
                let to = at.end.min(range.end) - at.start;
                slices.push(&block.bytes()[from as usize..to as usize]);
            }
        }
        let start = range.start.max(self.base);
        let end = range.end.min(self.end);
        if start < end {
            let skip = ((start - self.base) % BLOCK) as usize;
            let first = ((start - self.base) / BLOCK) as usize;
            let room = SEND_SLICES - slices.len();
            let blocks = self.blocks.iter().skip(first).take(room);
            let live: ArrayVec<&[u8], SEND_SLICES> =
                slices_of(blocks, skip, (end - start) as usize);
            slices.extend(live);
        }
        slices
    }

    /// Releases everything below `offset`, which is clamped to what there is, but for blocks with
    /// bytes that are `needed`. That is asked for only where a block could go.
    pub fn release_to(&mut self, offset: u64, needed: impl FnOnce() -> RangeSet, pool: &mut Pool) {
        self.start = offset.clamp(self.start, self.end);
        if self.base == self.start || (self.base + BLOCK > self.start && !self.is_empty()) {
            return;
        }
        while self.base + BLOCK <= self.start || (self.is_empty() && self.base < self.end) {
            let Some(block) = self.blocks.pop_front() else {
                break;
            };
            let range = self.base..self.end.min(self.base + BLOCK);
            self.base = range.end;
            self.kept.push_back(Kept { range, block });
        }
        if self.is_empty() && self.blocks.capacity() > KEEP_CAPACITY {
            self.blocks = VecDeque::new();
        }
        self.forget(&needed(), pool);
    }

    /// Gives back what is released and not `needed` any more.
    pub fn forget(&mut self, needed: &RangeSet, pool: &mut Pool) {
        for _ in 0..self.kept.len() {
            let Some(kept) = self.kept.pop_front() else {
                break;
            };
            let useless = needed.gaps(kept.range.clone()).next() == Some(kept.range.clone());
            match useless {
                true => pool.free(kept.block),
                false => self.kept.push_back(kept),
            }
        }
        if self.kept.is_empty() && self.kept.capacity() > KEEP_CAPACITY {
            self.kept = VecDeque::new();
        }
    }

    /// Releases everything, needed or not; the next byte written keeps the offset it would have had.
    pub fn clear(&mut self, pool: &mut Pool) {
        let kept = self.kept.drain(..).map(|k| k.block);
        kept.chain(self.blocks.drain(..)).for_each(|b| pool.free(b));
        if self.blocks.capacity() > KEEP_CAPACITY {
            self.blocks = VecDeque::new();
        }
        self.start = self.end;
        self.base = self.end;
    }
}
