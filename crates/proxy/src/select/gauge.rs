//! What follows from measurements of the way from one server over one link.

use core::time::Duration;

use braid_wire::Instant;

use crate::protocol::probe::{COST, FASTEST};

use super::selection::{Measuring, Recent, Tempo};

/// Share of a link that measurements may take.
const SHARE: f64 = 0.01;
/// The rate of a link of which none is known, bit/s.
const SLOW: f64 = 1e6;

/// So many bursts in a row that come too fast to tell replace a rate that was found before.
const FAST_BURSTS: u8 = 3;
/// So many trains are sent for somebody who wants to know, until one tells a rate: a host that was busy makes
/// a train come too fast or unevenly.
const ASKED_TRAINS: u8 = 3;

/// How long a link of `rate` bit/s is to be left alone after a measurement.
pub(crate) fn rest(rate: Option<f64>) -> Duration {
    let rate = rate.filter(|rate| *rate > 0.0).unwrap_or(SLOW);
    let seconds = COST as f64 * 8.0 / (rate * SHARE);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::from_secs(3600))
}

/// What is known of the rate that nobody else uses, and since when.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Found {
    /// Nothing.
    #[default]
    Nothing,
    /// A bad first impression, which does not count before a second.
    Impression(Instant),
    /// A rate.
    Rate(Instant),
}

/// What was measured of the way from one server over one link.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Gauge {
    /// What the narrowest place lets pass, bit/s.
    capacity: Recent,
    /// What of it nobody else uses, bit/s.
    available: Recent,
    /// Whether that counts.
    found: Found,
    tempo: Tempo,
    /// From when on it is to be measured; `None` before the server was reached.
    pub(crate) at: Option<Instant>,
    /// It was, or could not be.
    pub(crate) tried: bool,
    /// Somebody wants to know, whatever else speaks against it.
    pub(crate) asked: bool,
    /// Trains that have told nothing since somebody asked.
    vain: u8,
    /// Something else says that the way has changed.
    alarm: bool,
    /// How many bursts in a row came too fast to tell.
    fast: u8,
    /// The last burst came unevenly, and at this rate in all, bit/s.
    uneven: Option<f64>,
}

impl Gauge {
    /// What was found at some time before, which the next result replaces.
    pub(crate) fn restore(&mut self, at: Instant, rate: f64) {
        *self = Gauge {
            found: Found::Rate(at),
            alarm: true,
            ..Gauge::default()
        };
        self.available.push(rate);
    }

    /// The same after its link was away.
    pub(crate) fn reopened(&self) -> Gauge {
        let mut gauge = Gauge::default();
        if let Some((at, rate)) = self.known_at().zip(self.available()) {
            gauge.restore(at, rate);
        }
        gauge.fast = self.fast;
        gauge
    }

    /// When the rate that nobody else uses was found.
    pub(crate) fn known_at(&self) -> Option<Instant> {
        match self.found {
            Found::Nothing => None,
            Found::Impression(at) | Found::Rate(at) => Some(at),
        }
    }

    fn is_doubted(&self) -> bool {
        matches!(self.found, Found::Impression(_))
    }

    /// The server is reached.
    pub(crate) fn reached(&mut self) {
        self.at.get_or_insert(Instant::ZERO);
    }

    /// The round trip tells that the way has changed: it is looked into at once.
    pub(crate) fn alarm(&mut self) {
        self.alarm = true;
        self.tempo.hurry();
        self.at = self.at.map(|_| Instant::ZERO);
    }

    /// The way has changed, and it is not known yet how.
    pub(crate) fn is_alarmed(&self) -> bool {
        self.alarm
    }

    /// Measures as soon as the link allows.
    pub(crate) fn ask(&mut self) {
        (self.asked, self.vain) = (true, 0);
        self.at = Some(Instant::ZERO);
    }

    /// Plans another train after one that arrived and told nothing, up to [`ASKED_TRAINS`].
    pub(crate) fn ask_again(&mut self, now: Instant) {
        self.vain += 1;
        self.asked = self.vain < ASKED_TRAINS;
        if self.asked {
            self.at = Some(now + rest(self.capacity()));
        }
    }

    /// Returns what nobody else uses, bit/s; infinite where nothing is known but that bursts come too fast
    /// to tell.
    pub(crate) fn available(&self) -> Option<f64> {
        let fast = (self.fast > 0).then_some(f64::INFINITY);
        let known = self.available.middle().filter(|_| !self.is_doubted());
        known.or(fast)
    }

