//! The aggregation server.

use std::os::fd::BorrowedFd;

use braid_proxy::ServerCore;
use braid_proxy::config::ServerConfig;
use braid_wire::Instant;

use super::inward::{Inward, InwardPaths};
use super::process::{
    CONTROL, LINKS, SETTLING_TIME, WALL_CLOCK_INTERVAL, new_stack, open_control,
    raise_descriptor_limit, serve, since_epoch,
};
use super::quotes;
use crate::control::ControlSocket;
use crate::driver::{Clock, Context, Driver, Host};
use crate::net::Result;
use crate::net::links::Links;
use crate::nft::Mapping;
use crate::sockets::Limits;

/// Runs the server until `stop` is readable; `started` is called once it works.
///
/// # Errors
/// Where the system refuses what the server needs; everything is put back then.
pub fn run_server(
    config: &ServerConfig,
    stop: BorrowedFd<'_>,
    started: impl FnOnce(),
) -> Result<()> {
    raise_descriptor_limit(config.limits.connections);
    let inward = Inward {
        tun: &config.tun,
        listen: &config.listen,
        port: config.port,
        anywhere: false,
        announce: config.announce,
    };
    let mut engine = config.engine();
    let paths = inward.set_up(&mut engine)?;
    let mut stack = new_stack(engine, &config.strategy)?;
    paths.listen(config.port, &mut stack)?;
    let InwardPaths {
        tun, device, links, ..
    } = paths;

    let clock = Clock::new();
    let host = ServerHost {
        control: open_control(config.control.as_deref(), "server", device.identity()),
        mappings: inward.mappings(),
        links,
        refresh_at: Some(Instant::ZERO),
        wall_clock_at: clock.now() + WALL_CLOCK_INTERVAL,
    };
    let mut core = ServerCore::new(config);
    core.set_wall_clock(clock.now(), since_epoch());
    let limits = Limits {
        streams: config.limits.connections,
        connect_timeout: config.timeouts.connect,
    };
    let mut driver = Driver::new(clock, tun, stack, core, host, limits)?;
    device.apply_rules(inward.rules())?;
    tracing::info!(name = config.name, port = config.port, "server is up");
    if config.unprotected {
        tracing::warn!("boxes and programs are served in clear too, where they ask for that");
    }
    started();
    serve(&mut driver, &config.name, stop)
}

/// What surrounds the core: this machine's addresses and the wall clock.
#[derive(Debug)]
struct ServerHost {
    control: Option<ControlSocket>,
    mappings: Vec<Mapping>,
    links: Links,
    refresh_at: Option<Instant>,
    wall_clock_at: Instant,
}

impl ServerHost {
    fn refresh(&mut self, context: &mut Context<'_, ServerCore>) {
        let own = match self.links.refresh() {
            Ok(_) => self.links.netlink().addresses(),
            Err(error) => Err(std::io::Error::other(error.to_string())),
        };
        match own {
            Ok(own) => context
                .core
                .set_own_addresses(own.iter().map(|a| a.addr).collect()),
            Err(error) => {
                tracing::warn!(%error, "cannot read this machine's addresses; trying again");
                self.refresh_at = Some(context.now + WALL_CLOCK_INTERVAL);
            }
        }
    }
}

impl Host<ServerCore> for ServerHost {
    fn sources(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        let control = self.control.as_ref().map(|c| (c.fd(), CONTROL));
        control
            .into_iter()
            .chain([(self.links.fd(), LINKS)])
            .collect()
    }

    fn on_ready(&mut self, source: u32, context: &mut Context<'_, ServerCore>) {
        if let (CONTROL, Some(control)) = (source, &self.control) {
            return control.serve(context.now, context.core, context.stack);
        }
        if self.links.has_news() && self.refresh_at.is_none() {
            self.refresh_at = Some(context.now + SETTLING_TIME);
        }
    }

    fn on_packet(&mut self, packet: &mut [u8]) {
        quotes::translate(packet, &self.mappings);
    }

    fn next_timeout(&self) -> Option<Instant> {
        let wall_clock = self.wall_clock_at;
        Some(self.refresh_at.map_or(wall_clock, |at| at.min(wall_clock)))
    }

    fn handle_timeout(&mut self, context: &mut Context<'_, ServerCore>) {
        if self.refresh_at.is_some_and(|at| at <= context.now) {
            self.refresh_at = None;
            self.refresh(context);
        }
        if self.wall_clock_at <= context.now {
            self.wall_clock_at = context.now + WALL_CLOCK_INTERVAL;
            context.core.set_wall_clock(context.now, since_epoch());
        }
    }
}
