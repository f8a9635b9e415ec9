//! The engine peer: a process that transfers over the engine alone, without box and server. It is the
//! counterpart of [`crate::kernel_peer`] in interoperability tests and benchmarks, with the same arguments and
//! reports. Its links and addresses come from a `box.toml` or a `server.toml`, and are set up as by `braid box`
//! and `braid server`.

mod core;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use braid_engine::Stack;
use braid_linux::run::{AppConfig, Role, Signals, run_app};
use braid_proxy::config::{BoxConfig, ServerConfig};
use braid_wire::Instant;
use serde::Serialize;

pub use core::Transfers;

use crate::cli::EnginePeer;
use crate::kernel_peer::{Cost, print_line};
use braid::failure::Failure;

/// Runs one of the roles.
pub fn run(role: &EnginePeer) -> Result<(), Failure> {
    match role {
        EnginePeer::Connect {
            config,
            address,
            connections,
            in_turn,
            fast_open,
            demotion,
            peer,
        } => {
            let core = Transfers::new("connect", *connections, peer.clone());
            let mut core = core.demoting(*demotion);
            core.again = in_turn.then_some(*address);
            let concurrent = if *in_turn { 1 } else { *connections };
            let config = BoxConfig::load(config)?;
            core.strategy.clone_from(&config.strategy);
            connect(config, *fast_open, *address, concurrent, core)
        }
        EnginePeer::Listen {
            config,
            connections,
            fast_open,
            demotion,
            peer,
        } => {
            let core = Transfers::new("listen", *connections, peer.clone());
            let config = ServerConfig::load(config)?;
            listen(config, *fast_open, core.demoting(*demotion))
        }
    }
}

fn connect(
    config: BoxConfig,
    fast_open: bool,
    address: SocketAddr,
    connections: u32,
    mut core: Transfers,
) -> Result<(), Failure> {
    let app = AppConfig {
        engine: braid_engine::Config {
            fast_open,
            ..config.engine()
        },
        tun: config.tun,
        strategy: config.strategy,
        role: Role::Connect {
            links: config.links,
            servers: vec![address],
        },
    };
    let mut opened = Ok(());
    let start = |now: Instant, stack: &mut Stack| {
        opened = (0..connections).try_for_each(|_| core.connect(now, address, stack));
        if opened.is_err() {
            core.end(now);
        }
        core
    };
    let core = carry_out(&app, start)?;
    opened.map_err(|e| Failure::run(format_args!("cannot connect to {address}"), e))?;
    report(&core)
}

fn listen(config: ServerConfig, fast_open: bool, mut core: Transfers) -> Result<(), Failure> {
    let app = AppConfig {
        engine: braid_engine::Config {
            fast_open,
            ..config.engine()
        },
        tun: config.tun.clone(),
        strategy: config.strategy.clone(),
        role: Role::Listen {
            addresses: config.listen.clone(),
            port: config.port,
            anywhere: true,
            announce: config.announce,
        },
    };
    let mut announced = Ok(());
    let start = |now: Instant, _: &mut Stack| {
        announced = announce(&config);
        if announced.is_err() {
            core.end(now);
        }
        core
    };
    let core = carry_out(&app, start)?;
    announced?;
    report(&core)
}

/// Runs until every connection has ended, or until a signal.
fn carry_out(
    app: &AppConfig,
    start: impl FnOnce(Instant, &mut Stack) -> Transfers,
) -> Result<Transfers, Failure> {
    let signals = Signals::take_over()?;
    let finished = |now: Instant, core: &mut Transfers, _: &mut Stack| core.has_ended(now);
    let ran = run_app(app, start, signals.as_fd(), finished);
    let (core, _) = ran.map_err(|error| Failure::Run(error.to_string()))?;
    Ok(core)
}

fn report(core: &Transfers) -> Result<(), Failure> {
    for report in &core.done {
        print_line(report)?;
    }
    print_line(&Cost::so_far()?)?;
    if core.is_complete() && core.done.iter().all(|report| report.ok) {
        Ok(())
    } else {
        Err(Failure::Run("a transfer failed".to_owned()))
    }
}

/// Prints the addresses once the process listens, for the process that started this one.
fn announce(config: &ServerConfig) -> io::Result<()> {
    #[derive(Serialize)]
    struct Listening {
        listening: Vec<SocketAddr>,
    }
    print_line(&Listening {
        listening: config.endpoints().collect(),
    })
}
