//! The command lines of `braid box` and `braid server`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Arguments of `braid box`.
#[derive(Debug, Args)]
pub struct BoxArgs {
    /// The configuration (TOML): of the box to run, or of the one that runs and is asked. Without
    /// it, the one on the device braid0 is asked.
    #[arg(short, long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// What to ask of a running box; without it, a box is run.
    #[command(subcommand)]
    pub command: Option<BoxCommand>,
}

/// What may be asked of a running box.
#[derive(Debug, Subcommand)]
pub enum BoxCommand {
    /// Show what the running box does: links, connections, counters.
    Status(StatusArgs),
    /// Check configuration, machine and links, before a start or beside a running box.
    ///
    /// Prints a verdict for each thing that was looked at and what to do about it. Exit code 0: fine; 3:
    /// warnings; 4: it would not work; 1: it could not be checked, as by another user than root. Opens a
    /// connection to each server over each link and sends some pings; takes up to 15 seconds.
    Check,
    /// Switch the whole box: off, new connections are forwarded over one link, unjoined.
    ///
    /// Connections that were taken in before keep being served. It stays switched until it is
    /// switched again or the box is restarted.
    Proxy {
        /// The wish.
        switch: Switch,
    },
    /// Switch a link: off, connections go on over the others, and nothing new goes there; as a
    /// backup, it is used while no other works.
    ///
    /// That goes for connections that are there and for new ones; only one that has fallen back to
    /// regular TCP stays where it is. It stays so until it is switched again or the box is restarted:
    /// then the configuration holds.
    Link {
        /// Name of the link in the configuration, which is that of the interface by default.
        name: String,
        /// The wish.
        #[arg(value_name = "WISH")]
        wish: LinkWish,
    },
    /// Show the servers: what is free on each link to them and beyond them, how long it takes, and
    /// which is chosen.
    Servers(ServersArgs),
    /// Use one server for new connections while it answers; `auto` leaves the choice to the box.
    ///
    /// Connections that are there go on where they are. It stays so until it is changed again or
    /// the box is restarted.
    Server {
        /// Name of the server in the configuration, or auto.
        name: String,
    },
    /// Have the running box read its configuration again, as SIGHUP does.
    ///
    /// Links and servers come, go and change; rules, lists, timeouts and most limits hold for what begins
    /// from then on. Connections go on: those over a link that is gone over the others, those to a server
    /// that is gone where they are. What cannot change while a box runs is named, and stays as it was. A
    /// file with a mistake, or one that the system refuses, changes nothing.
    Reload,
}

/// Arguments of `braid box servers`.
#[derive(Debug, Args)]
pub struct ServersArgs {
    /// Measure them first, over every link, whatever the time of the day: takes some seconds, and
    /// less than 1 % of each link.
    #[arg(long)]
    pub probe: bool,
}

/// Arguments of `braid server`.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// The configuration (TOML): of the server to run, or of the one that runs and is asked. Without
    /// it, the one on the device braid0 is asked.
    #[arg(short, long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// What to ask of a running server; without it, a server is run.
    #[command(subcommand)]
    pub command: Option<ServerCommand>,
}

/// What may be asked of a running server.
#[derive(Debug, Subcommand)]
pub enum ServerCommand {
    /// Show what the running server does: addresses, connections, counters.
    Status(StatusArgs),
    /// Check configuration and machine, before a start or beside a running server.
    ///
    /// Prints a verdict for each thing that was looked at and what to do about it. Exit code 0: fine; 3:
    /// warnings; 4: it would not work; 1: it could not be checked, as by another user than root.
    Check,
    /// Have the running server read its configuration again, as SIGHUP does.
    ///
    /// Users who are no more, or have another key, are cut off at once; what all others have goes on.
    /// Lists of destinations, timeouts and most limits hold for what begins from then on. What cannot
    /// change while a server runs is named, and stays as it was. A file with a mistake changes nothing.
    Reload,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Show it again every second until interrupted; with --json, an object a line.
    #[arg(short, long)]
    pub watch: bool,
}

/// The position of a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Use it.
    On,
    /// Do not.
    Off,
}

/// How a link is to be used. Whether it is a backup and whether it is used at all are two switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LinkWish {
    /// Use it.
    On,
    /// Do not.
    Off,
    /// Use it while no other link works.
    Backup,
    /// Use it beside the others: no backup any more.
    Regular,
}

impl Switch {
    /// Whether it is on.
    pub fn is_on(self) -> bool {
        self == Switch::On
    }
}
