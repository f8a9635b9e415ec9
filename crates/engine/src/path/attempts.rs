//! Subflows that could not be opened or did not last, and the times at which they are tried again.

use core::net::SocketAddr;
use core::time::Duration;

use braid_wire::Instant;

use crate::PathId;

/// The first delay after a subflow could not be opened or died; it doubles up to [`MAX_DELAY`].
const MIN_DELAY: Duration = Duration::from_millis(500);
/// The longest delay after silence: the path may have been dark, and may come back at any time.
const MAX_DELAY: Duration = Duration::from_secs(10);
/// The longest delay after refusals: a peer that refuses will most likely refuse again.
const MAX_DELAY_REFUSED: Duration = Duration::from_secs(60);
/// The number of RSTs without MPTCP option before they count as refusals: they may come from a middlebox,
/// or from the peer's host while the rules that lead to the peer are gone. Rules are repaired within 2 s.
const MAX_RESETS: u8 = 3;
/// The longest delay after a RST without MPTCP option, unless an earlier delay was longer.
const MAX_DELAY_RESET: Duration = Duration::from_millis(750);
/// The number of refusals in a row, which take a good minute, after which the target is not tried again
/// until its path changes.
const MAX_REFUSALS: u8 = 8;
/// The lifetime after which a subflow clears the record.
const MIN_GOOD_LIFETIME: Duration = Duration::from_secs(10);

/// Both ends of a subflow to open: the local path and the peer's address.
pub(crate) type Target = (PathId, SocketAddr);

/// The way in which a wanted subflow ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// By a RST with MPTCP option, or by an invalid answer, before it was established.
    Refused,
    /// By a RST without MP_TCPRST, before it was established.
    Reset,
    /// Without any answer.
    Unanswered,
    /// After it had been established for this long.
    Broke(Duration),
}

/// The failures of a target.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    target: Target,
    not_before: Instant,
    delay: Duration,
    /// The number of refusals in a row.
    refusals: u8,
    /// The number of RSTs without MPTCP option in a row, before the first refusal.
    resets: u8,
}

/// The targets with failures. They are the peer's addresses, which are few, so they need no bound of their
/// own.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Vec<Attempt>);

impl Attempts {
    /// Returns the time from which on a subflow may be opened; `None` if it was refused too often.
    pub fn not_before(&self, target: Target) -> Option<Instant> {
        let attempt = self.0.iter().find(|a| a.target == target);
        let Some(attempt) = attempt else {
            return Some(Instant::ZERO);
        };
        (attempt.refusals < MAX_REFUSALS).then_some(attempt.not_before)
    }

    /// Returns whether the last subflow tried there was refused.
    pub fn is_refused(&self, target: Target) -> bool {
        let mut attempts = self.0.iter();
        attempts.any(|a| a.target == target && a.refusals > 0)
    }

    /// Notes a failure.
    pub fn on_failure(&mut self, now: Instant, target: Target, failure: Failure) {
        let lived = match failure {
            Failure::Broke(lived) => lived,
            Failure::Refused | Failure::Reset | Failure::Unanswered => Duration::ZERO,
        };
        let at = self.0.iter().position(|a| a.target == target);
        let attempt = match at {
            Some(at) => &mut self.0[at],
            None => {
                self.0.push(Attempt {
                    target,
                    not_before: now,
                    delay: Duration::ZERO,
                    refusals: 0,
                    resets: 0,
                });
                let last = self.0.len() - 1;
                &mut self.0[last]
            }
        };
        let max_delay = match failure {
            Failure::Reset if attempt.resets < MAX_RESETS => {
                attempt.resets += 1;
                attempt.delay.max(MAX_DELAY_RESET)
            }
            Failure::Refused | Failure::Reset => {
                attempt.refusals = attempt.refusals.saturating_add(1);
                MAX_DELAY_REFUSED
            }
            Failure::Unanswered | Failure::Broke(_) => {
                attempt.refusals = 0;
                if lived >= MIN_GOOD_LIFETIME {
                    attempt.resets = 0;
                }
                MAX_DELAY
            }
        };
        attempt.delay = match lived >= MIN_GOOD_LIFETIME && at.is_some() {
            true => MIN_DELAY,
            false => (attempt.delay * 2).clamp(MIN_DELAY, max_delay),
        };
        // The first failure of a working path is most often a changed NAT binding: retry at once.
        let at_once = at.is_none() && !lived.is_zero();
        attempt.not_before = match at_once {
            true => now,
            false => now + attempt.delay,
        };
    }

