//! The state of servers and links, and connections to the servers.
//!
//! The gateway gets a connection for a user by [`Upstream::acquire`], which takes a connection from the idle pool
//! or opens a new one.
//!
//! The module has no knowledge of users' sessions. The gateway owns them, and passes the requirements on each
//! connection.

mod acquire;
mod checkout;
mod choose;
mod diagnosis;
mod egress;
mod evidence;
mod examine;
mod families;
mod health;
mod idle_pool;
mod keying;
mod links;
mod log;
mod measure;
mod meter;
mod notices;
mod pool_upkeep;
mod probe_pace;
mod probes;
mod reload;
mod saved_state;
mod servers;
mod status;
pub mod trial;
mod trouble;

use core::time::Duration;

use braid_engine::{ApiError, Event, PathId, Stack, StrategyFactory};
use braid_wire::{Instant, Rng};

use crate::admin::report::BoxCounters;
use crate::app::Ctx;
use crate::config::{BoxConfig, ServerEntry};

use examine::Examinations;
use idle_pool::IdlePools;
use keying::Keying;
use links::Links;
use meter::Meter;
use notices::Notices;
use probe_pace::ProbePace;
use servers::Servers;

pub(crate) use acquire::AcquireRequest;
pub(crate) use checkout::{Checkout, ConnHistory};
pub use links::LinkAddresses;
pub use notices::Notice;
pub(crate) use trouble::Trouble;

/// The environment of a call that may open or end connections.
pub(crate) struct Context<'a> {
    /// The current time.
    pub(crate) now: Instant,
    /// The engine.
    pub(crate) stack: &'a mut Stack,
    /// The box's counters.
    pub(crate) counters: &'a mut BoxCounters,
}

impl<'a> Context<'a> {
    pub(crate) fn new(ctx: &'a mut Ctx<'_>, counters: &'a mut BoxCounters) -> Self {
        Context {
            now: ctx.now,
            stack: ctx.stack,
            counters,
        }
    }
}

/// Servers, links and their state. Each part owns its state and reports its next timer. This type has the
/// operations that involve several parts.
pub(crate) struct Upstream {
    servers: Servers,
    links: Links,
    pools: IdlePools,
    probe_pace: ProbePace,
    examinations: Examinations,
    keying: Keying,
    meter: Meter,
    notices: Notices,
    /// Creates the strategies of users' connections.
    strategy: StrategyFactory,
}

impl core::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Upstream")
            .field("links", &self.links.all)
            .field("best", &self.links.best)
            .field("notices", &self.notices)
            .finish_non_exhaustive()
    }
}

impl Upstream {
    pub(crate) fn new(config: &BoxConfig, rng: Rng, strategy: StrategyFactory) -> Self {
        Upstream {
            servers: Servers::new(config, rng),
            links: Links::new(config.links.clone()),
            pools: IdlePools::new(&config.warm),
            probe_pace: ProbePace::new(config.probing.clone()),
            examinations: Examinations::default(),
            keying: Keying::default(),
            meter: Meter::new(config.measuring.clone(), config.servers.len()),
            notices: Notices::new(),
            strategy,
        }
    }

    pub(crate) fn set_wall_clock(&mut self, now: Instant, since_epoch: Duration) {
        self.servers.set_wall_clock(now, since_epoch);
    }

    /// Returns the configuration of a server; `None` if it was removed.
    pub(crate) fn server(&self, server: usize) -> Option<&ServerEntry> {
        self.servers.entries.get(server)
    }

    /// Adds link number `link` of the configuration, over the path `reused_path` of a removed link if possible.
    pub(crate) fn add_link(
        &mut self,
        now: Instant,
        link: usize,
        addresses: LinkAddresses,
        reused_path: Option<PathId>,
        stack: &mut Stack,
    ) -> Result<PathId, ApiError> {
        let link = (link, addresses, reused_path);
        self.links.add(now, link, &self.servers.entries, stack)
    }

