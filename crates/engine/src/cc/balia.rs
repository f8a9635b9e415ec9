//! BALIA, the balanced linked adaptation, couples subflows like LIA. Its growth is a compromise between LIA, which
//! adapts faster, and OLIA, which leaves more to single-path flows.
//!
//! Q. Peng, A. Walid, J. Hwang, S. H. Low, "Multipath TCP: Analysis, Design, and Implementation",
//! IEEE/ACM Transactions on Networking 24(1), 2016; draft-walid-mptcp-congestion-control-04.

use core::time::Duration;

use super::newreno::NewReno;
use super::variant::{Growth, Variant};
use super::{AckSample, Algorithm, CongestionControl, Sibling};

/// BALIA (draft-walid-mptcp-congestion-control-04).
pub const BALIA: Algorithm = Algorithm {
    name: "balia",
    make: |mss, initial_window| Box::new(Variant::<Balia>::new(mss, initial_window)),
};

/// The maximum of `alpha` in a decrease (section 3.2). It ensures that at least a quarter of the window remains.
const MAX_ALPHA: f64 = 1.5;

/// NewReno with the growth of BALIA in congestion avoidance, and with larger decreases on slower paths.
#[derive(Debug)]
struct Balia {
    /// The highest rate of the subflows divided by the rate of this subflow, at the last acknowledgement.
    alpha: f64,
}

impl Default for Balia {
    fn default() -> Self {
        Balia { alpha: 1.0 }
    }
}

/// Returns `alpha` of the first sibling, and the number of segments by which the window of this sibling grows for
/// each byte delivered: `x / rtt / sum(x_i)^2 * (1 + alpha) / 2 * (4 + alpha) / 5` with `x = cwnd / rtt`.
fn growth(siblings: &[Sibling]) -> Option<(f64, f64)> {
    let rate = |s: &Sibling| s.cwnd as f64 / s.srtt.as_secs_f64();
    let rates = || {
        let measured = siblings.iter().filter(|s| s.srtt > Duration::ZERO);
        measured.map(rate)
    };
    let own = siblings.first().filter(|s| !s.srtt.is_zero())?;
    let sum: f64 = rates().sum();
    let alpha = rates().fold(0.0, f64::max) / rate(own);
    let linked_increase = rate(own) / own.srtt.as_secs_f64() / (sum * sum);
    Some((
        alpha,
        linked_increase * (1.0 + alpha) / 2.0 * (4.0 + alpha) / 5.0,
    ))
}

impl Growth for Balia {
    const COUPLED: bool = true;

    fn on_ack(&mut self, reno: &mut NewReno, ack: &AckSample<'_>) {
        let (alpha, segments_per_byte) = growth(ack.siblings).unwrap_or((1.0, 0.0));
        self.alpha = alpha;
        reno.grow_by(ack, segments_per_byte);
    }

    /// Reduces the window to the fraction `1 - min(alpha, 1.5) / 2`: to half if this subflow is the fastest one,
    /// and otherwise to less, but at least to a quarter. NewReno has halved the window already, so twice this
    /// fraction of the halved window remains.
    fn on_halved(&mut self, reno: &mut NewReno) {
        if self.alpha > 1.0 {
            let fraction = 2.0 - self.alpha.min(MAX_ALPHA);
            reno.shrink_to((reno.cwnd() as f64 * fraction) as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use braid_wire::Instant;

    use super::*;
    use crate::cc::Loss;

    fn subflow(cwnd: u64, rtt_ms: u64) -> Sibling {
        Sibling {
            cwnd,
            srtt: Duration::from_millis(rtt_ms),
            loss_interval: 0,
        }
    }

    #[test]
    fn growth_is_that_of_the_draft() {
        // The expected number of segments is the growth while one window is acknowledged.
        for (siblings, alpha, expected) in [
            (vec![subflow(10_000, 100)], 1.0, 1.0),
            (vec![subflow(10_000, 100); 2], 1.0, 0.25),
            (vec![subflow(10_000, 100), subflow(9_000, 0)], 1.0, 1.0),
            // 100 and 200 kB/s: alpha is 2. (1/3)^2 = 1/9, times (1 + 2) / 2, times (4 + 2) / 5 is 0.2. For the
            // faster subflow alpha is 1: (2/3)^2 = 4/9.
            (vec![subflow(10_000, 100), subflow(20_000, 100)], 2.0, 0.2),
            (
                vec![subflow(20_000, 100), subflow(10_000, 100)],
                1.0,
                4.0 / 9.0,
            ),
        ] {
            let (got, per_byte) = growth(&siblings).unwrap();
            let segments = per_byte * siblings[0].cwnd as f64;
            assert!((got - alpha).abs() < 1e-9, "{siblings:?}: alpha {got}");
            assert!(
                (segments - expected).abs() < 1e-9,
                "{siblings:?}: {segments}"
            );
        }
        assert_eq!(growth(&[]), None);
        assert_eq!(growth(&[subflow(10_000, 0)]), None);
    }

    /// The windows are 100,000 and 120,000 bytes. So alpha of the first subflow is 1.2, and 1 - 1.2 / 2 = 40 % of
    /// its window remain.
    #[test]
    fn slower_subflows_lose_more() {
        for (other, left) in [
            (1, 50_000),
            (100_000, 50_000),
            (120_000, 40_000),
            (900_000, 25_000),
        ] {
            let mut cc = BALIA.build(1000, 100);
            cc.on_ack(&AckSample {
                cwnd_limited: true,
                in_recovery: true,
                siblings: &[subflow(100_000, 100), subflow(other, 100)],
                ..AckSample::default()
            });
            cc.on_lost(&Loss {
                in_flight: 100_000,
                first: true,
                ..Loss::default()
            });
            assert_eq!(cc.cwnd(), left, "{other}");
            cc.on_spurious(Instant::ZERO);
            assert_eq!(cc.cwnd(), 100_000, "{other}");
        }
    }
}
