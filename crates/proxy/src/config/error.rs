//! What a user reads when a configuration file is wrong.

use core::fmt;
use core::ops::Range;

/// A mistake in a configuration file: where it is, what was read, what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The file as it was named.
    pub file: String,
    /// Line and column, both from 1; `None` where the whole file is meant.
    pub position: Option<(usize, usize)>,
    /// The line as it was read, where there is a position.
    pub read: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub hint: Option<String>,
}

impl ConfigError {
    /// A mistake at `span` (bytes) of `text`; an empty file has no position.
    pub(crate) fn at(
        file: &str,
        text: &str,
        span: Option<Range<usize>>,
        message: impl Into<String>,
        hint: Option<String>,
    ) -> Self {
        let position = span.filter(|_| !text.is_empty()).map(|span| {
            let start = floor_char_boundary(text, span.start);
            let before = &text[..start];
            let line = before.matches('\n').count();
            let column = before.rsplit('\n').next().map_or(0, |l| l.chars().count());
            (line + 1, column + 1)
        });
        let read = position
            .and_then(|(line, _)| text.lines().nth(line - 1))
            .map(|line| without_secret(line.trim_end()));
        ConfigError {
            file: file.to_owned(),
            position,
            read,
            message: message.into(),
            hint,
        }
    }

    /// The mistake that `toml` found in `text`.
    pub(crate) fn from_toml(file: &str, text: &str, error: &toml::de::Error) -> Self {
        let (message, hint) = explain(error.message());
        let mut error = ConfigError::at(file, text, error.span(), message, hint);
        // Says what it found in place of a string.
        let hidden = error.read.as_ref().is_some_and(|l| l.ends_with(HIDDEN));
        if hidden && error.message.starts_with("invalid type") {
            error.message = "the secret is not a string".to_owned();
        }
        error
    }
}

/// What stands for a secret.
const HIDDEN: char = '…';

/// The line without what follows `secret =`: errors end up in logs and in requests for help.
fn without_secret(line: &str) -> String {
    let value = line.match_indices("secret").find_map(|(at, word)| {
        let rest = line[at + word.len()..].trim_start_matches(['"', '\'']);
        let blanks = rest.len() - rest.trim_start().len();
        let equals = line.len() - rest.len() + blanks;
        rest.trim_start().starts_with('=').then_some(equals + 1)
    });
    match value {
        Some(value) => format!("{} {HIDDEN}", &line[..value]),
        None => line.to_owned(),
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some((line, column)) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)?;
        if let (Some((line, column)), Some(read)) = (self.position, &self.read) {
            let gutter = line.to_string().len();
            write!(
                f,
                "\n  {line} | {read}\n  {:gutter$} | {:>column$}",
                "", "^"
            )?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  write instead: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// Separates what is wrong from what to write instead in the messages of this module's own
/// `Deserialize` implementations, which have one string to say both.
pub(crate) const HINT: char = '\n';

/// Splits a deserialisation message into what is wrong and what to write instead.
fn explain(message: &str) -> (String, Option<String>) {
    if let Some((unknown, known)) = unknown_field(message) {
        let close = known
            .iter()
            .map(|k| (distance(unknown, k), *k))
            .min()
            .filter(|(d, k)| *d <= 1 + k.len() / 3);
        let hint = match close {
            Some((_, key)) => format!("`{key}`, if that is what you mean"),
            None => format!("one of {}", known.join(", ")),
        };
        return (format!("there is no setting `{unknown}` here"), Some(hint));
    }
    if let Some(field) = message
        .strip_prefix("missing field `")
        .and_then(|m| m.strip_suffix('`'))
    {
        let hint = format!("{field} = …");
        return (format!("`{field}` is missing"), Some(hint));
    }
    if let Some((what, hint)) = message.split_once(HINT) {
        return (what.to_owned(), Some(hint.to_owned()));
    }
    match message.rsplit_once(", expected ") {
        Some((what, expected))
            if what.starts_with("invalid type: ") || what.starts_with("invalid value: ") =>
        {
            let hint = match expected {
                "u16" => "a whole number from 0 to 65535",
                "a boolean" => "true or false",
                other => other,
            };
            (what.to_owned(), Some(hint.to_owned()))
        }
        _ => (message.to_owned(), None),
    }
}

/// Takes serde's message on an unknown field apart.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let (unknown, rest) = message.strip_prefix("unknown field `")?.split_once('`')?;
    let known = rest.split('`').skip(1).step_by(2).collect();
    Some((unknown, known))
}

/// Edits (insert, delete, replace) between two short words.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replace = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
