//! A limit on the rate of log messages.

use std::time::Duration;

use braid_wire::Instant;

/// Admits one message a second, and counts the messages that it suppresses.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RateLimit {
    /// The earliest time at which the next message is admitted.
    next: Option<Instant>,
    /// Number of messages suppressed since the last admitted message.
    suppressed: u64,
}

impl RateLimit {
    /// Returns `None` if a message must not be written now. Otherwise returns the number of messages that were
    /// suppressed since the last admitted message.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.next.is_some_and(|next| now < next) {
            self.suppressed += 1;
            return None;
        }
        self.next = Some(now + Duration::from_secs(1));
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_a_second_is_admitted() {
        let mut limit = RateLimit::default();
        let at = |ms| Instant::from_millis(ms);
        assert_eq!(limit.admit(at(0)), Some(0));
        assert_eq!(limit.admit(at(10)), None);
        assert_eq!(limit.admit(at(999)), None);
        assert_eq!(limit.admit(at(1_000)), Some(2));
        assert_eq!(limit.admit(at(2_500)), Some(0));
    }
}
