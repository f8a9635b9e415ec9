//! The failures of commands, and their exit codes.

use std::fmt;
use std::io;
use std::process::ExitCode;

use braid_proxy::config::ConfigError;

/// A failure as the user sees it: one line, without the name of the program.
#[derive(Debug)]
pub enum Failure {
    /// The command line or a configuration file is wrong; the text names the place and the correction.
    Usage(String),
    /// The work itself failed.
    Run(String),
    /// The work is done, and the result is bad. The exit code tells how bad.
    Found(u8),
}

impl Failure {
    /// Returns 1 if the work failed, 2 for wrong usage, and a command's own code otherwise.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Run(_) => ExitCode::from(1),
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Found(code) => ExitCode::from(*code),
        }
    }

    /// Returns a failure of the work, with the step that failed.
    pub fn run(what: impl fmt::Display, error: impl fmt::Display) -> Self {
        Failure::Run(format!("{what}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(text) | Failure::Run(text) => f.write_str(text.trim_end()),
            Failure::Found(_) => Ok(()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Run(error.to_string())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure::Usage(error.to_string())
    }
}
