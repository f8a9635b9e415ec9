//! `braid box` and `braid server`.

use std::os::fd::AsFd;
use std::path::Path;

use braid_linux::net::SystemError;
use braid_linux::run::{self, Privileges, READY, Reload, Signals};
use braid_proxy::config::{BoxConfig, ServerConfig};
use braid_proxy::control::Request;
use braid_proxy::status::Role;

use super::ask::{Instance, Output};
use super::check;
use crate::cli::gateway::{BoxArgs, BoxCommand, LinkState, ServerArgs, ServerCommand};
use crate::failure::Failure;
use crate::print::print;

/// Runs `braid box`: starts a box and serves until a signal ends the process, or sends a request to the running
/// box.
pub fn box_command(args: &BoxArgs, output: Output) -> Result<(), Failure> {
    let file = args.config.as_deref();
    // A check comes before `BoxConfig::load`, since the check reports the mistakes of a file that cannot be
    // loaded.
    if let Some(BoxCommand::Check) = &args.command {
        return check::check_box(
            file.ok_or_else(|| no_config("box check"))?,
            output.is_json(),
        );
    }
    let json = output.is_json();
    let config = file.map(BoxConfig::load).transpose()?;
    let Some(command) = &args.command else {
        let file_and_config = file.zip(config.as_ref());
        let (file, config) = file_and_config.ok_or_else(|| no_config("box"))?;
        return run_box(file, config);
    };
    let instance = Instance::of(Role::Box, config.as_ref());
    match command {
        // Handled above, before the configuration is read.
        BoxCommand::Check => Ok(()),
        BoxCommand::Status(args) => instance.show(args, output),
        BoxCommand::Proxy { switch } => {
            let on = switch.is_on();
            instance.execute(&Request::Proxy { on }, json)
        }
        BoxCommand::Link { name, state } => {
            instance.execute(&link_request(name.clone(), *state), json)
        }
        BoxCommand::Servers(args) => instance.show_servers(args, json),
        BoxCommand::Server { name } => {
            let name = name.clone();
            instance.execute(&Request::Server { name }, json)
        }
        BoxCommand::Reload => instance.reload(json),
    }
}

/// Returns the request that sets one of a link's two switches: on/off, or backup/regular.
fn link_request(name: String, state: LinkState) -> Request {
    match state {
        LinkState::On => Request::Link { name, on: true },
        LinkState::Off => Request::Link { name, on: false },
        LinkState::Backup => Request::Backup { name, on: true },
        LinkState::Regular => Request::Backup { name, on: false },
    }
}

/// Runs `braid server`: starts a server and serves until a signal ends the process, or sends a request to the
/// running server.
pub fn server_command(args: &ServerArgs, output: Output) -> Result<(), Failure> {
    let file = args.config.as_deref();
    if let Some(ServerCommand::Check) = &args.command {
        return check::check_server(
            file.ok_or_else(|| no_config("server check"))?,
            output.is_json(),
        );
    }
    let config = file.map(ServerConfig::load).transpose()?;
    let Some(command) = &args.command else {
        let file_and_config = file.zip(config.as_ref());
        let (file, config) = file_and_config.ok_or_else(|| no_config("server"))?;
        return run_server(file, config);
    };
    let socket = config.as_ref().and_then(|c| c.control.as_deref());
    let tun = config.as_ref().map(|c| c.tun.name.as_str());
    let instance = Instance::new(Role::Server, socket, tun);
    match command {
        // Handled above, before the configuration is read.
        ServerCommand::Check => Ok(()),
        ServerCommand::Status(args) => instance.show(args, output),
        ServerCommand::Reload => instance.reload(output.is_json()),
    }
}

/// Returns the failure of `command` without `--config`.
fn no_config(command: &str) -> Failure {
    Failure::Usage(format!(
        "no configuration file is given; write: braid {command} --config FILE"
    ))
}

fn run_box(file: &Path, config: &BoxConfig) -> Result<(), Failure> {
    check::box_may_start(file, config)?;
    let (end, hangup) = Signals::take_over_apart()?;
    let reload = Reload {
        file,
        signal: hangup.as_fd(),
    };
    let ready = || print_ready("box", &config.name);
    // This process does nothing but serve, so it keeps no privilege that serving does not need.
    let privileges = Privileges::GivenUp;
    run::run_box(config, Some(reload), privileges, end.as_fd(), ready).map_err(failure)
}

fn run_server(file: &Path, config: &ServerConfig) -> Result<(), Failure> {
    check::server_may_start(file, config)?;
    let (end, hangup) = Signals::take_over_apart()?;
    let reload = Reload {
        file,
        signal: hangup.as_fd(),
    };
    let ready = || print_ready("server", &config.name);
    let privileges = Privileges::GivenUp;
    run::run_server(config, Some(reload), privileges, end.as_fd(), ready).map_err(failure)
}

/// Prints the line that reports readiness. If it cannot be printed, the process serves its users nevertheless.
fn print_ready(role: &str, name: &str) {
    if let Err(error) = print(format_args!("braid {role} {name}: {READY}\n")) {
        tracing::warn!(%error, "cannot print that the process is ready; it serves its users nevertheless");
    }
}

/// Returns a failure at run time. The configuration has already been checked, so the machine is the cause.
fn failure(error: SystemError) -> Failure {
    Failure::Run(error.to_string())
}
