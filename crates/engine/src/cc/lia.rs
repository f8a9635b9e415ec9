//! LIA, coupled congestion control (RFC 6356). All subflows together get the rate that a single TCP flow would get
//! on the best of their paths. The more congested a path is, the less its subflow gets.

use core::time::Duration;

use super::newreno::NewReno;
use super::variant::{Growth, Variant};
use super::{AckSample, Algorithm, Sibling};

/// LIA (RFC 6356).
pub const LIA: Algorithm = Algorithm {
    name: "lia",
    make: |mss, initial_window| Box::new(Variant::<Lia>::new(mss, initial_window)),
};

/// NewReno with the growth of LIA in congestion avoidance.
#[derive(Debug, Default)]
struct Lia;

/// Returns the number of bytes after whose delivery the window grows by a segment. If the window itself is larger
/// than this number, the size of the window counts instead.
///
/// In section 3 a window grows by `min(alpha / cwnd_total, 1 / cwnd_i)` segments for each byte, with `alpha
/// = cwnd_total * max(cwnd_i / rtt_i^2) / sum(cwnd_i / rtt_i)^2`. So it grows by one segment for
/// `max(cwnd_total / alpha, cwnd_i)` bytes. This function returns `cwnd_total / alpha`.
fn bytes_per_segment(siblings: &[Sibling]) -> u64 {
    let (mut sum, mut max) = (0.0, 0.0_f64);
    for subflow in siblings.iter().filter(|s| s.srtt > Duration::ZERO) {
        let rtt = subflow.srtt.as_secs_f64();
        let rate = subflow.cwnd as f64 / rtt;
        sum += rate;
        max = max.max(rate / rtt);
    }
    if max > 0.0 {
        (sum * sum / max) as u64
    } else {
        0
    }
}

impl Growth for Lia {
    const COUPLED: bool = true;

    fn on_ack(&mut self, reno: &mut NewReno, ack: &AckSample<'_>) {
        reno.grow(ack, bytes_per_segment(ack.siblings));
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

    /// Each case names `cwnd_total` and the `alpha` of RFC 6356 section 3, which was computed by hand.
    #[test]
    fn alpha_is_that_of_the_rfc() {
        for (subflows, total, alpha) in [
            // A single subflow grows like a TCP flow.
            (vec![subflow(10_000, 100)], 10_000.0, 1.0),
            // Each of n equal subflows grows by 1 / n^2 segments for each of its windows.
            (vec![subflow(10_000, 100); 2], 20_000.0, 0.5),
            (vec![subflow(10_000, 100); 4], 40_000.0, 0.25),
            // 30,000 * max(8e6, 1e6) / (400,000 + 100,000)^2.
            (
                vec![subflow(20_000, 50), subflow(10_000, 100)],
                30_000.0,
                0.96,
            ),
            // 101,000 * max(1e7, 1e5) / (100,000 + 100,000)^2.
            (
                vec![subflow(1_000, 10), subflow(100_000, 1000)],
                101_000.0,
                25.25,
            ),
            // A subflow without a measurement does not count.
            (
                vec![subflow(10_000, 100), subflow(99_000, 0)],
                10_000.0,
                1.0,
            ),
        ] {
            let expected = total / alpha;
            let bytes = bytes_per_segment(&subflows) as f64;
            assert!((bytes - expected).abs() <= 1.0, "{subflows:?}: {bytes}");
        }
        assert_eq!(bytes_per_segment(&[]), 0);
    }

    /// Delivers `bytes` in congestion avoidance and returns the growth of the window.
    fn growth(cwnd: u64, siblings: &[Sibling], bytes: u64) -> u64 {
        let mut cc = LIA.build(1000, cwnd as u32 * 2 / 1000);
        let now = Instant::ZERO;
        cc.on_lost(&Loss {
            now,
            bytes: 1000,
            in_flight: cwnd * 2,
            first: true,
            ..Loss::default()
        });
        assert_eq!(cc.cwnd(), cwnd);
        for _ in 0..bytes / 1000 {
            cc.on_ack(&AckSample {
                now,
                delivered: 1000,
                prior_in_flight: cwnd,
                cwnd_limited: true,
                siblings,
                ..AckSample::default()
            });
        }
        cc.cwnd() - cwnd
    }

    #[test]
    fn growth_is_shared_and_never_more_than_a_tcp_has() {
        // cwnd_total / alpha is 20,000 / 0.5 = 40,000 bytes.
        let equal = [subflow(10_000, 100); 2];
        assert_eq!(growth(10_000, &equal, 39_000), 0);
        assert_eq!(growth(10_000, &equal, 40_000), 1000);
        // cwnd_total / alpha is 101,000 / 25.25 = 4000 bytes. The window, 100,000 bytes, is larger and counts
        // instead.
        let unequal = [subflow(100_000, 1000), subflow(1_000, 10)];
        assert_eq!(growth(100_000, &unequal, 99_000), 0);
        assert_eq!(growth(100_000, &unequal, 100_000), 1000);
    }
}
