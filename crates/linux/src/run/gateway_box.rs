//! The aggregation box.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use braid_engine::PathId;
use braid_proxy::config::{BoxConfig, Protection, ServerEntry};
use braid_proxy::records::{Kept, LONGEST};
use braid_proxy::{BoxCore, LinkAddresses, Notice};
use braid_wire::Instant;

use super::Privileges;
use super::confine::{self, Files};
use super::crowd::Crowd;
use super::keeper::{self, Keeper, SAVE_INTERVAL};
use super::outward::{Outward, OutwardPaths};
use super::process::{
    CONTROL, LINKS, SETTLING_TIME, WALL_CLOCK_INTERVAL, directory_of, new_stack, open_control,
    raise_descriptor_limit, serve, since_epoch, strategy_factory, system_rng,
};
use crate::control::ControlSocket;
use crate::driver::{Clock, Context, Driver, Host};
use crate::net::links::Links;
use crate::net::routes::Packets;
use crate::net::sysctl::Sysctl;
use crate::net::{Identity, Result, SystemError};
use crate::sockets::Limits;
use crate::tun::Tun;

/// Runs the box until `stop` is readable; `started` is called once it works.
///
/// # Errors
/// Where the system refuses what the box needs; everything is put back then.
pub fn run_box(
    config: &BoxConfig,
    privileges: Privileges,
    stop: BorrowedFd<'_>,
    started: impl FnOnce(),
) -> Result<()> {
    let streams = raise_descriptor_limit(config.limits.connections);
    let outward = Outward {
        tun: &config.tun,
        links: &config.links,
        lan: &config.lan,
        servers: servers(config),
        private: &config.socks,
        shortcut: config.shortcut,
    };
    let mut engine = config.engine();
    let OutwardPaths {
        tun,
        device,
        links,
        settings,
        addresses,
        ports,
    } = outward.set_up(&mut engine)?;
    let host = BoxHost {
        control: open_control(config.control.as_deref(), "box", device.identity()),
        links,
        settings,
        paths: Vec::new(),
        silences: vec![Silence::default(); config.links.len()],
        refresh_at: None,
        wall_clock_at: Instant::ZERO,
        listen_at: Instant::ZERO,
        keeper: None,
        crowd: Crowd::default(),
        keep_at: Instant::ZERO,
    };
    let mut driver = assemble(config, engine, tun, host, streams)?;
    let port = driver.sockets.reserve_intake(device.has_v6())?;
    let ways = (config.quic, config.mptcp_hosts);
    let rules = outward.rules(device.has_v6(), port, ports, config.bypassed(), ways);
    device.apply_rules(rules)?;
    for addr in &config.socks {
        driver.sockets.listen(*addr)?;
    }
    let confined = confine::give_up(privileges, &driver.host.files(config))?;
    let known = driver.host.start_threads(config, device.identity())?;
    start(&mut driver, &addresses, &known);
    tracing::info!(name = config.name, links = config.links.len(), "box is up");
    let in_clear = |server: &&ServerEntry| server.protection == Protection::None;
    for ServerEntry { name, .. } in config.servers.iter().filter(in_clear) {
        tracing::warn!(
            server = name,
            "not protected: whoever is on the way reads and changes what goes there"
        );
    }
    started();
    let outcome = serve(&mut driver, &config.name, stop);
    if let Some(keeper) = driver.host.keeper.take() {
        let now = driver.clock().now();
        keeper.end(driver.core.kept(now, &driver.stack));
    }
    drop((driver, device, confined));
    outcome
}

/// How often the links' counters are read.
const LISTEN_INTERVAL: Duration = Duration::from_secs(1);

type BoxDriver = Driver<Tun, BoxCore, BoxHost>;

fn assemble(
    config: &BoxConfig,
    engine: braid_engine::Config,
    tun: Tun,
    host: BoxHost,
    streams: usize,
) -> Result<BoxDriver> {
    let stack = new_stack(engine, &config.strategy)?;
    let core = BoxCore::new(config, system_rng()?, strategy_factory(&config.strategy)?);
    let limits = Limits {
        streams,
        ..Limits::default()
    };
    // What was learnt before the start has a time too.
    let clock = Clock::showing(Instant::ZERO + LONGEST);
    Driver::new(clock, tun, stack, core, host, limits)
}

