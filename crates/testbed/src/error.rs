//! The errors of a testbed.

use std::fmt;
use std::io;

use braid::failure::Failure;
use braid_units::ConfigError;

use crate::netns::Reason;

/// The reasons why an operation on a testbed failed.
#[derive(Debug)]
pub enum Error {
    /// The testbed file is wrong.
    Spec(ConfigError),
    /// The testbed has no host of this name; the second field lists the hosts.
    NoSuchHost(String, Vec<String>),
    /// The testbed has no link of this name; the second field lists the links.
    NoSuchLink(String, Vec<String>),
    /// The testbed runs no process on this host; the second field says why.
    NoProcess(String, String),
    /// A value for `set` is wrong.
    BadChange(String),
    /// A testbed of this name is already up.
    Busy(String),
    /// No testbed of this name is up.
    NotUp(String),
    /// This process cannot make network namespaces.
    NotCapable(Reason),
    /// A step failed with an error of the operating system.
    System {
        /// The step, for messages.
        step: String,
        /// The system's error.
        source: io::Error,
    },
    /// The daemon's message.
    Daemon(String),
    /// A wait, a process or a download failed; the text describes the failure.
    Failed(String),
    /// The wait was interrupted.
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Spec(e) => e.fmt(f),
            Error::NoSuchHost(name, known) => {
                write!(
                    f,
                    "no host `{name}` in this testbed; its hosts are: {}",
                    known.join(", ")
                )
            }
            Error::NoSuchLink(name, known) => {
                write!(
                    f,
                    "no link `{name}` in this testbed; its links are: {}",
                    known.join(", ")
                )
            }
            Error::NoProcess(name, why) => write!(f, "host `{name}` has no process: {why}"),
            Error::BadChange(why) => f.write_str(why),
            Error::Busy(name) => {
                write!(f, "testbed `{name}` is already up; take it down first")
            }
            Error::NotCapable(reason) => reason.fmt(f),
            Error::NotUp(name) => write!(f, "testbed `{name}` is not up; bring it up first"),
            Error::System { step, source } => write!(f, "{step}: {source}"),
            Error::Daemon(text) | Error::Failed(text) => f.write_str(text),
            Error::Interrupted => f.write_str("interrupted"),
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

impl From<ConfigError> for Error {
    fn from(e: ConfigError) -> Self {
        Error::Spec(e)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Spec(_)
            | Error::NoSuchHost(..)
            | Error::NoSuchLink(..)
            | Error::NoProcess(..)
            | Error::BadChange(_) => Failure::Usage(error.to_string()),
            Error::Busy(_)
            | Error::NotUp(_)
            | Error::NotCapable(_)
            | Error::System { .. }
            | Error::Daemon(_)
            | Error::Failed(_)
            | Error::Interrupted => Failure::Run(error.to_string()),
        }
    }
}
