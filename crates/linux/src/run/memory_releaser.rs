//! Releases memory after many connections have ended.

use crate::sys;

/// Minimum peak of connections for a release. Fewer connections leave so little free memory that a release is
/// not worth its time. The number is a guess.
const MIN_CONNECTIONS: usize = 128;

/// Makes the allocator return free memory to the kernel when there were many connections and half of them have
/// ended. Without this, free memory between blocks in use would stay with the process until it ends.
#[derive(Debug, Default)]
pub(super) struct MemoryReleaser {
    peak: usize,
}

impl MemoryReleaser {
    /// Takes the current number of connections, and releases memory if the number has halved. A release walks
    /// over all free memory. Since half of the connections have to end before each release, its cost per
    /// connection is small.
    pub(super) fn update(&mut self, connections: usize) {
        if self.has_halved(connections) {
            sys::give_back_memory();
        }
    }

    /// Returns whether the number of connections is at most half of its peak. If so, the number becomes the new
    /// peak.
    fn has_halved(&mut self, connections: usize) -> bool {
        let has_halved = self.peak >= MIN_CONNECTIONS && connections <= self.peak / 2;
        if has_halved || connections > self.peak {
            self.peak = connections;
        }
        has_halved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_released_each_time_that_many_connections_halve() {
        let mut memory_releaser = MemoryReleaser::default();
        let few = [10, 100, 0, 127, 5].map(|n| memory_releaser.has_halved(n));
        assert_eq!(few, [false; 5]);
        let comes = [600, 2_000, 5_000, 3_000, 4_000].map(|n| memory_releaser.has_halved(n));
        assert_eq!(comes, [false; 5]);
        let went: Vec<usize> = (0..2_501)
            .rev()
            .filter(|n| memory_releaser.has_halved(*n))
            .collect();
        assert_eq!(went, [2_500, 1_250, 625, 312, 156, 78]);
    }
}
