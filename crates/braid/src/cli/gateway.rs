//! The command lines of `braid box` and `braid server`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Arguments of `braid box`.
#[derive(Debug, Args)]
pub struct BoxArgs {
    /// The configuration (TOML) of the box to run, or of the running box to ask. Without it, the box on the
    /// device braid0 is asked.
    #[arg(short, long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// The request to a running box; without one, a box is run.
    #[command(subcommand)]
    pub command: Option<BoxCommand>,
}

/// Requests to a running box.
#[derive(Debug, Subcommand)]
pub enum BoxCommand {
    /// Show what the running box does: links, connections, counters.
    Status(StatusArgs),
    /// Check configuration, machine and links, before a start or beside a running box.
    ///
    /// Prints a verdict on each thing that was checked, and what to do about it. Exit code 0: fine; 3:
    /// warnings; 4: it would not work; 1: it could not be checked, for example by a user other than root.
    /// Opens a connection to each server over each link and sends some pings; takes up to 15 seconds.
    Check,
    /// Switch the whole box: off, new connections are forwarded over one link, not aggregated.
    ///
    /// Connections that are aggregated already keep being served. The switch stays until the next one or a
    /// restart of the box.
    Proxy {
        /// The state to switch to.
        switch: Switch,
    },
    /// Switch a link: off, connections go on over the others, and new ones do not use it; as a backup, it is
    /// used while no other link works.
    ///
    /// This holds for existing and for new connections; only a connection that has fallen back to regular TCP
    /// stays where it is. The switch stays until the next one or a restart of the box, after which the
    /// configuration holds.
    Link {
        /// Name of the link in the configuration; by default the name of the interface.
        name: String,
        /// The state to switch to.
        #[arg(value_name = "STATE")]
        state: LinkState,
    },
    /// Show the servers: free bandwidth and round trip on each link to them and beyond them, and the chosen one.
    Servers(ServersArgs),
    /// Use one server for new connections while it answers; `auto` leaves the choice to the box.
    ///
    /// Existing connections stay where they are. The choice holds until it is changed again or the box is
    /// restarted.
    Server {
        /// Name of the server in the configuration, or auto.
        name: String,
    },
    /// Have the running box read its configuration again, as SIGHUP does.
    ///
    /// Links and servers may come, go and change; rules, lists, timeouts and most limits hold for new
    /// connections. Connections go on: those over a removed link over the others, those to a removed server
    /// where they are. Settings that cannot change while a box runs are named and keep their values. A file
    /// with a mistake, or one that the system refuses, changes nothing.
    Reload,
}

/// Arguments of `braid box servers`.
#[derive(Debug, Args)]
pub struct ServersArgs {
    /// Measure them first, over every link, at any time of day: takes some seconds, and less than 1 % of each
    /// link.
    #[arg(long)]
    pub probe: bool,
}

/// Arguments of `braid server`.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// The configuration (TOML) of the server to run, or of the running server to ask. Without it, the server
    /// on the device braid0 is asked.
    #[arg(short, long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// The request to a running server; without one, a server is run.
    #[command(subcommand)]
    pub command: Option<ServerCommand>,
}

/// Requests to a running server.
#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Show what the running server does: addresses, connections, counters.
    Status(StatusArgs),
    /// Check configuration and machine, before a start or beside a running server.
    ///
    /// Prints a verdict on each thing that was checked, and what to do about it. Exit code 0: fine; 3:
    /// warnings; 4: it would not work; 1: it could not be checked, for example by a user other than root.
    Check,
    /// Have the running server read its configuration again, as SIGHUP does.
    ///
    /// Users who were removed, or have another key, are cut off at once; connections of all others go on.
    /// Lists of destinations, timeouts and most limits hold for new connections. Settings that cannot change
    /// while a server runs are named and keep their values. A file with a mistake changes nothing.
    Reload,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Repeat the status every second until interrupted; with --json, one object a line.
    #[arg(short, long)]
    pub watch: bool,
}

/// The position of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Use it.
    On,
    /// Do not use it.
    Off,
}

/// The state of a link. Backup or regular, and on or off, are two independent switches.
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
