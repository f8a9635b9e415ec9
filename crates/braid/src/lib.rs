//! The `braid` command as a library: what it shares with `braid-lab`, and what its tests use. It reads the
//! command line, hands over to the crates that do the work, and prints what they answer.

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
    // What users feel of links and servers is said, well or not.
    program::start_log("warn,braid::news=info", cli.verbose);
    program::end(BRAID, cmd::run(cli))
}
