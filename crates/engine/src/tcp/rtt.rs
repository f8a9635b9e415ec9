//! Round-trip time and retransmission timeout (RFC 6298).

use core::time::Duration;

use crate::Config;

/// Clock granularity G of RFC 6298 section 2.
const GRANULARITY: Duration = Duration::from_millis(1);

/// Smoothed round trip of one subflow.
#[derive(Debug, Clone)]
pub(crate) struct RttEstimator {
    srtt: Option<Duration>,
    rttvar: Duration,
    latest: Duration,
    min: Duration,
    min_rto: Duration,
    max_rto: Duration,
}

impl RttEstimator {
    pub fn new(config: &Config) -> Self {
        RttEstimator {
            srtt: None,
            rttvar: Duration::ZERO,
            latest: Duration::ZERO,
            min: Duration::MAX,
            min_rto: config.min_rto,
            max_rto: config.max_rto,
        }
    }

    /// Takes a sample (never from a retransmission: Karn).
    pub fn sample(&mut self, rtt: Duration) {
        let rtt = rtt.max(Duration::from_nanos(1));
        self.latest = rtt;
        self.min = self.min.min(rtt);
        match self.srtt {
            None => {
                self.srtt = Some(rtt);
                self.rttvar = rtt / 2;
            }
            Some(srtt) => {
                self.rttvar = (self.rttvar * 3 + srtt.abs_diff(rtt)) / 4;
                self.srtt = Some((srtt * 7 + rtt) / 8);
            }
        }
    }

    /// Smoothed round trip; zero before the first sample.
    pub fn srtt(&self) -> Duration {
        self.srtt.unwrap_or_default()
    }

    /// Mean deviation; zero before the first sample.
    pub fn rttvar(&self) -> Duration {
        self.rttvar
    }

    /// Newest sample; zero before the first.
    pub fn latest(&self) -> Duration {
        self.latest
    }

    /// Lowest sample; zero before the first.
    pub fn min(&self) -> Duration {
        match self.srtt {
            Some(_) => self.min,
            None => Duration::ZERO,
        }
    }

    /// Upper bound of the timeout.
    pub fn max_rto(&self) -> Duration {
        self.max_rto
    }

    /// The timeout without backoff; 1 s before the first sample (RFC 6298 section 2.1). Like
    /// Linux, the floor applies to the variance term, so that a steady path never times out on
    /// a queue that grows by less than the floor.
    pub fn rto(&self) -> Duration {
        match self.srtt {
            None => Duration::from_secs(1),
            Some(srtt) => srtt + (self.rttvar * 4).max(GRANULARITY).max(self.min_rto),
        }
        .min(self.max_rto)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sample_and_smoothing() {
        let mut rtt = RttEstimator::new(&Config::default());
        assert_eq!(rtt.rto(), Duration::from_secs(1));
        assert_eq!(rtt.latest(), Duration::ZERO);
        rtt.sample(Duration::from_millis(100));
        assert_eq!(rtt.srtt(), Duration::from_millis(100));
        assert_eq!(rtt.rttvar(), Duration::from_millis(50));
        assert_eq!(rtt.rto(), Duration::from_millis(300));
        rtt.sample(Duration::from_millis(180));
        assert_eq!(rtt.srtt(), Duration::from_millis(110));
        assert_eq!(rtt.rttvar(), Duration::from_micros(57_500));
        assert_eq!(rtt.latest(), Duration::from_millis(180));
        assert_eq!(rtt.min(), Duration::from_millis(100));
    }

    #[test]
    fn steady_rtt_keeps_the_floor() {
        let mut rtt = RttEstimator::new(&Config::default());
        for _ in 0..100 {
            rtt.sample(Duration::from_millis(40));
        }
        assert_eq!(rtt.rto(), Duration::from_millis(240));
    }
}