/// Tells the core of the time, the links, and what was known of them at the end of the last run.
fn start(driver: &mut BoxDriver, addresses: &[LinkAddresses], known: &Kept) {
    let now = driver.clock().now();
    let (core, stack, host) = (&mut driver.core, &mut driver.stack, &mut driver.host);
    core.set_wall_clock(now, since_epoch());
    host.wall_clock_at = now + WALL_CLOCK_INTERVAL;
    for (index, addresses) in addresses.iter().enumerate() {
        let path = core.add_link(now, index, *addresses, stack);
        host.paths.push(path);
        core.set_link_up(now, path, host.links.is_up(index), stack);
    }
    core.load_kept(now, stack, known);
    host.keep_at = now + SAVE_INTERVAL;
    host.keep_forwarding(core);
}

/// What surrounds the core: the links and the wall clock.
#[derive(Debug)]
struct BoxHost {
    control: Option<ControlSocket>,
    links: Links,
    /// For interfaces that come back as new ones.
    settings: Vec<Sysctl>,
    paths: Vec<PathId>,
    silences: Vec<Silence>,
    refresh_at: Option<Instant>,
    wall_clock_at: Instant,
    /// When the links' counters are read next.
    listen_at: Instant,
    keeper: Option<Keeper>,
    crowd: Crowd,
    /// When what is known of paths is saved next.
    keep_at: Instant,
}

impl BoxHost {
    /// What is opened later: records are kept, the control socket is removed.
    fn files(&self, config: &BoxConfig) -> Files {
        // Where it cannot be made, the keeper says so.
        let own = config.state.iter().filter(|d| keeper::make(d).is_ok());
        let control = self.control.iter();
        Files {
            read: Vec::new(),
            remove: control.map(|c| directory_of(c.path())).collect(),
            own: own.cloned().collect(),
        }
    }

    /// To be called when there are no privileges to give up any more: a thread has those of the one
    /// that starts it. Returns what was known of paths at the end of the last run.
    fn start_threads(&mut self, config: &BoxConfig, identity: &Identity) -> Result<Kept> {
        if let Some(control) = &mut self.control {
            let started = control.start();
            started.map_err(SystemError::doing("start a thread"))?;
        }
        let Some(directory) = &config.state else {
            return Ok(Kept::default());
        };
        let (keeper, known) = Keeper::open(directory, identity);
        self.keeper = keeper;
        Ok(known)
    }

    fn refresh(&mut self, context: &mut Context<'_, BoxCore>) {
        let changed = match self.links.refresh() {
            Ok(changed) => changed,
            Err(error) => {
                tracing::warn!(%error, "trying again");
                self.refresh_at = Some(context.now + WALL_CLOCK_INTERVAL);
                return;
            }
        };
        if self.links.is_unsettled() {
            self.refresh_at = Some(context.now + WALL_CLOCK_INTERVAL);
        }
        if changed.is_empty() {
            return;
        }
        for setting in &self.settings {
            // Fails for interfaces that are gone.
            let _ = setting.apply();
        }
        for (index, readdressed) in changed {
            let (state, up) = (&self.links.states()[index], self.links.is_up(index));
            let running = state.running;
            tracing::info!(link = index, up, running, readdressed, "link changed");
            let path = self.paths[index];
            context
                .core
                .set_link_up(context.now, path, up, context.stack);
            if readdressed {
                context.stack.doubt_path(context.now, path);
            }
        }
        self.keep_forwarding(context.core);
    }

    /// Has links looked into over which packets only go out: the users' TCP would tell at once
    /// that a link is dark, what is only forwarded does not.
    fn listen(&mut self, context: &mut Context<'_, BoxCore>) {
        let Ok(packets) = self.links.packets() else {
            return;
        };
        for (index, silence) in self.silences.iter_mut().enumerate() {
            let packets = packets[index].filter(|_| self.links.is_up(index));
            if silence.heard(context.now, packets) {
                context.core.doubt_link(context.now, self.paths[index]);
            }
        }
    }

    fn link_of(&self, path: PathId) -> Option<usize> {
        self.paths.iter().position(|p| *p == path)
    }

    /// Where the link that everything is forwarded over cannot be used, takes the first that can:
    /// the core finds out later than this host that an interface is down.
    fn keep_forwarding(&mut self, core: &BoxCore) {
        let usable = |i: &usize| self.links.is_up(*i) && !core.is_off(self.paths[*i]);
        let current = self.links.forwarding().filter(usable);
        let first = || (0..self.paths.len()).find(usable);
        if let Some(index) = current.or_else(first) {
            self.links.forward_over(index);
        }
    }
}

impl Host<BoxCore> for BoxHost {
    fn sources(&self) -> Vec<(BorrowedFd<'_>, u32)> {
        let control = self.control.as_ref().map(|c| (c.fd(), CONTROL));
        control
            .into_iter()
            .chain([(self.links.fd(), LINKS)])
            .collect()
    }