    /// Returns what the narrowest place lets pass, bit/s; at least that, where bursts do not tell.
    pub(crate) fn capacity(&self) -> Option<f64> {
        let fast = (self.fast > 0).then_some(FASTEST);
        self.capacity.middle().or(fast).or(self.uneven)
    }

    /// The first train came too fast to tell a rate. What is known of before stays, unless that goes on or the
    /// way has changed: a burst that passes says nothing of how long a shaped link lets bursts pass.
    pub(crate) fn on_too_fast(&mut self, now: Instant, settings: &Measuring) {
        self.fast = self.fast.saturating_add(1);
        if self.alarm || self.is_doubted() || self.fast >= FAST_BURSTS {
            self.forget();
        }
        self.alarm = false;
        let next = self.tempo.next(0.0, &settings.bounds());
        self.at = Some(now + next.max(rest(Some(FASTEST))));
        self.tried = true;
        if self.asked {
            self.ask_again(now);
        }
    }

    /// The first train came unevenly, and at this rate in all, bit/s.
    pub(crate) fn on_uneven(&mut self, at_least: f64) {
        self.uneven = Some(at_least);
    }

    fn forget(&mut self) {
        (self.capacity, self.available) = Default::default();
        self.found = Found::Nothing;
    }

    /// The first train found `rate` bit/s; what to send the second at. After an alarm that is news already: no
    /// more can be free.
    pub(crate) fn on_capacity(&mut self, rate: f64) -> f64 {
        if self.alarm {
            self.capacity.forget_older();
        }
        (self.fast, self.uneven) = (0, None);
        self.capacity.push(rate);
        let capacity = self.capacity.middle().unwrap_or(rate);
        if self.alarm && self.available().is_some_and(|free| free > capacity) {
            self.available.forget_older();
            self.available.push(capacity);
        }
        capacity
    }

