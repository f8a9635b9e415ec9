//! Measurements of the path from one server over one link, and their schedule.

use core::time::Duration;

use braid_wire::Instant;

use crate::protocol::probe::{MAX_MEASURABLE_RATE, MEASUREMENT_BYTES};

use super::selection::{Measuring, MeasuringInterval, Recent};

/// The maximum share of a link's capacity that measurements may use. It is promised to operators; the value is a
/// guess at a cost that users do not notice.
const MAX_MEASURING_SHARE: f64 = 0.01;
/// The assumed rate of a link whose rate is unknown, bit/s. A low value only makes the pauses longer; a
/// high one would exceed [`MAX_MEASURING_SHARE`] on slow links.
const ASSUMED_RATE: f64 = 1e6;

/// The number of consecutive bursts too fast to measure after which an earlier rate is dropped. The value is a
/// guess.
const MIN_FAST_BURSTS: u8 = 3;
/// The maximum number of trains for one request. A request ends with the first train that yields a rate. Some
/// trains yield none, because a busy machine can make a train arrive too fast or unevenly. The value is a guess.
const MAX_REQUESTED_TRAINS: u8 = 3;

/// Returns the pause that must follow a measurement on a link of `rate` bit/s, so that measurements keep to
/// [`MAX_MEASURING_SHARE`].
pub(crate) fn pause_after(rate: Option<f64>) -> Duration {
    let rate = rate.filter(|rate| *rate > 0.0).unwrap_or(ASSUMED_RATE);
    let seconds = MEASUREMENT_BYTES as f64 * 8.0 / (rate * MAX_MEASURING_SHARE);
    // Only a rate close to 0 bit/s overflows. The pause is then an hour; any other long time would do.
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(3600))
}

/// The last result of the measurements of the free rate, and its time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum LastResult {
    /// No result.
    #[default]
    Missing,
    /// A single bad result, which does not count until a second bad result confirms it.
    Unconfirmed(Instant),
    /// A valid rate.
    Valid(Instant),
}

/// Measurements of the path from one server over one link.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gauge {
    /// Capacity of the bottleneck, bit/s.
    capacity: Recent,
    /// The free part of that capacity, bit/s.
    available: Recent,
    /// The reliability of the free rate, and the time of its last result.
    last_result: LastResult,
    interval: MeasuringInterval,
    /// The time of the next measurement; `None` until the server was reached.
    pub(crate) next_at: Option<Instant>,
    /// True once a measurement was finished, with or without a result.
    pub(crate) attempted: bool,
    /// True while a requested measurement is outstanding. It runs although no user sends, and in quiet hours.
    pub(crate) requested: bool,
    /// The number of trains without a result since the last request.
    failed_trains: u8,
    /// True after other evidence showed a change of the path, until a measurement follows.
    alarm: bool,
    /// The number of consecutive bursts too fast to measure.
    fast_bursts: u8,
    /// The mean rate of the last burst, bit/s, if it arrived unevenly.
    uneven_rate: Option<f64>,
}

impl Gauge {
    /// Restores a result from before a restart or a failure of the link. The next result replaces it.
    pub(crate) fn restore(&mut self, at: Instant, rate: f64) {
        *self = Gauge {
            last_result: LastResult::Valid(at),
            // Makes the next result replace this one at once. Otherwise the next result would only be one of three
            // in the median.
            alarm: true,
            ..Gauge::default()
        };
        self.available.push(rate);
    }

    /// Returns the gauge for a link that came back. The earlier result stays valid until the next result.
    pub(crate) fn reopened(&self) -> Gauge {
        let mut gauge = Gauge::default();
        if let Some((at, rate)) = self.known_at().zip(self.available()) {
            gauge.restore(at, rate);
        }
        gauge.fast_bursts = self.fast_bursts;
        gauge
    }

    /// Returns the time of the last result, if there is one.
    pub(crate) fn known_at(&self) -> Option<Instant> {
        match self.last_result {
            LastResult::Missing => None,
            LastResult::Unconfirmed(at) | LastResult::Valid(at) => Some(at),
        }
    }

    /// Returns whether the only result is a bad one that no second one has confirmed.
    fn is_unconfirmed(&self) -> bool {
        matches!(self.last_result, LastResult::Unconfirmed(_))
    }

