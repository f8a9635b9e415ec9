//! The rate of a flow.

use core::time::Duration;

use braid_wire::Instant;

/// The time over which a rate is averaged.
const SPAN: Duration = Duration::from_millis(250);

/// Measures a rate by counting bytes over spans of time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RateMeter {
    started: Instant,
    bytes: u64,
    /// Bytes per second in the last full span.
    rate: u64,
}

impl RateMeter {
    pub fn add(&mut self, now: Instant, bytes: usize) {
        let passed = now.saturating_since(self.started);
        if passed >= SPAN {
            // An idle time counts as part of the span, so that a burst after it has a low rate.
            let nanos = passed.as_nanos().min(u128::from(u64::MAX)) as u64;
            self.rate = (u128::from(self.bytes) * 1_000_000_000 / u128::from(nanos.max(1))) as u64;
            self.started = now;
            self.bytes = 0;
        }
        self.bytes += bytes as u64;
    }

    /// Returns the rate in bytes per second. The current span counts too if its rate would be higher.
    pub fn get(&self) -> u64 {
        // A span is a quarter of a second.
        self.rate.max(self.bytes * 4)
    }
}
