//! The placement of values on an axis, and the choice of its ticks.

use super::figure::{Axis, Format, Scale};

/// An axis with its range of values, and with the places of its ends in the picture.
#[derive(Debug, Clone)]
pub struct Placed {
    scale: Scale,
    low: f64,
    high: f64,
    /// Places of `low` and of `high`, in points.
    ends: (f64, f64),
}

/// Returns whether the scale can show a value. A logarithmic scale can show only values above zero.
pub fn shows(scale: Scale, value: f64) -> bool {
    value.is_finite() && (scale == Scale::Linear || value > 0.0)
}

impl Placed {
    /// Places an axis from `low` to `high`. An empty range is widened, so that its value is in the middle.
    pub fn new(scale: Scale, (low, high): (f64, f64), ends: (f64, f64)) -> Self {
        let (low, high) = match scale {
            Scale::Linear if high > low => (low, high),
            Scale::Linear => (low - 0.5, low + 0.5),
            Scale::Log if high > low => (low, high),
            Scale::Log => (low / 2.0, low * 2.0),
        };
        Placed {
            scale,
            low,
            high,
            ends,
        }
    }

    /// Returns the place of a value, in points.
    pub fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        self.ends.0 + share * (self.ends.1 - self.ends.0)
    }

    /// Returns the values of the ticks, about `count` or fewer, all within the range.
    pub fn ticks(&self, count: usize, format: Format) -> Vec<f64> {
        let ticks = match (self.scale, format) {
            (Scale::Log, Format::Bytes) => self.powers_of_two(count),
            (Scale::Log, _) => self.decades(count),
            (Scale::Linear, _) => self.even(count),
        };
        // Rounding errors must not drop the ticks at the ends of the range; 1e-9 is below what is visible.
        let slack = (self.high - self.low) * 1e-9;
        let shown = |t: &f64| (self.low - slack..=self.high + slack).contains(t);
        ticks.into_iter().filter(shown).collect()
    }

    /// Returns multiples of a round step.
    fn even(&self, count: usize) -> Vec<f64> {
        let step = step((self.high - self.low) / count.max(1) as f64);
        let first = (self.low / step).ceil();
        let last = (self.high / step + 1e-9).floor();
        (0..=(last - first).max(0.0) as u32)
            .map(|n| (first + f64::from(n)) * step)
            .collect()
    }

    /// Returns powers of two, with equal ratios.
    fn powers_of_two(&self, count: usize) -> Vec<f64> {
        let first = (self.low.log2() - 1e-9).ceil() as i32;
        let last = (self.high.log2() + 1e-9).floor() as i32;
        let every = ((last - first) as usize / count.max(1) + 1).max(1);
        (first..=last)
            .step_by(every)
            .map(|n| f64::from(n).exp2())
            .collect()
    }

    /// Returns 1, 2 and 5 times the powers of ten, or the powers alone if those are too many.
    fn decades(&self, count: usize) -> Vec<f64> {
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        let with = |factors: &[f64]| -> Vec<f64> {
            let decade = |n: i32| factors.iter().map(move |f| f * 10f64.powi(n));
            let all = (first..=last).flat_map(decade);
            all.filter(|t| (self.low..=self.high).contains(t)).collect()
        };
        let fine = with(&[1.0, 2.0, 5.0]);
        if fine.len() <= count {
            fine
        } else {
            with(&[1.0])
        }
    }
}

/// Returns the range of an axis over `values`. A linear axis is widened to round numbers. If `widened`, a
/// linear axis also includes zero, and a logarithmic axis gets a margin of a factor of 1.2.
pub fn range(axis: &Axis, values: impl Iterator<Item = f64>, widened: bool) -> (f64, f64) {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values.filter(|v| shows(axis.scale, *v)) {
        low = low.min(value);
        high = high.max(value);
    }
    // Without values any range will do that both scales can show.
    if low > high {
        return (1.0, 2.0);
    }
    match (axis.scale, widened) {
        (Scale::Log, true) => (low / 1.2, high * 1.2),
        (Scale::Linear, true) if axis.format == Format::Percent && high <= 1.0 => (0.0, 1.0),
        (Scale::Linear, true) if low == 0.0 && high == 0.0 => (0.0, 1.0),
        (Scale::Linear, true) => {
            let (low, high) = (low.min(0.0), high.max(0.0));
            // About six steps, as the vertical axis has up to seven ticks.
            let step = step((high - low) / 6.0);
            ((low / step).floor() * step, (high / step).ceil() * step)
        }
        (Scale::Linear, false) => {
            // A horizontal axis is rounded less than a vertical axis: to a fifth of the distance between
            // its ten ticks.
            let part = step((high - low) / 10.0) / 5.0;
            ((low / part).floor() * part, (high / part).ceil() * part)
        }
        (Scale::Log, false) => (low, high),
    }
}

/// Returns the smallest round number (1, 2, 2.5 or 5 times a power of ten) that is not below `min`.
fn step(min: f64) -> f64 {
    if min <= 0.0 || !min.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(min.log10().floor());
    let factors = [1.0, 2.0, 2.5, 5.0];
    let factor = factors
        .into_iter()
        .find(|f| f * power >= min * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * power
}

/// Returns the text of a tick. All ticks of the axis, `ticks`, have the same number of decimals.
pub fn label(value: f64, ticks: &[f64], format: Format) -> String {
    match format {
        Format::Bytes => bytes(value),
        Format::Percent => format!("{} %", number(value * 100.0, ticks, 100.0)),
        Format::Number => number(value, ticks, 1.0),
    }
}

fn bytes(value: f64) -> String {
    for (unit, sign) in [
        (f64::from(1 << 30), "G"),
        (f64::from(1 << 20), "M"),
        (1024.0, "k"),
    ] {
        if value >= unit {
            let rounded = (value / unit * 100.0).round() / 100.0;
            return format!("{rounded}{sign}");
        }
    }
    format!("{}", value.round())
}

fn number(value: f64, ticks: &[f64], factor: f64) -> String {
    let is_exact = |decimals: i32| {
        let scale = 10f64.powi(decimals) * factor;
        ticks
            .iter()
            .all(|t| ((t * scale).round() - t * scale).abs() < 1e-6 * scale.max(1.0))
    };
    // All ticks need the same number of decimals, at most six.
    let decimals = (0..6).find(|d| is_exact(*d)).unwrap_or(6);
    let text = format!("{:.*}", decimals as usize, value.abs());
    let sign = if value < 0.0 { "\u{2212}" } else { "" };
    format!("{sign}{}", grouped(&text))
}

/// Groups the digits of numbers with five or more digits in threes, as in ISO 80000-1.
fn grouped(text: &str) -> String {
    let integer_len = text.find('.').unwrap_or(text.len());
    if integer_len < 5 {
        return text.to_owned();
    }
    let mut out = String::new();
    for (n, c) in text.chars().enumerate() {
        if n > 0 && n < integer_len && (integer_len - n).is_multiple_of(3) {
            out.push('\u{a0}');
        }
        out.push(c);
    }
    out
}
