//! Distributions of the sizes of flows, given by points of their cumulative distribution functions.

use core::fmt;
use core::str::FromStr;

use braid_wire::Rng;

/// The maximum number of points of a distribution. A guess that bounds the memory for a wrong file.
const MAX_POINTS: usize = 100_000;

/// A distribution of flow sizes, linear between the points of its cumulative distribution function.
///
/// In text, each line has a point `bytes, share`: the share (0 to 1) of flows that have at most this number of
/// bytes. Bytes increase from line to line, and shares do not decrease; the first share is 0, the last 1. The
/// parser ignores empty lines, and text after a `#`.
///
/// ```
/// use braid_sim::traffic::Sizes;
/// use braid_wire::Rng;
///
/// let sizes: Sizes = "1000, 0\n2000, 0.5\n10000, 1".parse().unwrap();
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
    /// Returns the distribution of background flows in a web-search cluster (DCTCP, SIGCOMM 2010). Half of the
    /// flows are shorter than 80 kB; almost all bytes are in flows of 1 to 30 MB.
    pub fn web_search() -> Sizes {
        built_in(include_str!("../../data/web-search.csv"))
    }

    /// Returns the distribution of flows in a data-mining cluster (VL2, SIGCOMM 2009). 80 % of the flows are
    /// shorter than 10 kB; almost all bytes are in the 5 % of flows that have 3 MB to 1 GB.
    pub fn data_mining() -> Sizes {
        built_in(include_str!("../../data/data-mining.csv"))
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
        self.points
            .windows(2)
            .map(|pair| {
                let ((from, low), (to, high)) = (pair[0], pair[1]);
                (high - low) * (from as f64 + to as f64) / 2.0
            })
            .sum()
    }
}

fn built_in(text: &str) -> Sizes {
    text.parse()
        .expect("a file of this crate, parsed by its tests")
}

/// A mistake in the text of a distribution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizesError {
    /// The number of the line, from 1; 0 if the mistake is not in a single line.
    pub line: usize,
    /// The wrong text, or what is wrong.
    pub read: String,
    /// The text that would be correct.
    pub expected: &'static str,
}

impl fmt::Display for SizesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SizesError {
            line,
            read,
            expected,
        } = self;
        match line {
            0 => write!(f, "{read}; expected {expected}"),
            line => write!(f, "line {line}: {read:?}; expected {expected}"),
        }
    }
}

impl std::error::Error for SizesError {}

impl FromStr for Sizes {
    type Err = SizesError;

    fn from_str(text: &str) -> Result<Self, SizesError> {
        let mut points: Vec<(u64, f64)> = Vec::new();
        for (n, line) in text.lines().enumerate() {
            let read = line.split('#').next().unwrap_or_default().trim();
            if read.is_empty() {
                continue;
            }
            let wrong_line = |expected| SizesError {
                line: n + 1,
                read: read.to_owned(),
                expected,
            };
            let point = parse_point(read).ok_or_else(|| {
                wrong_line("\"bytes, share\" such as \"10000, 0.15\", share from 0 to 1")
            })?;
            match points.last() {
                None if point.1 != 0.0 => return Err(wrong_line("a share of 0 in the first line")),
                Some(last) if point.0 <= last.0 => {
                    return Err(wrong_line("more bytes than in the line before"));
                }
                Some(last) if point.1 < last.1 => {
                    return Err(wrong_line("a share no smaller than in the line before"));
                }
                _ => points.push(point),
            }
            if points.len() > MAX_POINTS {
                return Err(wrong_line("no more than 100000 points"));
            }
        }
        match points.last() {
            Some((_, 1.0)) => Ok(Sizes { points }),
            Some((_, share)) => Err(SizesError {
                line: 0,
                read: format!("the last share is {share}"),
                expected: "1",
            }),
            None => Err(SizesError {
                line: 0,
                read: "there is no point".to_owned(),
                expected: "at least two lines of \"bytes, share\"",
            }),
        }
    }
}

fn parse_point(read: &str) -> Option<(u64, f64)> {
    let (bytes, share) = read.split_once(',')?;
    let share: f64 = share.trim().parse().ok()?;
    (0.0..=1.0)
        .contains(&share)
        .then_some((bytes.trim().parse().ok()?, share))
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
    fn the_built_in_ones_have_the_published_shape() {
        let sizes = Sizes::web_search();
        assert_eq!(sizes.quantile(0.15), 10_000);
        assert_eq!(sizes.quantile(0.5), 73_077);
        assert_eq!(sizes.quantile(0.95), 8_571_429);
        assert_eq!(sizes.quantile(1.0), 30_000_000);
        // The means are computed by hand from the points.
        assert!((sizes.mean() - 1_711_250.0).abs() < 1.0, "{}", sizes.mean());
        let sizes = Sizes::data_mining();
        assert_eq!(sizes.quantile(0.0), 1);
        assert_eq!(sizes.quantile(0.5), 1_100);
        assert_eq!(sizes.quantile(0.99), 550_000_000);
        assert!(
            (sizes.mean() - 12_658_198.6).abs() < 1.0,
            "{}",
            sizes.mean()
        );
    }

    #[test]
    fn samples_follow_the_distribution() {
        const COUNT: usize = 100_000;
        let mut rng = Rng::for_component(5, 5);
        for sizes in [Sizes::web_search(), Sizes::data_mining()] {
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
        let sizes: Sizes = "1, 0\n100, 0.5\n200, 0.5\n300, 1".parse().unwrap();
        // No flow has 100 to 200 bytes; 0.75 lies halfway from 200 to 300.
        assert_eq!(sizes.quantile(0.5), 100);
        assert_eq!(sizes.quantile(0.75), 250);
        assert_eq!(sizes.mean(), 0.5 * 50.5 + 0.5 * 250.0);
    }

    #[test]
    fn errors_show_what_was_read_and_what_is_expected() {
        let message = |text: &str| text.parse::<Sizes>().unwrap_err().to_string();
        assert_eq!(
            message("# sizes\n0 0\n"),
            "line 2: \"0 0\"; expected \"bytes, share\" such as \"10000, 0.15\", share from 0 to 1"
        );
        assert_eq!(
            message("0, 0\n5, 1.5"),
            "line 2: \"5, 1.5\"; expected \"bytes, share\" such as \"10000, 0.15\", share from 0 to 1"
        );
        assert_eq!(
            message("7, 0.5 # half\n9, 1"),
            "line 1: \"7, 0.5\"; expected a share of 0 in the first line"
        );
        assert_eq!(
            message("7, 0\n7, 1"),
            "line 2: \"7, 1\"; expected more bytes than in the line before"
        );
        assert_eq!(
            message("7, 0\n8, 0.5\n9, 0.4"),
            "line 3: \"9, 0.4\"; expected a share no smaller than in the line before"
        );
        assert_eq!(message("7, 0\n8, 0.5"), "the last share is 0.5; expected 1");
        assert!(message("\n").starts_with("there is no point; expected at least two lines"));
    }
}
