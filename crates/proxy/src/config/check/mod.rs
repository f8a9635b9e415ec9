//! Checks of a valid file for settings that do not work, or do not work as intended.
//!
//! The checks examine the file alone. `braid_linux::check` compares it with the machine and the links. A box or
//! server does not start with settings that can never work, and logs warnings about the others.

mod numbers;
mod of_box;
mod of_server;
mod shadow;

use core::fmt;
use std::path::PathBuf;

use braid_units::ConfigError;
use serde::Serialize;
use toml::Table;

use super::common::Source;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The check found no problem.
    Ok,
    /// The check is not possible on this machine, so nothing is known.
    NotChecked,
    /// The check failed: this process lacks a permission, or a tool is missing.
    CouldNotCheck,
    /// The subject works, but not as well as it could, or not as intended.
    Warning,
    /// The subject does not work.
    Failure,
}

impl Verdict {
    /// Returns the word shown to people.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::NotChecked => "not checked",
            Verdict::CouldNotCheck => "could not check",
            Verdict::Warning => "warning",
            Verdict::Failure => "failure",
        }
    }
}

/// The finding of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check, stable between versions.
    pub id: &'static str,
    /// The setting, link or server examined.
    pub subject: String,
    /// The result.
    pub verdict: Verdict,
    /// The value found, the value expected, and the effect on users.
    pub message: String,
    /// The remedy. Empty if there is no problem.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
    /// True if the problem may end while box or server runs, for example when a cable is plugged in. Then the
    /// problem does not prevent a start.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub may_heal: bool,
}

impl Finding {
    /// Creates a finding that does not heal by itself.
    pub fn new(
        verdict: Verdict,
        (id, subject): (&'static str, impl Into<String>),
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding {
            id,
            subject: subject.into(),
            verdict,
            message: message.into(),
            remedy: remedy.into(),
            may_heal: false,
        }
    }

    /// Creates a finding without a problem.
    pub fn ok(at: (&'static str, impl Into<String>), message: impl Into<String>) -> Self {
        Finding::new(Verdict::Ok, at, message, "")
    }

    /// Creates a finding about something that works badly.
    pub fn warning(
        at: (&'static str, impl Into<String>),
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding::new(Verdict::Warning, at, message, remedy)
    }

    /// Creates a finding about something that does not work.
    pub fn failure(
        at: (&'static str, impl Into<String>),
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding::new(Verdict::Failure, at, message, remedy)
    }

    /// Creates the finding about a setting in the form of the last version.
    fn of_deprecated(warning: &ConfigError) -> Self {
        let line = warning.position.map(|(line, _)| format!(":{line}"));
        let subject = format!("{}{}", warning.file, line.unwrap_or_default());
        let remedy = warning.hint.clone().unwrap_or_default();
        Finding::warning(("deprecated", subject), warning.message.clone(), remedy)
    }

    /// Marks a finding whose problem may end while box or server runs.
    #[must_use]
    pub fn healing(self) -> Self {
        Finding {
            may_heal: true,
            ..self
        }
    }

    /// Returns whether the problem prevents a start of box or server.
    pub fn refuses_start(&self) -> bool {
        self.verdict == Verdict::Failure && !self.may_heal
    }

    /// Returns whether the finding is a problem that the operator should know.
    pub fn is_bad(&self) -> bool {
        self.verdict >= Verdict::Warning
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.message)?;
        match self.remedy.is_empty() {
            true => Ok(()),
            false => write!(f, "; to do: {}", self.remedy),
        }
    }
}

/// Returns the path of the private key's file that `text`, the content of `file`, names.
pub fn key_file(file: &str, text: &str) -> Option<PathBuf> {
    let table: Table = text.parse().ok()?;
    let name = table.get("key_file")?.as_str()?;
    Some(Source { file, text }.beside(name.as_ref()))
}

/// Turns all warnings of `findings` into failures if the number of `broken` parts is the number of all `parts`.
/// This is for parts of which one suffices, such as links. Adds `all_gone` to the messages.
pub fn weigh(parts: usize, broken: usize, findings: &mut [Finding], all_gone: &str) {
    if broken < parts {
        return;
    }
    for finding in findings
        .iter_mut()
        .filter(|f| f.verdict == Verdict::Warning)
    {
        finding.verdict = Verdict::Failure;
        finding.message = format!("{}; {all_gone}", finding.message);
    }
}
