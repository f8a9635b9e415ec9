//! The command lines of `braid box` and `braid server`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Arguments of `braid box`.
#[derive(Debug, Args)]
pub struct BoxArgs {
    /// The configuration (TOML) of the box to start, or of the running box to ask. Without it, requests go to
    /// the box on the device braid0.
    #[arg(short, long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// The request to a running box. Without one, a box is started.
    #[command(subcommand)]
    pub command: Option<BoxCommand>,
}

/// Requests to a running box.
#[derive(Debug, Subcommand)]
pub enum BoxCommand {
    /// Show what the running box does: links, connections, counters.
    ///
    /// --verbose adds the measurements of the servers if there are several, the MP score of each link, and the
    /// class and redundancy degree (alpha) of each connection. --json prints all values.
    Status(StatusArgs),
    /// Check configuration, machine and links, before a start or beside a running box.
    ///
    /// Prints a verdict for each check, and the remedy for each problem. Exit code 0: no problem; 3: warnings;
    /// 4: the box would not work; 1: a check could not be done, for example because the user is not root.
    /// Opens a connection to each server over each link and sends some pings; takes up to 15 seconds.
    Check,
    /// Switch aggregation on or off for new connections. While it is off, they are forwarded over one link.
    ///
    /// Existing connections stay aggregated. The switch holds until it is changed again or the box is
    /// restarted.
    Proxy {
        /// The state to switch to.
        switch: Switch,
    },
    /// Switch a link on or off, or make it a backup, which is used while no other link works.
    ///
    /// The switch acts on new and on existing connections: a connection over a link that is switched off
    /// continues over the other links. A connection that has fallen back to regular TCP stays on its link. The
    /// switch holds until it is changed again, or until the box is restarted and follows its configuration.
    Link {
        /// Name of the link in the configuration; by default the name of the interface.
        name: String,
        /// The state to switch to.
        #[arg(value_name = "STATE")]
        state: LinkState,
    },
    /// Show the servers with bandwidth and round trip over each link and at their egress, and the chosen server.
    ///
    /// The columns have the names of the T-MPTCP paper: B_1 and D_1 are the free bandwidth and the round trip
    /// time over the first link of the configuration, B_2 and D_2 over the second, B_s and D_s from the server
    /// to destinations.
    Servers(ServersArgs),
    /// Use one server for new connections while it answers; `auto` leaves the choice to the box.
    ///
    /// Existing connections stay with their server. The choice holds until it is changed again or the box is
    /// restarted.
    Server {
        /// Name of the server in the configuration, or auto.
        name: String,
    },
    /// Have the running box read its configuration again, as SIGHUP does.
    ///
    /// Links and servers may be added, removed and changed; rules, lists, timeouts and most limits apply to new
    /// connections. Existing connections continue: those over a removed link use the other links, and those
    /// to a removed server stay with that server. Settings that cannot change while a box runs keep their
    /// values and are named in the output. If the file has a mistake, or the operating system rejects a
    /// setting, nothing changes.
    Reload,
}

/// Arguments of `braid box servers`.
#[derive(Debug, Args)]
pub struct ServersArgs {
    /// Measure the servers over every link before showing them. The measurement takes some seconds and uses at
    /// most 1 % of each link's capacity.
    #[arg(long)]
    pub probe: bool,
}

/// Arguments of `braid server`.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// The configuration (TOML) of the server to start, or of the running server to ask. Without it, requests
    /// go to the server on the device braid0.
    #[arg(short, long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// The request to a running server. Without one, a server is started.
    #[command(subcommand)]
    pub command: Option<ServerCommand>,
}

/// Requests to a running server.
#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Show what the running server does: addresses, connections, counters.
    ///
    /// --verbose adds the MP score of each address, and the class and redundancy degree (alpha) of each
    /// connection. --json prints all values.
    Status(StatusArgs),
    /// Check configuration and machine, before a start or beside a running server.
    ///
    /// Prints a verdict for each check, and the remedy for each problem. Exit code 0: no problem; 3: warnings;
    /// 4: the server would not work; 1: a check could not be done, for example because the user is not root.
    Check,
    /// Have the running server read its configuration again, as SIGHUP does.
    ///
    /// The connections of users who were removed, or whose key has changed, end at once; all others go on.
    /// Lists of destinations, timeouts and most limits apply to new connections. Settings that cannot change
    /// while a server runs keep their values and are named in the output. A file with a mistake changes
    /// nothing.
    Reload,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Repeat the status every second until interrupted; with --json, print one object per line.
    #[arg(short, long)]
    pub watch: bool,
}

/// The position of an on/off switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Use it.
    On,
    /// Do not use it.
    Off,
}

/// The state of a link. The switches on/off and backup/regular are independent: each value sets one of them
/// and keeps the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LinkState {
    /// Use it.
    On,
    /// Do not use it.
    Off,
    /// Use it while no other link works.
    Backup,
    /// Use it beside the others, no longer as a backup.
    Regular,
}

impl Switch {
    /// Returns whether the switch is on.
    pub fn is_on(self) -> bool {
        self == Switch::On
    }
}
