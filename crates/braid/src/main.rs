//! The `braid` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    braid::main()
}
