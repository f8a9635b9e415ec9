//! The contents of streams.

/// Returns the byte at `offset` of every stream. Bytes vary with the offset, so that a reader notices bytes that
/// arrive at a wrong offset.
pub fn pattern(offset: u64) -> u8 {
    pattern_from(offset)[0]
}

/// Returns the bytes of every stream from `offset` to the end of the pattern's present repetition, at least one.
pub fn pattern_from(offset: u64) -> &'static [u8] {
    &PATTERN[(offset % PERIOD) as usize..]
}

/// The length of the pattern, which repeats. The length is a prime, so that the pattern differs from a copy that
/// is shifted by a power of two, such as the size of a buffer.
const PERIOD: u64 = 8_191;

static PATTERN: [u8; PERIOD as usize] = {
    let mut bytes = [0; PERIOD as usize];
    // A linear congruential generator with the constants of "Numerical Recipes". The pattern takes the generator's
    // high byte, which has the longest period. The initial state is arbitrary.
    let mut state: u32 = 0x9e37_79b9;
    let mut i = 0;
    while i < bytes.len() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes[i] = (state >> 24) as u8;
        i += 1;
    }
    bytes
};

/// Fills `out` with the bytes of a stream from `offset` on.
pub(super) fn fill(mut out: &mut [u8], mut offset: u64) {
    while !out.is_empty() {
        let from = (offset % PERIOD) as usize;
        let len = out.len().min(PATTERN.len() - from);
        let (head, tail) = out.split_at_mut(len);
        head.copy_from_slice(&PATTERN[from..from + len]);
        out = tail;
        offset += len as u64;
    }
}
