//! Round-trip time and retransmission timeout (RFC 6298).

use core::time::Duration;

use braid_wire::Instant;

use crate::Config;

/// The clock granularity G of RFC 6298 section 2. Timestamps count milliseconds.
const CLOCK_GRANULARITY: Duration = Duration::from_millis(1);

/// The timeout before the first sample (RFC 6298 section 2.1).
const INITIAL_RTO: Duration = Duration::from_secs(1);

/// The period of the base round trip, which is the lowest sample of this period and the one before it.
/// Older samples do not count, because the route may have changed since. BBR keeps its lowest round trip for 10 s
/// too.
const BASE_RTT_PERIOD: Duration = Duration::from_secs(10);

/// The maximum queueing delay of a queue that counts as short on any path. The value is a guess; CoDel has the
/// same target delay (RFC 8289).
const SHORT_QUEUE_DELAY: Duration = Duration::from_millis(5);

/// The number of samples after which the estimator trusts its samples. If fewer precede a far shorter sample, they
/// are discarded as wrong. The value is a guess: a connection that sends little has few samples before the first
/// undisturbed one.
const UNTRUSTED_SAMPLES: u32 = 8;

/// The round-trip estimator of one subflow.
#[derive(Debug, Clone)]
pub(crate) struct RttEstimator {
    /// The number of samples.
    samples: u32,
    srtt: Option<Duration>,
    rttvar: Duration,
    /// The lowest sample.
    min: Duration,
    /// The newest sample.
    latest: Duration,
    /// The highest sample, which shows the longest queue of the path.
    max: Duration,
    /// The lowest samples of the current period and the previous one.
    base: [Duration; 2],
    base_since: Instant,
    /// The timeout without backoff.
    rto: Duration,
    min_rto: Duration,
    max_rto: Duration,
}

impl RttEstimator {
    // Conforms: 6298-2-1
    pub fn new(config: &Config) -> Self {
        RttEstimator {
            samples: 0,
            srtt: None,
            rttvar: Duration::ZERO,
            min: Duration::MAX,
            latest: Duration::ZERO,
            max: Duration::ZERO,
            base: [Duration::MAX; 2],
            base_since: Instant::ZERO,
            rto: INITIAL_RTO.min(config.max_rto),
            min_rto: config.min_rto,
            max_rto: config.max_rto,
        }
    }

    /// Seeds the first timeout with the round trip of an earlier subflow on the path. A seed can shorten the
    /// timeout, but not lengthen it.
    pub fn seed_from(&mut self, srtt: Duration, rttvar: Duration) {
        if self.srtt.is_none() {
            let margin = (rttvar * 4).max(self.min_rto);
            self.rto = INITIAL_RTO.min(srtt + margin).min(self.max_rto);
        }
    }

    /// Discards the first samples if the sample `rtt` is far shorter. The first sample may be that of a handshake
    /// whose last segment was lost and repeated a second later. Timestamps do not show this repetition. A
    /// connection that sends little would otherwise keep a timeout of a hundred round trips for long.
    fn forget_repeated_handshake(&mut self, rtt: Duration) {
        let is_far_shorter = |srtt| rtt * 2 + self.min_rto < srtt;
        if self.samples < UNTRUSTED_SAMPLES && self.srtt.is_some_and(is_far_shorter) {
            self.srtt = None;
            self.max = rtt;
        }
        self.samples = self.samples.saturating_add(1);
    }

    /// Processes a sample. A retransmission may give a sample only by a timestamp (Karn's algorithm).
    pub fn sample(&mut self, now: Instant, rtt: Duration) {
        let rtt = rtt.max(Duration::from_nanos(1));
        self.latest = rtt;
        self.forget_repeated_handshake(rtt);
        self.max = self.max.max(rtt);
        if now.saturating_since(self.base_since) >= BASE_RTT_PERIOD {
            self.base = [Duration::MAX, self.base[0]];
            self.base_since = now;
        }
        self.base[0] = self.base[0].min(rtt);
        self.min = self.min.min(rtt);
        let (srtt, rttvar) = match self.srtt {
            None => (rtt, rtt / 2),
            Some(srtt) => (
                (srtt * 7 + rtt) / 8,
                (self.rttvar * 3 + srtt.abs_diff(rtt)) / 4,
            ),
        };
        let margin = (rttvar * 4).max(CLOCK_GRANULARITY).max(self.min_rto);
        self.rto = (srtt + margin).min(self.max_rto);
        (self.srtt, self.rttvar) = (Some(srtt), rttvar);
    }

    /// Returns the smoothed round trip; zero before the first sample.
    pub fn srtt(&self) -> Duration {
        self.srtt.unwrap_or_default()
    }

    /// Returns the mean deviation; zero before the first sample.
    pub fn rttvar(&self) -> Duration {
        self.rttvar
    }

    /// Returns the lowest sample; zero before the first sample.
    pub fn min(&self) -> Duration {
        match self.srtt {
            Some(_) => self.min,
            None => Duration::ZERO,
        }
    }

