//! Pacing: spreads the data of a window over the round trip, so that bursts do not overflow a short queue.

use core::time::Duration;

use braid_wire::Instant;

/// The time by which a sender may run ahead of its schedule. A longer lead needs fewer timers but allows larger
/// bursts. The value is a guess, and half of the 1 ms of a [burst](Pacer::burst).
const MAX_PACING_LEAD: Duration = Duration::from_micros(500);
/// The maximum unused time that a sender may make up for, so that late timers do not lower the rate. The value is
/// a guess: it is as long as a burst, and timers are usually less late.
const MAX_PACING_CREDIT: Duration = Duration::from_millis(1);

/// The time-based pacer of one subflow.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pacer {
    /// The time at which all data sent so far would have left if it left exactly at the pacing rate.
    schedule_end: Instant,
    /// The rate in bytes/s; 0 turns pacing off.
    rate: u64,
    /// The number of bytes that may still leave unpaced.
    unpaced: u64,
}

impl Pacer {
    /// Lets the next `unpaced` bytes leave at once.
    pub fn restart(&mut self, unpaced: u64) {
        self.unpaced = unpaced;
    }

    /// Sets the rate, in bytes/s; 0 turns pacing off.
    pub fn set_rate(&mut self, rate: u64) {
        self.rate = rate;
    }

    /// Returns the rate in bytes/s; 0 if pacing is off.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Returns the number of bytes that may leave at once, whatever the rate.
    pub fn free(&self) -> u64 {
        self.unpaced
    }

    /// Returns the time at which the next packet may leave; `None` if now.
    pub fn blocked_until(&self, now: Instant) -> Option<Instant> {
        let at = self.schedule_end - MAX_PACING_LEAD;
        (self.rate > 0 && self.unpaced == 0 && at > now).then_some(at)
    }

    /// Returns whether the sender has paused for longer than it may make up for. During a pause, all data has left
    /// by the schedule and the window has room. The window has had room since `room_at`.
    pub fn has_paused(&self, now: Instant, room_at: Instant) -> bool {
        now - MAX_PACING_CREDIT > self.schedule_end.max(room_at)
    }

    /// Returns the number of bytes of one burst: those of 1 ms at the pacing rate, as in Linux (TSO autosizing).
    pub fn burst(&self) -> u64 {
        match self.rate {
            0 => u64::MAX,
            rate => rate / 1000,
        }
    }

    /// Notes that `bytes` were sent.
    pub fn on_sent(&mut self, now: Instant, bytes: u64) {
        let paced = bytes.saturating_sub(self.unpaced);
        self.unpaced = self.unpaced.saturating_sub(bytes);
        if self.rate == 0 || paced == 0 {
            self.schedule_end = now;
            return;
        }
        let ns = u128::from(paced) * 1_000_000_000 / u128::from(self.rate);
        self.schedule_end =
            self.schedule_end.max(now - MAX_PACING_CREDIT) + Duration::from_nanos(ns as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_the_rate_over_time() {
        let mut pacer = Pacer::default();
        pacer.set_rate(1_000_000);
        let mut now = Instant::from_millis(100);
        let mut sent = 0;
        while now < Instant::from_millis(1100) {
            match pacer.blocked_until(now) {
                Some(at) => now = at,
                None => {
                    pacer.on_sent(now, 3000);
                    sent += 3000;
                }
            }
        }
        assert!((1_000_000..1_010_000).contains(&sent), "{sent}");
    }

    #[test]
    fn the_first_bytes_leave_at_once() {
        let mut pacer = Pacer::default();
        pacer.restart(5000);
        pacer.set_rate(1_000_000);
        let now = Instant::from_millis(100);
        pacer.on_sent(now, 3000);
        assert_eq!((pacer.blocked_until(now), pacer.free()), (None, 2000));
        pacer.on_sent(now, 4000);
        // The 2000 bytes that may not leave at once take 2 ms. The credit of 1 ms and the lead of 0.5 ms shorten
        // this time.
        let blocked = pacer.blocked_until(now);
        assert_eq!(blocked, Some(Instant::from_micros(101_500)));
    }

    #[test]
    fn after_a_restart_bytes_leave_at_once() {
        let mut pacer = Pacer::default();
        pacer.restart(5000);
        pacer.set_rate(1_000_000);
        pacer.on_sent(Instant::from_millis(100), 7000);
        let now = Instant::from_millis(900);
        pacer.restart(5000);
        pacer.on_sent(now, 4000);
        assert_eq!(pacer.blocked_until(now), None);
        pacer.on_sent(now, 3000);
        assert_eq!(
            pacer.blocked_until(now),
            Some(Instant::from_micros(901_500))
        );
    }

    #[test]
    fn a_pause_is_longer_than_the_credit() {
        let mut pacer = Pacer::default();
        pacer.set_rate(1_000_000);
        pacer.on_sent(Instant::from_millis(100), 5000);
        // 5000 bytes take 5 ms. With the credit of 1 ms these bytes count as sent from 99 to 104 ms. The sender
        // has paused once more than 1 ms has passed after that.
        let early = Instant::from_millis(50);
        assert!(!pacer.has_paused(Instant::from_millis(105), early));
        assert!(pacer.has_paused(Instant::from_millis(106), early));
        assert!(!pacer.has_paused(Instant::from_millis(106), Instant::from_millis(105)));
    }

    #[test]
    fn unpaced_never_blocks() {
        let mut pacer = Pacer::default();
        pacer.on_sent(Instant::ZERO, 1 << 30);
        assert_eq!(pacer.blocked_until(Instant::ZERO), None);
    }
}
