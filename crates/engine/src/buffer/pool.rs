//! The bounded pool from which all payload buffers of a stack take their memory.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// The size of a block in bytes. The value is a guess: smaller blocks would split a super-segment of 64 kB, which
/// spans at most three blocks, into more slices; larger ones would waste more memory on connections with little
/// data.
pub const BLOCK_SIZE: usize = 32 * 1024;

/// The maximum number of free blocks kept for reuse (8 MiB); further blocks return to the allocator. The value is
/// a guess.
const MAX_FREE_BLOCKS: usize = 256;

/// The number of blocks of a small share. Two blocks hold 64 KiB in flight, one block is being written, and one
/// waits for the acknowledgement of its last bytes.
const MIN_SHARE_BLOCKS: usize = 4;

/// The number of blocks that a group may hold for each free block: see [`Pool`].
const GROUP_QUOTA_FACTOR: usize = 3;

/// Memory for [`BLOCK_SIZE`] bytes. The vector's length is the highest position ever written. Below it the block
/// may hold stale bytes of its last user. The memory above it was never touched, so the system need not provide
/// that memory.
pub struct Block(Vec<u8>);

impl Block {
    /// Allocates a block that has never been written.
    pub(super) fn new() -> Self {
        Block(Vec::with_capacity(BLOCK_SIZE))
    }

    /// Returns the bytes up to the last one ever written.
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

    /// Writes `data` at position `at`.
    pub fn put(&mut self, at: usize, data: &[u8]) {
        debug_assert!(
            at + data.len() <= BLOCK_SIZE,
            "{} bytes at {at}",
            data.len()
        );
        match at == self.0.len() {
            // Appending avoids zeroing the memory first.
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
/// A holder is a buffer that takes blocks. The fractions below are guesses.
///
/// An eighth of the pool is a reserve for received data that is in order. Without the reserve, out-of-order data
/// and unacknowledged data could fill the pool. There would be no memory for the missing bytes, without which the
/// out-of-order data can neither be read nor freed.
///
/// Half of the pool is for small shares of 128 KiB, to which each holder is entitled as long as there is memory.
/// The remaining three eighths are common memory. A holder that has more than a small share may hold at most an
/// eighth of the free common memory (dynamic thresholds, Choudhury and Hahne 1998). So the limit of each holder
/// shrinks as others take memory. Holders that never free memory, because their peers or readers accept no data,
/// cannot exclude others.
///
/// A user with many connections could occupy all small shares. Therefore holders may belong to a group. A group
/// may hold at most three times the memory that is left besides the reserve. If the group is the only user, this
/// is three quarters of all memory besides the reserve. A group at its limit may still receive a block of data for
/// each holder, until it holds three times the memory that is left including the reserve.
#[derive(Debug)]
pub struct Pool {
    /// The free blocks kept for reuse.
    free: Vec<Block>,
    /// The number of blocks handed out and not freed.
    used: usize,
    /// The maximum of `used`.
    limit: usize,
    /// The number of blocks of each group that holds any.
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

    /// Returns a block, or `None` if the limit is reached. Every block must be returned by [`free`](Self::free).
    pub fn alloc(&mut self) -> Option<Block> {
        if self.used >= self.limit {
            return None;
        }
        self.used += 1;
        Some(self.free.pop().unwrap_or_else(Block::new))
    }

    /// Returns a block like [`alloc`](Self::alloc), unless this would exceed the [`allowance`](Self::allowance)
    /// of a holder that has `held` blocks.
    pub fn alloc_within(&mut self, held: usize) -> Option<Block> {
        if self.allowance(held) == 0 {
            return None;
        }
        self.alloc()
    }

    /// Updates the number of blocks of `group` after one of its holders, which had `before` blocks, has `now`
    /// blocks.
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

    /// Returns whether `group` exceeds its quota, so that its holders must not take further blocks.
    pub fn is_over_quota(&self, group: Option<u32>) -> bool {
        let held = group.and_then(|group| self.groups.get(&group));
        held.is_some_and(|held| *held > GROUP_QUOTA_FACTOR * self.unreserved())
    }

    /// Returns the number of further blocks that `group` may take.
    pub fn room(&self, group: u32) -> usize {
        let held = self.groups.get(&group).copied().unwrap_or(0);
        (GROUP_QUOTA_FACTOR * self.unreserved()).saturating_sub(held)
    }

    /// Returns whether `group` holds so many blocks that all its holders must refuse received data, even those
    /// that have few blocks.
    pub fn is_exhausted(&self, group: Option<u32>) -> bool {
        let held = group.and_then(|group| self.groups.get(&group));
        held.is_some_and(|held| *held > GROUP_QUOTA_FACTOR * self.available())
    }

    /// Returns `block` to the pool.
    pub fn free(&mut self, block: Block) {
        debug_assert!(self.used > 0, "more blocks freed than were handed out");
        self.used = self.used.saturating_sub(1);
        if self.free.len() < MAX_FREE_BLOCKS {
            self.free.push(block);
        }
    }

    /// Returns the number of bytes handed out and not freed.
    pub fn used_bytes(&self) -> usize {
        self.used * BLOCK_SIZE
    }

    /// Returns the maximum number of bytes that can be handed out.
    pub fn limit(&self) -> usize {
        self.limit * BLOCK_SIZE
    }

    /// Returns the number of blocks that [`alloc`](Self::alloc) can still return.
    pub fn available(&self) -> usize {
        self.limit - self.used
    }

    /// Returns the number of blocks left besides the reserve.
    pub fn unreserved(&self) -> usize {
        self.available().saturating_sub(self.limit / 8)
    }

    /// Returns whether more than two thirds of the common memory are in use, so that no holder gets much more
    /// than a small share.
    pub fn is_scarce(&self) -> bool {
        // The common memory is three eighths of the limit. Two thirds are in use if less than one eighth of the
        // limit is free in addition to the half for small shares.
        self.unreserved() < self.limit / 2 + self.limit / 8
    }

    /// Returns the maximum number of blocks of a holder that has more than a small share.
    pub fn fair_share(&self) -> usize {
        self.unreserved().saturating_sub(self.limit / 2) / 8
    }

    /// Returns the number of further blocks that a holder of `held` blocks may take.
    pub fn allowance(&self, held: usize) -> usize {
        let small_share = MIN_SHARE_BLOCKS.saturating_sub(held).min(self.unreserved());
        small_share.max(self.fair_share().saturating_sub(held))
    }
}
