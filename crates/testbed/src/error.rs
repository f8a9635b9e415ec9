//! The errors of a testbed.

use std::io;

use braid::failure::Failure;
use braid_units::ConfigError;

use crate::netns::Reason;

/// The reasons why an operation on a testbed failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The testbed file is wrong.
    #[error(transparent)]
    Spec(#[from] ConfigError),
    /// The testbed has no host of this name; the second field lists the hosts.
    #[error("no host `{0}` in this testbed; its hosts are: {known}", known = .1.join(", "))]
    NoSuchHost(String, Vec<String>),
    /// The testbed has no link of this name; the second field lists the links.
    #[error("no link `{0}` in this testbed; its links are: {known}", known = .1.join(", "))]
    NoSuchLink(String, Vec<String>),
    /// The testbed runs no process on this host; the second field says why.
    #[error("host `{0}` has no process: {1}")]
    NoProcess(String, String),
    /// A value for `set` is wrong.
    #[error("{0}")]
    BadChange(String),
    /// A testbed of this name is already up.
    #[error("testbed `{0}` is already up; take it down first")]
    Busy(String),
    /// No testbed of this name is up.
    #[error("testbed `{0}` is not up; bring it up first")]
    NotUp(String),
    /// This process cannot make network namespaces.
    #[error(transparent)]
    NotCapable(Reason),
    /// A step failed with an error of the operating system.
    #[error("{step}: {source}")]
    System {
        /// The step, for messages.
        step: String,
        /// The system's error.
        source: io::Error,
    },
    /// A wait, a process, a download or the daemon failed; the text describes the failure.
    #[error("{0}")]
    Failed(String),
    /// The wait was interrupted.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Returns the error of a failed step.
    pub(crate) fn system(step: impl Into<String>, source: io::Error) -> Self {
        Error::System {
            step: step.into(),
            source,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Spec(_)
            | Error::NoSuchHost(..)
            | Error::NoSuchLink(..)
            | Error::NoProcess(..)
            | Error::BadChange(_) => Failure::Usage(text),
            _ => Failure::Run(text),
        }
    }
}
