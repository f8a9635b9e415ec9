//! Serialisation without drift.

use core::num::NonZeroU64;

use braid_wire::Instant;

use crate::settings::Rate;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// A serial line: when it will be free, exactly. Whole nanoseconds alone would lose up to one per
/// packet, 0.1 % at 10 Gbit/s, so the fraction is carried along.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Line {
    free_at: Instant,
    /// Past `free_at`, in units of (1 / rate) ns; less than the rate.
    fraction: u64,
}

impl Line {
    /// Starts a packet of `len` bytes at `now`, or when the line is free if that is later, and
    /// answers when its last bit has left.
    pub fn send(&mut self, now: Instant, rate: Rate, len: u32) -> Instant {
        if now > self.free_at {
            *self = Line {
                free_at: now,
                fraction: 0,
            };
        }
        if let Rate::Fixed(rate) = rate {
            let rate = u128::from(rate.get());
            let units = u128::from(len) * 8 * NANOS_PER_SECOND + u128::from(self.fraction);
            self.free_at = later(self.free_at, units / rate);
            self.fraction = (units % rate) as u64;
        }
        self.free_at
    }

    /// The rate changes at `now`: what remains of the packet on the line takes the new one.
    pub fn change_rate(&mut self, now: Instant, old: Rate, new: Rate) -> Instant {
        if now < self.free_at && old != new {
            let remaining = u128::from(self.free_at.as_nanos() - now.as_nanos());
            let remaining = remaining * weight(old) / weight(new).max(1);
            *self = Line {
                free_at: later(now, remaining),
                fraction: 0,
            };
        }
        self.free_at
    }
}

/// The rate as a factor, where an unlimited line has no time left on it.
fn weight(rate: Rate) -> u128 {
    match rate {
        Rate::Unlimited => u128::from(u64::MAX),
        Rate::Fixed(rate) => u128::from(NonZeroU64::get(rate)),
    }
}

fn later(at: Instant, nanos: u128) -> Instant {
    Instant::from_nanos(
        at.as_nanos()
            .saturating_add(u64::try_from(nanos).unwrap_or(u64::MAX)),
    )
}
