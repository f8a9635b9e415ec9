//! The size of a connection's receive window, which follows the speed of its reader (RFC 8684 section 3.3.1, RFC
//! 9293 section 3.8.6). The connection's share of the memory bounds it in addition (`sides`).

use core::time::Duration;

use braid_wire::Instant;

/// The window in bytes as long as the reader has read nothing. The value is a guess: a congestion window of 14
/// kB (RFC 6928) doubles five times before this window limits it, and meanwhile the reader begins to read.
const INITIAL_WINDOW: u64 = 512 << 10;
/// The time over which reads are counted. It is longer than a usual round trip: if a segment is lost on one path,
/// the window has to hold all that the other paths bring until a timeout has repaired the loss. The value is a
/// guess, more than twice the minimum timeout of 200 ms.
const READ_PERIOD: Duration = Duration::from_millis(500);

/// The size of the receive window: it doubles until it is twice the bytes read within [`READ_PERIOD`], and never
/// shrinks. So a reader that stalls from the start holds little of the shared memory.
#[derive(Debug)]
pub(crate) struct WindowSize {
    size: u64,
    /// The number of bytes read since `period_start`.
    read: u64,
    period_start: Instant,
}

impl Default for WindowSize {
    fn default() -> Self {
        WindowSize {
            size: INITIAL_WINDOW,
            read: 0,
            period_start: Instant::ZERO,
        }
    }
}

impl WindowSize {
    /// Returns the size in bytes.
    pub fn get(&self) -> u64 {
        self.size
    }

    /// Notes that the reader took `n` bytes; the window grows up to `max`.
    pub fn on_read(&mut self, now: Instant, n: u64, max: u64) {
        if now.saturating_since(self.period_start) > READ_PERIOD {
            self.period_start = now;
            self.read = 0;
        }
        self.read += n;
        while self.size < max && self.read * 2 > self.size {
            self.size *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 8 << 20;

    #[test]
    fn grows_with_a_fast_reader_and_stays() {
        let mut window = WindowSize::default();
        let t = Instant::from_millis(1000);
        window.on_read(t, INITIAL_WINDOW / 2, MAX);
        assert_eq!(window.get(), INITIAL_WINDOW);
        window.on_read(t, 1, MAX);
        assert_eq!(window.get(), 2 * INITIAL_WINDOW);
        window.on_read(t, 100 << 20, MAX);
        assert_eq!(window.get(), MAX);
        window.on_read(t + Duration::from_secs(10), 1, MAX);
        assert_eq!(window.get(), MAX);
    }

    #[test]
    fn a_slow_reader_keeps_a_small_one() {
        let mut window = WindowSize::default();
        let mut t = Instant::from_millis(1000);
        // Two reads fall into each period: 2 * 200,000 bytes are less than the initial window.
        for _ in 0..1000 {
            window.on_read(t, 100_000, MAX);
            t += Duration::from_millis(251);
        }
        assert_eq!(window.get(), INITIAL_WINDOW);
    }
}
