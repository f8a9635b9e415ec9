//! The commands of `braid-lab`, one module each. They only read the command line, call the library and print.

mod compare;
mod demo;
mod experiments;
mod fct;
mod search;
mod setting;
mod swarm;
mod testbed;
mod tunnel;

use std::env;
use std::process::ExitCode;

use braid::docs;
use braid::failure::Failure;
use braid::program::{self, BRAID_LAB};
use clap::CommandFactory;

use crate::cli::measure::use_old_backend_option;
use crate::cli::{Cli, Command, KernelPeer};
use crate::{engine_peer, kernel_peer};

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli: Cli = match program::read_arguments(BRAID_LAB) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let measures = matches!(
        cli.command,
        Command::Fct(_)
            | Command::List(_)
            | Command::Run(_)
            | Command::Report(_)
            | Command::Swarm(_)
            | Command::Search(_)
            | Command::Tunnel(_)
    );
    let default_log_filter = if measures {
        // Faults in the lab's worlds are intended, so warnings of their boxes and servers would mislead.
        "error,braid_lab=warn,braid_proxy=off"
    } else {
        "warn,braid::news=info"
    };
    program::start_log(default_log_filter, cli.verbose);
    if measures && use_old_backend_option(env::args_os()) {
        let text = "`--arm` is deprecated and will be removed in the next version; use --backend";
        program::complain(BRAID_LAB, text);
    }
    program::end(BRAID_LAB, run(cli))
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
        Command::Search(args) => search::run(&args, json),
        Command::Tunnel(args) => tunnel::run(&args, json),
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
