//! One module a command.

pub mod demo;
pub mod docs;
pub mod lab;
pub mod render;
pub mod serve;
pub mod testbed;

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

use crate::cli::{Cli, Command, KernelPeer};
use crate::engine_peer;
use crate::failure::Failure;
use crate::kernel_peer;

/// Runs the command.
pub fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Demo(args) => demo::run(&args, cli.json),
        Command::Box(args) => serve::run_box(&args),
        Command::Server(args) => serve::run_server(&args),
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

/// Prints a result for machines.
fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Failure::run("cannot write the result as JSON", e))?;
    print(format_args!("{text}\n"))
}

/// Prints a result. That nobody reads it to the end (`| head`) is no failure.
fn print(text: impl Display) -> Result<(), Failure> {
    print_to(&mut io::stdout().lock(), text)
}

fn print_to(to: &mut impl Write, text: impl Display) -> Result<(), Failure> {
    match write!(to, "{text}").and_then(|()| to.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::run("cannot write the result", e))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is() {
        assert!(print_to(&mut Failing(io::ErrorKind::BrokenPipe), "text").is_ok());
        let full = print_to(&mut Failing(io::ErrorKind::StorageFull), "text");
        assert!(matches!(full, Err(Failure::Run(_))));
    }
}
