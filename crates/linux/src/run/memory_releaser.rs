//! Release of memory after many connections have ended.

use crate::sys;

/// Fewer connections than this leave too little memory behind to be worth the work.
const MIN_CONNECTIONS: usize = 128;

/// Makes the allocator return memory to the system when half of many connections are gone. Otherwise freed
/// memory between blocks in use stays with the process for as long as it lives.
#[derive(Debug, Default)]
pub(super) struct MemoryReleaser {
    most: usize,
}

impl MemoryReleaser {
    /// Takes the present number of connections. Releasing walks over all free memory, so it happens only when
    /// the number has halved; the connections that ended in between pay for it.
    pub(super) fn update(&mut self, connections: usize) {
        if self.has_halved(connections) {
            sys::give_back_memory();
        }
    }

    fn has_halved(&mut self, connections: usize) -> bool {
        let gone = self.most >= MIN_CONNECTIONS && connections <= self.most / 2;
        if gone || connections > self.most {
            self.most = connections;
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_as_a_crowd_goes_and_for_no_few() {
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
