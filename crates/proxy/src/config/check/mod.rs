//! Mistakes in a file that can be read: settings that cannot work, or not as they were meant.
//!
//! Only the file is looked at; `braid_linux::check` holds it against the machine and the links. A start
//! refuses what can never work and warns of the rest.

mod numbers;
mod of_box;
mod of_server;
mod shadow;

use core::fmt;
use std::path::PathBuf;

use serde::Serialize;
use toml::Table;

use super::common::Source;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// There is no way to know from here, which means nothing.
    NotChecked,
    /// This process may not look, or a tool is missing.
    CouldNotCheck,
    /// Something works, but not as well or not as it was meant.
    Warning,
    /// Something does not work.
    Failure,
}

impl Verdict {
    /// The word for people.
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

/// One thing that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The name of the check, the same in all versions.
    pub id: &'static str,
    /// The setting, link or server that it is about.
    pub subject: String,
    /// The result.
    pub verdict: Verdict,
    /// The values that were read, those that are expected, and what follows for users.
    pub message: String,
    /// The remedy; empty where nothing is to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
    /// The mistake may come right while box or server runs, as by a cable that is plugged in: no reason to
    /// refuse a start.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub may_heal: bool,
}

impl Finding {
    /// A finding of this verdict that does not heal by itself.
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

    /// All is well.
    pub fn ok(at: (&'static str, impl Into<String>), message: impl Into<String>) -> Self {
        Finding::new(Verdict::Ok, at, message, "")
    }

    /// Something works badly.
    pub fn warning(
        at: (&'static str, impl Into<String>),
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding::new(Verdict::Warning, at, message, remedy)
    }

    /// Something does not work.
    pub fn failure(
        at: (&'static str, impl Into<String>),
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding::new(Verdict::Failure, at, message, remedy)
    }

    /// The same of something that may come right while box or server runs.
    #[must_use]
    pub fn healing(self) -> Self {
        Finding {
            may_heal: true,
            ..self
        }
    }

    /// Returns whether box or server must not start.
    pub fn refuses_start(&self) -> bool {
        self.verdict == Verdict::Failure && !self.may_heal
    }

    /// Returns whether somebody should know.
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

/// The file of the private key that the text of `file` names.
pub fn key_file(file: &str, text: &str) -> Option<PathBuf> {
    let table: Table = text.parse().ok()?;
    let name = table.get("key_file")?.as_str()?;
    Some(Source { file, text }.beside(name.as_ref()))
}

/// Turns warnings about `parts` of which one suffices, such as links, into failures where all of them are
/// `broken`; `all_gone` says so.
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
