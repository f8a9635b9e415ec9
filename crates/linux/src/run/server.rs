//! The aggregation server.

use std::os::fd::BorrowedFd;
use std::path::Path;

use braid_engine::app::Ctx;
use braid_proxy::ServerCore;
use braid_proxy::config::ServerConfig;
use braid_proxy::control::Answer;
use braid_wire::Instant;

use super::Privileges;
use super::confine::{self, Files};
use super::crowd::Crowd;
use super::inward::{Inward, InwardPaths};
use super::process::{
    CONTROL, HANGUP, LINKS, RELOADED, SETTLING_TIME, WALL_CLOCK_INTERVAL, directory_of, new_stack,
    open_control, raise_descriptor_limit, serve, since_epoch,
};
use super::reload::{self, Reloader};
use crate::control::ControlSocket;
use crate::driver::{Clock, Context, Driver, Host};
use crate::net::links::Links;
use crate::net::{Result, SystemError};
use crate::sockets::Limits;

/// Where a server reads its configuration again, and when.
#[derive(Debug, Clone, Copy)]
pub struct Reload<'a> {
    /// The file.
    pub file: &'a Path,
    /// Readable when SIGHUP has come. Besides, the control socket may ask for it.
    pub signal: BorrowedFd<'a>,
}

/// Runs the server until `stop` is readable; `started` is called once it works.
///
/// # Errors
/// Where the system refuses what the server needs; everything is put back then.
pub fn run_server(
    config: &ServerConfig,
    reload: Option<Reload<'_>>,
    privileges: Privileges,
    stop: BorrowedFd<'_>,
    started: impl FnOnce(),
) -> Result<()> {
    let streams = raise_descriptor_limit(config.limits.connections);
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
        reload: reload.map(|r| Again::new(r, config)).transpose()?,
        links,
        refresh_at: Some(Instant::ZERO),
        wall_clock_at: clock.now() + WALL_CLOCK_INTERVAL,
        crowd: Crowd::default(),
    };
    let mut core = ServerCore::new(config);
    core.set_wall_clock(clock.now(), since_epoch());
    core.set_most_streams(streams);
    let limits = Limits {
        streams,
        connect_timeout: config.timeouts.connect,
    };
    let mut driver = Driver::new(clock, tun, stack, core, host, limits)?;
    device.apply_rules(inward.rules())?;
    let confined = confine::give_up(privileges, &driver.host.files(config))?;
    driver.host.start_threads()?;
    tracing::info!(name = config.name, port = config.port, "server is up");
    if config.unprotected {
        tracing::warn!("boxes and programs are served in clear too, where they ask for that");
    }
    started();
    let outcome = serve(&mut driver, &config.name, stop);
    drop((driver, device, confined));
    outcome
}

/// What surrounds the core: this machine's addresses, the wall clock and the configuration.
#[derive(Debug)]
struct ServerHost<'a> {
    control: Option<ControlSocket>,
    reload: Option<Again<'a>>,
    links: Links,
    refresh_at: Option<Instant>,
    wall_clock_at: Instant,
    crowd: Crowd,
}

impl ServerHost<'_> {
    /// What is opened later: names are looked up, the configuration is read again, the control socket
    /// is removed.
    fn files(&self, config: &ServerConfig) -> Files {
        let again = self.reload.iter().map(|again| again.file);
        let beside = again
            .chain(config.key_file.as_deref())
            .flat_map(confine::around);
        let control = self.control.iter();
        Files {
            read: beside.chain(confine::of_resolver()).collect(),
            remove: control.map(|c| directory_of(c.path())).collect(),
            own: Vec::new(),
        }
    }

    /// To be called when there are no privileges to give up any more: a thread has those of the one
    /// that starts it.
    fn start_threads(&mut self) -> Result<()> {
        let doing = || SystemError::doing("start a thread");
        if let Some(control) = &mut self.control {
            control.start().map_err(doing())?;
        }
        if let Some(again) = &mut self.reload {
            again.reloader.start(again.file).map_err(doing())?;
        }
        Ok(())
    }

    fn refresh(&mut self, context: &mut Context<'_, ServerCore>) {
        match self.links.refresh() {
            Ok(_) => {
                let own = self.links.addresses().iter().map(|a| a.addr);
                context.core.set_own_addresses(own.collect());
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read this machine's addresses; trying again");
                self.refresh_at = Some(context.now + WALL_CLOCK_INTERVAL);
            }
        }
    }
}

impl Host<ServerCore> for ServerHost<'_> {
    fn sources(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        let control = self.control.as_ref().map(|c| (c.fd(), CONTROL));
        let again = self.reload.iter();
        let again = again.flat_map(|a| [(a.signal, HANGUP), (a.reloader.fd(), RELOADED)]);
        control
            .into_iter()
            .chain([(self.links.fd(), LINKS)])
            .chain(again)
            .collect()
    }

    fn on_ready(&mut self, source: u32, context: &mut Context<'_, ServerCore>) {
        match (source, &self.control, &mut self.reload) {
            (CONTROL, Some(control), again) => {
                let reloader = again.as_ref().map(|again| &again.reloader);
                return control.serve(context.now, context.core, context.stack, reloader);
            }
            (HANGUP, _, Some(again)) => {
                reload::take_signal(again.signal);
                return again.reloader.begin(None);
            }
            (RELOADED, _, Some(again)) => return again.take_over(context),
            _ => {}
        }
        if self.links.has_news() && self.refresh_at.is_none() {
            self.refresh_at = Some(context.now + SETTLING_TIME);
        }
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

    fn after_turn(&mut self, context: &mut Context<'_, ServerCore>) {
        self.crowd.is_now(context.stack.connections());
    }
}

/// A configuration that may be read again.
#[derive(Debug)]
struct Again<'a> {
    /// What the server runs by.
    config: ServerConfig,
    file: &'a Path,
    signal: BorrowedFd<'a>,
    reloader: Reloader,
}

impl<'a> Again<'a> {
    fn new(reload: Reload<'a>, config: &ServerConfig) -> Result<Self> {
        let reloader = Reloader::new();
        Ok(Again {
            config: config.clone(),
            file: reload.file,
            signal: reload.signal,
            reloader: reloader.map_err(SystemError::doing("wait for configurations"))?,
        })
    }

    /// Goes on with what was read, if it is a configuration.
    fn take_over(&mut self, context: &mut Context<'_, ServerCore>) {
        while let Some((read, asker)) = self.reloader.next() {
            let answer = match read {
                Ok(new) => {
                    let changes = self.config.reload(new);
                    let mut ctx = Ctx {
                        now: context.now,
                        stack: context.stack,
                        local: context.sockets,
                    };
                    context.core.reload(&mut ctx, &self.config);
                    match changes.restart.is_empty() {
                        true => tracing::info!("configuration read again: {changes}"),
                        false => tracing::warn!("configuration read again: {changes}"),
                    }
                    Answer::Reloaded(changes)
                }
                Err(error) => {
                    let why = error.headline();
                    tracing::error!("the configuration stays as it was: {why}");
                    Answer::Wrong(error.to_string())
                }
            };
            if let Some(asker) = asker {
                // The client may have lost patience.
                let _ = asker.send(answer);
            }
        }
    }
}
