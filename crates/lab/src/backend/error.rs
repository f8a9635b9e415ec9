//! Errors of runs.

use std::fmt;

use braid::failure::Failure;

/// The reason why a case could not be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The case has an invalid setting. The text is one line with the value and the expected values.
    Usage(String),
    /// The run failed.
    Run(String),
    /// The machine was too busy to measure reliably in every attempt.
    Busy(String),
    /// A program that the run needs is not installed. The text is one line with its name.
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

/// Any other error makes the run fail. This conversion is possible because [`Error`] itself does not implement
/// [`std::error::Error`].
impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        run_error(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Usage(text) => Failure::Usage(text),
            Error::Run(text) | Error::Busy(text) | Error::Missing(text) => Failure::Run(text),
        }
    }
}

/// Returns the error of a run that failed for this reason.
pub(crate) fn run_error(error: impl fmt::Display) -> Error {
    Error::Run(error.to_string())
}
