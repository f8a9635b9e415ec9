//! The times at which datagrams leave.

use core::time::Duration;

use braid_wire::Instant;

/// The time by which datagrams may leave before their pace, and be made up for after a late timer. On a path of
/// 1 Gbit/s, 17 datagrams leave together, or 34 after a late timer, for which the system needs one call and one timer;
/// below 60 Mbit/s none leaves early. Queues of links are longer by far.
const MAX_BURST: Duration = Duration::from_micros(200);

/// Paces the datagrams of one path.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// The time at which the next datagram may leave.
    next_send: Instant,
    /// The time at which all datagrams so far have left by their pace.
    paced_until: Instant,
}

impl Pacer {
    pub fn new() -> Self {
        Pacer {
            next_send: Instant::ZERO,
            paced_until: Instant::ZERO,
        }
    }

    /// Returns the time at which the pace lets the next datagram leave.
    pub fn next_send(&self) -> Instant {
        self.next_send
    }

    /// Notes that a datagram left at `now`. By its pace, the next one follows after `gap`.
    pub fn on_sent(&mut self, now: Instant, gap: Duration) {
        // A path that was idle may send two datagrams at once, so that late timers cost no rate.
        self.paced_until = self.paced_until.max(now - gap.max(MAX_BURST)) + gap;
        if self.paced_until > now + MAX_BURST {
            self.next_send = self.paced_until;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_millis(1000);

    /// Returns the number of datagrams that leave in `time`, and the largest number that leave at once, if the sender
    /// comes when it may send, `late` after that.
    fn sent(gap: Duration, time: Duration, late: Duration) -> (u32, u32) {
        let mut pacer = Pacer::new();
        let (mut all, mut largest) = (0, 0);
        let mut now = START;
        while now < START + time {
            let mut burst = 0;
            while pacer.next_send() <= now {
                pacer.on_sent(now, gap);
                burst += 1;
            }
            all += burst;
            largest = largest.max(burst);
            now = pacer.next_send() + late;
        }
        (all, largest)
    }

    #[test]
    fn a_fast_path_sends_in_bursts_at_its_rate() {
        // 12 us are 1,500 bytes at 1 Gbit/s: 833 in 10 ms, and those by which the first burst is ahead.
        let gap = Duration::from_micros(12);
        let (all, burst) = sent(gap, Duration::from_millis(10), Duration::ZERO);
        assert!((833..=833 + 17 * 2).contains(&all), "{all}");
        assert!((17..=34).contains(&burst), "{burst}");
        // Timers that are late by less than a burst cost no rate.
        let late = Duration::from_micros(150);
        let (all, _) = sent(gap, Duration::from_millis(10), late);
        assert!((833..=833 + 17 * 2).contains(&all), "{all}");
    }

    #[test]
    fn a_slow_path_sends_one_by_one() {
        // 240 us are 1,500 bytes at 50 Mbit/s. The first two leave at once.
        let gap = Duration::from_micros(240);
        let (all, burst) = sent(gap, Duration::from_millis(24), Duration::ZERO);
        assert!((100..=102).contains(&all), "{all}");
        assert_eq!(burst, 2);
    }
}
