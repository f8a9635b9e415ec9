//! Time without a clock: the driver passes instants to the engine.

use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// A point in time, in nanoseconds since an origin that the driver chooses. Tests start at 0.
///
/// Arithmetic and conversions saturate at [`ZERO`](Self::ZERO) and [`FAR_FUTURE`](Self::FAR_FUTURE), which is 584
/// years after the origin (2^64 ns).
///
/// ```
/// use braid_wire::Instant;
/// use std::time::Duration;
///
/// let sent = Instant::from_millis(20);
/// let received = sent + Duration::from_millis(35);
/// assert_eq!(received.saturating_since(sent), Duration::from_millis(35));
/// assert_eq!(sent - Duration::from_secs(1), Instant::ZERO);
///
/// // A driver on a real machine counts from the time of its own start.
/// let origin = std::time::Instant::now();
/// let now = Instant::from_std(origin + Duration::from_millis(55), origin);
/// assert_eq!(now, received);
/// assert_eq!(now.to_std(origin), Some(origin + Duration::from_millis(55)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Instant = Instant(0);
    /// An instant that is later than any real one.
    pub const FAR_FUTURE: Instant = Instant(u64::MAX);

    /// Returns the instant `ns` nanoseconds after the origin.
    pub const fn from_nanos(ns: u64) -> Self {
        Instant(ns)
    }

    /// Returns the instant `us` microseconds after the origin, or [`Self::FAR_FUTURE`] on overflow.
    pub const fn from_micros(us: u64) -> Self {
        Instant(us.saturating_mul(1_000))
    }

    /// Returns the instant `ms` milliseconds after the origin, or [`Self::FAR_FUTURE`] on overflow.
    pub const fn from_millis(ms: u64) -> Self {
        Instant(ms.saturating_mul(1_000_000))
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the whole microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Returns the whole milliseconds since the origin.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Converts an instant of the standard library. `origin` becomes [`Self::ZERO`], and so do instants before
    /// `origin`.
    // tidy: converts what the caller has read from a clock
    #[cfg(feature = "std")]
    pub fn from_std(at: std::time::Instant, origin: std::time::Instant) -> Self {
        at.saturating_duration_since(origin).into()
    }

    /// Converts to an instant of the standard library, with [`Self::ZERO`] at `origin`. Returns `None` if the
    /// standard library cannot represent the result. On some systems it cannot represent [`Self::FAR_FUTURE`].
    // tidy: converts what the caller has read from a clock
    #[cfg(feature = "std")]
    pub fn to_std(self, origin: std::time::Instant) -> Option<std::time::Instant> {
        origin.checked_add(self.into())
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later than `self`.
    pub const fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Rounds up to a multiple of `step` since the origin. Returns `self` if `step` is zero. Timers that need not
    /// be exact are rounded, so that several of them expire in one wake-up.
    pub fn next_multiple_of(self, step: Duration) -> Instant {
        match nanos(step) {
            0 => self,
            step => Instant(self.0.checked_next_multiple_of(step).unwrap_or(u64::MAX)),
        }
    }

    /// Returns the earliest of the `times` that are present, or `None` if none is.
    pub fn earliest(times: impl IntoIterator<Item = Option<Instant>>) -> Option<Instant> {
        let earlier = |a: Option<Instant>, b: Option<Instant>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            _ => a.or(b),
        };
        times.into_iter().fold(None, earlier)
    }
}

/// Writes seconds with nine decimals, as in `12.000345678`.
impl core::fmt::Display for Instant {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "{}.{:09}",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

/// Returns the nanoseconds of a duration. Durations over 584 years saturate.
fn nanos(d: Duration) -> u64 {
    let seconds = d.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(d.subsec_nanos().into())
}

/// Converts a time since the origin to an instant. Durations over 584 years become [`Instant::FAR_FUTURE`].
impl From<Duration> for Instant {
    fn from(since_origin: Duration) -> Instant {
        Instant(nanos(since_origin))
    }
}

/// Converts an instant to the time since the origin, without loss.
impl From<Instant> for Duration {
    fn from(at: Instant) -> Duration {
        Duration::from_nanos(at.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(nanos(d)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, d: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos(d)))
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        let t = Instant::from_millis(5);
        assert_eq!(t + Duration::from_micros(7), Instant::from_micros(5007));
        assert_eq!(t - Duration::from_secs(1), Instant::ZERO);
        assert_eq!(t + Duration::MAX, Instant::FAR_FUTURE);
        assert_eq!(
            Instant::FAR_FUTURE + Duration::from_nanos(1),
            Instant::FAR_FUTURE
        );
        assert_eq!(Instant::from_millis(u64::MAX), Instant::FAR_FUTURE);
        assert_eq!(Instant::from_micros(u64::MAX), Instant::FAR_FUTURE);
    }

    #[test]
    fn rounding_counts_from_the_origin() {
        let step = Duration::from_millis(50);
        for (at, next) in [(0, 0), (1, 50), (50, 50), (51, 100)] {
            let at = Instant::from_millis(at);
            assert_eq!(at.next_multiple_of(step), Instant::from_millis(next));
        }
        assert_eq!(
            Instant::FAR_FUTURE.next_multiple_of(step),
            Instant::FAR_FUTURE
        );
        let any = Instant::from_nanos(7);
        assert_eq!(any.next_multiple_of(Duration::ZERO), any);
    }

    #[test]
    fn since_is_zero_for_a_later_instant() {
        let (early, late) = (Instant::from_nanos(3), Instant::from_nanos(10));
        assert_eq!(late.saturating_since(early), Duration::from_nanos(7));
        assert_eq!(early.saturating_since(late), Duration::ZERO);
        let mut t = early;
        t += Duration::from_nanos(7);
        assert_eq!(t, late);
    }

    #[test]
    fn conversions_saturate() {
        let at = Instant::from_nanos(12_000_345_678);
        assert_eq!(Duration::from(at), Duration::new(12, 345_678));
        assert_eq!(Instant::from(Duration::from(at)), at);
        assert_eq!(Instant::from(Duration::MAX), Instant::FAR_FUTURE);
        let longest = Duration::from(Instant::FAR_FUTURE);
        assert_eq!(Instant::from(longest), Instant::FAR_FUTURE);
    }

    #[test]
    fn earliest_ignores_absent_times() {
        let [early, late] = [3, 10].map(|ns| Some(Instant::from_nanos(ns)));
        assert_eq!(Instant::earliest([None, late, early, None]), early);
        assert_eq!(Instant::earliest([None, None]), None);
    }

    #[test]
    fn units() {
        let t = Instant::from_nanos(12_000_345_678);
        assert_eq!(
            (t.as_nanos(), t.as_micros(), t.as_millis()),
            (12_000_345_678, 12_000_345, 12_000)
        );
        assert_eq!(t.to_string(), "12.000345678");
    }
}