    /// Allows measurements, because the server was reached.
    pub(crate) fn reached(&mut self) {
        self.next_at.get_or_insert(Instant::ZERO);
    }

    /// Schedules a measurement at once, because a late answer or the round-trip time shows that the path has
    /// changed.
    pub(crate) fn alarm(&mut self) {
        self.alarm = true;
        self.interval.reset();
        // The origin of time means "at once". `None` stays, because a server that was never reached must be
        // reached first.
        self.next_at = self.next_at.map(|_| Instant::ZERO);
    }

    /// Returns whether the path has changed and no measurement has followed yet.
    pub(crate) fn is_alarmed(&self) -> bool {
        self.alarm
    }

    /// Requests a measurement as soon as the link allows.
    pub(crate) fn request(&mut self) {
        (self.requested, self.failed_trains) = (true, 0);
        self.next_at = Some(Instant::ZERO);
    }

    /// Schedules another train after one without a result, up to [`MAX_REQUESTED_TRAINS`].
    pub(crate) fn retry_request(&mut self, now: Instant) {
        self.failed_trains += 1;
        self.requested = self.failed_trains < MAX_REQUESTED_TRAINS;
        if self.requested {
            self.next_at = Some(now + pause_after(self.capacity()));
        }
    }

    /// Returns the free rate, bit/s. It is infinite if the path is only known to be too fast to measure, so that
    /// its server ranks before servers with a measured rate.
    pub(crate) fn available(&self) -> Option<f64> {
        let fast = (self.fast_bursts > 0).then_some(f64::INFINITY);
        let known = self.available.median().filter(|_| !self.is_unconfirmed());
        known.or(fast)
    }

    /// Returns the capacity of the bottleneck, bit/s, or a lower bound if the bursts did not show the capacity.
    pub(crate) fn capacity(&self) -> Option<f64> {
        let fast = (self.fast_bursts > 0).then_some(MAX_MEASURABLE_RATE);
        self.capacity.median().or(fast).or(self.uneven_rate)
    }

    /// Handles a first train that was too fast to measure. Earlier results stay unless this happens repeatedly or
    /// the path has changed: the token bucket of a shaped link lets a burst pass now and then, and the link is no
    /// faster.
    pub(crate) fn on_too_fast(&mut self, now: Instant, settings: &Measuring) {
        self.fast_bursts = self.fast_bursts.saturating_add(1);
        if self.alarm || self.is_unconfirmed() || self.fast_bursts >= MIN_FAST_BURSTS {
            self.forget();
        }
        self.alarm = false;
        // Nothing new was found, so this counts as no change.
        let next = self.interval.next(0.0, &settings.bounds());
        self.next_at = Some(now + next.max(pause_after(Some(MAX_MEASURABLE_RATE))));
        self.attempted = true;
        if self.requested {
            self.retry_request(now);
        }
    }

    /// Handles a first train that arrived unevenly. Its mean rate, bit/s, is a lower bound of the capacity.
    pub(crate) fn on_uneven(&mut self, mean_rate: f64) {
        self.uneven_rate = Some(mean_rate);
    }

    /// Drops all results.
    fn forget(&mut self) {
        (self.capacity, self.available) = Default::default();
        self.last_result = LastResult::Missing;
    }

    /// Handles a first train that arrived at `rate` bit/s. Returns the rate at which the second train is sent.
    /// After an alarm, a free rate above the new capacity is lowered at once, so that users need not wait for the
    /// second train.
    pub(crate) fn on_capacity(&mut self, rate: f64) -> f64 {
        if self.alarm {
            self.capacity.forget_older();
        }
        (self.fast_bursts, self.uneven_rate) = (0, None);
        self.capacity.push(rate);
        let capacity = self.capacity.median().unwrap_or(rate);
        if self.alarm && self.available().is_some_and(|free| free > capacity) {
            self.available.forget_older();
            self.available.push(capacity);
        }
        capacity
    }

