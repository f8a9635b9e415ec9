//! The `braid-lab` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    braid_lab::command::main()
}
