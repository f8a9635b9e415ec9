//! The command line. This one table makes `--help`, the man pages and the shell completions.

pub mod gateway;

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use braid_proxy::socks::Destination;
use braid_secure::keys::PublicKey;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Join several access links into one fast, steady connection.
///
/// A box at the users' side and a server on the Internet speak Multipath TCP (RFC 8684) with each
/// other over every access link at once; hosts behind the box need not know of it.
#[derive(Debug, Parser)]
#[command(name = "braid", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Print results as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Log more: -v what happens, -vv why, -vvv everything. RUST_LOG overrides it.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the aggregation box: take the local network's TCP and join the access links.
    Box(gateway::BoxArgs),
    /// Run the aggregation server: the far end of the box's connections.
    Server(gateway::ServerArgs),
    /// Make and show the keys of boxes, servers and clients.
    #[command(subcommand)]
    Key(Key),
    /// Print a password for one connection of a program that speaks SOCKS5 to a server itself.
    ///
    /// The server must have `unprotected = true`. It is good once, for this destination, as long as the
    /// server's `time_window` says, and stands behind the user it is for and a colon:
    /// `curl --proxy socks5h://SERVER:1080 --proxy-user "$(braid password --key FILE --server-key KEY HOST:PORT)" …`
    Password(PasswordArgs),
    /// Say which servers to rent, by what boxes measured: the first, which helps most beside it, …
    Plan(PlanArgs),
    /// Write the man pages into a directory.
    Man {
        /// Where to write; it is created.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Print the completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Deprecated: the command `demo` of `braid-lab`.
    #[command(hide = true, disable_help_flag = true)]
    Demo(Moved),
    /// Deprecated: the command `testbed` of `braid-lab`.
    #[command(hide = true, disable_help_flag = true)]
    Testbed(Moved),
    /// Deprecated: the program `braid-lab`.
    #[command(hide = true, disable_help_flag = true)]
    Lab(Moved),
}

/// The commands of `braid key`. A private key stays in its file, and who has that file is who its
/// public key says.
#[derive(Debug, Subcommand)]
pub enum Key {
    /// Write a new private key to a file, and print its public key.
    ///
    /// The public key is for the configuration of the other end: a box's for the `[[user]]` of its
    /// servers, a server's for the `[[server]]` of its boxes.
    New {
        /// Where to write the private key. A file that is there is left alone.
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
    /// Where the connection leads, as the program asks for it: HOST:PORT. A name where the server
    /// looks it up (curl's socks5h), else an address.
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
    /// What each box measured: the output of `braid box servers --json`, or TOML with a `[[server]]`
    /// each (name, paths, beyond). Without any, the box that runs is asked.
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The configuration of the running box; without it, the one on the device braid0 is asked.
    #[arg(short, long, value_name = "FILE", conflicts_with = "files")]
    pub config: Option<PathBuf>,
    /// What matters.
    #[arg(long, value_enum, default_value_t = By::Bandwidth)]
    pub by: By,
    /// How many to show at most.
    #[arg(long, value_name = "N")]
    pub count: Option<NonZeroUsize>,
}

/// What matters in a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Most bytes in little time.
    Bandwidth,
    /// The shortest round trip.
    Delay,
}

/// Arguments of a command that has moved to `braid-lab`. Options that every command of `braid` takes and that
/// stand before the first other argument are not among them.
#[derive(Debug, Args)]
pub struct Moved {
    /// What `braid-lab` is told.
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
    fn the_table_is_consistent() {
        Cli::command().debug_assert();
    }
}
