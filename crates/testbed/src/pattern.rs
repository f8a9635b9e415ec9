//! The bytes of test transfers. Word `i` of the stream is output `i` of SplitMix64, little-endian. A word can be
//! computed from its index and the seed alone, so a reader can check any part of the stream.

/// A position in the stream of one seed.
#[derive(Debug, Clone)]
pub struct Pattern {
    seed: u64,
    offset: u64,
}

impl Pattern {
    /// Returns the stream of `seed`, at its start.
    pub fn new(seed: u64) -> Self {
        Pattern { seed, offset: 0 }
    }

    /// Fills `buf` with the next bytes of the stream.
    pub fn fill(&mut self, buf: &mut [u8]) {
        let mut rest = buf;
        while !rest.is_empty() {
            let word = self.word(self.offset / 8).to_le_bytes();
            let skip = (self.offset % 8) as usize;
            let n = rest.len().min(8 - skip);
            rest[..n].copy_from_slice(&word[skip..skip + n]);
            self.offset += n as u64;
            rest = &mut rest[n..];
        }
    }

    /// Compares `bytes` with the next bytes of the stream. Fails with the offset of the first difference, counted
    /// from the start of the stream.
    pub fn check(&mut self, bytes: &[u8]) -> Result<(), u64> {
        let mut expected = vec![0; bytes.len()];
        let start = self.offset;
        self.fill(&mut expected);
        if expected == bytes {
            return Ok(());
        }
        let differs = expected.iter().zip(bytes).position(|(a, b)| a != b);
        Err(start + differs.unwrap_or(0) as u64)
    }

    fn word(&self, index: u64) -> u64 {
        // Constants of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
        let step = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(index.wrapping_add(1));
        let mut z = self.seed.wrapping_add(step);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_chunks_does_not_matter() {
        let mut bytes = [0; 1000];
        Pattern::new(7).fill(&mut bytes);
        let mut pattern = Pattern::new(7);
        // 13 is no multiple or divisor of a word's 8 bytes.
        for chunk in bytes.chunks(13) {
            assert_eq!(pattern.check(chunk), Ok(()));
        }
    }

    #[test]
    fn the_offset_of_a_difference_is_found() {
        let mut bytes = [0; 100];
        Pattern::new(7).fill(&mut bytes);
        bytes[42] ^= 1;
        let mut pattern = Pattern::new(7);
        assert_eq!(pattern.check(&bytes[..40]), Ok(()));
        assert_eq!(pattern.check(&bytes[40..]), Err(42));
    }

    #[test]
    fn the_first_word_is_that_of_splitmix64() {
        let mut bytes = [0; 8];
        Pattern::new(1_234_567).fill(&mut bytes);
        assert_eq!(u64::from_le_bytes(bytes), 6_457_827_717_110_365_317);
    }
}
