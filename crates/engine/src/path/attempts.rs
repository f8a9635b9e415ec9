//! The failures of subflows that could not be opened or that ended soon, and the times at which their targets are
//! tried again.

use core::net::SocketAddr;
use core::time::Duration;

use braid_wire::Instant;

use crate::PathId;

/// The first delay after a subflow could not be opened or broke. Each further failure doubles the delay, up to
/// [`MAX_DELAY`]. This value is a guess, and so are the other times and numbers in this file that cite no source.
const MIN_DELAY: Duration = Duration::from_millis(500);
/// The maximum delay after a SYN without an answer: the path may have been down and may work again at any time.
const MAX_DELAY: Duration = Duration::from_secs(10);
/// The maximum delay after refusals: a peer that refuses a subflow will most likely refuse it again.
const MAX_DELAY_REFUSED: Duration = Duration::from_secs(60);
/// The number of RSTs without an MPTCP option that do not count as refusals yet. Such a RST may come from a
/// middlebox. It may also come from the kernel of the peer's host while the rules that divert packets to Braid are
/// missing. Braid restores missing rules within 2 s, the time that this number of attempts takes.
const MAX_RESETS: u8 = 3;
/// The maximum delay after a RST without an MPTCP option, unless the delay before was longer already.
const MAX_DELAY_RESET: Duration = Duration::from_millis(750);
/// The number of consecutive refusals after which the target is not tried again until its path changes. The delays
/// between the refusals, 0.5 s to 32 s, make up about a minute.
const MAX_REFUSALS: u8 = 8;
/// The minimum lifetime of a subflow whose end does not count as a further failure of the target.
const MIN_GOOD_LIFETIME: Duration = Duration::from_secs(10);

/// The target of a subflow: the local path and the peer's address.
pub(crate) type Target = (PathId, SocketAddr);

/// The way in which a subflow ended although it was wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// By a RST with MP_TCPRST, or by an invalid answer, before it was established.
    Refused,
    /// By a RST without MP_TCPRST, before it was established.
    Reset,
    /// By a timeout, because no answer arrived.
    Unanswered,
    /// By a failure after it had been established for this time.
    Broke(Duration),
}

/// The failures of a target.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    target: Target,
    not_before: Instant,
    /// The delay before the next attempt.
    delay: Duration,
    /// The number of consecutive refusals.
    refusals: u8,
    /// The number of RSTs without an MPTCP option that did not count as refusals.
    resets: u8,
}

/// The targets with failures. Their number needs no limit of its own, because the numbers of paths and of the
/// peer's addresses are limited.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Vec<Attempt>);

impl Attempts {
    /// Returns the earliest time at which a subflow to `target` may be opened; `None` if the target refused too
    /// often.
    pub fn not_before(&self, target: Target) -> Option<Instant> {
        let attempt = self.0.iter().find(|a| a.target == target);
        let Some(attempt) = attempt else {
            return Some(Instant::ZERO);
        };
        (attempt.refusals < MAX_REFUSALS).then_some(attempt.not_before)
    }

    /// Returns whether the last attempt at `target` was refused.
    pub fn is_refused(&self, target: Target) -> bool {
        let mut attempts = self.0.iter();
        attempts.any(|a| a.target == target && a.refusals > 0)
    }

    /// Notes a failure.
    pub fn on_failure(&mut self, now: Instant, target: Target, failure: Failure) {
        let lifetime = match failure {
            Failure::Broke(lifetime) => lifetime,
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
                if lifetime >= MIN_GOOD_LIFETIME {
                    attempt.resets = 0;
                }
                MAX_DELAY
            }
        };
        attempt.delay = match lifetime >= MIN_GOOD_LIFETIME && at.is_some() {
            true => MIN_DELAY,
            false => (attempt.delay * 2).clamp(MIN_DELAY, max_delay),
        };
        // The first failure of a subflow that had worked is mostly caused by a changed NAT binding: retry at once.
        let retry_at_once = at.is_none() && !lifetime.is_zero();
        attempt.not_before = match retry_at_once {
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

    /// The rules that divert packets to the peer may be missing for 2 s.
    #[test]
    fn a_reset_without_an_option_is_a_refusal_after_a_while() {
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

    /// A middlebox that forwards some joins and resets others must not make attempts more frequent.
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
