//! Verdicts on claims, computed from measured values. A claim states a bound on values that an experiment measures.
//! Most claims are those of a paper, the source; the others say what Braid must reach.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

/// Maximum number of values that a verdict shows one by one. Of more values it shows only the lowest and the
/// highest, so that a cell of a table stays short.
const MAX_SHOWN_VALUES: usize = 4;

/// One claim with its measured values, all of which must keep the bound. A part is one combination of a setting (what
/// the source leaves open, such as `CUBIC, IW 10`) and a value of the swept parameter (such as loss). The verdict says
/// in which parts the claim holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The claim, without the bound.
    pub claim: String,
    /// The bound that every value must keep.
    pub bound: Bound,
    /// Unit of values and bound; may be empty.
    pub unit: String,
    /// The value that the source reports; empty if the claim is from no source.
    pub reported: String,
    /// The expected reason if the claim does not hold, shown only then; empty if none is known.
    pub unless: String,
    /// Name of the swept parameter; empty if none is swept.
    pub swept: String,
    /// The parts, in the order of the sweep.
    pub parts: Vec<Part>,
}

/// The values of a claim in one setting, at one value of the swept parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The setting: what the source leaves open, such as `CUBIC, IW 10`; may be empty.
    pub setting: String,
    /// The value of the swept parameter, such as `2 %`; empty if none is swept.
    pub at: String,
    /// The measured values.
    pub values: Vec<Value>,
}

/// A measured value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// The measured item; may be empty.
    pub label: String,
    /// The value; `None` if nothing could be measured.
    pub value: Option<f64>,
    /// Half the width of the value's confidence interval, if it has one.
    pub half: Option<f64>,
}

/// A value and half the width of its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate(pub f64, pub Option<f64>);

impl From<f64> for Estimate {
    fn from(value: f64) -> Estimate {
        Estimate(value, None)
    }
}

impl From<(f64, f64)> for Estimate {
    fn from((value, half): (f64, f64)) -> Estimate {
        Estimate(value, Some(half))
    }
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

/// The judgement of a value, a part or a claim. The variants are in order, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judgement {
    /// The bound is not kept.
    Fails,
    /// The bound is strict (below or above), and the confidence interval contains it. A value with a strict bound
    /// and an interval is a ratio or difference of two sides, so neither is shown to be ahead. Of a claim: no part
    /// holds, and some part is a tie.
    Tie,
    /// Some parts of a claim hold and others do not.
    HoldsWhere,
    /// The bound is kept.
    Holds,
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

    /// Judges a value. Only a strict bound (below or above) on a value with an interval, which compares two sides, can
    /// yield a tie. The other bounds already contain a tolerance.
    fn judge(self, value: &Value) -> Judgement {
        let Some(mean) = value.value else {
            // A claim holds only if measurements show it.
            return Judgement::Fails;
        };
        if let (Bound::Below(end) | Bound::Above(end), Some(half)) = (self, value.half)
            && (mean - end).abs() <= half
        {
            return Judgement::Tie;
        }
        if self.is_kept_by(mean) {
            Judgement::Holds
        } else {
            Judgement::Fails
        }
    }

    /// Returns how far a value is on the wrong side of the bound, as a negative number on the right side.
    fn excess(self, value: f64) -> f64 {
        match self {
            Bound::AtMost(end) | Bound::Below(end) => value - end,
            Bound::AtLeast(end) | Bound::Above(end) => end - value,
            Bound::Within(min, max) => (min - value).max(value - max),
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

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.value, self.half) {
            (None, _) => f.write_str("not measured")?,
            (Some(value), Some(half)) if half > 0.0 => {
                // The half width gets the decimals for a value of this size, even if the value is whole and is shown
                // without any.
                write!(f, "{} ± {half:.*}", number(value), decimals(value))?;
            }
            (Some(value), _) => f.write_str(&number(value))?,
        }
        if self.label.is_empty() {
            return Ok(());
        }
        write!(f, " ({})", self.label)
    }
}

impl Part {
    /// Returns the judgement of the worst value; a part without values fails.
    pub fn judgement(&self, bound: Bound) -> Judgement {
        let each = self.values.iter().map(|value| bound.judge(value));
        each.min().unwrap_or(Judgement::Fails)
    }

