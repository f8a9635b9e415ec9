//! The commands of `braid-lab`, one module each. They only connect the command line with the library: they read
//! arguments, call functions, and print results.

mod compare;
mod demo;
mod experiments;
mod fct;
mod setting;
mod swarm;
mod testbed;

use std::env;
use std::process::ExitCode;

use braid::docs;
use braid::failure::Failure;
use braid::program::{self, BRAID_LAB};
use clap::CommandFactory;

use crate::cli::measure::name_backend_as_before;
use crate::cli::{Cli, Command, KernelPeer};
use crate::{engine_peer, kernel_peer};

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli: Cli = match program::read_arguments(BRAID_LAB) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    program::start_log(default_log_filter(&cli.command), cli.verbose);
    if takes_backend(&cli.command) && name_backend_as_before(env::args_os()) {
        let text = "`--arm` is deprecated and goes with the next version: write --backend";
        program::complain(BRAID_LAB, text);
    }
    program::end(BRAID_LAB, run(cli))
}

/// Returns the log filter of a command, if the environment sets none.
fn default_log_filter(command: &Command) -> &'static str {
    match command {
        // The faults of simulated worlds are intended. Warnings of their boxes and servers would look like
        // real failures.
        Command::Fct(_)
        | Command::List(_)
        | Command::Run(_)
        | Command::Report(_)
        | Command::Swarm(_) => "error,braid_lab=warn,braid_proxy=off",
        _ => "warn,braid::news=info",
    }
}

/// Returns whether a command has the option `--backend`.
fn takes_backend(command: &Command) -> bool {
    matches!(
        command,
        Command::Fct(_) | Command::List(_) | Command::Run(_)
    )
}

/// Runs the command.
fn run(cli: Cli) -> Result<(), Failure> {
    let (json, verbose) = (cli.json, cli.verbose > 0);
    match cli.command {
        Command::Demo(args) => demo::run(&args, json),
        Command::Compare(args) => compare::run(&args, json),
        Command::Testbed(command) => testbed::run(&command, json),
        Command::Fct(args) => fct::run(&args, json),
        Command::List(args) => experiments::list(args.backend, json),
        Command::Run(args) => experiments::run(&args, json),
        Command::Report(args) => experiments::report(&args, json),
        Command::Swarm(args) => swarm::run(&args, json, verbose),
        Command::Man { directory } => docs::man(Cli::command(), &directory),
        Command::Completions { shell } => docs::completions(&mut Cli::command(), BRAID_LAB, shell),
        Command::EnginePeer(role) => engine_peer::run(&role),
        Command::KernelPeer(role) => run_kernel_peer(&role),
    }
}

fn run_kernel_peer(role: &KernelPeer) -> Result<(), Failure> {
    match role {
        KernelPeer::Listen {
            address,
            connections,
            peer,
        } => kernel_peer::listen(*address, *connections, peer),
        KernelPeer::Connect {
            address,
            bind,
            peer,
        } => kernel_peer::connect(*address, *bind, peer),
        KernelPeer::Relay {
            listen,
            to,
            accept,
            connect,
            congestion,
        } => kernel_peer::relay(*listen, *to, (*accept, *connect), congestion),
    }
}
