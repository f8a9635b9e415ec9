//! Changes of a link over time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::settings::Settings;

/// A change of a link.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// When, from the start of the run.
    pub at: Duration,
    /// What the link is like from then on.
    pub settings: Settings,
}

/// How a link changes in the course of a run, for instance because its user moves: plain data,
/// which the driver applies. It hands what [`poll`](Self::poll) answers to
/// [`Link::set`](crate::Link::set) whenever [`next_change`](Self::next_change) has come.
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
    /// These changes, in order of time; of those at the same time the last holds.
    pub fn new(changes: impl IntoIterator<Item = Change>) -> Self {
        let mut changes: Vec<_> = changes.into_iter().collect();
        changes.sort_by_key(|change| change.at);
        Schedule(changes.into())
    }

    /// When the next change is due, from the start of the run.
    pub fn next_change(&self) -> Option<Duration> {
        self.0.front().map(|change| change.at)
    }

    /// The changes to come, in order of time.
    pub fn changes(&self) -> impl Iterator<Item = &Change> {
        self.0.iter()
    }

    /// Takes the next change that is due `elapsed` after the start; to be called until it answers
    /// `None`.
    pub fn poll(&mut self, elapsed: Duration) -> Option<Change> {
        let due = self.0.front()?.at <= elapsed;
        due.then(|| self.0.pop_front())?
    }
}
