//! Detection of suspends of this machine.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Shortest suspend that is reported. Two clocks that are read one after the other differ by less.
const MIN_SUSPEND: Duration = Duration::from_secs(1);

/// Compares the clock that runs on in suspend (`CLOCK_BOOTTIME`) with the event loop's (`CLOCK_MONOTONIC`),
/// which stands still.
#[derive(Debug)]
pub(super) struct Suspension {
    /// Lead of the first clock over the second at the last look.
    ahead: Duration,
}

impl Suspension {
    /// Starts to compare now.
    pub fn new() -> Self {
        Suspension { ahead: ahead() }
    }

    /// Returns the length of a suspend since the last call, if there was one.
    pub fn notice(&mut self) -> Option<Duration> {
        self.judge(ahead())
    }

    fn judge(&mut self, ahead: Duration) -> Option<Duration> {
        let before = std::mem::replace(&mut self.ahead, ahead);
        let suspended = ahead.saturating_sub(before);
        (suspended >= MIN_SUSPEND).then_some(suspended)
    }
}

fn ahead() -> Duration {
    let [awake, all] = [ClockId::Monotonic, ClockId::Boottime].map(|clock| {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
        Duration::new(tv_sec as u64, tv_nsec as u32)
    });
    all.saturating_sub(awake)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_suspend_is_noticed_and_once() {
        let ms = Duration::from_millis;
        let mut suspension = Suspension { ahead: ms(5_000) };
        assert_eq!(suspension.judge(ms(5_001)), None);
        assert_eq!(suspension.judge(ms(5_000)), None);
        assert_eq!(suspension.judge(ms(185_000)), Some(ms(180_000)));
        assert_eq!(suspension.judge(ms(185_900)), None);
        // Small differences do not add up.
        assert_eq!(suspension.judge(ms(186_800)), None);
    }

    #[test]
    fn a_machine_that_is_awake_is_not_taken_for_suspended() {
        assert_eq!(Suspension::new().notice(), None);
    }
}
