//! The contents of streams.

/// Returns the byte at `offset` of every stream. It depends on the offset, so that no shift goes
/// unnoticed.
pub fn pattern(offset: u64) -> u8 {
    pattern_from(offset)[0]
}

/// Returns the bytes of every stream from `offset` on: at least one, up to the end of the pattern.
pub fn pattern_from(offset: u64) -> &'static [u8] {
    &PATTERN[(offset % PERIOD) as usize..]
}

/// The length of the pattern: a prime, so that no block boundary falls on the same place twice.
const PERIOD: u64 = 8_191;

static PATTERN: [u8; PERIOD as usize] = {
    let mut bytes = [0; PERIOD as usize];
    // A linear congruential generator (the constants of "Numerical Recipes"), of which the high byte
    // varies most.
    let mut state: u32 = 0x9e37_79b9;
    let mut i = 0;
    while i < bytes.len() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes[i] = (state >> 24) as u8;
        i += 1;
    }
    bytes
};

/// Writes the pattern from `at` on.
pub(super) fn fill(mut out: &mut [u8], mut at: u64) {
    while !out.is_empty() {
        let from = (at % PERIOD) as usize;
        let take = out.len().min(PATTERN.len() - from);
        let (head, tail) = out.split_at_mut(take);
        head.copy_from_slice(&PATTERN[from..from + take]);
        out = tail;
        at += take as u64;
    }
}
