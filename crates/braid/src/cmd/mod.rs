//! The commands, one module each.

mod ask;
mod check;
mod key;
mod moved;
mod password;
mod plan;
pub mod serve;

use std::ffi::OsString;

use clap::CommandFactory;

use crate::cli::{Cli, Command, Moved};
use crate::cmd::ask::Output;
use crate::docs;
use crate::failure::Failure;
use crate::program::BRAID;

/// Runs the command.
pub fn run(cli: Cli) -> Result<(), Failure> {
    let global = global_options(cli.json, cli.verbose);
    let moved = |old, new, args: &Moved| moved::run(old, new, global, args);
    let output = Output::new(cli.json, cli.verbose);
    match cli.command {
        Command::Box(args) => serve::box_command(&args, output),
        Command::Server(args) => serve::server_command(&args, output),
        Command::Key(command) => key::run(&command, cli.json),
        Command::Password(args) => password::run(&args, cli.json),
        Command::Plan(args) => plan::run(&args, cli.json),
        Command::Man { directory } => docs::man(Cli::command(), &directory),
        Command::Completions { shell } => docs::completions(&mut Cli::command(), BRAID, shell),
        Command::Demo(args) => moved("demo", "demo", &args),
        Command::Testbed(args) => moved("testbed", "testbed", &args),
        Command::Lab(args) => moved("lab", "", &args),
    }
}

/// Returns the global options as arguments for `braid-lab`, which has the same global options.
fn global_options(json: bool, verbose: u8) -> Vec<OsString> {
    let json = json.then_some("--json").into_iter();
    let verbose = (0..verbose).map(|_| "-v");
    json.chain(verbose).map(OsString::from).collect()
}