    /// Returns the value with the worst judgement. Of several such values, returns the one that is farthest on the
    /// wrong side of the bound, or nearest to the bound if all are on the right side.
    pub fn worst(&self, bound: Bound) -> Option<&Value> {
        // A missing value is the worst of those that fail.
        let excess = |v: &Value| v.value.map_or(f64::INFINITY, |value| bound.excess(value));
        // The judgement comes first, because a tie with a wide interval may be farther on the wrong side than a value
        // that fails.
        let rank = |v: &&Value| (std::cmp::Reverse(bound.judge(v)), excess(v));
        let order = |a: &&Value, b: &&Value| {
            let (a, b) = (rank(a), rank(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
        };
        self.values.iter().max_by(order)
    }
}

impl Verdict {
    /// Judges `values`, each with a label. A value that is NaN or infinite counts as not measured, and a
    /// claim with such a value does not hold.
    pub fn new<L: ToString, E: Into<Estimate>>(
        claim: impl ToString,
        bound: Bound,
        unit: &str,
        values: impl IntoIterator<Item = (L, E)>,
    ) -> Verdict {
        let finite = |value: &f64| value.is_finite();
        let value = |(label, estimate): (L, E)| {
            let Estimate(value, half) = estimate.into();
            Value {
                label: label.to_string(),
                value: Some(value).filter(finite),
                half: half.filter(finite),
            }
        };
        Verdict {
            claim: claim.to_string(),
            bound,
            unit: unit.to_owned(),
            reported: String::new(),
            unless: String::new(),
            swept: String::new(),
            parts: vec![Part {
                setting: String::new(),
                at: String::new(),
                values: values.into_iter().map(value).collect(),
            }],
        }
    }

    /// Adds the value that the source reports.
    #[must_use]
    pub fn reported(self, reported: &str) -> Verdict {
        let reported = reported.to_owned();
        Verdict { reported, ..self }
    }

    /// Adds the expected reason if the claim does not hold.
    #[must_use]
    pub fn unless(self, why: &str) -> Verdict {
        let unless = why.to_owned();
        Verdict { unless, ..self }
    }

    /// Sets the name of the setting in which the values were measured.
    #[must_use]
    pub fn with(mut self, setting: &str) -> Verdict {
        for part in &mut self.parts {
            setting.clone_into(&mut part.setting);
        }
        self
    }

    /// Sets the name of the swept parameter, and the value that it had during the measurement.
    #[must_use]
    pub fn at(mut self, swept: &str, value: &str) -> Verdict {
        swept.clone_into(&mut self.swept);
        for part in &mut self.parts {
            value.clone_into(&mut part.at);
        }
        self
    }

    /// Turns each value into a part of its own. The label of the value becomes the value of the swept parameter.
    #[must_use]
    pub fn by(mut self, swept: &str) -> Verdict {
        swept.clone_into(&mut self.swept);
        let part = |part: &Part, value: &Value| Part {
            at: value.label.clone(),
            values: vec![Value {
                label: String::new(),
                ..value.clone()
            }],
            ..part.clone()
        };
        let parts = self.parts.iter();
        self.parts = parts
            .flat_map(|one| one.values.iter().map(move |value| part(one, value)))
            .collect();
        self
    }

    /// Returns the judgement of the claim over all parts.
    pub fn judgement(&self) -> Judgement {
        let each = self.parts.iter().map(|part| part.judgement(self.bound));
        let (worst, best) = (each.clone().min(), each.max());
        match (worst, best) {
            (Some(worst), Some(best)) if worst < best && best == Judgement::Holds => {
                Judgement::HoldsWhere
            }
            (_, Some(best)) => best,
            _ => Judgement::Fails,
        }
    }

    /// Returns whether the claim holds in all parts.
    pub fn holds(&self) -> bool {
        self.judgement() == Judgement::Holds
    }

    /// Returns the reason why the claim does not hold everywhere; empty if it does, or if no reason is known.
    pub fn why(&self) -> &str {
        if self.holds() { "" } else { &self.unless }
    }

    /// Returns the claim with its bound.
    pub fn expected(&self) -> String {
        format!("{}: {}", self.claim, with_unit(&self.bound, &self.unit))
    }

    /// Returns all measured values, each with setting and swept value in its label.
    pub fn values(&self) -> Vec<Value> {
        let placed = |part: &Part, value: &Value| {
            let names = [&value.label, &part.setting, &part.at];
            let names = names.into_iter().filter(|name| !name.is_empty());
            Value {
                label: names.map(String::as_str).collect::<Vec<_>>().join(", "),
                ..value.clone()
            }
        };
        let each = self.parts.iter();
        let each = each.flat_map(|part| part.values.iter().map(move |value| placed(part, value)));
        each.collect()
    }

    /// Returns the measured values as a short text.
    pub fn measured(&self) -> String {
        let mut values = self.values();
        // A missing value is shown as the highest. All others are finite.
        let known = |v: &Value| v.value.unwrap_or(f64::INFINITY);
        let text = if values.len() > MAX_SHOWN_VALUES {
            values.sort_by(|a, b| known(a).total_cmp(&known(b)));
            format!("{} to {}", values[0], values[values.len() - 1])
        } else {
            let each = values.iter().map(ToString::to_string);
            each.collect::<Vec<_>>().join(", ")
        };
        with_unit(&text, &self.unit)
    }

    /// Returns the verdict in words: `holds`, `does not hold`, or where it holds.
    pub fn word(&self) -> String {
        match self.judgement() {
            Judgement::Holds => "holds".to_owned(),
            Judgement::HoldsWhere => format!("holds {}", self.places()),
            Judgement::Tie => "does not hold: a tie at best".to_owned(),
            Judgement::Fails => "does not hold".to_owned(),
        }
    }

    /// Returns where the claim holds, ties and fails: `from 4 % loss on; a tie at 3 %; not at 2 %`.
    fn places(&self) -> String {
        let mut settings: Vec<&str> = Vec::new();
        for part in &self.parts {
            if !settings.contains(&&*part.setting) {
                settings.push(&part.setting);
            }
        }
        // Settings with the same places share their text.
        let mut groups: Vec<(Vec<String>, Vec<&str>)> = Vec::new();
        for setting in &settings {
            let places = self.places_of(setting);
            match groups.iter_mut().find(|(known, _)| *known == places) {
                Some((_, members)) => members.push(setting),
                None => groups.push((places, vec![setting])),
            }
        }
        if let [(places, _)] = &groups[..] {
            return places.join("; ");
        }
        // Settings in which the claim holds come first, otherwise in their own order. `places_of` returns at least one
        // text, and begins with the values with which the claim holds, if there are any.
        groups.sort_by_key(|(places, _)| {
            places[0].starts_with("not") || places[0].starts_with("a tie")
        });
        let each = groups.iter().map(|(places, members)| {
            let members = shortened(members, &settings);
            match &*places[0] {
                "" => format!("with {members}"),
                "not" | "a tie" => format!("{} with {members}", places[0]),
                _ => format!("with {members} {}", places.join(", ")),
            }
        });
        each.collect::<Vec<_>>().join("; ")
    }

    /// Returns texts on a setting: the values of the swept parameter with which the claim holds, then those with which
    /// it ties, then those with which it fails. If the setting has only ties, or only failures, returns the one text
    /// `a tie` or `not`. If no parameter is swept and the claim holds, the one text is empty.
    fn places_of(&self, setting: &str) -> Vec<String> {
        let parts = self.parts.iter().filter(|part| part.setting == setting);
        let all: Vec<(&str, Judgement)> = parts
            .map(|part| (&*part.at, part.judgement(self.bound)))
            .collect();
        let at = |wanted| -> Vec<&str> {
            let of = all.iter().filter(|(_, judgement)| *judgement == wanted);
            of.map(|(at, _)| *at).collect()
        };
        let [holds, ties, fails] = [Judgement::Holds, Judgement::Tie, Judgement::Fails].map(at);
        if all.len() == 1 && all[0].0.is_empty() {
            let word = match all[0].1 {
                Judgement::Holds => "",
                Judgement::Tie => "a tie",
                _ => "not",
            };
            return vec![word.to_owned()];
        }
        let (swept, ats) = (&self.swept, all.iter().map(|(at, _)| *at));
        let ats: Vec<&str> = ats.collect();
        let mut places = Vec::new();
        match &holds[..] {
            [] => {}
            [one] if all.len() == 1 => places.push(format!("at {one} {swept}")),
            _ if holds.len() == all.len() => places.push(format!("at every {swept}")),
            // At an end of the sweep even one value is a range: nothing measured beyond it contradicts.
            [first, ..] if ats.ends_with(&holds) => {
                places.push(format!("from {first} {swept} on"));
            }
            [.., last] if ats.starts_with(&holds) => places.push(format!("up to {last} {swept}")),
            _ => places.push(format!("at {} {swept}", list(&holds))),
        }
        for (word, at) in [("a tie at", ties), ("not at", fails)] {
            if at.len() == all.len() {
                // The claim holds nowhere in this setting, so `places` is empty.
                return vec![word.replace(" at", "")];
            }
            if !at.is_empty() {
                places.push(format!("{word} {}", list(&at)));
            }
        }
        places
    }

    /// Returns the verdict as JSON. Labels are the keys of the values, so the values of a part should have different
    /// labels: of values with the same label, setting and swept value, only the last one is there.
    pub fn json(&self) -> serde_json::Value {
        let values = self.values().into_iter();
        let values = values.map(|value| (value.label, json!(value.value)));
        json!({
            "bound": self.bound.to_string(),
            "unit": self.unit,
            "values": values.collect::<Map<_, _>>(),
            "holds": self.holds(),
            "verdict": self.word(),
            "why": self.why(),
        })
    }
}

/// Returns the names of the `members`. If every setting in `all` that begins with `CUBIC` is a member, only `CUBIC`
/// stands for them. The beginning ends at the first comma.
fn shortened(members: &[&str], all: &[&str]) -> String {
    let beginning = |setting: &&str| setting.split(", ").next().unwrap_or_default().to_owned();
    let mut names: Vec<String> = Vec::new();
    for member in members {
        let begin = beginning(member);
        let alike = all.iter().filter(|one| beginning(one) == begin);
        let is_whole = alike.clone().all(|one| members.contains(one));
        let name = if is_whole {
            begin
        } else {
            (*member).to_owned()
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    list(&names)
}

/// Returns names as a list in a sentence: `a, b and c`.
fn list<T: AsRef<str>>(names: &[T]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match &names[..] {
        [first @ .., before, last] if !first.is_empty() => {
            format!("{}, {before} and {last}", first.join(", "))
        }
        names => names.join(" and "),
    }
}

fn with_unit(text: &impl ToString, unit: &str) -> String {
    format!("{} {unit}", text.to_string()).trim_end().to_owned()
}

/// Returns the number of decimals of a value: a larger value gets fewer. From 0.1 to 10,000, values get three or four
/// significant digits, which is about as exact as the measurements are: a guess. Larger values are rounded to whole
/// numbers.
fn decimals(value: f64) -> usize {
    match value.abs() {
        0.0..10.0 => 3,
        10.0..1000.0 => 1,
        _ => 0,
    }
}

/// Formats a value. A whole number gets no decimals.
fn number(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.*}", decimals(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_must_keep_the_bound() {
        let holds = |bound, values: &[f64]| {
            let values = values.iter().map(|v| ("", *v));
            Verdict::new("x", bound, "ms", values).holds()
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
    fn an_order_that_the_interval_leaves_open_is_a_tie() {
        let judge =
            |bound, value, half| Verdict::new("x", bound, "", [("", (value, half))]).judgement();
        assert_eq!(judge(Bound::Below(1.0), 0.98, 0.01), Judgement::Holds);
        assert_eq!(judge(Bound::Below(1.0), 0.98, 0.03), Judgement::Tie);
        assert_eq!(judge(Bound::Below(1.0), 1.02, 0.03), Judgement::Tie);
        assert_eq!(judge(Bound::Below(1.0), 1.02, 0.01), Judgement::Fails);
        assert_eq!(judge(Bound::Above(1.0), 1.02, 0.01), Judgement::Holds);
        // A bound with a tolerance is judged by the value alone.
        assert_eq!(judge(Bound::AtMost(1.03), 1.02, 0.05), Judgement::Holds);
        assert_eq!(judge(Bound::AtLeast(80.0), 79.0, 5.0), Judgement::Fails);
        // Two sides that are equal in every run tie.
        assert_eq!(judge(Bound::Below(0.0), 0.0, 0.0), Judgement::Tie);
        // An interval that is not known decides nothing.
        assert_eq!(judge(Bound::Below(1.0), 0.98, f64::NAN), Judgement::Holds);
    }

    /// Returns a verdict on shares that must be below 1, each of a setting and a loss in percent.
    fn swept(parts: &[(&str, &str, f64)]) -> Verdict {
        let mut all = Vec::new();
        for (setting, at, value) in parts {
            let one = Verdict::new("mean", Bound::Below(1.0), "", [("64k", (*value, 0.01))]);
            all.push(one.with(setting).at("loss", at));
        }
        let mut first = all.remove(0);
        first
            .parts
            .extend(all.into_iter().flat_map(|one| one.parts));
        first
    }

    #[test]
    fn a_sweep_says_from_where_to_where_a_claim_holds() {
        let word = |values: [f64; 4]| {
            let at = ["2 %", "3 %", "4 %", "5 %"];
            let parts: Vec<_> = at.into_iter().zip(values).collect();
            let parts: Vec<_> = parts.into_iter().map(|(at, v)| ("CUBIC", at, v)).collect();
            swept(&parts).word()
        };
        assert_eq!(word([0.9, 0.9, 0.9, 0.9]), "holds");
        assert_eq!(word([1.1, 1.1, 1.1, 1.1]), "does not hold");
        assert_eq!(word([1.1, 1.0, 1.1, 1.1]), "does not hold: a tie at best");
        assert_eq!(
            word([1.1, 1.1, 1.1, 0.9]),
            "holds from 5 % loss on; not at 2 %, 3 % and 4 %"
        );
        let rising = "holds from 4 % loss on; a tie at 3 %; not at 2 %";
        assert_eq!(word([1.1, 1.0, 0.9, 0.9]), rising);
        assert_eq!(
            word([0.9, 0.9, 1.0, 1.1]),
            "holds up to 3 % loss; a tie at 4 %; not at 5 %"
        );
        assert_eq!(
            word([1.1, 0.9, 1.1, 0.9]),
            "holds at 3 % and 5 % loss; not at 2 % and 4 %"
        );
        assert_eq!(
            word([1.1, 0.9, 0.9, 1.1]),
            "holds at 3 % and 4 % loss; not at 2 % and 5 %"
        );
    }

    #[test]
    fn settings_with_the_same_verdict_share_it() {
        let [ten, three, bbr] = ["CUBIC, IW 10", "CUBIC, IW 3", "BBR, IW 10"];
        let word = |values: [f64; 6]| {
            let places = [ten, three, bbr].map(|setting| ["1 %", "2 %"].map(|at| (setting, at)));
            let places = places.as_flattened().iter().zip(values);
            let parts: Vec<_> = places
                .map(|((setting, at), v)| (*setting, *at, v))
                .collect();
            swept(&parts).word()
        };
        assert_eq!(
            word([1.1, 0.9, 1.1, 0.9, 1.1, 0.9]),
            "holds from 2 % loss on; not at 1 %"
        );
        assert_eq!(
            word([1.1, 0.9, 1.1, 0.9, 0.9, 0.9]),
            "holds with CUBIC from 2 % loss on, not at 1 %; with BBR at every loss"
        );
        assert_eq!(
            word([1.1, 1.1, 1.1, 0.9, 0.9, 0.9]),
            "holds with CUBIC, IW 3 from 2 % loss on, not at 1 %; with BBR at every loss; not with CUBIC, IW 10"
        );
        let fewer = swept(&[
            (ten, "1 %", 1.1),
            (ten, "2 %", 0.9),
            (three, "1 %", 0.9),
            (bbr, "1 %", 1.1),
        ]);
        assert_eq!(
            fewer.word(),
            "holds with CUBIC, IW 10 from 2 % loss on, not at 1 %; with CUBIC, IW 3 at 1 % loss; not with BBR"
        );
        let open = swept(&[(ten, "", 0.9), (three, "", 1.0), (bbr, "", 1.1)]);
        assert_eq!(
            open.word(),
            "holds with CUBIC, IW 10; a tie with CUBIC, IW 3; not with BBR"
        );
        let verdict = Verdict::new(
            "delay",
            Bound::Below(0.0),
            "ms",
            [("0 %", 1.0), ("1 %", -1.0)],
        );
        assert_eq!(
            verdict.by("loss").word(),
            "holds from 1 % loss on; not at 0 %"
        );
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
        assert_eq!(
            many.parts[0]
                .worst(many.bound)
                .map(ToString::to_string)
                .as_deref(),
            Some("13 (64k)")
        );
        assert_eq!((&*many.word(), many.why()), ("does not hold", "too slow"));
        let verdict = verdict.unless("too slow");
        assert_eq!((&*verdict.word(), verdict.why()), ("holds", ""));
        let lost = Verdict::new("gap", Bound::Below(1.0), "ms", [("", f64::NAN)]);
        assert_eq!(lost.measured(), "not measured ms");
        assert!(lost.json()["values"][""].is_null());
        let both = swept(&[("CUBIC", "1 %", 0.98), ("BBR", "1 %", 1.5)]);
        assert_eq!(
            both.measured(),
            "0.980 ± 0.010 (64k, CUBIC, 1 %), 1.500 ± 0.010 (64k, BBR, 1 %)"
        );
    }
}