    /// Sets the addresses of a link.
    pub(crate) fn set_link_addresses(
        &mut self,
        now: Instant,
        path: PathId,
        addresses: LinkAddresses,
        stack: &mut Stack,
    ) {
        let servers = &self.servers.entries;
        let link = (path, addresses);
        if self.links.set_addresses(now, link, servers, stack) {
            self.update(now, stack);
        }
    }

    pub(crate) fn set_link_up(&mut self, now: Instant, path: PathId, up: bool, stack: &mut Stack) {
        self.links.set_up(path, up);
        self.update(now, stack);
    }

    pub(crate) fn best_path(&self) -> Option<PathId> {
        self.links.best
    }

    pub(crate) fn wants_interception(&self) -> bool {
        self.notices.intercepts()
    }

    /// Returns the next notice for the driver, if there is one.
    pub(crate) fn poll_notice(&mut self, counters: &mut BoxCounters) -> Option<Notice> {
        let best = self.notices.poll_best(self.links.best, counters);
        best.or_else(|| self.notices.poll_interception(counters))
            .or_else(|| self.poll_families().map(Notice::Families))
            .or_else(|| self.links.poll_reached())
    }

    /// Handles an event of a connection of this module: a probe, an examination, a measurement, a request for a tunnel
    /// or an idle connection. Returns whether the event was of such a connection.
    pub(crate) fn on_event(&mut self, cx: &mut Context<'_>, event: &Event) -> bool {
        if let Some((server, families)) = self.keying.on_event(cx, event) {
            self.on_families_reported(cx.now, server, families);
            return true;
        }
        self.on_probe_event(cx, event)
            || self.on_examination_event(cx, event)
            || self.on_measuring_event(cx, event)
            || self.on_idle_event(cx, event)
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        // A box that is being stopped has no more probes, examinations or measurements to do.
        if self.notices.is_ending() {
            return None;
        }
        let timeouts = [
            self.links.next_timeout(),
            self.servers.next_timeout(),
            self.pools.next_timeout(),
            self.meter.next_timeout(&self.links),
            self.examinations.next_timeout(&self.links),
            self.keying.next_timeout(),
            self.log_timeout(),
        ];
        timeouts.into_iter().flatten().min()
    }

    /// Does all work that is due: probes, examinations, measurements, idle connections and log lines.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        self.probe_due(cx);
        self.ask_families(cx.now);
        self.examine(cx);
        self.measure(cx);
        self.keying.end_late(cx.now, cx.stack);
        self.update(cx.now, cx.stack);
        // The flag asks for a call of `fill_pools`, which follows.
        self.pools.changed = false;
        self.fill_pools(cx);
        self.log_changes(cx.now);
    }

    /// Applies the state of links and servers: opens and closes links for the stack, and chooses the best link,
    /// the servers, the families offered to users, and whether to intercept new connections.
    fn update(&mut self, now: Instant, stack: &mut Stack) {
        let need_metered = self.links.need_metered();
        for i in 0..self.links.all.len() {
            let link = &self.links.all[i];
            let open = link.is_usable() && (!link.metered || need_metered);
            if open != link.open {
                // Results of measurements and examinations under way would mix the old state with the new one.
                let path = link.path;
                self.meter.stop(now, Some(i), stack);
                self.examinations.stop(now, Some(path), stack);
                self.links.set_open(now, i, open, stack);
            }
        }
        self.links.best = self.links.choose_best();
        self.choose(now);
        self.offer_families(now);
        self.notices.on_reach(self.links.reach());
        self.links.probe_other_links(now);
        self.trim_pools(now, stack);
    }

    /// Prepares for the end of the box: stops interception, probes and examinations, and closes idle connections.
    pub(crate) fn drain(&mut self, now: Instant, stack: &mut Stack) {
        self.notices.end();
        self.trim_pools(now, stack);
    }
}
