//! Man pages and shell completions, made from the table in [`crate::cli`].

use std::fs;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use super::print::print;
use crate::cli::Cli;
use crate::failure::Failure;

/// Writes `braid.1` and one page for each command into `directory`.
pub fn man(directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(directory).map_err(|e| Failure::run(directory.display(), e))?;
    clap_mangen::generate_to(Cli::command(), directory)
        .map_err(|e| Failure::run(directory.display(), e))
}

/// Prints the completions for `shell`.
pub fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "braid", &mut script);
    print(String::from_utf8_lossy(&script))
}