    fn on_ready(&mut self, source: u32, context: &mut Context<'_, BoxCore>) {
        if let (CONTROL, Some(control)) = (source, &self.control) {
            control.serve(context.now, context.core, context.stack, None);
            return self.keep_forwarding(context.core);
        }
        if self.links.has_news() && self.refresh_at.is_none() {
            self.refresh_at = Some(context.now + SETTLING_TIME);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let regular = self.wall_clock_at.min(self.listen_at).min(self.keep_at);
        Some(self.refresh_at.map_or(regular, |at| at.min(regular)))
    }

    fn handle_timeout(&mut self, context: &mut Context<'_, BoxCore>) {
        if self.refresh_at.is_some_and(|at| at <= context.now) {
            self.refresh_at = None;
            self.refresh(context);
        }
        if self.wall_clock_at <= context.now {
            self.wall_clock_at = context.now + WALL_CLOCK_INTERVAL;
            context.core.set_wall_clock(context.now, since_epoch());
        }
        if self.listen_at <= context.now {
            self.listen_at = context.now + LISTEN_INTERVAL;
            self.listen(context);
        }
        if self.keep_at <= context.now {
            self.keep_at = context.now + SAVE_INTERVAL;
            if let Some(keeper) = &mut self.keeper {
                keeper.keep(context.core.kept(context.now, context.stack));
            }
        }
    }

    fn after_turn(&mut self, context: &mut Context<'_, BoxCore>) {
        self.crowd.is_now(context.stack.connections());
        while let Some(notice) = context.core.poll_notice() {
            match notice {
                Notice::BestPath(Some(path)) => {
                    if let Some(index) = self.link_of(path) {
                        tracing::info!(link = index, "forwarding over this link");
                        self.links.forward_over(index);
                    }
                }
                Notice::BestPath(None) => {}
                Notice::Reached(path, reached) => {
                    if let Some(index) = self.link_of(path) {
                        tracing::info!(link = index, reached, "a server over this link");
                        self.links.keep_flows(index, reached);
                    }
                }
                Notice::Intake(open) => {
                    tracing::info!(open, "intake of connections");
                    if let Err(error) = context.sockets.set_intake(open) {
                        tracing::error!(%error, "connections are forwarded unjoined");
                    }
                }
            }
        }
    }
}

fn servers(config: &BoxConfig) -> Vec<SocketAddr> {
    let endpoints = config.servers.iter();
    endpoints
        .flat_map(|s| [s.endpoint_v4(), s.endpoint_v6()])
        .flatten()
        .collect()
}

/// Whether a link only takes packets and gives none.
#[derive(Debug, Clone, Copy, Default)]
struct Silence {
    /// Since when, and what the counters showed then.
    since: Option<(Instant, Packets)>,
}

impl Silence {
    /// One packet may be lost, or need no answer.
    const LEAST_SENT: u64 = 3;
    /// Longer than any round trip.
    const LEAST_TIME: Duration = Duration::from_secs(2);

    /// Takes in what the counters show; whether there is reason to doubt the link. Then it waits
    /// as long again before it says so again.
    fn heard(&mut self, now: Instant, packets: Option<Packets>) -> bool {
        let Some(packets) = packets else {
            self.since = None;
            return false;
        };
        let (since, before) = *self.since.get_or_insert((now, packets));
        // Where nothing was sent, the time to answer begins anew.
        if packets.rx != before.rx || packets.tx == before.tx {
            self.since = Some((now, packets));
            return false;
        }
        let sent = packets.tx.saturating_sub(before.tx);
        let doubt = sent >= Self::LEAST_SENT && now.saturating_since(since) >= Self::LEAST_TIME;
        if doubt {
            self.since = Some((now, packets));
        }
        doubt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_only_takes_is_doubted() {
        let mut silence = Silence::default();
        let mut heard = |s: u64, tx, rx| {
            let now = Instant::from_millis(s * 1_000);
            silence.heard(now, Some(Packets { tx, rx }))
        };
        assert!(!heard(0, 10, 10));
        assert!(!heard(5, 10, 10), "nothing was sent");
        assert!(!heard(6, 12, 10));
        assert!(!heard(7, 14, 11), "something came back");
        assert!(!heard(8, 16, 11), "too early to say");
        assert!(heard(9, 17, 11));
        assert!(!heard(10, 19, 11), "said a moment ago");
        assert!(heard(11, 20, 11));
        assert!(!silence.heard(Instant::from_millis(20_000), None));
        assert_eq!(silence.since, None, "the interface is gone");
    }
}
