//! Distributions of the sizes of flows, given by points of their cumulative distribution functions.

use braid_wire::Rng;

/// A distribution of flow sizes, linear between the points of its cumulative distribution function.
///
/// ```
/// use braid_sim::traffic::Sizes;
/// use braid_wire::Rng;
///
/// let sizes = Sizes::new(&[(1000, 0.0), (2000, 0.5), (10_000, 1.0)]);
/// assert_eq!(sizes.quantile(0.75), 6000);
/// assert_eq!(sizes.mean(), 3750.0);
/// assert!((1000..=10000).contains(&sizes.sample(&mut Rng::for_component(1, 1))));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Sizes {
    /// At least two points: (bytes, share).
    points: Vec<(u64, f64)>,
}

impl Sizes {
    /// Makes a distribution from points `(bytes, share)`: the share (0 to 1) of flows that have at most this
    /// number of bytes.
    ///
    /// # Panics
    /// Panics unless bytes increase from point to point, shares do not decrease, the first share is 0, and the
    /// last share is 1.
    pub fn new(points: &[(u64, f64)]) -> Self {
        let rise = points
            .windows(2)
            .all(|p| p[0].0 < p[1].0 && p[0].1 <= p[1].1);
        assert!(
            rise && matches!(points, [(_, 0.0), .., (_, 1.0)]),
            "not a cumulative distribution function: {points:?}"
        );
        let points = points.to_vec();
        Sizes { points }
    }

    /// Returns the size in bytes that a share of `share` of all flows does not exceed, rounded, at least 1.
    pub fn quantile(&self, share: f64) -> u64 {
        let upper = self.points.partition_point(|(_, s)| *s < share);
        let upper = upper.clamp(1, self.points.len() - 1);
        let ((from, low), (to, high)) = (self.points[upper - 1], self.points[upper]);
        let part = match high > low {
            true => ((share - low) / (high - low)).clamp(0.0, 1.0),
            false => 1.0,
        };
        let bytes = from as f64 + part * (to - from) as f64;
        (bytes.round() as u64).max(1)
    }

    /// Draws a size in bytes, at least 1, by inverting the cumulative function.
    pub fn sample(&self, rng: &mut Rng) -> u64 {
        self.quantile(rng.unit())
    }

    /// Returns the mean size in bytes.
    pub fn mean(&self) -> f64 {
        let parts = self.points.windows(2).map(|pair| {
            let ((from, low), (to, high)) = (pair[0], pair[1]);
            (high - low) * (from as f64 + to as f64) / 2.0
        });
        parts.sum()
    }
}

/// Draws an exponentially distributed number with mean 1.
pub(crate) fn exponential(rng: &mut Rng) -> f64 {
    // `unit` is less than 1, so `1 - unit` is never 0 and the logarithm is finite.
    -(1.0 - rng.unit()).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_follow_the_distribution() {
        const COUNT: usize = 100_000;
        let mut rng = Rng::for_component(5, 5);
        for points in [
            // Half of the flows are short, and almost all bytes are in long ones.
            [
                (1, 0.0),
                (1_100, 0.5),
                (2_000_000, 0.9),
                (1_000_000_000, 1.0),
            ],
            [
                (6_000, 0.0),
                (73_000, 0.5),
                (73_001, 0.5),
                (30_000_000, 1.0),
            ],
        ] {
            let sizes = Sizes::new(&points);
            let mut samples: Vec<u64> = (0..COUNT).map(|_| sizes.sample(&mut rng)).collect();
            samples.sort_unstable();
            // Kolmogorov-Smirnov test: at a significance of 1 %, the distance is at most 1.63 / sqrt(n).
            let limit = 1.63 / (COUNT as f64).sqrt();
            for (n, sample) in samples.iter().enumerate().step_by(97) {
                let share = n as f64 / COUNT as f64;
                let low = sizes.quantile((share - limit).max(0.0));
                let high = sizes.quantile((share + limit).min(1.0));
                assert!(
                    (low..=high).contains(sample),
                    "{share}: {sample} of {low}..={high}"
                );
            }
            let mean = samples.iter().sum::<u64>() as f64 / COUNT as f64;
            let squares: f64 = samples.iter().map(|s| (*s as f64 - mean).powi(2)).sum();
            // The standard error of the mean is sqrt(squares / n) / sqrt(n).
            let standard_error = squares.sqrt() / COUNT as f64;
            assert!(
                (mean - sizes.mean()).abs() < 3.0 * standard_error,
                "{mean} of {}",
                sizes.mean()
            );
        }
    }

    #[test]
    fn sizes_without_flows_are_skipped() {
        let sizes = Sizes::new(&[(1, 0.0), (100, 0.5), (200, 0.5), (300, 1.0)]);
        // No flow has 100 to 200 bytes; 0.75 lies halfway from 200 to 300.
        assert_eq!(sizes.quantile(0.5), 100);
        assert_eq!(sizes.quantile(0.75), 250);
        assert_eq!(sizes.mean(), 0.5 * 50.5 + 0.5 * 250.0);
    }

    #[test]
    #[should_panic(expected = "not a cumulative distribution function")]
    fn shares_that_do_not_reach_one_are_refused() {
        let _ = Sizes::new(&[(7, 0.0), (8, 0.5)]);
    }
}
