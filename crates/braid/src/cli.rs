//! The command line. This one table makes `--help`, the man pages and the shell completions.

pub mod gateway;
pub mod lab;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use braid_proxy::socks::Destination;
use braid_secure::keys::PublicKey;
use braid_testbed::kernel_tcp;
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
    /// Fetch a file over two emulated links, four ways, and compare.
    ///
    /// Builds a user host, a box, two links (20 Mb/s, 30 ms and 10 Mb/s, 70 ms round trip), a
    /// server and an nginx in network namespaces of their own; downloads over each link alone,
    /// over both by the kernel's Multipath TCP, and over both through Braid. Needs root.
    Demo(DemoArgs),
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
    /// Build, use, change and remove a network of namespaces and emulated links.
    #[command(subcommand)]
    Testbed(Testbed),
    /// Measure strategies: in a simulator in virtual time, or over emulated links.
    #[command(subcommand)]
    Lab(lab::Lab),
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
    /// Kernel TCP and Multipath TCP sockets as a peer for tests and benchmarks.
    #[command(subcommand, hide = true)]
    KernelPeer(KernelPeer),
    /// Connections of the engine alone as a peer for tests and benchmarks.
    #[command(subcommand, hide = true)]
    EnginePeer(EnginePeer),
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

/// Arguments of `braid demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Size of the file, in megabytes (10^6 bytes).
    #[arg(long, default_value_t = 20, value_name = "MB",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub size: u32,
    /// Congestion control of every sender.
    #[arg(long, default_value = "cubic", value_name = "NAME")]
    pub congestion: String,
}

/// The commands of `braid testbed`.
#[derive(Debug, Subcommand)]
pub enum Testbed {
    /// Build the network that FILE describes and leave it running.
    Up {
        /// The description (TOML).
        file: PathBuf,
    },
    /// Run a command on a host of a running testbed.
    Exec {
        /// The description (TOML).
        file: PathBuf,
        /// The host.
        host: String,
        /// The command and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Show the hosts, the links and their counters.
    Status {
        /// The description (TOML).
        file: PathBuf,
    },
    /// Change a running link, e.g. `set FILE link1 rate=5mbit delay=10ms loss=1% up`.
    ///
    /// Keys are those of a link in the description: rate, trace, delay, jitter, queue, codel, loss,
    /// reorder, duplicate, corrupt; besides up, down, and restart, which begins the link anew.
    Set {
        /// The description (TOML).
        file: PathBuf,
        /// The link.
        link: String,
        /// What to change.
        #[arg(required = true, value_name = "CHANGE")]
        changes: Vec<String>,
    },
    /// Remove everything the testbed made.
    Down {
        /// The description (TOML).
        file: PathBuf,
    },
    /// Hold a testbed in this process; what `up` starts in the background.
    #[command(hide = true)]
    Daemon {
        /// The description (TOML).
        file: PathBuf,
    },
}

/// The transport of a kernel socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// Plain TCP.
    Tcp,
    /// Multipath TCP (`IPPROTO_MPTCP`).
    Mptcp,
}

impl From<Transport> for kernel_tcp::Transport {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Tcp => kernel_tcp::Transport::Tcp,
            Transport::Mptcp => kernel_tcp::Transport::Mptcp,
        }
    }
}

/// What every role of the kernel peer takes.
#[derive(Debug, Clone, Args)]
pub struct PeerArgs {
    /// Transport of the socket.
    #[arg(long, value_enum, default_value_t = Transport::Mptcp)]
    pub transport: Transport,
    /// Congestion control (`TCP_CONGESTION`), set on the socket itself.
    #[arg(long, default_value = "cubic")]
    pub congestion: String,
    /// Bytes to send.
    #[arg(long, default_value_t = 0)]
    pub send: u64,
    /// Bytes to expect; anything else is a failure. Without it, whatever comes until the end.
    #[arg(long)]
    pub expect: Option<u64>,
    /// Seed of the bytes sent.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Seed of the bytes expected: the received bytes are compared one by one.
    #[arg(long)]
    pub verify: Option<u64>,
    /// Send one block again and again, and only count what comes (for benchmarks).
    #[arg(long, conflicts_with = "verify")]
    pub fast: bool,
    /// Give up when a socket makes no progress for so many seconds.
    #[arg(long, default_value_t = 60)]
    pub stall: u64,
    /// Abort the connection once so many bytes have come. For a side with nothing to send.
    #[arg(long, requires = "expect")]
    pub abort: Option<u64>,
}

