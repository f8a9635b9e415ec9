//! Verdicts on claims, computed from measured values.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Maximum number of values that a verdict shows one by one. Of more values it shows only the lowest and the
/// highest, so that a cell of a table stays short.
const MAX_SHOWN_VALUES: usize = 4;

/// One claim: measured values, and the bound that all of them must keep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The claim, without the bound.
    pub claim: String,
    /// The bound that every value must keep.
    pub bound: Bound,
    /// Unit of values and bound; may be empty.
    pub unit: String,
    /// The value that the source reports; may be empty.
    pub reported: String,
    /// The measured values, each with a label; `None` where nothing could be measured.
    pub values: Vec<(String, Option<f64>)>,
    /// True if there is at least one value and every value keeps the bound.
    pub holds: bool,
    /// The reason why the claim does not hold, if the reason is known; otherwise empty.
    pub why: String,
}

/// A bound on a value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Bound {
    /// At most this value.
    AtMost(f64),
    /// At least this value.
    AtLeast(f64),
    /// Less than this value.
    Below(f64),
    /// More than this value.
    Above(f64),
    /// From the first value to the second, both included.
    Within(f64, f64),
}

impl Bound {
    fn is_kept_by(self, value: f64) -> bool {
        match self {
            Bound::AtMost(max) => value <= max,
            Bound::AtLeast(min) => value >= min,
            Bound::Below(end) => value < end,
            Bound::Above(end) => value > end,
            Bound::Within(min, max) => (min..=max).contains(&value),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Bound::AtMost(max) => write!(f, "at most {max}"),
            Bound::AtLeast(min) => write!(f, "at least {min}"),
            Bound::Below(end) => write!(f, "below {end}"),
            Bound::Above(end) => write!(f, "above {end}"),
            Bound::Within(min, max) => write!(f, "{min} to {max}"),
        }
    }
}

impl Verdict {
    /// Judges `values`, each with a label. A value that is NaN or infinite counts as not measured, and a
    /// claim with such a value does not hold.
    pub fn new<L: ToString>(
        claim: impl ToString,
        bound: Bound,
        unit: &str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) -> Verdict {
        let value = |(label, value): (L, f64)| (label.to_string(), Some(value));
        let mut values: Vec<(String, Option<f64>)> = values.into_iter().map(value).collect();
        for (_, value) in &mut values {
            *value = value.filter(|v| v.is_finite());
        }
        let keeps = |(_, value): &(String, Option<f64>)| value.is_some_and(|v| bound.is_kept_by(v));
        Verdict {
            claim: claim.to_string(),
            bound,
            unit: unit.to_owned(),
            reported: String::new(),
            holds: !values.is_empty() && values.iter().all(keeps),
            values,
            why: String::new(),
        }
    }

    /// Adds the value that the source reports.
    #[must_use]
    pub fn reported(self, reported: &str) -> Verdict {
        let reported = reported.to_owned();
        Verdict { reported, ..self }
    }

    /// Adds the reason why the claim does not hold. Has no effect if the claim holds.
    #[must_use]
    pub fn unless(self, why: &str) -> Verdict {
        let why = if self.holds { "" } else { why };
        let why = why.to_owned();
        Verdict { why, ..self }
    }

    /// Returns the claim with its bound.
    pub fn expected(&self) -> String {
        format!("{}: {}", self.claim, with_unit(&self.bound, &self.unit))
    }

    /// Returns the measured values as a short text.
    pub fn measured(&self) -> String {
        let show = |(label, value): &(String, Option<f64>)| {
            let value = value.map_or_else(|| "not measured".to_owned(), number);
            match label.is_empty() {
                true => value,
                false => format!("{value} ({label})"),
            }
        };
        // NaN is the highest value in this order, so a missing value is shown as the highest.
        let known = |v: &(String, Option<f64>)| v.1.unwrap_or(f64::NAN);
        let mut values: Vec<_> = self.values.iter().collect();
        let text = if values.len() > MAX_SHOWN_VALUES {
            values.sort_by(|a, b| known(a).total_cmp(&known(b)));
            format!("{} to {}", show(values[0]), show(values[values.len() - 1]))
        } else {
            values.into_iter().map(show).collect::<Vec<_>>().join(", ")
        };
        with_unit(&text, &self.unit)
    }

    /// Returns the verdict in words.
    pub fn word(&self) -> &'static str {
        match self.holds {
            true => "holds",
            false => "does not hold",
        }
    }

    /// Returns the measured values as JSON.
    pub fn json(&self) -> Value {
        let values = self.values.iter();
        let values = values.map(|(label, value)| (label.clone(), json!(value)));
        json!({
            "bound": self.bound.to_string(),
            "unit": self.unit,
            "values": values.collect::<serde_json::Map<_, _>>(),
            "holds": self.holds,
            "why": self.why,
        })
    }
}

fn with_unit(text: &impl ToString, unit: &str) -> String {
    format!("{} {unit}", text.to_string()).trim_end().to_owned()
}

/// Formats a value. A larger value gets fewer decimals, and a whole number gets none.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        0.0..10.0 => 3,
        10.0..1000.0 => 1,
        _ => 0,
    };
    match value.fract() == 0.0 {
        true => format!("{value:.0}"),
        false => format!("{value:.decimals$}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_must_keep_the_bound() {
        let holds = |bound, values: &[f64]| {
            let values = values.iter().map(|v| ("", *v));
            Verdict::new("x", bound, "ms", values).holds
        };
        assert!(holds(Bound::AtMost(2.0), &[1.0, 2.0]));
        assert!(!holds(Bound::Below(2.0), &[1.0, 2.0]));
        assert!(!holds(Bound::Above(1.0), &[1.0, 2.0]));
        assert!(holds(Bound::Within(1.0, 2.0), &[1.0, 2.0]));
        assert!(!holds(Bound::AtLeast(1.5), &[1.0, 2.0]));
        assert!(!holds(Bound::AtLeast(0.0), &[]));
        assert!(!holds(Bound::AtLeast(0.0), &[1.0, f64::NAN]));
    }

    #[test]
    fn a_verdict_shows_few_values_or_their_range() {
        let values = |n: u32| (0..n).map(|i| (format!("{}k", 4 << i), f64::from(100 + i) / 8.0));
        let verdict =
            Verdict::new("gap", Bound::Within(3.0, 20.0), "ms", values(2)).reported("10 ms");
        assert_eq!(verdict.expected(), "gap: 3 to 20 ms");
        assert_eq!(verdict.measured(), "12.5 (4k), 12.6 (8k) ms");
        let many = Verdict::new("gap", Bound::Below(12.9), "", values(5)).unless("too slow");
        assert_eq!(many.measured(), "12.5 (4k) to 13 (64k)");
        assert_eq!((many.word(), &*many.why), ("does not hold", "too slow"));
        let verdict = verdict.unless("too slow");
        assert_eq!((verdict.word(), &*verdict.why), ("holds", ""));
        let lost = Verdict::new("gap", Bound::Below(1.0), "ms", [("", f64::NAN)]);
        assert_eq!(lost.measured(), "not measured ms");
        assert_eq!(lost.json()["values"][""], Value::Null);
    }
}