    /// Returns the newest sample; zero before the first sample.
    pub fn latest(&self) -> Duration {
        self.latest
    }

    /// Returns the base round trip: the lowest sample of the last two periods with samples; zero before the first
    /// sample.
    pub fn base(&self) -> Duration {
        match self.srtt {
            Some(_) => self.base[0].min(self.base[1]),
            None => Duration::ZERO,
        }
    }

    /// Returns whether the newest sample shows a short queue: the queueing delay is at most half of the longest
    /// one so far, or at most 5 ms.
    pub fn is_queue_short(&self) -> bool {
        let queueing_delay = self.latest.saturating_sub(self.base());
        let longest_delay = self.max.saturating_sub(self.base());
        queueing_delay <= (longest_delay / 2).max(SHORT_QUEUE_DELAY)
    }

    /// Returns the upper bound of the timeout.
    pub fn max_rto(&self) -> Duration {
        self.max_rto
    }

    /// Returns the timeout without backoff. Before the first sample it is 1 s, or less if the estimator was
    /// [seeded](Self::seed_from). As in Linux, the minimum applies to the variance term, not to the whole
    /// timeout: on a path with a constant round trip, a queue that grows by less than the minimum causes no
    /// timeout.
    pub fn rto(&self) -> Duration {
        self.rto
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Conforms: 6298-2-1
    #[test]
    fn first_sample_and_smoothing() {
        let mut rtt = RttEstimator::new(&Config::default());
        assert_eq!(rtt.rto(), Duration::from_secs(1));
        assert_eq!(rtt.latest(), Duration::ZERO);
        rtt.sample(Instant::ZERO, Duration::from_millis(100));
        assert_eq!(rtt.srtt(), Duration::from_millis(100));
        assert_eq!(rtt.rttvar(), Duration::from_millis(50));
        assert_eq!(rtt.rto(), Duration::from_millis(300));
        rtt.sample(Instant::ZERO, Duration::from_millis(180));
        assert_eq!(rtt.srtt(), Duration::from_millis(110));
        assert_eq!(rtt.rttvar(), Duration::from_micros(57_500));
        assert_eq!(rtt.min(), Duration::from_millis(100));
    }

    #[test]
    fn a_known_path_shortens_the_first_timeout() {
        let mut rtt = RttEstimator::new(&Config::default());
        let ms = Duration::from_millis;
        for (srtt, rttvar, rto) in [(40, 5, 240), (40, 60, 280), (900, 100, 1000)] {
            rtt.seed_from(ms(srtt), ms(rttvar));
            assert_eq!(rtt.rto(), ms(rto));
        }
    }

    /// A third ACK that was lost and repeated makes the first sample 2.4 s long: the timeout is 2.4 s + 4 * 1.2 s.
    /// The next sample, 30 ms, replaces the first one: the timeout is 30 ms + 200 ms.
    #[test]
    fn a_handshake_that_was_repeated_is_forgotten() {
        let ms = Duration::from_millis;
        let mut rtt = RttEstimator::new(&Config::default());
        rtt.sample(Instant::ZERO, ms(2_400));
        assert_eq!(rtt.rto(), ms(7_200));
        rtt.sample(Instant::ZERO, ms(30));
        assert_eq!((rtt.srtt(), rtt.rto()), (ms(30), ms(230)));
        // After eight samples a short sample counts like any other.
        for _ in 0..8 {
            rtt.sample(Instant::ZERO, ms(900));
        }
        let before = rtt.srtt();
        rtt.sample(Instant::ZERO, ms(20));
        assert_eq!(rtt.srtt(), (before * 7 + ms(20)) / 8);
    }

    #[test]
    fn the_base_follows_a_change_of_route() {
        let mut rtt = RttEstimator::new(&Config::default());
        for (s, ms, base) in [
            (1, 40, 40),
            (5, 90, 40),
            (12, 90, 40),
            (23, 95, 90),
            (24, 30, 30),
        ] {
            rtt.sample(Instant::from_millis(1000 * s), Duration::from_millis(ms));
            assert_eq!(rtt.base(), Duration::from_millis(base), "at {s} s");
        }
        assert_eq!(rtt.min(), Duration::from_millis(30));
    }

    #[test]
    fn steady_rtt_keeps_the_floor() {
        let mut rtt = RttEstimator::new(&Config::default());
        for _ in 0..100 {
            rtt.sample(Instant::ZERO, Duration::from_millis(40));
        }
        assert_eq!(rtt.rto(), Duration::from_millis(240));
    }

    /// The base is 40 ms. A queueing delay of 5 ms is short in any case. After a delay of 20 ms, delays of up to
    /// 10 ms are short.
    #[test]
    fn a_queue_is_short_beside_the_longest() {
        let mut rtt = RttEstimator::new(&Config::default());
        for (ms, short) in [(40, true), (45, true), (60, false), (50, true), (51, false)] {
            rtt.sample(Instant::from_millis(1), Duration::from_millis(ms));
            assert_eq!(rtt.is_queue_short(), short, "{ms}");
        }
    }
}