impl PeerArgs {
    /// Whether this side has nothing to send but something to wait for. It then ends its direction
    /// after the peer's: the kernel lets no subflow join once a direction is closed.
    pub fn only_receives(&self) -> bool {
        self.send == 0 && self.expect.is_some_and(|expected| expected > 0)
    }

    /// Whether the connection is to be aborted after `received` bytes.
    pub fn aborts_at(&self, received: u64) -> bool {
        self.abort.is_some_and(|abort| received >= abort)
    }
}

/// The roles of the kernel peer.
#[derive(Debug, Subcommand)]
pub enum KernelPeer {
    /// Take connections and serve each as the arguments say.
    Listen {
        /// Address and port; port 0 takes a free one, printed as the first line.
        address: SocketAddr,
        /// How many connections to serve before ending; 0 is without end.
        #[arg(long, default_value_t = 1)]
        connections: u32,
        /// What is sent and what is expected.
        #[command(flatten)]
        peer: PeerArgs,
    },
    /// Connect, send, receive, report.
    Connect {
        /// Address and port.
        address: SocketAddr,
        /// Local address to bind.
        #[arg(long)]
        bind: Option<SocketAddr>,
        /// What is sent and what is expected.
        #[command(flatten)]
        peer: PeerArgs,
    },
    /// Relay each accepted connection to another address.
    Relay {
        /// Address and port to listen on.
        listen: SocketAddr,
        /// Where to relay to.
        to: SocketAddr,
        /// Transport of the accepted side.
        #[arg(long, value_enum, default_value_t = Transport::Tcp)]
        accept: Transport,
        /// Transport of the connecting side.
        #[arg(long, value_enum, default_value_t = Transport::Mptcp)]
        connect: Transport,
        /// Congestion control of both sides.
        #[arg(long, default_value = "cubic")]
        congestion: String,
    },
}

/// When the engine peer's second path is a backup.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Demotion {
    /// Make the second path a backup once so many bytes have come.
    #[arg(long)]
    pub demote: Option<u64>,
    /// Make it one no more once so many have come.
    #[arg(long, requires = "demote")]
    pub promote: Option<u64>,
}

/// The roles of the engine peer. The congestion control is that of the configuration.
#[derive(Debug, Subcommand)]
pub enum EnginePeer {
    /// Connect over the links of a `box.toml`, send, receive, report.
    Connect {
        /// The links (TOML).
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// Address and port.
        address: SocketAddr,
        /// How many connections, side by side.
        #[arg(long, default_value_t = 1)]
        connections: u32,
        /// One after the other.
        #[arg(long)]
        in_turn: bool,
        /// Send and take payload in SYNs (TCP Fast Open, RFC 7413), which no configuration turns on.
        #[arg(long)]
        fast_open: bool,
        /// What becomes of the second path.
        #[command(flatten)]
        demotion: Demotion,
        /// What is sent and what is expected.
        #[command(flatten)]
        peer: PeerArgs,
    },
    /// Take connections at the addresses of a `server.toml`, send, receive, report.
    Listen {
        /// The addresses (TOML).
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// How many connections to serve before ending.
        #[arg(long, default_value_t = 1)]
        connections: u32,
        /// Send and take payload in SYNs (TCP Fast Open, RFC 7413), which no configuration turns on.
        #[arg(long)]
        fast_open: bool,
        /// What becomes of the second path.
        #[command(flatten)]
        demotion: Demotion,
        /// What is sent and what is expected.
        #[command(flatten)]
        peer: PeerArgs,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_table_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn exec_hands_options_on_to_the_command() {
        let cli = Cli::try_parse_from(["braid", "testbed", "exec", "t.toml", "user", "ls", "-l"])
            .expect("a command with options of its own");
        let Command::Testbed(Testbed::Exec { host, command, .. }) = cli.command else {
            panic!("not parsed as exec");
        };
        assert_eq!(host, "user");
        assert_eq!(command, ["ls", "-l"]);
    }
}
