//! The `braid` command as a library, so that `braid-lab` and the tests can use its parts. The command parses
//! its arguments, calls the crates that do the work, and prints their results.

pub mod cli;
pub mod cmd;
pub mod docs;
pub mod failure;
pub mod print;
pub mod program;

use std::process::ExitCode;

use crate::cli::Cli;
use crate::program::BRAID;

/// Runs the command that the arguments of this process name, and returns its exit code.
pub fn main() -> ExitCode {
    let cli: Cli = match program::read_arguments(BRAID) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    // Users notice when a link or server fails or returns, so this news is logged at level info by default.
    program::start_log("warn,braid::news=info", cli.verbose);
    program::end(BRAID, cmd::run(cli))
}
