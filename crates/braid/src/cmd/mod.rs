//! One module a command.

mod docs;

use crate::cli::{Cli, Command, KernelPeer};
use crate::failure::Failure;
use crate::kernel_peer;

/// Runs the command.
pub fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Demo(_) | Command::Box(_) | Command::Server(_) | Command::Testbed(_) => {
            Err(Failure::Run("not built into this version yet".to_owned()))
        }
        Command::Man { directory } => docs::man(&directory),
        Command::Completions { shell } => docs::completions(shell),
        Command::KernelPeer(role) => match role {
            KernelPeer::Listen {
                address,
                connections,
                peer,
            } => kernel_peer::listen(address, connections, &peer),
            KernelPeer::Connect {
                address,
                bind,
                peer,
            } => kernel_peer::connect(address, bind, &peer),
            KernelPeer::Relay {
                listen,
                to,
                accept,
                connect,
                congestion,
            } => kernel_peer::relay(listen, to, (accept, connect), &congestion),
        },
    }
}
