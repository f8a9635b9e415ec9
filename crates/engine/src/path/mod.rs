//! Path manager of the opener: one subflow on every path that is up, opened again when it dies.

use core::time::Duration;

use braid_wire::Instant;

use crate::PathId;

/// First delay after a subflow could not be opened or died; doubles up to [`MAX_DELAY`].
const MIN_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(10);
/// A subflow that lived this long clears its path's record.
const GOOD_LIFE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
struct Attempt {
    path: PathId,
    not_before: Instant,
    delay: Duration,
}

/// When the next subflow may be tried on each path. Only paths with failures are on record.
#[derive(Debug, Default)]
pub(crate) struct PathManager {
    attempts: Vec<Attempt>,
}

impl PathManager {
    /// When a subflow may be opened on `path`.
    pub fn not_before(&self, path: PathId) -> Instant {
        self.attempts
            .iter()
            .find(|a| a.path == path)
            .map_or(Instant::ZERO, |a| a.not_before)
    }

    /// A subflow on `path` ended unwanted, after `lived` (zero where it never was established).
    pub fn on_failure(&mut self, now: Instant, path: PathId, lived: Duration) {
        if let Some(attempt) = self.attempts.iter_mut().find(|a| a.path == path) {
            attempt.delay = match lived >= GOOD_LIFE {
                true => MIN_DELAY,
                false => (attempt.delay * 2).min(MAX_DELAY),
            };
            attempt.not_before = now + attempt.delay;
            return;
        }
        // The first failure of a working path is most often a changed NAT binding: retry at once.
        let delay = if lived.is_zero() {
            MIN_DELAY
        } else {
            Duration::ZERO
        };
        self.attempts.push(Attempt {
            path,
            not_before: now + delay,
            delay: MIN_DELAY,
        });
    }

    /// The path came up: forget its failures.
    pub fn retry_now(&mut self, path: PathId) {
        self.attempts.retain(|a| a.path != path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backs_off_and_forgets() {
        let path = PathId(1);
        let mut pm = PathManager::default();
        let t = Instant::from_millis(1000);
        assert_eq!(pm.not_before(path), Instant::ZERO);
        pm.on_failure(t, path, Duration::ZERO);
        assert_eq!(pm.not_before(path), t + MIN_DELAY);
        for _ in 0..10 {
            pm.on_failure(t, path, Duration::ZERO);
        }
        assert_eq!(pm.not_before(path), t + MAX_DELAY);
        pm.on_failure(t, path, Duration::from_secs(60));
        assert_eq!(pm.not_before(path), t + MIN_DELAY);
        pm.retry_now(path);
        assert_eq!(pm.not_before(path), Instant::ZERO);
    }

    #[test]
    fn a_working_subflow_is_replaced_at_once() {
        let mut pm = PathManager::default();
        let t = Instant::from_millis(1000);
        pm.on_failure(t, PathId(0), Duration::from_secs(2));
        assert_eq!(pm.not_before(PathId(0)), t);
    }
}
