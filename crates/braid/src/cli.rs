//! The command line of `braid`, declared with clap. Its help, man pages and shell completions are generated
//! from these types, so each doc comment here is a text for operators.

pub mod gateway;

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use braid_proxy::socks::Destination;
use braid_secure::keys::PublicKey;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Aggregate several access links into one fast, steady connection.
///
/// A box at the users' side and a server on the Internet speak Multipath TCP (RFC 8684) with each other over
/// all access links at once; hosts behind the box need not support it.
#[derive(Debug, Parser)]
#[command(name = "braid", version, arg_required_else_help = true)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// Print results as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Log more: -v for events, -vv for their reasons, -vvv for everything; RUST_LOG overrides it. With -v,
    /// `status` also shows the values by which strategies decide.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the aggregation box: intercept the local network's TCP and aggregate the access links.
    Box(gateway::BoxArgs),
    /// Run the aggregation server: the peer of boxes' connections.
    Server(gateway::ServerArgs),
    /// Make and show the keys of boxes, servers and clients.
    #[command(subcommand)]
    Key(Key),
    /// Print a password for one connection of a program that speaks SOCKS5 directly to a server, without a
    /// box.
    ///
    /// The server must have `unprotected = true`. The password works once, for this destination, within the
    /// server's `time_window`. It is printed after the user's name and a colon: `curl --proxy
    /// socks5h://SERVER:1080 --proxy-user "$(braid password --key FILE --server-key KEY HOST:PORT)" …`
    Password(PasswordArgs),
    /// Rank servers by the measurements of boxes, to decide which ones to rent.
    ///
    /// The best server comes first. Each further place goes to the server that improves the servers above it
    /// the most.
    Plan(PlanArgs),
    /// Write the man pages into a directory.
    Man {
        /// The directory to write to. It is created if it does not exist.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Print the completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Deprecated: the command `demo` of `braid-lab`.
    // `--help` is not parsed here, so that it reaches `braid-lab`; likewise for the other moved commands.
    #[command(hide = true, disable_help_flag = true)]
    Demo(Moved),
    /// Deprecated: the command `testbed` of `braid-lab`.
    #[command(hide = true, disable_help_flag = true)]
    Testbed(Moved),
    /// Deprecated: the program `braid-lab`.
    #[command(hide = true, disable_help_flag = true)]
    Lab(Moved),
}

/// The commands of `braid key`. A private key never leaves its file; peers know the holder by the public key.
#[derive(Debug, Subcommand)]
pub enum Key {
    /// Write a new private key to a file, and print its public key.
    ///
    /// The public key belongs in the configuration of the peer: a box's in a `[[user]]` of its servers, a
    /// server's in a `[[server]]` of its boxes.
    New {
        /// The file for the private key. An existing file is never overwritten.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print the public key of the private key in a file.
    Show {
        /// The file that holds the private key.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Arguments of `braid password`.
#[derive(Debug, Args)]
pub struct PasswordArgs {
    /// The destination of the connection as the program requests it: HOST:PORT. HOST is a name if the server
    /// resolves it (curl's socks5h), otherwise an address.
    #[arg(value_name = "HOST:PORT")]
    pub destination: Destination,
    /// The file that holds the private key of the user; its public key is in the server's
    /// configuration.
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// The public key of the server.
    #[arg(long, value_name = "KEY")]
    pub server_key: PublicKey,
}

/// Arguments of `braid plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// One file of measurements for each box: the output of `braid box servers --json`, or TOML with a table
    /// `[[server]]` (name, paths, beyond) for each server. Without a file, the running box is asked.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The configuration of the running box. Without it, the box on the device braid0 is asked.
    #[arg(short, long, value_name = "FILE", conflicts_with = "files")]
    pub config: Option<PathBuf>,
    /// The property to rank by.
    #[arg(long, value_enum, default_value_t = By::Bandwidth)]
    pub by: By,
    /// The maximum number of servers to show.
    #[arg(long, value_name = "N")]
    pub count: Option<NonZeroUsize>,
}

/// The property of a server to rank by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Bandwidth: the largest throughput.
    Bandwidth,
    /// Delay: the shortest round trip.
    Delay,
}

/// Arguments of a command that has moved to `braid-lab`. clap parses the global options (`--json`, `-v`) that
/// stand before the first other argument; all later arguments are kept here as they are.
#[derive(Debug, Args)]
pub struct Moved {
    /// The arguments for `braid-lab`.
    #[arg(
        value_name = "ARGUMENT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub arguments: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
