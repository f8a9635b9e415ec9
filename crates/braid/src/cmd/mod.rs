//! One module a command.

mod ask;
mod check;
pub mod demo;
pub mod docs;
mod key;
pub mod lab;
mod password;
mod plan;
mod print;
pub mod serve;
pub mod testbed;

use crate::cli::{Cli, Command, KernelPeer};
use crate::engine_peer;
use crate::failure::Failure;
use crate::kernel_peer;

/// Runs the command.
pub fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Demo(args) => demo::run(&args, cli.json),
        Command::Box(args) => serve::boxed(&args, cli.json),
        Command::Server(args) => serve::server(&args, cli.json),
        Command::Key(command) => key::run(&command, cli.json),
        Command::Password(args) => password::run(&args, cli.json),
        Command::Plan(args) => plan::run(&args, cli.json),
        Command::Testbed(command) => testbed::run(&command, cli.json),
        Command::Lab(command) => lab::run(&command, cli.json, cli.verbose > 0),
        Command::Man { directory } => docs::man(&directory),
        Command::Completions { shell } => docs::completions(shell),
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
