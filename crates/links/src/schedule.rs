//! Changes of a link's settings over time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::settings::{Loss, Rate, Settings};

/// A change of a link.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The time of the change since the start of the run.
    pub at: Duration,
    /// The settings after the change.
    pub settings: Settings,
}

/// The changes of a link in the course of a run, for example because its user moves. The driver applies the
/// changes: at the time of [`next_change`](Self::next_change) it calls [`poll`](Self::poll), and passes the
/// settings that this returns to [`Link::set`](crate::Link::set).
///
/// ```
/// use braid_links::{Change, Schedule, Settings};
/// use std::time::Duration;
///
/// let far = Settings { delay: Duration::from_millis(80), ..Settings::default() };
/// let mut schedule = Schedule::new([Change { at: Duration::from_secs(5), settings: far.clone() }]);
/// assert_eq!(schedule.next_change(), Some(Duration::from_secs(5)));
/// assert_eq!(schedule.poll(Duration::from_secs(4)), None);
/// assert_eq!(schedule.poll(Duration::from_secs(5)).unwrap().settings, far);
/// assert_eq!(schedule.next_change(), None);
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Schedule(VecDeque<Change>);

impl Schedule {
    /// Creates a schedule of these changes. They may be in any order. Of several changes at the same time, the
    /// last one in the list takes effect.
    pub fn new(changes: impl IntoIterator<Item = Change>) -> Self {
        let mut changes: Vec<_> = changes.into_iter().collect();
        // The sort is stable, so changes at the same time keep their order.
        changes.sort_by_key(|change| change.at);
        Schedule(changes.into())
    }

    /// Creates the schedule of a link whose settings move from each point to the next, by a change every `step`
    /// (at least 1 ms).
    ///
    /// Constant rates, delays and uniform losses are interpolated linearly. All other settings stay as at the
    /// earlier point. After the last point nothing changes.
    pub fn linear(points: &[Change], step: Duration) -> Self {
        let step = step.max(Duration::from_millis(1));
        let between = points.windows(2).flat_map(|ends| {
            let (from, to) = (&ends[0], &ends[1]);
            let span = to.at.saturating_sub(from.at);
            let count = span.as_nanos().div_ceil(step.as_nanos()) as u32;
            (0..count).map(move |n| {
                let part = (step * n).div_duration_f64(span);
                Change {
                    at: from.at + step * n,
                    settings: from.settings.towards(&to.settings, part),
                }
            })
        });
        Schedule::new(between.chain(points.last().cloned()))
    }

    /// Returns the time of the next change since the start of the run.
    pub fn next_change(&self) -> Option<Duration> {
        self.0.front().map(|change| change.at)
    }

    /// Returns the changes to come, in order of time.
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.0.iter()
    }

    /// Takes the next change that is due by `elapsed`, the time since the start of the run. The driver calls
    /// `poll` until it returns `None`.
    pub fn poll(&mut self, elapsed: Duration) -> Option<Change> {
        let due = self.0.front()?.at <= elapsed;
        due.then(|| self.0.pop_front())?
    }
}

impl Settings {
    /// Interpolates the settings between `self` (`part` 0) and `end` (`part` 1).
    fn towards(&self, end: &Settings, part: f64) -> Settings {
        let between = |a: f64, b: f64| a + part * (b - a);
        let rate = match (&self.rate, &end.rate) {
            (Rate::Fixed(a), Rate::Fixed(b)) => {
                Rate::bits_per_second(between(a.get() as f64, b.get() as f64) as u64)
            }
            (rate, _) => rate.clone(),
        };
        let loss = match (self.loss, end.loss) {
            (Loss::GilbertElliott { .. }, _) | (_, Loss::GilbertElliott { .. }) => self.loss,
            (a, b) => Loss::uniform(between(a.mean(), b.mean())),
        };
        let delays = [self.delay, end.delay].map(|d| d.as_secs_f64());
        Settings {
            rate,
            delay: Duration::from_secs_f64(between(delays[0], delays[1])),
            loss,
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_changes_come_in_steps() {
        let point = |seconds, rate, delay, loss| Change {
            at: Duration::from_secs(seconds),
            settings: Settings {
                rate: Rate::bits_per_second(rate),
                delay: Duration::from_millis(delay),
                loss: Loss::uniform(loss),
                ..Settings::default()
            },
        };
        let points = [
            point(0, 100, 10, 0.0),
            point(2, 300, 30, 0.2),
            point(3, 300, 30, 0.0),
        ];
        let schedule = Schedule::linear(&points, Duration::from_millis(1000));
        let seen: Vec<_> = schedule.changes().cloned().collect();
        let middle = point(1, 200, 20, 0.1);
        assert_eq!(seen, [&points[..1], &[middle], &points[1..]].concat());
        assert_eq!(Schedule::linear(&[], Duration::ZERO), Schedule::default());
    }
}
