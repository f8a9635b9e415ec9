//! The bounded pool all payload memory comes from.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Bytes per block: a super-segment of 64 kB spans at most three.
pub const BLOCK_SIZE: usize = 32 * 1024;

/// Most free blocks kept for reuse (8 MiB); others go back to the allocator.
const KEEP_FREE: usize = 256;

/// Blocks of a small share: 64 KiB in flight while one block is filled and one waits for its last
/// bytes to be acknowledged.
const SHARE: usize = 4;

/// A group has at most so many times what is left.
const GROUP: usize = 3;

/// Memory for [`BLOCK_SIZE`] bytes. Its contents are whatever its last user left, up to the last one
/// ever used: what is never written is never touched.
pub struct Block(Vec<u8>);

impl Block {
    pub(super) fn new() -> Self {
        Block(Vec::with_capacity(BLOCK_SIZE))
    }

    /// The bytes up to the last one used.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes of `range`, to be written.
    pub fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        debug_assert!(range.end <= BLOCK_SIZE, "{range:?} of a block");
        if self.0.len() < range.end {
            self.0.resize(range.end, 0);
        }
        &mut self.0[range]
    }

    /// Writes `data` from byte `at` on.
    pub fn put(&mut self, at: usize, data: &[u8]) {
        debug_assert!(
            at + data.len() <= BLOCK_SIZE,
            "{} bytes at {at}",
            data.len()
        );
        match at == self.0.len() {
            true => self.0.extend_from_slice(data),
            false => self.bytes_mut(at..at + data.len()).copy_from_slice(data),
        }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Block")
    }
}

/// A bounded pool of [`Block`]s.
///
/// One eighth of it is a reserve for in-order received data. Without the reserve, data waiting
/// behind a hole and data waiting for an acknowledgement could fill the pool, and the bytes that
/// would let both go find no room.
///
/// Half of it is for small shares of 128 KiB. The rest is held in common: of what is left of that nobody
/// gets more than an eighth (dynamic thresholds, Choudhury and Hahne 1998). So what one may hold shrinks
/// as others come, and those whose peers or readers take nothing, and who therefore give nothing back,
/// do not keep others out.
///
/// Who has many small shares could have all of them. So holders may belong to a group, which has at most
/// three times what is left beside the reserve: three quarters where it is alone. Of what it is sent each
/// holder may still keep a block, until the group has three times what is left with the reserve.
#[derive(Debug)]
pub struct Pool {
    free: Vec<Block>,
    used: usize,
    limit: usize,
    /// Blocks of groups that have any.
    groups: BTreeMap<u32, usize>,
}

impl Pool {
    /// A pool of at most `limit_bytes`, rounded down to whole blocks. Allocates nothing yet.
    pub const fn new(limit_bytes: usize) -> Self {
        Pool {
            free: Vec::new(),
            used: 0,
            limit: limit_bytes / BLOCK_SIZE,
            groups: BTreeMap::new(),
        }
    }

    /// A block, or `None` at the limit. Every block must come back by [`free`](Self::free).
    pub fn alloc(&mut self) -> Option<Block> {
        if self.used >= self.limit {
            return None;
        }
        self.used += 1;
        Some(self.free.pop().unwrap_or_else(Block::new))
    }

    /// As [`alloc`](Self::alloc), but within the [`allowance`](Self::allowance) of one who holds
    /// `held` blocks.
    pub fn alloc_within(&mut self, held: usize) -> Option<Block> {
        if self.allowance(held) == 0 {
            return None;
        }
        self.alloc()
    }

    /// Says that one of `group` holds `now` blocks, and held `before`.
    pub fn charge(&mut self, group: u32, before: usize, now: usize) {
        if before == now {
            return;
        }
        let held = self.groups.entry(group).or_default();
        debug_assert!(
            *held >= before,
            "{held} blocks of a group are less than {before}"
        );
        *held = (*held + now).saturating_sub(before);
        if *held == 0 {
            self.groups.remove(&group);
        }
    }

    /// Whether `group` has its part: nobody of it takes more.
    pub fn is_over(&self, group: Option<u32>) -> bool {
        let held = group.and_then(|group| self.groups.get(&group));
        held.is_some_and(|held| *held > GROUP * self.unreserved())
    }

    /// Blocks that `group` may still take.
    pub fn room(&self, group: u32) -> usize {
        let held = self.groups.get(&group).copied().unwrap_or(0);
        (GROUP * self.unreserved()).saturating_sub(held)
    }

    /// Whether `group` has so much that nobody of it takes anything in any more, however little one
    /// holds.
    pub fn is_out(&self, group: Option<u32>) -> bool {
        let held = group.and_then(|group| self.groups.get(&group));
        held.is_some_and(|held| *held > GROUP * self.available())
    }

    /// Takes `block` back.
    pub fn free(&mut self, block: Block) {
        debug_assert!(self.used > 0, "more blocks freed than were handed out");
        self.used = self.used.saturating_sub(1);
        if self.free.len() < KEEP_FREE {
            self.free.push(block);
        }
    }

    /// Bytes handed out and not freed.
    pub fn used_bytes(&self) -> usize {
        self.used * BLOCK_SIZE
    }

    /// Most bytes that can be handed out.
    pub fn limit(&self) -> usize {
        self.limit * BLOCK_SIZE
    }

    /// Blocks that [`alloc`](Self::alloc) would still give.
    pub fn available(&self) -> usize {
        self.limit - self.used
    }

    /// Blocks that are left beside the reserve.
    pub fn unreserved(&self) -> usize {
        self.available().saturating_sub(self.limit / 8)
    }

    /// Returns whether two thirds of what is held in common are in use, so that nobody gets much more than
    /// a small share.
    pub fn is_scarce(&self) -> bool {
        self.unreserved() < self.limit / 2 + self.limit / 8
    }

    /// Blocks that one may hold who has more than a small share.
    pub fn fair(&self) -> usize {
        self.unreserved().saturating_sub(self.limit / 2) / 8
    }

    /// Blocks that one who holds `held` may still take.
    pub fn allowance(&self, held: usize) -> usize {
        let share = SHARE.saturating_sub(held).min(self.unreserved());
        share.max(self.fair().saturating_sub(held))
    }
}
