//! A set of numbers in a window, in which the least one is found fast.

/// Words of the window.
const WORDS: usize = 128;
/// Numbers in the window.
pub(crate) const SPAN: usize = 64 * WORDS;

/// Numbers of which no two are [`SPAN`] or more apart.
#[derive(Debug, Clone)]
pub(crate) struct Marks(Box<[u64; WORDS]>);

impl Default for Marks {
    fn default() -> Self {
        Marks(Box::new([0; WORDS]))
    }
}

impl Marks {
    pub fn insert(&mut self, number: u64) {
        self.0[word(number)] |= bit(number);
    }

    pub fn remove(&mut self, number: u64) {
        self.0[word(number)] &= !bit(number);
    }

    /// Returns the lowest number of the set. No number of the set may be below `from`.
    pub fn first(&self, from: u64) -> Option<u64> {
        let start = word(from);
        let at_start = self.0[start] & !(bit(from) - 1);
        if at_start != 0 {
            return Some(from - from % 64 + u64::from(at_start.trailing_zeros()));
        }
        // The window ends in the word in which it begins.
        let base = from / 64;
        (1..=WORDS as u64).find_map(|step| {
            let bits = self.0[word((base + step) * 64)];
            (bits != 0).then(|| (base + step) * 64 + u64::from(bits.trailing_zeros()))
        })
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
