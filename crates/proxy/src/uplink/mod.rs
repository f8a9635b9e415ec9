//! Which server and which links: what is known of them, and connections over them.
//!
//! [`Upstream::acquire`] is the seam between relays and the engine: it opens a connection for a
//! user's, or takes one from the pool of warm ones.
//!
//! A user's session is never here: the gateway has it, and hands over what it is to be like.

mod acquire;
mod blame;
mod choose;
mod evidence;
mod examine;
mod families;
mod health;
mod keep;
mod lease;
mod links;
mod measure;
mod meter;
mod news;
mod notices;
mod pool;
mod probes;
mod reload;
mod servers;
mod status;
pub mod trial;
mod trouble;
mod warm;
mod watch;

use core::time::Duration;

use braid_engine::{ApiError, Event, PathId, Stack, StrategyFactory};
use braid_wire::{Instant, Rng};

use crate::admin::report::BoxCounters;
use crate::app::Ctx;
use crate::config::{BoxConfig, ServerEntry};

use examine::Examinations;
use links::Links;
use meter::Meter;
use notices::Notices;
use pool::Pools;
use servers::Servers;
use watch::Watch;

pub(crate) use acquire::Wish;
pub(crate) use lease::{Lease, Past};
pub use links::LinkAddresses;
pub use notices::Notice;
pub(crate) use trouble::Trouble;

/// What a call that may open or end connections works with.
pub(crate) struct Context<'a> {
    /// The time.
    pub(crate) now: Instant,
    /// The engine.
    pub(crate) stack: &'a mut Stack,
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

/// Servers, links and what is known of them. Each part owns its state and says its next timer; here is what
/// takes several of them.
pub(crate) struct Upstream {
    servers: Servers,
    links: Links,
    pools: Pools,
    watch: Watch,
    examinations: Examinations,
    meter: Meter,
    notices: Notices,
    /// Of users' connections.
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
            pools: Pools::new(&config.warm),
            watch: Watch::new(config.probing.clone()),
            examinations: Examinations::default(),
            meter: Meter::new(config.measuring.clone(), config.servers.len()),
            notices: Notices::new(),
            strategy,
        }
    }

    pub(crate) fn set_wall_clock(&mut self, now: Instant, since_epoch: Duration) {
        self.servers.set_wall_clock(now, since_epoch);
    }

    /// Returns what the configuration says of a server; `None` where it was taken out.
    pub(crate) fn server(&self, server: usize) -> Option<&ServerEntry> {
        self.servers.entries.get(server)
    }

    pub(crate) fn add_link(
        &mut self,
        now: Instant,
        link: usize,
        addresses: LinkAddresses,
        place: Option<PathId>,
        stack: &mut Stack,
    ) -> Result<PathId, ApiError> {
        let link = (link, addresses, place);
        self.links.add(now, link, &self.servers.entries, stack)
    }

    /// The link has these addresses now.
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

    pub(crate) fn intake_wanted(&self) -> bool {
        self.notices.takes_in()
    }

    pub(crate) fn poll_notice(&mut self, counters: &mut BoxCounters) -> Option<Notice> {
        let best = self.notices.poll_best(self.links.best, counters);
        best.or_else(|| self.notices.poll_intake(counters))
            .or_else(|| self.families_news().map(Notice::Families))
            .or_else(|| self.links.poll_reached())
    }

    /// Returns whether an event is of a probe, a measurement or a warm connection; if so it is dealt with here.
    pub(crate) fn on_event(&mut self, cx: &mut Context<'_>, event: &Event) -> bool {
        self.on_probe_event(cx, event)
            || self.on_examination_event(cx, event)
            || self.on_measuring_event(cx, event)
            || self.on_warm_event(cx, event)
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if self.notices.is_ending() {
            return None;
        }
        let timeouts = [
            self.links.next_timeout(),
            self.servers.next_timeout(),
            self.pools.next_timeout(),
            self.meter.next_timeout(&self.links),
            self.examinations.next_timeout(&self.links),
            self.news_timeout(),
        ];
        timeouts.into_iter().flatten().min()
    }

    /// Does what is due, of probes and of all else that is looked into here.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        self.probe_due(cx);
        self.ask_families(cx.now);
        self.examine(cx);
        self.measure(cx);
        self.update(cx.now, cx.stack);
        self.pools.changed = false;
        self.warm_up(cx);
        self.log_news(cx.now);
    }

    /// Draws the conclusions: which links the stack may use, which is best, whether to take in.
    fn update(&mut self, now: Instant, stack: &mut Stack) {
        let need_metered = self.links.need_metered();
        for i in 0..self.links.all.len() {
            let link = &self.links.all[i];
            let open = link.is_usable() && (!link.metered || need_metered);
            if open != link.open {
                // What is under way would say nothing of the link.
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
        self.links.ask_others(now);
        self.cool_down(now, stack);
    }

    /// Takes no more users' connections in, closes those that wait for users, and asks nothing of links
    /// and servers from now on.
    pub(crate) fn drain(&mut self, now: Instant, stack: &mut Stack) {
        self.notices.end();
        self.cool_down(now, stack);
    }
}
