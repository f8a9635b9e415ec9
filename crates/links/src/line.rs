//! Serialisation without drift.

use braid_wire::Instant;

use crate::settings::Rate;
use crate::trace::Cursor;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A serial line and the exact time at which it becomes free. Whole nanoseconds alone would lose up to
/// one per packet, 0.1 % at 10 Gbit/s, so the fraction is carried along.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line {
    free_at: Instant,
    /// The part of the time past `free_at`, in units of (1 / rate) ns; less than the rate.
    fraction: u64,
    /// The place in the trace, if the rate is a trace.
    cursor: Cursor,
}

impl Line {
    /// Makes a free line. A trace, if the rate is one, starts at `now`.
    pub fn new(now: Instant) -> Self {
        Line {
            free_at: Instant::ZERO,
            fraction: 0,
            cursor: Cursor::new(now),
        }
    }

    /// Starts a packet of `len` bytes at `now`, or when the line becomes free if that is later, and
    /// returns when its last bit has left.
    pub fn send(&mut self, now: Instant, rate: &Rate, len: u32) -> Instant {
        if now > self.free_at {
            self.free_at = now;
            self.fraction = 0;
        }
        match rate {
            Rate::Unlimited => {}
            Rate::Fixed(rate) => {
                let rate = u128::from(rate.get());
                let units = u128::from(len) * 8 * NANOS_PER_SECOND + u128::from(self.fraction);
                self.free_at = later(self.free_at, units / rate);
                self.fraction = (units % rate) as u64;
            }
            Rate::Trace(trace) => {
                self.fraction = 0;
                self.free_at = self.cursor.send(trace, self.free_at, len);
            }
        }
        self.free_at
    }

    /// Changes the rate at `now` and returns when the last bit on the line has left. What remains of the
    /// packet on the line, of `len` bytes (0 if there is none), takes the new rate.
    pub fn change_rate(&mut self, now: Instant, (old, new): (&Rate, &Rate), len: u32) -> Instant {
        if old == new {
            return self.free_at;
        }
        let remaining = self.free_at.as_nanos().saturating_sub(now.as_nanos());
        if let (Rate::Fixed(old), Rate::Fixed(new)) = (old, new) {
            if remaining > 0 {
                let nanos = u128::from(remaining) * u128::from(old.get()) / u128::from(new.get());
                self.free_at = later(now, nanos);
                self.fraction = 0;
            }
            return self.free_at;
        }
        let remaining = match old {
            Rate::Unlimited => 0,
            Rate::Fixed(rate) => {
                let units = u128::from(remaining) * u128::from(rate.get());
                let bytes = units.div_ceil(8 * NANOS_PER_SECOND);
                u32::try_from(bytes).unwrap_or(len).min(len)
            }
            Rate::Trace(trace) => self.cursor.remaining(trace, now, len),
        };
        *self = Line::new(now);
        self.free_at = now;
        if remaining > 0 {
            self.send(now, new, remaining);
        }
        self.free_at
    }

    /// Removes the packet on the line, which is lost.
    pub fn abort(&mut self) {
        self.free_at = Instant::ZERO;
        self.fraction = 0;
        self.cursor.forget();
    }
}

fn later(at: Instant, nanos: u128) -> Instant {
    Instant::from_nanos(
        at.as_nanos()
            .saturating_add(u64::try_from(nanos).unwrap_or(u64::MAX)),
    )
}
