//! An application that limits its own rate.

use core::time::Duration;

use braid_wire::Instant;

/// The units of [`Bucket::level`] per byte: 8 bits, and 10^9 ns per second.
const PER_BYTE: u128 = 8 * 1_000_000_000;

/// A token bucket. It holds at most four chunks, so that no long burst follows when a full send buffer gets room.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Bucket {
    /// The level in units of bit/s times nanoseconds: rate times time, without rounding.
    level: u128,
    filled_at: Instant,
}

/// Bytes of a write. 1,000 is a guess: about one packet, so that the stream is smooth.
const CHUNK: u64 = 1_000;
/// The maximum number of bytes in a bucket. The factor 4 is a guess: it bounds a burst to a few packets.
const DEPTH: u64 = 4 * CHUNK;

impl Bucket {
    pub fn starting_at(now: Instant) -> Self {
        Bucket {
            level: 0,
            filled_at: now,
        }
    }

    /// Fills the bucket for the time that has passed, and returns the number of bytes that may be written, in
    /// whole chunks.
    pub fn fill(&mut self, now: Instant, rate: u64) -> u64 {
        let passed = now.saturating_since(self.filled_at).as_nanos();
        self.filled_at = self.filled_at.max(now);
        let level = self.level + passed * u128::from(rate);
        self.level = level.min(u128::from(DEPTH) * PER_BYTE);
        let bytes = (self.level / PER_BYTE) as u64;
        bytes - bytes % CHUNK
    }

    /// Removes `bytes` that were written.
    pub fn take(&mut self, bytes: u64) {
        self.level = self.level.saturating_sub(u128::from(bytes) * PER_BYTE);
    }

    /// Returns the time at which the next chunk may be written. Returns `None` if the bucket holds a chunk. The
    /// send buffer is then full, and an event of the connection will report room.
    pub fn next(&self, rate: u64) -> Option<Instant> {
        let missing = (u128::from(CHUNK) * PER_BYTE).checked_sub(self.level)?;
        let ns = missing.div_ceil(u128::from(rate.max(1)));
        let wait = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
        (missing > 0).then(|| self.filled_at + wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 448_000;

    #[test]
    fn the_rate_is_kept_and_bursts_are_bounded() {
        let start = Instant::from_millis(1_000);
        let mut bucket = Bucket::starting_at(start);
        let mut sent = 0;
        let mut now = start;
        while now < start + Duration::from_secs(100) {
            let bytes = bucket.fill(now, RATE);
            assert!(bytes == CHUNK || sent == 0, "{bytes} at {now}");
            bucket.take(bytes);
            sent += bytes;
            let next = bucket.next(RATE).unwrap();
            assert!(next > now);
            now = next;
        }
        let expected = 100 * RATE / 8;
        assert!(sent.abs_diff(expected) <= CHUNK, "{sent} of {expected}");
        // After ten seconds without a write, the bucket holds its maximum, not more.
        assert_eq!(bucket.fill(now + Duration::from_secs(10), RATE), DEPTH);
        assert_eq!(bucket.next(RATE), None);
    }
}
