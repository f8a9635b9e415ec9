//! The share of a connection in the memory that all connections share.

use crate::buffer::Pool;

/// A connection's share of the pool's memory, and its places in the queues for memory.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// Set while the connection is in the stack's queue for pool memory.
    pub waiting_for_pool: bool,
    /// The group that the connection belongs to.
    pub group: Option<u32>,
    /// The number of blocks charged to the group.
    charged: usize,
    /// The connection's place in the queue for its group's quota.
    pub waiting_for_quota: Option<u64>,
}

impl Share {
    /// Charges the connection's group for the `held` blocks that the connection has now.
    pub fn charge(&mut self, pool: &mut Pool, held: usize) {
        if let Some(group) = self.group {
            pool.charge(group, self.charged, held);
            self.charged = held;
        }
    }

    /// Moves the connection with its `held` blocks to `group`.
    pub fn join(&mut self, pool: &mut Pool, group: u32, held: usize) {
        if let Some(old) = self.group.replace(group) {
            pool.charge(old, self.charged, 0);
        }
        self.charged = 0;
        self.charge(pool, held);
    }

    /// Returns whether the group exceeds its quota.
    pub fn is_over_quota(&self, pool: &Pool) -> bool {
        pool.is_over_quota(self.group)
    }

    /// Returns whether the connection may not store received data. If the pool is used up down to its reserve,
    /// or if the group's quota is used up, a connection with `readable` bytes of at least a block stores no
    /// more. So the rest is left to connections whose reader keeps up. Data behind a hole does not count as
    /// readable, because the reserve exists to fill holes. A group that exceeds its quota even if the reserve
    /// counts as free stores nothing at all.
    pub fn is_used_up(&self, pool: &Pool, readable: usize) -> bool {
        let is_scarce = pool.unreserved() == 0 || self.is_over_quota(pool);
        is_scarce && readable >= crate::buffer::BLOCK_SIZE || pool.is_exhausted(self.group)
    }

    /// Returns whether there is no memory for another write of the connection. Its earlier writes hold `blocks`.
    pub fn lacks_memory(&self, pool: &Pool, blocks: usize) -> bool {
        pool.allowance(blocks) == 0 || self.is_over_quota(pool)
    }
}
