//! A peer that runs the engine without box and server: the counterpart of [`crate::kernel_peer`] in
//! interoperability tests and benchmarks. It takes the same arguments and prints the same reports. Its links
//! and addresses come from a `box.toml` or `server.toml`. The peer sets them up as `braid box` and `braid
//! server` do.

mod core;

use std::os::fd::AsFd;

use braid_engine::{Config, Stack};
use braid_linux::run::{AppConfig, Role, Signals, run_app};
use braid_proxy::config::{BoxConfig, ServerConfig};
use braid_wire::Instant;
use serde_json::json;

use self::core::Transfers;

use crate::cli::EnginePeer;
use crate::kernel_peer::{self, print_line};
use braid::failure::Failure;

/// Runs one of the roles.
pub fn run(role: &EnginePeer) -> Result<(), Failure> {
    match role {
        EnginePeer::Connect {
            config,
            address,
            in_turn,
            transfers,
        } => {
            let config = BoxConfig::load(config)?;
            let mut core = Transfers::new("connect", transfers.clone());
            core.again = in_turn.then_some(*address);
            core.strategy.clone_from(&config.strategy);
            let app = AppConfig {
                engine: Config {
                    fast_open: transfers.fast_open,
                    ..config.engine()
                },
                tun: config.tun,
                strategy: config.strategy,
                role: Role::Connect {
                    links: config.links,
                    servers: vec![*address],
                },
            };
            let first_connections = if *in_turn { 1 } else { transfers.connections };
            run_transfers(&app, core, |now, core, stack| {
                let opened =
                    (0..first_connections).try_for_each(|_| core.connect(now, *address, stack));
                opened.map_err(|e| Failure::run(format_args!("cannot connect to {address}"), e))
            })
        }
        EnginePeer::Listen { config, transfers } => {
            let config = ServerConfig::load(config)?;
            let core = Transfers::new("listen", transfers.clone());
            let endpoints: Vec<_> = config.endpoints().collect();
            let app = AppConfig {
                engine: Config {
                    fast_open: transfers.fast_open,
                    ..config.engine()
                },
                tun: config.tun,
                strategy: config.strategy,
                role: Role::Listen {
                    addresses: config.listen,
                    port: config.port,
                    anywhere: true,
                    announce: config.announce,
                },
            };
            // The process that started this one waits for the line.
            run_transfers(&app, core, |_, _, _| {
                Ok(print_line(&json!({ "listening": endpoints }))?)
            })
        }
    }
}

/// Calls `begin`, runs until every connection has ended or a signal came, and reports.
fn run_transfers(
    app: &AppConfig,
    mut core: Transfers,
    begin: impl FnOnce(Instant, &mut Transfers, &mut Stack) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut begun = Ok(());
    let start = |now: Instant, stack: &mut Stack| {
        begun = begin(now, &mut core, stack);
        // The error is returned after the driver has stopped in order.
        if begun.is_err() {
            core.end = Some(now);
        }
        core
    };
    let signals = Signals::take_over()?;
    let finished =
        |now: Instant, core: &mut Transfers, _: &mut Stack| core.end.is_some_and(|end| end <= now);
    let ran = run_app(app, start, signals.as_fd(), finished);
    let (core, _) = ran.map_err(|error| Failure::Run(error.to_string()))?;
    begun?;
    for report in &core.done {
        print_line(report)?;
    }
    kernel_peer::finish(core.is_complete() && core.done.iter().all(|report| report.ok))
}
