//! The command line of `braid-lab`. `--help`, the man pages and the shell completions are made from it.

pub mod measure;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{Args, Parser, Subcommand};

pub use braid_testbed::kernel_tcp::Transport;

use self::measure::{FctArgs, ListArgs, ReportArgs, RunArgs, SearchArgs, SwarmArgs, TunnelArgs};

/// The laboratory of Braid: the demo, testbeds of emulated links, measurements and experiments.
///
/// Commands that need a box or a server run the program `braid`, found beside this one or in PATH.
#[derive(Debug, Parser)]
#[command(name = "braid-lab", version, arg_required_else_help = true)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// Print results as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Log more: -v for events, -vv for their reasons, -vvv for everything; RUST_LOG overrides it.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Fetch a file over two emulated links in four ways, and compare.
    ///
    /// Builds a user host, a box, two links (20 Mb/s, 30 ms and 10 Mb/s, 70 ms round trip), a
    /// server and an nginx, each in a separate network namespace. Downloads over each link alone,
    /// over both by the kernel's Multipath TCP, and over both through Braid. Needs root or an
    /// unprivileged user namespace.
    Demo(DemoArgs),
    /// Compare what users notice with Braid and with the kernel's Multipath TCP.
    ///
    /// Builds the hosts and links of the demo twice: with box and server, and with relays of kernel
    /// sockets in their place. Both take turns at the same transfers: downloads, a page and an echo
    /// beside a download, small transfers, a download over a link that dies, and many short
    /// connections. Prints the figures side by side. A round takes about a minute and a half. Needs
    /// root and an idle machine.
    Compare(CompareArgs),
    /// Build, use, change and remove a network of namespaces and emulated links.
    #[command(subcommand)]
    Testbed(Testbed),
    /// Measure how long flows take over several paths.
    ///
    /// Transfers flows of the given sizes between two hosts connected by the given paths, many times,
    /// and prints the flow completion time: from the client's first SYN (with --warm-subflows from the
    /// first byte of the transfer) to the last byte. Runs of the same number have the same random numbers for
    /// every strategy. The exit code is 2 for wrong input and 1 if a flow did not complete.
    Fct(FctArgs),
    /// Measure a flow through a tunnel over several paths, and over the best path alone.
    ///
    /// A client fetches from a server: a download over QUIC, a UDP flow of constant rate, or a call. The tunnel
    /// between them carries their packets over the given paths. In mode single there is no tunnel: each path carries
    /// the flow alone, and the path with the highest goodput counts. Prints goodput, one-way delay, and lost and
    /// reordered packets of the flow from server to client. The exit code is 2 for wrong input and 1 if a download
    /// did not complete.
    Tunnel(TunnelArgs),
    /// List the experiments.
    List(ListArgs),
    /// Run experiments and judge whether their claims hold.
    ///
    /// Writes into a directory below --out for each experiment and backend: a JSON file for each case with
    /// every run, the figures as SVG, and the outcome. `braid-lab report` makes pages from them. A claim
    /// that does not hold is a result, not a failure.
    Run(RunArgs),
    /// Make report.html and report.md from the results in a directory.
    ///
    /// Both pages show reported and measured values side by side and the verdicts, with parameters,
    /// seeds and commands. report.html has every table and figure and needs no other file; report.md has
    /// one figure of each result. The same results give the same bytes.
    Report(ReportArgs),
    /// Run random worlds and search for one that violates a rule.
    ///
    /// Each seed defines a topology, middleboxes, faults, sizes and settings. All checks of the simulator are
    /// on. Prints each violation with the command that repeats it; the exit code is then 1. With -v also
    /// prints the world of each seed.
    Swarm(SwarmArgs),
    /// Draw random transfers and search for those in which adaptive is not the fastest.
    ///
    /// In each draw every strategy runs over all paths, and each path runs alone, in the simulator. Rivals that seem
    /// faster than adaptive run again with fresh seeds, and only these runs count. Prints the lost draws, each with
    /// the command that repeats it and the changes that close the gap, and the figures that must hold. The exit
    /// code is 0 if they hold and 3 if one does not.
    Search(SearchArgs),
    /// Write the man pages into a directory.
    Man {
        /// Directory to write into; created if missing.
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

/// Arguments of `braid-lab demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Size of the file, in megabytes (10^6 bytes).
    #[arg(long, default_value_t = 20, value_name = "MB",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub size: u32,
    /// Congestion control of every sender.
    #[arg(long, default_value = "cubic", value_name = "NAME")]
    pub congestion: String,
    /// Strategy of box and server, with settings if wanted.
    #[arg(long, default_value = braid_strategy::DEFAULT, value_name = "NAME")]
    pub strategy: String,
}

/// Arguments of `braid-lab compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Settings of a link, with the keys of `testbed set`. Give this option twice, once for each link.
    #[arg(long = "link", num_args = 1, value_name = "SETTINGS",
          default_values = ["rate=20mbit delay=15ms", "rate=10mbit delay=35ms"])]
    pub links: Vec<String>,
    /// Rounds of measurements.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Congestion control of every sender.
    #[arg(long, default_value = "cubic", value_name = "NAME")]
    pub congestion: String,
}

