//! The replay window of a path (RFC 4303 section 3.4.3, RFC 6479).

/// Words of the window. A path of 1 Gbit/s sends 4,096 datagrams in 50 ms, more than links reorder.
const WORDS: usize = 64;
/// Numbers in the window.
const WINDOW: u64 = 64 * WORDS as u64;

/// Remembers which of the latest numbers were received.
#[derive(Debug, Clone)]
pub(crate) struct ReplayWindow {
    /// One more than the highest number received.
    next: u64,
    bits: [u64; WORDS],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        ReplayWindow {
            next: 0,
            bits: [0; WORDS],
        }
    }
}

impl ReplayWindow {
    /// Returns one more than the highest number received.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns true if `number` was not received and is not older than the window.
    pub fn is_fresh(&self, number: u64) -> bool {
        if number >= self.next {
            return true;
        }
        self.next - number <= WINDOW && self.bits[word(number)] & bit(number) == 0
    }

    /// Records `number`, which is fresh.
    pub fn insert(&mut self, number: u64) {
        debug_assert!(self.is_fresh(number));
        if number >= self.next {
            self.advance(number);
        }
        self.bits[word(number)] |= bit(number);
    }

    /// Clears the numbers from `next` to `number`.
    fn advance(&mut self, number: u64) {
        if number - self.next >= WINDOW {
            self.bits = [0; WORDS];
        } else {
            for skipped in self.next..=number {
                self.bits[word(skipped)] &= !bit(skipped);
            }
        }
        self.next = number + 1;
    }
}

fn word(number: u64) -> usize {
    (number / 64) as usize % WORDS
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests;
