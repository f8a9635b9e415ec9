//! Man pages and shell completions, generated from the clap definition of a program's command line.

use std::fs;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

use crate::failure::Failure;
use crate::print::print;

/// Writes a man page for `program` and one for each of its commands into `directory`.
pub fn man(program: Command, directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(directory).map_err(|e| Failure::run(directory.display(), e))?;
    clap_mangen::generate_to(program, directory).map_err(|e| Failure::run(directory.display(), e))
}

/// Prints the completions of the program `name` for `shell`.
pub fn completions(program: &mut Command, name: &str, shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, program, name, &mut script);
    print(String::from_utf8_lossy(&script))
}
