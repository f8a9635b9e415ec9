//! `braid box` and `braid server`.

use std::os::fd::AsFd;

use braid_linux::net::SystemError;
use braid_linux::run::{self, Signals};
use braid_proxy::config::{BoxConfig, ServerConfig};

use super::print;
use crate::cli::ConfigArgs;
use crate::failure::Failure;

/// What the first line on standard output says once everything is set up.
pub const READY: &str = "ready";

/// Runs the box until a signal ends it.
pub fn run_box(args: &ConfigArgs) -> Result<(), Failure> {
    let config = BoxConfig::load(&args.config)?;
    let signals = Signals::take_over()?;
    let ready = || tell_ready("box", &config.name);
    run::run_box(&config, signals.as_fd(), ready).map_err(failure)
}

/// Runs the server until a signal ends it.
pub fn run_server(args: &ConfigArgs) -> Result<(), Failure> {
    let config = ServerConfig::load(&args.config)?;
    let signals = Signals::take_over()?;
    let ready = || tell_ready("server", &config.name);
    run::run_server(&config, signals.as_fd(), ready).map_err(failure)
}

/// Whether anybody reads it is no business of a box that serves.
fn tell_ready(role: &str, name: &str) {
    if let Err(error) = print(format_args!("braid {role} {name}: {READY}\n")) {
        tracing::warn!(%error, "going on");
    }
}

fn failure(error: SystemError) -> Failure {
    Failure::Run(error.to_string())
}
