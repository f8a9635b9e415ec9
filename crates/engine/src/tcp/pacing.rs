//! Pacing: spreads a window over its round trip, so that a super-segment never floods a short
//! queue.

use core::time::Duration;

use braid_wire::Instant;

/// How far ahead of its schedule a sender may run: bounds the rate of timers, and with it bursts.
const AHEAD: Duration = Duration::from_micros(500);
/// How much unused time carries over, so that late timers do not cost rate.
const CARRY: Duration = Duration::from_millis(1);

/// Time-based pacer of one subflow.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pacer {
    /// When everything sent so far has left at the pacing rate.
    drained: Instant,
    /// Bytes per second; 0 is unpaced.
    rate: u64,
    /// Bytes left that leave at once.
    free: u64,
}

impl Pacer {
    /// Is not in the way of the next `free` bytes.
    pub fn restart(&mut self, free: u64) {
        self.free = free;
    }

    /// Sets the rate, in bytes/s; 0 turns pacing off.
    pub fn set_rate(&mut self, rate: u64) {
        self.rate = rate;
    }

    /// Bytes/s; 0 is unpaced.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Bytes that leave at once, whatever the rate.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// When the next packet may leave; `None` is now.
    pub fn blocked_until(&self, now: Instant) -> Option<Instant> {
        let at = self.drained - AHEAD;
        (self.rate > 0 && self.free == 0 && at > now).then_some(at)
    }

    /// Whether all that was sent had left, and room been made at `room_at`, so long before `now`
    /// that what was not sent meanwhile is not made up for.
    pub fn has_paused(&self, now: Instant, room_at: Instant) -> bool {
        now - CARRY > self.drained.max(room_at)
    }

    /// Bytes that make up one burst: what the rate carries in 1 ms.
    pub fn burst(&self) -> u64 {
        match self.rate {
            0 => u64::MAX,
            rate => rate / 1000,
        }
    }

    /// `bytes` were sent.
    pub fn on_sent(&mut self, now: Instant, bytes: u64) {
        let paced = bytes.saturating_sub(self.free);
        self.free = self.free.saturating_sub(bytes);
        if self.rate == 0 || paced == 0 {
            self.drained = now;
            return;
        }
        let ns = u128::from(paced) * 1_000_000_000 / u128::from(self.rate);
        self.drained = self.drained.max(now - CARRY) + Duration::from_nanos(ns as u64);
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
        // 2000 bytes more than free: 2 ms less what may be carried and run ahead.
        let blocked = pacer.blocked_until(now);
        assert_eq!(blocked, Some(Instant::from_micros(101_500)));
    }

    #[test]
    fn after_a_restart_so_do_the_next() {
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
    fn a_pause_is_what_is_not_made_up_for() {
        let mut pacer = Pacer::default();
        pacer.set_rate(1_000_000);
        pacer.on_sent(Instant::from_millis(100), 5000);
        // Sent from 99 to 104 ms.
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