    /// The second train found that nobody else uses `rate` bit/s. `None` where there was no result.
    pub(crate) fn on_result(&mut self, now: Instant, rate: Option<f64>, settings: &Measuring) {
        let before = self.available.middle();
        let mut change = 0.0;
        if let Some(rate) = rate {
            self.available.push(rate);
            if self.alarm {
                self.available.forget_older();
            }
            self.alarm = false;
            change = before.map_or(1.0, |old| (rate - old).abs() / old.max(1.0));
        }
        let full = self.capacity().unwrap_or(0.0);
        // It is looked at again at once: a bad first impression, which may be a single packet that
        // was lost, and a great change that does not count while it may be an outlier.
        let doubtful = rate.is_some_and(|rate| match before {
            None => rate < full / 4.0,
            Some(before) => {
                let great = rate < before / 2.0 || rate > before * 2.0;
                great && self.available.middle() == Some(before)
            }
        });
        match rate {
            Some(_) if doubtful && before.is_none() => self.found = Found::Impression(now),
            Some(_) => self.found = Found::Rate(now),
            None if self.is_doubted() => self.forget(),
            None => {}
        }
        let next = match doubtful {
            true => Duration::ZERO,
            false => self.tempo.next(change, &settings.bounds()),
        };
        self.at = Some(now + next.max(rest(self.capacity())));
        self.tried |= !doubtful;
        self.asked &= doubtful;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Instant = Instant::from_millis(1_000);

    fn due(gauge: &Gauge) -> u64 {
        gauge.at.unwrap().saturating_since(AT).as_secs()
    }

    #[test]
    fn a_measurement_costs_less_than_a_hundredth_of_the_link() {
        // 33,040 bytes each way at most.
        assert_eq!(rest(Some(20e6)).as_millis(), 1321);
        assert_eq!(rest(None), rest(Some(1e6)));
        assert!(rest(Some(0.0)) == rest(None));
        let mut slow = Gauge::default();
        slow.on_capacity(1e6);
        slow.on_result(AT, Some(1e6), &Measuring::default());
        assert_eq!(due(&slow), 26);
    }

    #[test]
    fn it_is_measured_more_often_while_it_changes_and_at_once_after_an_alarm() {
        let settings = Measuring::default();
        let mut gauge = Gauge::default();
        gauge.alarm();
        assert_eq!(gauge.at, None, "it was never reached");
        gauge.reached();
        gauge.on_capacity(20e6);
        let due: Vec<u64> = [20.0, 20.0, 19.0, 20.0, 10.0, 10.0]
            .map(|mbit| {
                gauge.on_result(AT, Some(mbit * 1e6), &settings);
                due(&gauge)
            })
            .to_vec();
        assert_eq!(due, [5, 10, 20, 40, 20, 10]);
        assert_eq!(gauge.available(), Some(10e6));
        gauge.alarm();
        assert_eq!(gauge.at, Some(Instant::ZERO));
        gauge.on_result(AT, Some(2e6), &settings);
        assert_eq!(gauge.available(), Some(2e6), "two that agree");
        gauge.on_result(AT, None, &settings);
        assert_eq!(gauge.available(), Some(2e6));
        assert!(gauge.tried);
        // The first train tells enough where less goes through than was free; more, it does not.
        gauge.alarm();
        gauge.on_capacity(1e6);
        assert_eq!(gauge.available(), Some(1e6));
        gauge.on_capacity(5e6);
        assert_eq!(gauge.available(), Some(1e6));
    }

    #[test]
    fn a_great_change_is_looked_at_again_before_it_counts() {
        let settings = Measuring::default();
        let mut gauge = Gauge::default();
        gauge.reached();
        gauge.on_capacity(20e6);
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
    fn a_bad_first_impression_is_looked_at_again() {
        let settings = Measuring::default();
        let mut gauge = Gauge::default();
        gauge.ask();
        gauge.on_capacity(20e6);
        gauge.on_result(AT, Some(1e6), &settings);
        assert_eq!((due(&gauge), gauge.tried, gauge.asked), (1, false, true));
        assert_eq!(gauge.available(), None);
        let doubted = gauge;
        gauge.on_result(AT, Some(20e6), &settings);
        assert_eq!((due(&gauge), gauge.tried, gauge.asked), (5, true, false));
        assert_eq!(gauge.available(), Some(20e6));
        // A second like it confirms it; one that tells nothing does not.
        for (second, known) in [(Some(1e6), Some(1e6)), (None, None)] {
            let mut gauge = doubted;
            gauge.on_result(AT, second, &settings);
            assert_eq!((gauge.available(), gauge.tried), (known, true));
        }
        let mut gauge = doubted;
        gauge.on_too_fast(AT, &settings);
        assert_eq!(gauge.available(), Some(f64::INFINITY));
    }

    #[test]
    fn bursts_that_come_too_fast_leave_what_is_known_for_a_while() {
        let settings = Measuring::default();
        let mut gauge = Gauge::default();
        gauge.reached();
        gauge.on_too_fast(AT, &settings);
        assert_eq!(
            (gauge.available(), gauge.known_at()),
            (Some(f64::INFINITY), None)
        );
        assert!(gauge.tried && !gauge.asked);
        // Under load it shows.
        gauge.on_capacity(20e6);
        gauge.on_result(AT, Some(20e6), &settings);
        for left in [Some(20e6), Some(20e6), Some(f64::INFINITY)] {
            gauge.on_too_fast(AT, &settings);
            assert_eq!(gauge.available(), left);
        }
        // After a change of the way nothing of before counts.
        gauge.on_capacity(2e6);
        gauge.on_result(AT, Some(2e6), &settings);
        gauge.alarm();
        gauge.on_too_fast(AT, &settings);
        assert_eq!(gauge.available(), Some(f64::INFINITY));
    }

    #[test]
    fn who_asks_gets_three_trains_at_most() {
        let settings = Measuring::default();
        let mut gauge = Gauge::default();
        gauge.ask();
        for asked in [true, true, false] {
            gauge.on_too_fast(AT, &settings);
            assert_eq!((gauge.asked, due(&gauge) > 1), (asked, !asked));
        }
        // One that tells a rate is enough. After one that came at 10 Mbit/s the link rests as one of that rate.
        gauge = Gauge::default();
        gauge.ask();
        gauge.on_uneven(10e6);
        gauge.on_result(AT, None, &settings);
        gauge.ask_again(AT);
        assert_eq!(
            (gauge.asked, gauge.available(), due(&gauge)),
            (true, None, 2)
        );
        gauge.on_capacity(20e6);
        gauge.on_result(AT, Some(20e6), &settings);
        assert_eq!((gauge.asked, gauge.available()), (false, Some(20e6)));
    }
}
