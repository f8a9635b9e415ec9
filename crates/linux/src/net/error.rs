//! The error of setting something up on this machine.

use std::fmt;
use std::io;

/// Result of setting something up on this machine.
pub type Result<T> = std::result::Result<T, SystemError>;

/// A refusal by the system. Trying again does not help.
#[derive(Debug)]
pub struct SystemError {
    doing: String,
    source: io::Error,
}

impl SystemError {
    /// Wraps an error with what was being done, in words that follow "cannot".
    pub fn doing<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> SystemError {
        let doing = doing.into();
        move |source| SystemError {
            doing,
            source: source.into(),
        }
    }

    /// An error that no system call reported.
    pub fn other(doing: impl Into<String>, why: impl Into<String>) -> SystemError {
        SystemError {
            doing: doing.into(),
            source: io::Error::other(why.into()),
        }
    }

    /// Returns the kind of the underlying error.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

impl fmt::Display for SystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.doing, self.source)
    }
}

impl std::error::Error for SystemError {}
