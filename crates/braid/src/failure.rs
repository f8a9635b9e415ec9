//! The failures of commands, and their exit codes.

use std::fmt;
use std::io;
use std::process::ExitCode;

use braid_proxy::config::ConfigError;

/// A failure as the operator reads it. Its text lacks the name of the program, which `program::end` adds.
#[derive(Debug)]
pub enum Failure {
    /// The command line or a configuration file is wrong; the text names the place and the correction.
    Usage(String),
    /// The work itself failed.
    Run(String),
    /// The command did its work, found problems, and has already printed them. The value is the exit code. Each
    /// command defines its codes (`check` and `status`: 3 for warnings, 4 for failures).
    Found(u8),
}

impl Failure {
    /// Returns 1 if the work failed, 2 for wrong usage (as clap and the shells do), and a command's own code
    /// for findings.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Run(_) => ExitCode::from(1),
            Failure::Usage(_) => ExitCode::from(2),
            Failure::Found(code) => ExitCode::from(*code),
        }
    }

    /// Returns a failure of the work: the step that failed, and the cause.
    pub fn run(step: impl fmt::Display, error: impl fmt::Display) -> Self {
        Failure::Run(format!("{step}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Errors of other crates (TOML, clap) may end with a newline.
            Failure::Usage(text) | Failure::Run(text) => f.write_str(text.trim_end()),
            // The command has printed its findings.
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