    /// Handles a second train, which found `rate` bit/s to be free; `None` if the train had no result.
    pub(crate) fn on_result(&mut self, now: Instant, rate: Option<f64>, settings: &Measuring) {
        let before = self.available.median();
        let mut change = 0.0;
        if let Some(rate) = rate {
            self.available.push(rate);
            if self.alarm {
                self.available.forget_older();
            }
            self.alarm = false;
            // A first result counts as a change by 100 %.
            change = before.map_or(1.0, |old| (rate - old).abs() / old.max(1.0));
        }
        let capacity = self.capacity().unwrap_or(0.0);
        // Two kinds of results are repeated at once: a bad first result, which a single lost packet can cause, and
        // a large change that the median still ignores as an outlier. The factors 4 and 2 are guesses.
        let must_repeat = rate.is_some_and(|rate| match before {
            None => rate < capacity / 4.0,
            Some(before) => {
                let is_large = rate < before / 2.0 || rate > before * 2.0;
                is_large && self.available.median() == Some(before)
            }
        });
        match rate {
            Some(_) if must_repeat && before.is_none() => {
                self.last_result = LastResult::Unconfirmed(now)
            }
            Some(_) => self.last_result = LastResult::Valid(now),
            None if self.is_unconfirmed() => self.forget(),
            None => {}
        }
        let next = match must_repeat {
            true => Duration::ZERO,
            false => self.interval.next(change, &settings.bounds()),
        };
        self.next_at = Some(now + next.max(pause_after(self.capacity())));
        self.attempted |= !must_repeat;
        self.requested &= must_repeat;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Instant = Instant::from_millis(1_000);

    fn due(gauge: &Gauge) -> u64 {
        gauge.next_at.unwrap().saturating_since(AT).as_secs()
    }

    #[test]
    fn a_measurement_costs_less_than_a_hundredth_of_the_link() {
        // A measurement moves at most 33,040 bytes each way: 33,040 * 8 bits / 1 % of 20 Mbit/s = 1,321.6 ms, and
        // 26.4 s at 1 Mbit/s.
        assert_eq!(pause_after(Some(20e6)).as_millis(), 1321);
        assert_eq!(pause_after(None), pause_after(Some(1e6)));
        assert!(pause_after(Some(0.0)) == pause_after(None));
        let mut slow = Gauge::default();
        slow.on_capacity(1e6);
        slow.on_result(AT, Some(1e6), &Measuring::default());
        assert_eq!(due(&slow), 26);
    }

    #[test]
    fn a_path_is_measured_more_often_while_it_changes_and_at_once_after_an_alarm() {
        let settings = Measuring::default();
        let mut gauge = Gauge::default();
        gauge.alarm();
        assert_eq!(gauge.next_at, None, "it was never reached");
        gauge.reached();
        gauge.on_capacity(20e6);
        let due: Vec<u64> = [20.0, 20.0, 19.0, 20.0, 10.0, 10.0]
            .map(|mbit| {
                gauge.on_result(AT, Some(mbit * 1e6), &settings);
                due(&gauge)
            })
            .to_vec();
        // The first interval is the minimum, and each result without a change doubles it. Each of the two results
        // of 10 Mbit/s differs from the previous median by half, so each halves the interval; 10 is not below half
        // of 20, so nothing is repeated.
        assert_eq!(due, [5, 10, 20, 40, 20, 10]);
        assert_eq!(gauge.available(), Some(10e6));
        gauge.alarm();
        assert_eq!(gauge.next_at, Some(Instant::ZERO));
        gauge.on_result(AT, Some(2e6), &settings);
        assert_eq!(
            gauge.available(),
            Some(2e6),
            "after an alarm, a new result replaces earlier ones"
        );
        gauge.on_result(AT, None, &settings);
        assert_eq!(gauge.available(), Some(2e6));
        assert!(gauge.attempted);
        // The first train suffices if the new capacity is below the earlier free rate, but not if the new capacity
        // is above.
        gauge.alarm();
        gauge.on_capacity(1e6);
        assert_eq!(gauge.available(), Some(1e6));
        gauge.on_capacity(5e6);
        assert_eq!(gauge.available(), Some(1e6));
    }

    #[test]
    fn a_large_change_is_measured_again_before_it_counts() {
        let settings = Measuring::default();
        let mut gauge = Gauge::default();
        gauge.reached();
        gauge.on_capacity(20e6);
        // Rate found, seconds to the next measurement, and the rate that counts. A large change is measured again
        // after 1.3 s, the link's rest at 20 Mbit/s. The second such result is the median of three, so it counts.
        for (mbit, next, counts) in [
            (20.0, 5, 20.0),
            (20.0, 10, 20.0),
            (20.0, 20, 20.0),
            (4.0, 1, 20.0),
            (4.0, 10, 4.0),
            (4.0, 20, 4.0),
            (20.0, 1, 4.0),
            (20.0, 10, 20.0),
        ] {
            gauge.on_result(AT, Some(mbit * 1e6), &settings);
            assert_eq!((due(&gauge), gauge.available()), (next, Some(counts * 1e6)));
        }
    }

    #[test]
    fn a_bad_first_result_is_measured_again() {
        let settings = Measuring::default();
        let mut gauge = Gauge::default();
        gauge.request();
        gauge.on_capacity(20e6);
        gauge.on_result(AT, Some(1e6), &settings);
        assert_eq!(
            (due(&gauge), gauge.attempted, gauge.requested),
            (1, false, true)
        );
        assert_eq!(gauge.available(), None);
        let unconfirmed = gauge;
        gauge.on_result(AT, Some(20e6), &settings);
        assert_eq!(
            (due(&gauge), gauge.attempted, gauge.requested),
            (5, true, false)
        );
        assert_eq!(gauge.available(), Some(20e6));
        // A second bad result confirms the first; a train without a result does not.
        for (second, known) in [(Some(1e6), Some(1e6)), (None, None)] {
            let mut gauge = unconfirmed;
            gauge.on_result(AT, second, &settings);
            assert_eq!((gauge.available(), gauge.attempted), (known, true));
        }
        let mut gauge = unconfirmed;
        gauge.on_too_fast(AT, &settings);
        assert_eq!(gauge.available(), Some(f64::INFINITY));
    }

    #[test]
    fn bursts_too_fast_to_measure_keep_the_known_rate_for_a_while() {
        let settings = Measuring::default();
        let mut gauge = Gauge::default();
        gauge.reached();
        gauge.on_too_fast(AT, &settings);
        assert_eq!(
            (gauge.available(), gauge.known_at()),
            (Some(f64::INFINITY), None)
        );
        assert!(gauge.attempted && !gauge.requested);
        // Under load the token bucket is empty, so the bursts show the rate.
        gauge.on_capacity(20e6);
        gauge.on_result(AT, Some(20e6), &settings);
        // Two fast bursts leave the rate. The third fast burst (`MIN_FAST_BURSTS`) drops the rate.
        for available in [Some(20e6), Some(20e6), Some(f64::INFINITY)] {
            gauge.on_too_fast(AT, &settings);
            assert_eq!(gauge.available(), available);
        }
        // After a change of the path, earlier results do not count.
        gauge.on_capacity(2e6);
        gauge.on_result(AT, Some(2e6), &settings);
        gauge.alarm();
        gauge.on_too_fast(AT, &settings);
        assert_eq!(gauge.available(), Some(f64::INFINITY));
    }

    #[test]
    fn a_request_sends_three_trains_at_most() {
        let settings = Measuring::default();
        let mut gauge = Gauge::default();
        gauge.request();
        for asked in [true, true, false] {
            gauge.on_too_fast(AT, &settings);
            assert_eq!((gauge.requested, due(&gauge) > 1), (asked, !asked));
        }
        // One train with a rate is enough. After an uneven train with a mean of 10 Mbit/s, the link rests for
        // 33,040 * 8 bits / 1 % of 10 Mbit/s = 2.6 s.
        gauge = Gauge::default();
        gauge.request();
        gauge.on_uneven(10e6);
        gauge.on_result(AT, None, &settings);
        gauge.retry_request(AT);
        assert_eq!(
            (gauge.requested, gauge.available(), due(&gauge)),
            (true, None, 2)
        );
        gauge.on_capacity(20e6);
        gauge.on_result(AT, Some(20e6), &settings);
        assert_eq!((gauge.requested, gauge.available()), (false, Some(20e6)));
    }
}
