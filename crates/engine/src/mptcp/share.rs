//! The part that a connection has in the memory of all.

use crate::buffer::Pool;

/// A connection's share of the pool's memory, and its places among those that wait for some.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// In the stack's queue of connections that wait for memory.
    pub starved: bool,
    /// The group that the connection belongs to.
    pub group: Option<u32>,
    /// The number of blocks that were charged to the group.
    charged: usize,
    /// Its place among those who wait for their group to have less.
    pub crowded: Option<u64>,
}

impl Share {
    /// Has its group answer for the `held` blocks that it has now.
    pub fn charge(&mut self, pool: &mut Pool, held: usize) {
        if let Some(group) = self.group {
            pool.charge(group, self.charged, held);
            self.charged = held;
        }
    }

    /// Belongs to `group` from now on, with the `held` blocks that it has.
    pub fn join(&mut self, pool: &mut Pool, group: u32, held: usize) {
        if let Some(old) = self.group.replace(group) {
            pool.charge(old, self.charged, 0);
        }
        self.charged = 0;
        self.charge(pool, held);
    }

    /// Returns whether the group has more than its part.
    pub fn is_over(&self, pool: &Pool) -> bool {
        pool.is_over(self.group)
    }

    /// Returns whether memory is used up to the reserve, or the group's part of it, and this connection holds its
    /// share already, with `readable` bytes: what is left is for readers that take what comes.
    pub fn is_used_up(&self, pool: &Pool, readable: usize) -> bool {
        // What waits behind a hole does not count: the reserve is there to fill the hole.
        let scarce = pool.unreserved() == 0 || self.is_over(pool);
        scarce && readable >= crate::buffer::BLOCK_SIZE || pool.is_out(self.group)
    }

    /// Returns whether a write finds no memory where `blocks` hold what was written before.
    pub fn is_lacking(&self, pool: &Pool, blocks: usize) -> bool {
        pool.allowance(blocks) == 0 || self.is_over(pool)
    }
}
