//! Detects suspends of this machine.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Minimum length of a suspend that is reported. Without a suspend, the lead of one clock changes by less than
/// this: it changes only because the clocks are read one after the other. The value is a guess: a shorter
/// suspend breaks no connection.
const MIN_SUSPEND: Duration = Duration::from_secs(1);

/// Compares the clock that also counts the time of a suspend (`CLOCK_BOOTTIME`) with the event loop's clock, which
/// does not (`CLOCK_MONOTONIC`).
#[derive(Debug)]
pub(super) struct Suspension {
    /// Lead of `CLOCK_BOOTTIME` over `CLOCK_MONOTONIC` when the clocks were last compared.
    lead: Duration,
}

impl Suspension {
    /// Starts to compare now.
    pub fn new() -> Self {
        Suspension { lead: lead() }
    }

    /// Returns the length of a suspend since the last call, if there was one.
    pub fn check(&mut self) -> Option<Duration> {
        self.update(lead())
    }

    /// Takes the current lead, and returns the length of a suspend since the last call, if there was one.
    fn update(&mut self, lead: Duration) -> Option<Duration> {
        let before = std::mem::replace(&mut self.lead, lead);
        let suspended = lead.saturating_sub(before);
        (suspended >= MIN_SUSPEND).then_some(suspended)
    }
}

/// Returns the lead of `CLOCK_BOOTTIME` over `CLOCK_MONOTONIC`: the total time of all suspends since the start.
fn lead() -> Duration {
    let [monotonic, boottime] = [ClockId::Monotonic, ClockId::Boottime].map(|clock| {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
        Duration::new(tv_sec as u64, tv_nsec as u32)
    });
    boottime.saturating_sub(monotonic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_suspend_is_noticed_and_once() {
        let ms = Duration::from_millis;
        let mut suspension = Suspension { lead: ms(5_000) };
        assert_eq!(suspension.update(ms(5_001)), None);
        assert_eq!(suspension.update(ms(5_000)), None);
        assert_eq!(suspension.update(ms(185_000)), Some(ms(180_000)));
        assert_eq!(suspension.update(ms(185_900)), None);
        // Small differences do not add up.
        assert_eq!(suspension.update(ms(186_800)), None);
    }

    #[test]
    fn a_machine_that_is_awake_is_not_taken_for_suspended() {
        assert_eq!(Suspension::new().check(), None);
    }
}
