//! The error that a user reads when a configuration file is wrong.

use core::fmt;
use core::ops::Range;
use std::io;
use std::path::Path;

/// A mistake in a configuration file: its place, the text there, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The name of the file as the user gave it.
    pub file: String,
    /// The line and the column, both counted from 1; `None` if the mistake concerns the whole file.
    pub position: Option<(usize, usize)>,
    /// The text of the line, without secrets; `None` if there is no position.
    pub read: Option<String>,
    /// The message: what is wrong.
    pub message: String,
    /// The advice: what to write instead.
    pub hint: Option<String>,
}

impl ConfigError {
    /// Creates an error about the byte range `span` of `text`. An error in an empty file has no position.
    pub fn at(
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

    /// Creates an error for a `file` that cannot be read.
    pub fn unreadable(file: &Path, error: &io::Error) -> Self {
        let message = format!("cannot read the file: {error}");
        ConfigError::at(&file.display().to_string(), "", None, message, None)
    }

    /// Returns the file, the position and the message in one line.
    pub fn headline(&self) -> String {
        let position = self.position;
        let position = position.map(|(line, column)| format!(":{line}:{column}"));
        let position = position.unwrap_or_default();
        format!("{}{position}: {}", self.file, self.message)
    }
}

/// The character that replaces a secret in messages.
const HIDDEN: char = '…';

/// Returns the line without the value of `secret =`. Old files still have this setting of earlier versions. Users
/// copy errors into logs and into requests for help, where a secret must not appear.
fn without_secret(line: &str) -> String {
    let value = line.match_indices("secret").find_map(|(at, word)| {
        let rest = line[at + word.len()..].trim_start_matches(['"', '\'']);
        let spaces = rest.len() - rest.trim_start().len();
        let equals = line.len() - rest.len() + spaces;
        rest.trim_start().starts_with('=').then_some(equals + 1)
    });
    match value {
        Some(value) => format!("{} {HIDDEN}", &line[..value]),
        None => line.to_owned(),
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline())?;
        if let (Some((line, column)), Some(read)) = (self.position, &self.read) {
            let number_width = line.to_string().len();
            write!(
                f,
                "\n  {line} | {read}\n  {:number_width$} | {:>column$}",
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

/// Returns the last char boundary of `text` at or before `at`. `str::floor_char_boundary` is newer than the
/// oldest Rust version that Braid supports.
fn floor_char_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}