    /// Forgets the failures of a path that came up.
    pub fn forget_path(&mut self, path: PathId) {
        self.0.retain(|a| a.target.0 != path);
    }

    /// Forgets the failures of an address that the peer has withdrawn.
    pub fn forget_remote(&mut self, remote: SocketAddr) {
        self.0.retain(|a| a.target.1 != remote);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_millis(1000);

    fn target() -> Target {
        (PathId(1), ([10, 0, 0, 2], 80).into())
    }

    #[test]
    fn backs_off_and_forgets() {
        let mut attempts = Attempts::default();
        assert_eq!(attempts.not_before(target()), Some(Instant::ZERO));
        attempts.on_failure(START, target(), Failure::Unanswered);
        assert_eq!(attempts.not_before(target()), Some(START + MIN_DELAY));
        for _ in 0..10 {
            attempts.on_failure(START, target(), Failure::Unanswered);
        }
        assert_eq!(attempts.not_before(target()), Some(START + MAX_DELAY));
        attempts.on_failure(START, target(), Failure::Broke(Duration::from_secs(60)));
        assert_eq!(attempts.not_before(target()), Some(START + MIN_DELAY));
        attempts.forget_path(PathId(1));
        assert_eq!(attempts.not_before(target()), Some(Instant::ZERO));
    }

    #[test]
    fn a_working_subflow_is_replaced_at_once() {
        let mut attempts = Attempts::default();
        attempts.on_failure(START, target(), Failure::Broke(Duration::from_secs(2)));
        assert_eq!(attempts.not_before(target()), Some(START));
        attempts.on_failure(START, target(), Failure::Broke(Duration::from_secs(2)));
        assert_eq!(attempts.not_before(target()), Some(START + MIN_DELAY * 2));
    }

    #[test]
    fn refusals_are_bounded() {
        let mut attempts = Attempts::default();
        let mut at = START;
        let mut pauses = Vec::new();
        while let Some(next) = attempts.not_before(target()) {
            pauses.push(next.saturating_since(at).as_millis());
            at = at.max(next);
            attempts.on_failure(at, target(), Failure::Refused);
        }
        assert_eq!(pauses, [0, 500, 1000, 2000, 4000, 8000, 16_000, 32_000]);
        attempts.forget_remote(target().1);
        assert_eq!(attempts.not_before(target()), Some(Instant::ZERO));
    }

    /// The rules that lead to the peer may be gone for 2 s.
    #[test]
    fn a_reset_of_somebody_else_is_a_refusal_after_a_while() {
        let mut attempts = Attempts::default();
        let mut at = START;
        while !attempts.is_refused(target()) {
            at = at.max(attempts.not_before(target()).unwrap());
            attempts.on_failure(at, target(), Failure::Reset);
        }
        assert_eq!(
            at.saturating_since(START),
            MIN_DELAY * 4,
            "0, 0.5, 1.25, 2 s"
        );
        attempts.on_failure(at, target(), Failure::Broke(MIN_GOOD_LIFETIME));
        assert!(!attempts.is_refused(target()));
        attempts.on_failure(at, target(), Failure::Refused);
        assert!(attempts.is_refused(target()), "by the peer itself");
    }

    /// A middlebox that sometimes lets a join through and resets the next is not tried ever faster.
    #[test]
    fn a_reset_does_not_shorten_a_long_delay() {
        let mut attempts = Attempts::default();
        for _ in 0..8 {
            attempts.on_failure(START, target(), Failure::Unanswered);
        }
        assert_eq!(attempts.not_before(target()), Some(START + MAX_DELAY));
        attempts.on_failure(START, target(), Failure::Reset);
        assert_eq!(attempts.not_before(target()), Some(START + MAX_DELAY));
    }
}
