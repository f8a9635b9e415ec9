//! The placement of values on an axis, and the choice of its ticks.

use super::figure::{Axis, Format, Scale};

/// An axis with its range of values, and with the places of its ends in the picture.
#[derive(Debug)]
pub struct Placed<'a> {
    pub axis: &'a Axis,
    /// Lowest and highest value.
    pub range: (f64, f64),
    /// Places of these values, in points.
    pub ends: (f64, f64),
}

impl<'a> Placed<'a> {
    /// Places an axis that has room for all `values`. A linear axis has zero too if `with_zero`.
    pub fn new(
        axis: &'a Axis,
        values: impl Iterator<Item = f64>,
        with_zero: bool,
        ends: (f64, f64),
    ) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| axis.shows(*value)) {
            low = low.min(value);
            high = high.max(value);
        }
        let range = match axis.scale {
            // Without values, any range that both scales can show is right.
            _ if low > high => (1.0, 2.0),
            // A margin of a factor of 1.2 keeps markers off the ends.
            Scale::Log => (low / 1.2, high * 1.2),
            Scale::Linear if with_zero => from_zero((low, high), axis.format),
            // A single value is in the middle of its axis.
            Scale::Linear if low == high => (low - 0.5, high + 0.5),
            // The axis has about ten ticks, and ends at a multiple of a fifth of their distance.
            Scale::Linear => rounded((low, high), step((high - low) / 10.0) / 5.0),
        };
        Placed { axis, range, ends }
    }

    /// Returns the place of a value, in points.
    pub fn at(&self, value: f64) -> f64 {
        let (low, high) = self.range;
        let share = match self.axis.scale {
            Scale::Linear => (value - low) / (high - low),
            Scale::Log => (value / low).ln() / (high / low).ln(),
        };
        self.ends.0 + share * (self.ends.1 - self.ends.0)
    }

    /// Returns the places and the labels of the ticks, about `count` or fewer.
    pub fn labelled_ticks(&self, count: usize) -> Vec<(f64, String)> {
        let ticks = self.ticks(count);
        let places = ticks.iter().map(|tick| self.at(*tick));
        places.zip(labels(&ticks, self.axis.format)).collect()
    }

    /// Returns the values of the ticks, about `count` or fewer, all within the range.
    pub fn ticks(&self, count: usize) -> Vec<f64> {
        let (low, high) = self.range;
        match (self.axis.scale, self.axis.format) {
            (Scale::Linear, _) => multiples(step((high - low) / count as f64), self.range),
            (Scale::Log, Format::Bytes) => {
                let exponents = multiples(1.0, (low.log2(), high.log2()));
                let every = exponents.len().div_ceil(count).max(1);
                exponents.iter().step_by(every).map(|n| n.exp2()).collect()
            }
            (Scale::Log, _) => {
                let (fine, coarse) = (self.decades(&[1.0, 2.0, 5.0]), self.decades(&[1.0]));
                if fine.len() > count { coarse } else { fine }
            }
        }
    }

    /// Returns the powers of ten within the range, times each of the `factors`.
    fn decades(&self, factors: &[f64]) -> Vec<f64> {
        let (low, high) = self.range;
        let exponents = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let all = exponents.flat_map(|n| factors.iter().map(move |f| f * 10f64.powi(n)));
        all.filter(|tick| (low..=high).contains(tick)).collect()
    }
}

/// Returns a range of round numbers that contains zero.
fn from_zero((low, high): (f64, f64), format: Format) -> (f64, f64) {
    let (low, high) = (low.min(0.0), high.max(0.0));
    if low == high || format == Format::Percent && low == 0.0 && high <= 1.0 {
        return (0.0, 1.0);
    }
    // About six steps, as the vertical axis has up to seven ticks.
    rounded((low, high), step((high - low) / 6.0))
}

/// Returns the range widened to multiples of `unit`.
fn rounded((low, high): (f64, f64), unit: f64) -> (f64, f64) {
    ((low / unit).floor() * unit, (high / unit).ceil() * unit)
}

/// Returns the multiples of `step` within a range.
fn multiples(step: f64, (low, high): (f64, f64)) -> Vec<f64> {
    // Rounding errors must not drop the ends of the range; 1e-9 is below what is visible.
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    let factors = first as i64..=last as i64;
    factors.map(|n| n as f64 * step).collect()
}

/// Returns the smallest round number (1, 2, 2.5 or 5 times a power of ten) that is not below `min`.
fn step(min: f64) -> f64 {
    let power = 10f64.powf(min.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|step| *step >= min * (1.0 - 1e-9));
    step.unwrap_or(10.0 * power)
}

/// Returns the labels of an axis's ticks.
pub fn labels(ticks: &[f64], format: Format) -> Vec<String> {
    let (factor, unit) = match format {
        Format::Bytes => return ticks.iter().map(|tick| bytes(*tick)).collect(),
        Format::Number => (1.0, ""),
        Format::Percent => (100.0, " %"),
    };
    let numbers: Vec<f64> = ticks.iter().map(|tick| tick * factor).collect();
    let is_exact = |decimals: &usize| {
        let scale = 10f64.powi(*decimals as i32);
        let mut errors = numbers.iter().map(|n| (n * scale).round() / scale - n);
        errors.all(|error| error.abs() < 1e-6)
    };
    // All ticks need the same number of decimals, at most six.
    let decimals = (0..6).find(is_exact).unwrap_or(6);
    let label = |number: &f64| {
        let sign = if *number < 0.0 { "\u{2212}" } else { "" };
        let digits = grouped(format!("{:.decimals$}", number.abs()));
        format!("{sign}{digits}{unit}")
    };
    numbers.iter().map(label).collect()
}

fn bytes(value: f64) -> String {
    let units = [(30, "G"), (20, "M"), (10, "k"), (0, "")];
    let units = units.map(|(power, sign)| (f64::from(1 << power), sign));
    let unit = units.into_iter().find(|(unit, _)| value >= *unit);
    let (unit, sign) = unit.unwrap_or((1.0, ""));
    format!("{}{sign}", (value / unit * 100.0).round() / 100.0)
}

/// Groups the digits of numbers with five or more digits in threes, as in ISO 80000-1.
fn grouped(mut text: String) -> String {
    let integer_len = text.find('.').unwrap_or(text.len());
    if integer_len >= 5 {
        for at in (1..integer_len - 2).rev().step_by(3) {
            text.insert(at, '\u{a0}');
        }
    }
    text
}
