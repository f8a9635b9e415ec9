//! What can go wrong.

use std::fmt;

use braid::failure::Failure;

/// Why a cell could not be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// It asks for what there is not: one line with what was read and what is expected.
    Usage(String),
    /// The run itself failed.
    Run(String),
    /// The machine was too busy, again and again, for what was measured to be trusted.
    Busy(String),
    /// A program that is called is not installed: one line with its name.
    Missing(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Usage(text) | Error::Run(text) | Error::Busy(text) | Error::Missing(text) => {
                f.write_str(text)
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Usage(text) => Failure::Usage(text),
            Error::Run(text) | Error::Busy(text) | Error::Missing(text) => Failure::Run(text),
        }
    }
}
