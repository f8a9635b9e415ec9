//! The error of a step that sets something up on this machine.

use std::fmt;
use std::io;

/// Result of setting something up on this machine.
pub type Result<T> = std::result::Result<T, SystemError>;

/// An action that the system refused, and its reason. Trying again at once does not help.
#[derive(Debug)]
pub struct SystemError {
    /// The action in words that follow "cannot".
    action: String,
    source: io::Error,
}

impl SystemError {
    /// Returns a function that adds the failed `action` to an error. The action is in words that follow
    /// "cannot".
    pub fn cannot<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> SystemError {
        let action = action.into();
        move |source| SystemError {
            action,
            source: source.into(),
        }
    }

    /// Returns an error that no system call reported, with the failed `action` and the `reason`.
    pub fn other(action: impl Into<String>, reason: impl Into<String>) -> SystemError {
        SystemError {
            action: action.into(),
            source: io::Error::other(reason.into()),
        }
    }

    /// Returns the kind of the underlying error.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

impl fmt::Display for SystemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.action, self.source)
    }
}

// `source()` stays the default, since `Display` already shows the underlying error.
impl std::error::Error for SystemError {}
