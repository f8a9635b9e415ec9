//! The form of hints as text, in which programs send them.

use core::time::Duration;

use braid_engine::Urgency;
use braid_engine::strategy::FlowSize;
use braid_units::value::{self, ValueError};

use super::FlowHints;

/// Maximum deadline that a program may set. A guess: a longer one means no deadline.
const MAX_DEADLINE: Duration = Duration::from_secs(3600);

impl FlowHints {
    /// Reads the hints of a program, and returns the mistakes found. Wrong items are left out, so that one
    /// mistake does not lose the other hints. If a key occurs several times, the last item applies.
    ///
    /// ```text
    /// size=64kB,urgency=1,strategy=fsa,deadline=250ms
    /// ```
    ///
    /// Sizes and times have the form of configuration files; a size without a unit is in bytes. The settings of a
    /// strategy follow its name: `strategy=maps:plr=measured,single`.
    pub fn from_text(text: &str) -> (FlowHints, Vec<ValueError>) {
        let mut hints = FlowHints::default();
        let mut mistakes = Vec::new();
        for item in items(text).into_iter().filter(|item| !item.is_empty()) {
            mistakes.extend(hints.set_item(item).err());
        }
        (hints, mistakes)
    }

    /// Sets the hint that `item` gives, such as `urgency=1`.
    fn set_item(&mut self, item: &str) -> Result<(), ValueError> {
        let (key, value) = item.split_once('=').unwrap_or((item, ""));
        match key {
            "size" => match value::size(value)? {
                0 => {
                    let expected = "a size above zero, such as \"64kB\"";
                    return Err(ValueError::out_of_range(value, expected));
                }
                bytes => self.size = FlowSize::Declared(bytes),
            },
            "urgency" => {
                let urgency = value.parse().ok().and_then(Urgency::new);
                let expected = "0 (most urgent) to 7 (background)";
                let wrong = || ValueError::is_no(value, "urgency", expected);
                self.urgency = Some(urgency.ok_or_else(wrong)?);
            }
            "deadline" => {
                let deadline = value::duration(value, MAX_DEADLINE)?;
                if deadline.is_zero() {
                    let expected = "a time above zero, such as \"250ms\"";
                    return Err(ValueError::out_of_range(value, expected));
                }
                self.deadline = Some(deadline);
            }
            "strategy" => match braid_strategy::by_name(value) {
                Ok(_) => self.strategy = Some(value.to_owned()),
                Err(error) => {
                    return Err(ValueError {
                        what: error.problem,
                        expected: error.expected,
                    });
                }
            },
            _ => return Err(ValueError::is_no(item, "hint", KEYS_HINT)),
        }
        Ok(())
    }
}

/// The keys of hints.
const KEYS: [&str; 4] = ["size", "urgency", "deadline", "strategy"];
const KEYS_HINT: &str = "size=64kB, urgency=1, deadline=250ms or strategy=minrtt";

/// Splits `text` into hints, which commas separate. Commas also separate the settings of a strategy. Therefore a
/// part that has no key of a hint, and follows a strategy with settings, belongs to this strategy.
fn items(text: &str) -> Vec<&str> {
    let is_hint = |part: &str| KEYS.iter().any(|key| part.split('=').next() == Some(key));
    let mut items: Vec<&str> = Vec::new();
    let mut start = 0;
    for part in text.split(',') {
        let end = start + part.len();
        match items.last_mut() {
            Some(last) if last.starts_with("strategy=") && last.contains(':') && !is_hint(part) => {
                // Extends the last item over the comma and this part.
                *last = &text[start - 1 - last.len()..end];
            }
            _ => items.push(part),
        }
        start = end + 1;
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_stay_with_their_strategy() {
        let cases: [(&str, &[&str]); 6] = [
            ("size=1", &["size=1"]),
            ("size=1,urgency=2", &["size=1", "urgency=2"]),
            ("strategy=a,size=1", &["strategy=a", "size=1"]),
            ("strategy=a,b,size=1", &["strategy=a", "b", "size=1"]),
            (
                "deadline=1s,strategy=a:b=c,d,size=1,e",
                &["deadline=1s", "strategy=a:b=c,d", "size=1", "e"],
            ),
            (",,", &["", "", ""]),
        ];
        for (text, expected) in cases {
            assert_eq!(items(text), expected, "{text}");
        }
    }
}
