//! Memory that a crowd took, once the crowd has gone.

use crate::sys;

/// Fewer connections leave nothing worth the work.
const CROWD: usize = 128;

/// Has the allocator give memory back to the system when half of many connections are gone, since what is
/// freed between pieces in use stays with the process otherwise, for as long as it lives.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    most: usize,
}

impl Crowd {
    /// There are so many connections now. A walk over what is free follows at most each time their number
    /// has halved, so those that come and go in between pay for it.
    pub(super) fn is_now(&mut self, connections: usize) {
        if self.has_gone(connections) {
            sys::give_back_memory();
        }
    }

    fn has_gone(&mut self, connections: usize) -> bool {
        let gone = self.most >= CROWD && connections <= self.most / 2;
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
        let mut crowd = Crowd::default();
        let few = [10, 100, 0, 127, 5].map(|n| crowd.has_gone(n));
        assert_eq!(few, [false; 5]);
        let comes = [600, 2_000, 5_000, 3_000, 4_000].map(|n| crowd.has_gone(n));
        assert_eq!(comes, [false; 5]);
        let went: Vec<usize> = (0..2_501).rev().filter(|n| crowd.has_gone(*n)).collect();
        assert_eq!(went, [2_500, 1_250, 625, 312, 156, 78]);
    }
}
