//! The settings after a strategy's name: `maps:single,eps=0.25`.

use std::fmt;

/// The reason why a strategy's text is refused: an unknown name, an unknown or repeated setting, or an invalid
/// value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StrategyError {
    /// The refused text, and the reason.
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
/// The strategy takes each setting that it knows. A setting that remains afterwards is an error.
/// [`Registry::with_settings`](crate::Registry::with_settings) shows an example.
#[derive(Debug)]
pub struct Settings<'a> {
    /// Name and settings as written, for messages.
    text: &'a str,
    /// The written settings that the strategy has not taken yet, with their values.
    untaken: Vec<(&'a str, Option<&'a str>)>,
    /// The usage of each setting that the strategy knows, for messages.
    known: Vec<String>,
}

impl<'a> Settings<'a> {
    /// Parses `text`: a name and, after a colon, its settings with commas between them.
    pub(crate) fn new(text: &'a str) -> Self {
        let (_, settings) = text.split_once(':').unzip();
        let parse_one = |setting: &'a str| match setting.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (setting, None),
        };
        Settings {
            text,
            untaken: settings
                .iter()
                .flat_map(|s| s.split(','))
                .map(parse_one)
                .collect(),
            known: Vec::new(),
        }
    }

    /// Takes the setting `key`, which has no value, and returns whether the user wrote it.
    ///
    /// # Errors
    /// Fails if the user wrote a value for the setting.
    pub fn flag(&mut self, key: &str) -> Result<bool, StrategyError> {
        match self.take(key, key.to_owned()) {
            None => Ok(false),
            Some(None) => Ok(true),
            Some(Some(value)) => Err(self.wrong(key, Some(value), "no value")),
        }
    }

    /// Takes the setting `key`, a number from 0 to 1. Returns the default if the user did not write the setting.
    ///
    /// # Errors
    /// Fails if the value is not a number from 0 to 1.
    pub fn share(&mut self, key: &str, default: f64) -> Result<f64, StrategyError> {
        let Some(value) = self.take(key, format!("{key}=NUMBER")) else {
            return Ok(default);
        };
        let number = value.and_then(|v| v.parse().ok());
        let number = number.filter(|n| (0.0..=1.0).contains(n));
        number.ok_or_else(|| self.wrong(key, value, "a number from 0 to 1"))
    }

    /// Takes the setting `key`, the name of one of the `choices`. Returns the default if the user did not write
    /// the setting.
    ///
    /// # Errors
    /// Fails if the value is not the name of a choice.
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

    /// Checks that the strategy has taken all settings.
    ///
    /// # Errors
    /// Fails if the strategy does not know a setting, or the user wrote a setting twice.
    pub(crate) fn finish(self) -> Result<(), StrategyError> {
        let Some((key, _)) = self.untaken.first() else {
            return Ok(());
        };
        let expected = match self.known.is_empty() {
            true => "no settings here".to_owned(),
            false => format!("one of {}, each at most once", self.known.join(", ")),
        };
        Err(StrategyError {
            problem: format!("unknown setting {key:?} in strategy {:?}", self.text),
            expected,
        })
    }

    /// Takes the setting `key` and returns its value, if it has one. `usage` describes the setting in messages.
    fn take(&mut self, key: &str, usage: String) -> Option<Option<&'a str>> {
        self.known.push(usage);
        let at = self
            .untaken
            .iter()
            .position(|(written, _)| *written == key)?;
        Some(self.untaken.remove(at).1)
    }

    /// Returns the error for an invalid value of a setting.
    fn wrong(&self, key: &str, value: Option<&str>, expected: &str) -> StrategyError {
        let value = value.map_or("no value".to_owned(), |value| format!("{value:?}"));
        StrategyError {
            problem: format!("{key} is {value} in strategy {:?}", self.text),
            expected: expected.to_owned(),
        }
    }
}
