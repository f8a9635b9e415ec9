//! The bounded pool of all payload memory.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// The bytes per block: a super-segment of 64 kB spans at most three.
pub const BLOCK_SIZE: usize = 32 * 1024;

/// The most free blocks kept for reuse (8 MiB); others return to the allocator.
const MAX_FREE_BLOCKS: usize = 256;

/// The blocks of a small share: 64 KiB in flight, while one block is being filled and one waits for the
/// acknowledgement of its last bytes.
const MIN_SHARE_BLOCKS: usize = 4;

/// The multiple of the free memory that a group may hold.
const GROUP_QUOTA_FACTOR: usize = 3;

/// Memory for [`BLOCK_SIZE`] bytes. It holds whatever its last user left, up to the last byte ever used:
/// memory that is never written is never touched.
pub struct Block(Vec<u8>);

impl Block {
    pub(super) fn new() -> Self {
        Block(Vec::with_capacity(BLOCK_SIZE))
    }

    /// Returns the bytes up to the last one used.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the bytes of `range`, for writing.
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
/// An eighth of the pool is a reserve for in-order received data. Without the reserve, data behind a hole
/// and data waiting for an acknowledgement could fill the pool, and the bytes that would release both would
/// find no room.
///
/// Half of the pool is for small shares of 128 KiB. The rest is held in common, and no holder gets more
/// than an eighth of its free part (dynamic thresholds, Choudhury and Hahne 1998). So each holder's limit
/// shrinks as others come, and holders whose peers or readers accept nothing, and who therefore free
/// nothing, do not keep others out.
///
/// A user with many small shares could occupy all of them. So holders may belong to a group, which has at
/// most three times the memory left beside the reserve: three quarters if it is the only user. Each of its
/// holders may still keep a block of received data, until the group has three times the memory left
/// including the reserve.
#[derive(Debug)]
pub struct Pool {
    free: Vec<Block>,
    used: usize,
    limit: usize,
    /// The blocks of each group that holds any.
    groups: BTreeMap<u32, usize>,
}

impl Pool {
    /// Creates a pool of at most `limit_bytes`, rounded down to whole blocks. Allocates nothing yet.
    pub const fn new(limit_bytes: usize) -> Self {
        Pool {
            free: Vec::new(),
            used: 0,
            limit: limit_bytes / BLOCK_SIZE,
            groups: BTreeMap::new(),
        }
    }

    /// Returns a block, or `None` at the limit. Every block must return by [`free`](Self::free).
    pub fn alloc(&mut self) -> Option<Block> {
        if self.used >= self.limit {
            return None;
        }
        self.used += 1;
        Some(self.free.pop().unwrap_or_else(Block::new))
    }

    /// Returns a block like [`alloc`](Self::alloc), but within the [`allowance`](Self::allowance) of a
    /// holder of `held` blocks.
    pub fn alloc_within(&mut self, held: usize) -> Option<Block> {
        if self.allowance(held) == 0 {
            return None;
        }
        self.alloc()
    }

    /// Updates the blocks charged to `group` by a holder that had `before` and now has `now`.
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

    /// Returns whether `group` exceeds its quota, so that its holders take no more.
    pub fn is_over_quota(&self, group: Option<u32>) -> bool {
        let held = group.and_then(|group| self.groups.get(&group));
        held.is_some_and(|held| *held > GROUP_QUOTA_FACTOR * self.unreserved())
    }

    /// Returns the number of blocks that `group` may still take.
    pub fn room(&self, group: u32) -> usize {
        let held = self.groups.get(&group).copied().unwrap_or(0);
        (GROUP_QUOTA_FACTOR * self.unreserved()).saturating_sub(held)
    }

    /// Returns whether `group` holds so much that its holders accept no more received data, however little
    /// each holds.
    pub fn is_exhausted(&self, group: Option<u32>) -> bool {
        let held = group.and_then(|group| self.groups.get(&group));
        held.is_some_and(|held| *held > GROUP_QUOTA_FACTOR * self.available())
    }

    /// Takes `block` back.
    pub fn free(&mut self, block: Block) {
        debug_assert!(self.used > 0, "more blocks freed than were handed out");
        self.used = self.used.saturating_sub(1);
        if self.free.len() < MAX_FREE_BLOCKS {
            self.free.push(block);
        }
    }

    /// Returns the bytes handed out and not freed.
    pub fn used_bytes(&self) -> usize {
        self.used * BLOCK_SIZE
    }

    /// Returns the most bytes that can be handed out.
    pub fn limit(&self) -> usize {
        self.limit * BLOCK_SIZE
    }

    /// Returns the number of blocks that [`alloc`](Self::alloc) would still give.
    pub fn available(&self) -> usize {
        self.limit - self.used
    }

    /// Returns the number of blocks left beside the reserve.
    pub fn unreserved(&self) -> usize {
        self.available().saturating_sub(self.limit / 8)
    }

    /// Returns whether two thirds of the common memory are in use, so that no holder gets much more than a
    /// small share.
    pub fn is_scarce(&self) -> bool {
        self.unreserved() < self.limit / 2 + self.limit / 8
    }

    /// Returns the number of blocks that a holder of more than a small share may have.
    pub fn fair_share(&self) -> usize {
        self.unreserved().saturating_sub(self.limit / 2) / 8
    }

    /// Returns the number of blocks that a holder of `held` blocks may still take.
    pub fn allowance(&self, held: usize) -> usize {
        let share = MIN_SHARE_BLOCKS.saturating_sub(held).min(self.unreserved());
        share.max(self.fair_share().saturating_sub(held))
    }
}
