//! What can go wrong, by who can mend it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::netns::Reason;

/// Why a testbed operation failed.
#[derive(Debug)]
pub enum Error {
    /// The testbed file is wrong.
    Spec(SpecError),
    /// The testbed has no host of this name; the second field lists those it has.
    NoSuchHost(String, Vec<String>),
    /// The testbed has no link of this name; the second field lists those it has.
    NoSuchLink(String, Vec<String>),
    /// This host runs no process of its own; the second field says why.
    NoProcess(String, String),
    /// A value handed to `set` makes no sense.
    BadChange(String),
    /// A testbed of this name is already up.
    Busy(String),
    /// No testbed of this name is up.
    NotUp(String),
    /// Network namespaces are not to be had here.
    NotCapable(Reason),
    /// The system refused a step.
    System {
        /// What was being done.
        step: String,
        /// What the system said.
        source: io::Error,
    },
    /// What the daemon answered, as text.
    Daemon(String),
}

impl Error {
    /// A refused step.
    pub(crate) fn system(step: impl Into<String>, source: io::Error) -> Self {
        Error::System {
            step: step.into(),
            source,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Spec(e) => e.fmt(f),
            Error::NoSuchHost(name, known) => {
                write!(
                    f,
                    "no host `{name}` in this testbed; there are: {}",
                    known.join(", ")
                )
            }
            Error::NoSuchLink(name, known) => {
                write!(
                    f,
                    "no link `{name}` in this testbed; there are: {}",
                    known.join(", ")
                )
            }
            Error::NoProcess(name, why) => write!(f, "host `{name}` has no process: {why}"),
            Error::BadChange(why) => f.write_str(why),
            Error::Busy(name) => {
                write!(f, "testbed `{name}` is already up; take it down first")
            }
            Error::NotCapable(reason) => reason.fmt(f),
            Error::NotUp(name) => write!(f, "testbed `{name}` is not up"),
            Error::System { step, source } => write!(f, "{step}: {source}"),
            Error::Daemon(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::System { source, .. } => Some(source),
            Error::Spec(e) => Some(e),
            _ => None,
        }
    }
}

impl From<SpecError> for Error {
    fn from(e: SpecError) -> Self {
        Error::Spec(e)
    }
}

/// A mistake in a testbed file: where it is, what was read, what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1; 0 where the whole file is meant.
    pub line: usize,
    /// Column in characters, from 1; 0 where the whole line is meant.
    pub column: usize,
    /// The offending text, as read.
    pub read: String,
    /// What is wrong with it and what to write instead.
    pub message: String,
}

impl SpecError {
    /// There is no reading the file.
    pub(crate) fn unreadable(file: &Path, error: &io::Error) -> Self {
        SpecError {
            file: file.to_owned(),
            line: 0,
            column: 0,
            read: String::new(),
            message: format!("cannot read the file: {error}"),
        }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        write!(f, ": {}", self.message)?;
        if !self.read.is_empty() {
            write!(f, "\n    {}", self.read)?;
        }
        Ok(())
    }
}

impl std::error::Error for SpecError {}
