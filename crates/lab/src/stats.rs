//! Statistics of a sample.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// Returns the mean of `sample`; `None` if it is empty.
pub fn mean(sample: &[f64]) -> Option<f64> {
    (!sample.is_empty()).then(|| sample.iter().sum::<f64>() / sample.len() as f64)
}

/// Returns the estimated standard deviation of the population of `sample` (divisor n - 1); `None` with
/// fewer than two values.
pub fn standard_deviation(sample: &[f64]) -> Option<f64> {
    let mean = mean(sample).filter(|_| sample.len() > 1)?;
    let squares: f64 = sample.iter().map(|x| (x - mean).powi(2)).sum();
    Some((squares / (sample.len() - 1) as f64).sqrt())
}

/// Returns half the width of the confidence interval around the mean of `sample`, by Student's t
/// distribution with n - 1 degrees of freedom. `confidence` is above 0 and below 1. `None` with fewer
/// than two values.
pub fn half_width(sample: &[f64], confidence: f64) -> Option<f64> {
    let sd = standard_deviation(sample)?;
    let t = student_t(sample.len() as u64 - 1, confidence)?;
    Some(t * sd / (sample.len() as f64).sqrt())
}

/// Returns half the width of the confidence interval of an estimate, by the delete-a-group jackknife (Efron and
/// Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 11). The sample is cut into groups of equal size, and
/// `without` has the estimate without each group in turn. `None` with fewer than two groups, or if a value is not
/// finite.
pub fn jackknife(without: &[f64], confidence: f64) -> Option<f64> {
    let mean = mean(without)?;
    let groups = without.len() as f64;
    let squares: f64 = without.iter().map(|x| (x - mean).powi(2)).sum();
    let t = student_t(without.len() as u64 - 1, confidence)?;
    let half = t * ((groups - 1.0) / groups * squares).sqrt();
    half.is_finite().then_some(half)
}

/// Returns the critical value t of Student's distribution with `freedom` degrees of freedom: the share
/// `confidence` of the distribution lies between -t and t. `None` if `freedom` is 0, or if `confidence` is
/// not above 0 and below 1.
pub fn student_t(freedom: u64, confidence: f64) -> Option<f64> {
    if confidence <= 0.0 || confidence >= 1.0 {
        return None;
    }
    let distribution = StudentsT::new(0.0, 1.0, freedom as f64).ok()?;
    // Half of the rest lies above t, half below -t.
    Some(distribution.inverse_cdf(0.5 + confidence / 2.0))
}

/// Returns the quantile `q` (0 to 1) of a sample in ascending order; `None` if it is empty.
/// Interpolates linearly between the two order statistics around position `(n - 1) q` (type 7 of Hyndman
/// and Fan, "Sample Quantiles in Statistical Packages", 1996: the default of R and of NumPy).
pub fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let position = sorted.len().checked_sub(1)? as f64 * q.clamp(0.0, 1.0);
    let below = sorted[position.floor() as usize];
    let above = sorted[position.ceil() as usize];
    Some(below + (above - below) * position.fract())
}

/// Returns the quantile `q` (0 to 1) of a sample in any order; NaN if it is empty.
pub fn quantile_of(sample: &[f64], q: f64) -> f64 {
    let mut sorted = sample.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile(&sorted, q).unwrap_or(f64::NAN)
}

/// Rounds to thousandths. Sums of floats differ in their last digits with the order of the summation; rounding hides
/// that, so that output can be compared.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Returns the differences `a - b` of paired samples; `None` if they differ in length.
pub fn differences(a: &[f64], b: &[f64]) -> Option<Vec<f64>> {
    (a.len() == b.len()).then(|| a.iter().zip(b).map(|(a, b)| a - b).collect())
}

/// Returns the geometric mean of `sample`, whose values are above 0; `None` if it is empty.
pub fn geometric_mean(sample: &[f64]) -> Option<f64> {
    let logarithms: Vec<f64> = sample.iter().map(|x| x.ln()).collect();
    mean(&logarithms).map(f64::exp)
}

/// Returns the p-value of Student's one-sided t test against the null hypothesis that the population's mean
/// is not above 0. Returns 1, no evidence, with fewer than two values.
pub fn p_above_zero(sample: &[f64]) -> f64 {
    let (Some(mean), Some(sd)) = (mean(sample), standard_deviation(sample)) else {
        return 1.0;
    };
    // With a deviation of 0, t is infinite, or not a number if the mean is 0 too.
    if sd == 0.0 {
        return if mean > 0.0 { 0.0 } else { 1.0 };
    }
    let t = mean / sd * (sample.len() as f64).sqrt();
    StudentsT::new(0.0, 1.0, (sample.len() - 1) as f64)
        .map_or(1.0, |distribution| distribution.sf(t))
}