/// The commands of `braid-lab testbed`.
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
    /// reorder, duplicate, corrupt; also up, down, and restart, which resets the link to its description.
    Set {
        /// The description (TOML).
        file: PathBuf,
        /// The link.
        link: String,
        /// Changes, each KEY=VALUE, or one of the words up, down and restart.
        #[arg(required = true, value_name = "CHANGE")]
        changes: Vec<String>,
    },
    /// Remove everything that the testbed made.
    Down {
        /// The description (TOML).
        file: PathBuf,
    },
    /// Own a running testbed. `up` starts this command in the background.
    #[command(hide = true)]
    Daemon {
        /// The description (TOML).
        file: PathBuf,
    },
}

/// Returns a parser of transports.
fn transport() -> impl TypedValueParser<Value = Transport> {
    measure::one_of([("tcp", Transport::Tcp), ("mptcp", Transport::Mptcp)])
}

/// Arguments of the transfers of a kernel peer or engine peer.
#[derive(Debug, Clone, Args)]
pub struct PeerArgs {
    /// Transport of the socket.
    #[arg(long, default_value = "mptcp", value_parser = transport())]
    pub transport: Transport,
    /// Congestion control (`TCP_CONGESTION`), set on the socket itself.
    #[arg(long, default_value = "cubic")]
    pub congestion: String,
    /// Bytes to send.
    #[arg(long, default_value_t = 0)]
    pub send: u64,
    /// Bytes to expect; any other number is a failure. Without this option, any number is right.
    #[arg(long)]
    pub expect: Option<u64>,
    /// Seed of the bytes sent.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Seed of the bytes expected; the received bytes are compared one by one.
    #[arg(long)]
    pub verify: Option<u64>,
    /// Send one block again and again, and only count the received bytes (for benchmarks).
    #[arg(long, conflicts_with = "verify")]
    pub fast: bool,
    /// Give up after this many seconds without progress.
    #[arg(long, default_value_t = 60)]
    pub stall: u64,
    /// Abort the connection once this many bytes have arrived; for a side with nothing to send.
    #[arg(long, requires = "expect")]
    pub abort: Option<u64>,
}

impl PeerArgs {
    /// Returns whether this side sends nothing and expects bytes. Such a side closes its direction only after
    /// the peer's: once a direction is closed, the kernel admits no further subflow.
    pub fn only_receives(&self) -> bool {
        self.send == 0 && self.expect.is_some_and(|expected| expected > 0)
    }

    /// Returns whether to abort the connection after `received` bytes.
    pub fn aborts_at(&self, received: u64) -> bool {
        self.abort.is_some_and(|abort| received >= abort)
    }
}

/// The roles of the kernel peer.
#[derive(Debug, Subcommand)]
pub enum KernelPeer {
    /// Accept connections, and transfer on each as the arguments say.
    Listen {
        /// Address and port; port 0 takes a free one, printed as the first line.
        address: SocketAddr,
        /// Connections to serve before ending; 0 serves without end.
        #[arg(long, default_value_t = 1)]
        connections: u32,
        /// The data to send and to expect.
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
        /// The data to send and to expect.
        #[command(flatten)]
        peer: PeerArgs,
    },
    /// Relay each accepted connection to another address.
    Relay {
        /// Address and port to listen on.
        listen: SocketAddr,
        /// Address and port to relay to.
        to: SocketAddr,
        /// Transport of the accepted side.
        #[arg(long, default_value = "tcp", value_parser = transport())]
        accept: Transport,
        /// Transport of the connecting side.
        #[arg(long, default_value = "mptcp", value_parser = transport())]
        connect: Transport,
        /// Congestion control of both sides.
        #[arg(long, default_value = "cubic")]
        congestion: String,
    },
}

/// Arguments of the transfers of an engine peer.
#[derive(Debug, Clone, Args)]
pub struct EngineArgs {
    /// Number of connections: to make side by side, or to serve before ending.
    #[arg(long, default_value_t = 1)]
    pub connections: u32,
    /// Send and accept payload in SYNs (TCP Fast Open, RFC 7413). No configuration file can turn this on.
    #[arg(long)]
    pub fast_open: bool,
    /// Make the second path a backup once this many bytes have arrived.
    #[arg(long)]
    pub demote: Option<u64>,
    /// Make the second path a regular path again once this many bytes have arrived.
    #[arg(long, requires = "demote")]
    pub promote: Option<u64>,
    /// The data to send and to expect.
    #[command(flatten)]
    pub peer: PeerArgs,
}

/// The roles of the engine peer. The configuration sets the congestion control.
#[derive(Debug, Subcommand)]
pub enum EnginePeer {
    /// Connect over the links of a `box.toml`, send, receive, report.
    Connect {
        /// The links (TOML).
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// Address and port.
        address: SocketAddr,
        /// Make the connections one after the other.
        #[arg(long)]
        in_turn: bool,
        /// The transfers.
        #[command(flatten)]
        transfers: EngineArgs,
    },
    /// Accept connections at the addresses of a `server.toml`, send, receive, report.
    Listen {
        /// The addresses (TOML).
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
        /// The transfers.
        #[command(flatten)]
        transfers: EngineArgs,
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
        let line = ["braid-lab", "testbed", "exec", "t.toml", "user", "ls", "-l"];
        let cli = Cli::try_parse_from(line).expect("a command with options of its own");
        let Command::Testbed(Testbed::Exec { host, command, .. }) = cli.command else {
            panic!("not parsed as exec");
        };
        assert_eq!(host, "user");
        assert_eq!(command, ["ls", "-l"]);
    }
}
