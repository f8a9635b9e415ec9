//! The settings that a user writes behind a strategy's name: `maps:single,eps=0.25`.

use std::fmt;

/// A name or a setting that no strategy has, or a value that it does not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StrategyError {
    /// The text that was read, and what is wrong with it.
    pub problem: String,
    /// The names or values that are valid instead.
    pub expected: String,
}

impl fmt::Display for StrategyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; expected {}", self.problem, self.expected)
    }
}

impl std::error::Error for StrategyError {}

/// The settings of one strategy.
///
/// The strategy takes those that it knows; what it leaves is reported as a mistake.
/// [`Registry::with_settings`](crate::Registry::with_settings) shows an example.
#[derive(Debug)]
pub struct Settings<'a> {
    /// Name and settings, for messages.
    text: &'a str,
    given: Vec<(&'a str, Option<&'a str>)>,
    /// The usage of each known setting.
    known: Vec<String>,
}

impl<'a> Settings<'a> {
    /// Parses `text`: a name and, after a colon, its settings with commas between them.
    pub(crate) fn new(text: &'a str) -> Self {
        let (_, settings) = text.split_once(':').unzip();
        let one = |setting: &'a str| match setting.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (setting, None),
        };
        Settings {
            text,
            given: settings
                .iter()
                .flat_map(|s| s.split(','))
                .map(one)
                .collect(),
            known: Vec::new(),
        }
    }

    /// Takes the setting `key`, which has no value, and returns whether it was given.
    ///
    /// # Errors
    /// Fails if a value was given.
    pub fn flag(&mut self, key: &str) -> Result<bool, StrategyError> {
        match self.take(key, key.to_owned()) {
            None => Ok(false),
            Some(None) => Ok(true),
            Some(Some(value)) => Err(self.wrong(key, Some(value), "no value")),
        }
    }

    /// Takes a number from 0 to 1, or returns the default.
    ///
    /// # Errors
    /// Fails if the value is no such number.
    pub fn share(&mut self, key: &str, default: f64) -> Result<f64, StrategyError> {
        let Some(value) = self.take(key, format!("{key}=NUMBER")) else {
            return Ok(default);
        };
        let number = value.and_then(|v| v.parse().ok());
        let number = number.filter(|n| (0.0..=1.0).contains(n));
        number.ok_or_else(|| self.wrong(key, value, "a number from 0 to 1"))
    }

    /// Takes one of the `choices` by its name, or returns the default.
    ///
    /// # Errors
    /// Fails if the value is none of their names.
    pub fn one_of<T: Copy>(
        &mut self,
        key: &str,
        default: T,
        choices: &[(&str, T)],
    ) -> Result<T, StrategyError> {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        let names = names.join("|");
        let Some(value) = self.take(key, format!("{key}={names}")) else {
            return Ok(default);
        };
        let found = choices.iter().find(|(name, _)| Some(*name) == value);
        let choice = found.map(|(_, choice)| *choice);
        choice.ok_or_else(|| self.wrong(key, value, &names))
    }

    /// Checks that no setting is left.
    ///
    /// # Errors
    /// Fails if a setting is unknown to the strategy, or was given twice.
    pub(crate) fn finish(self) -> Result<(), StrategyError> {
        let Some((key, _)) = self.given.first() else {
            return Ok(());
        };
        let expected = match self.known.is_empty() {
            true => "no settings here".to_owned(),
            false => format!("each once of {}", self.known.join(", ")),
        };
        Err(StrategyError {
            problem: format!("unknown setting {key:?} in strategy {:?}", self.text),
            expected,
        })
    }

    fn take(&mut self, key: &str, usage: String) -> Option<Option<&'a str>> {
        self.known.push(usage);
        let at = self.given.iter().position(|(given, _)| *given == key)?;
        Some(self.given.remove(at).1)
    }

    fn wrong(&self, key: &str, value: Option<&str>, expected: &str) -> StrategyError {
        let value = value.map_or("no value".to_owned(), |value| format!("{value:?}"));
        StrategyError {
            problem: format!("{key} is {value} in strategy {:?}", self.text),
            expected: expected.to_owned(),
        }
    }
}
