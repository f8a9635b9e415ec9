//! The `braid` command as a library: the parts that it shares with `braid-lab`, and those that its tests use.
//! It parses the command line, calls the crates that do the work, and prints their results.

pub mod cli;
pub mod cmd;
pub mod docs;
pub mod failure;
pub mod print;
pub mod program;

use std::process::ExitCode;

use crate::cli::Cli;
use crate::program::BRAID;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli: Cli = match program::read_arguments(BRAID) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    // News of links and servers are logged at the default level too, since users notice these changes.
    program::start_log("warn,braid::news=info", cli.verbose);
    program::end(BRAID, cmd::run(cli))
}