/// Returns for each of the p-values `p` whether its null hypothesis is rejected. The probability that any
/// true null hypothesis is rejected is at most `alpha`: Holm, "A Simple Sequentially Rejective Multiple Test
/// Procedure", Scandinavian Journal of Statistics 6 (1979).
pub fn holm(p: &[f64], alpha: f64) -> Vec<bool> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut rejected = vec![false; p.len()];
    for (n, i) in order.into_iter().enumerate() {
        if p[i] > alpha / (p.len() - n) as f64 {
            break;
        }
        rejected[i] = true;
    }
    rejected
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two-sided 95 % and 99 % columns of any table of Student's t (e.g. NIST/SEMATECH e-Handbook
    /// of Statistical Methods, 1.3.6.7.2).
    #[test]
    fn t_equals_the_tables() {
        for (freedom, t95, t99) in [
            (1, 12.706, 63.657),
            (2, 4.303, 9.925),
            (4, 2.776, 4.604),
            (9, 2.262, 3.250),
            (29, 2.045, 2.756),
            (60, 2.000, 2.660),
            (100, 1.984, 2.626),
            (100_000, 1.960, 2.576),
        ] {
            for (confidence, expected) in [(0.95, t95), (0.99, t99)] {
                let t = student_t(freedom, confidence).unwrap();
                // The tables round to three decimals.
                assert!((t - expected).abs() < 0.000_6, "{freedom}: {t}");
            }
        }
        assert_eq!(student_t(0, 0.95), None);
        assert_eq!(student_t(9, 1.0), None);
    }

    /// Checks a sample by hand: the mean is 40 / 8 = 5, and the squares of the deviations -3, -1, -1, -1, 0,
    /// 0, 2, 4 sum to 32.
    #[test]
    fn a_sample_by_hand() {
        let sample = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!(mean(&sample), Some(5.0));
        let sd = standard_deviation(&sample).unwrap();
        assert!((sd - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        // t is 2.3646 for 7 degrees of freedom and 95 %.
        let half = half_width(&sample, 0.95).unwrap();
        assert!((half - 2.3646 * sd / 8f64.sqrt()).abs() < 1e-4, "{half}");
    }

    /// Without each of its values in turn, the mean has the interval that Student's t gives it.
    #[test]
    fn the_jackknife_of_a_mean_is_the_interval_of_the_mean() {
        let sample = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        let without = sample.map(|x| (40.0 - x) / 7.0);
        let half = jackknife(&without, 0.95).unwrap();
        assert!((half - half_width(&sample, 0.95).unwrap()).abs() < 1e-9);
        assert_eq!(jackknife(&[1.0], 0.95), None);
        assert_eq!(jackknife(&[1.0, f64::NAN], 0.95), None);
    }

    #[test]
    fn too_few_values_give_none() {
        assert_eq!(mean(&[]), None);
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(standard_deviation(&[1.0]), None);
        assert_eq!(half_width(&[1.0], 0.95), None);
        assert_eq!(half_width(&[3.0, 3.0], 0.95), Some(0.0));
    }

    /// The expected values come from `numpy.quantile`.
    #[test]
    fn quantiles_interpolate() {
        let sorted = [1.0, 2.0, 3.0, 4.0];
        let quantiles = [0.0, 0.5, 0.95, 0.99, 1.0].map(|q| quantile(&sorted, q).unwrap());
        for (got, expected) in quantiles.into_iter().zip([1.0, 2.5, 3.85, 3.97, 4.0]) {
            assert!((got - expected).abs() < 1e-12, "{got} is not {expected}");
        }
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
    }

    #[test]
    fn pairs_are_taken_in_order() {
        assert_eq!(differences(&[3.0, 1.0], &[1.0, 2.0]), Some(vec![2.0, -1.0]));
        assert_eq!(differences(&[3.0], &[]), None);
    }

    #[test]
    fn geometric_means_by_hand() {
        let mean = geometric_mean(&[0.5, 2.0, 8.0]).unwrap();
        assert!((mean - 2.0).abs() < 1e-12, "{mean}");
        assert_eq!(geometric_mean(&[]), None);
    }

    /// Uses the tables' two-sided 5 % for 9 degrees of freedom and t = 2.262: each side has 2.5 %.
    #[test]
    fn a_mean_above_zero_is_as_probable_as_the_tables_say() {
        let centred: [f64; 10] = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0];
        let sd = standard_deviation(&centred).unwrap();
        let shifted = centred.map(|x| x + 2.262 * sd / 10f64.sqrt());
        assert!((p_above_zero(&shifted) - 0.025).abs() < 1e-4);
        assert!((p_above_zero(&shifted.map(|x| -x)) - 0.975).abs() < 1e-4);
        assert_eq!(p_above_zero(&[2.0, 2.0]), 0.0);
        assert_eq!(p_above_zero(&[-2.0, -2.0]), 1.0);
        assert_eq!(p_above_zero(&[2.0]), 1.0);
    }

    /// Four hypotheses at 5 %: 0.01 is below 0.05 / 4 and 0.015 below 0.05 / 3. But 0.03 is not below
    /// 0.05 / 2, so neither it nor 0.04 is rejected.
    #[test]
    fn holm_rejects_in_steps() {
        let rejected = holm(&[0.03, 0.01, 0.04, 0.015], 0.05);
        assert_eq!(rejected, [false, true, false, true]);
        assert_eq!(holm(&[], 0.01), Vec::<bool>::new());
    }
}
