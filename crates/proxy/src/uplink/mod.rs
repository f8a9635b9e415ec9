//! Which server and which links: what is known of them, and connections over them.
//!
//! [`Upstream::acquire`] is the seam between relays and the engine: it opens a connection for a
//! user's, or takes one from the pool of warm ones.
//!
//! A user's session is never here: the gateway has it, and hands over what it is to be like.

mod choose;
mod examine;
mod families;
mod health;
mod keep;
mod lease;
mod links;
mod measure;
mod meter;
mod news;
mod pool;
mod probes;
mod reload;
mod servers;
mod status;
pub mod trial;
mod trouble;
mod warm;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use braid_engine::strategy::{FlowSize, Strategy};
use braid_engine::{
    ApiError, ConnectOptions, Event, PathConfig, PathId, Stack, StrategyFactory, SubflowCloseReason,
};
use braid_secure::Families;
use braid_secure::auth::SignIn;
use braid_secure::channel::Channel;
use braid_wire::{Instant, Rng};

use crate::admin::report::BoxCounters;
use crate::app::Ctx;
use crate::config::{BoxConfig, Probing, ServerEntry};
use crate::protocol::hints::FlowHints;
use crate::protocol::socks::Destination;
use crate::select::selection::Need;

use examine::Examination;
use health::{Cell, Reach};
use links::{Link, Links};
use meter::Meter;
use news::Said;
use pool::Pools;
use servers::Servers;

pub(crate) use lease::{Lease, Past};
pub(crate) use trouble::Trouble;

/// What the driver is to do outside of streams and packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Everything that is not TCP goes over this link from now on; `None` where no link is up and
    /// on.
    BestPath(Option<PathId>),
    /// Whether the link leads to a server and is on. Where it does not while another one proves that
    /// this is not the server's doing, nothing that is only forwarded is to stay on it.
    Reached(PathId, bool),
    /// Whether new connections of users are to be taken in. `false` when no server is reachable,
    /// or the box was switched off: then they are forwarded unjoined, while those taken in before keep being served.
    Intake(bool),
    /// The address families in which users' connections reach their destinations. Of the other one those that
    /// would be taken in are to be refused at once, so that programs use the one that is left.
    Families(Families),
}

/// The addresses of one link on the TUN device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkAddresses {
    /// IPv4, where the link has IPv4.
    pub v4: Option<Ipv4Addr>,
    /// IPv6, where the link has IPv6.
    pub v6: Option<Ipv6Addr>,
    /// Largest IP packet of the link, bytes.
    pub mtu: u16,
}

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

/// What is wished of a connection.
#[derive(Debug)]
pub(crate) struct Wish<'a> {
    /// What is known of the user's connection.
    pub(crate) flow: &'a FlowHints,
    /// Server and path of attempts that failed already.
    pub(crate) tried: &'a [(usize, PathId)],
    /// A warm connection has failed already.
    pub(crate) cold: bool,
    /// Where the user wants to go, unless that is a name.
    pub(crate) to: Option<IpAddr>,
}

/// The share of a connection in what a link has carried, bits: a link of which no rate is known counts as
/// one of 1 Mbit/s.
const UNIT: f64 = 1e6;

/// Servers, links and what is known of them.
pub(crate) struct Upstream {
    servers: Servers,
    links: Links,
    pools: Pools,
    probing: Probing,
    strategy: StrategyFactory,
    meter: Meter,
    /// At most one for each server and link.
    examinations: Vec<Examination>,
    intake: bool,
    /// The switch of the whole box.
    proxy_on: bool,
    /// The box is about to end: links and servers are no more looked into.
    ending: bool,
    /// The last state the driver was told.
    told: (Option<PathId>, bool),
    /// The log has a line on what becomes of new connections.
    said_intake: bool,
    last_traffic: Option<Instant>,
}

impl core::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Upstream")
            .field("links", &self.links.all)
            .field("best", &self.links.best)
            .field("intake", &self.intake)
            .finish_non_exhaustive()
    }
}

impl Upstream {
    pub(crate) fn new(config: &BoxConfig, rng: Rng, strategy: StrategyFactory) -> Self {
        Upstream {
            servers: Servers::new(config, rng),
            links: Links::new(config.links.clone()),
            pools: Pools::new(&config.warm),
            probing: config.probing.clone(),
            strategy,
            meter: Meter::new(config.measuring.clone(), config.servers.len()),
            examinations: Vec::new(),
            intake: false,
            proxy_on: true,
            ending: false,
            told: (None, false),
            said_intake: false,
            last_traffic: None,
        }
    }

    pub(crate) fn set_wall_clock(&mut self, now: Instant, since_epoch: Duration) {
        self.servers.set_wall_clock(now, since_epoch);
    }

    /// `None` where it was taken out of the configuration.
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
        let config = self.links.configs.get(link);
        let (backup, metered, mtu) = match config {
            Some(l) => (l.backup, l.metered, l.mtu.unwrap_or(addresses.mtu)),
            None => (false, false, addresses.mtu),
        };
        let path_config = PathConfig {
            v4: addresses.v4,
            v6: addresses.v6,
            mtu: mtu.min(addresses.mtu),
            backup,
        };
        let reused = place.filter(|path| stack.reuse_path(*path, path_config));
        let path = match reused {
            Some(path) => path,
            None => stack.add_path(path_config)?,
        };
        stack.set_path_up(now, path, false);
        self.links.all.push(Link {
            path,
            name: config.map_or_else(|| link.to_string(), |l| l.name.clone()),
            off: false,
            backup,
            metered,
            v4: addresses.v4.is_some(),
            v6: addresses.v6.is_some(),
            up: false,
            open: false,
            told_reached: true,
            rests_until: now,
            rest: Duration::ZERO,
            cells: vec![Cell::default(); self.servers.entries.len()],
            carried: 0.0,
            said: Said::default(),
        });
        self.links.put_in_order();
        Ok(path)
    }

    /// The link has these addresses now. What is known of servers was found out by the others.
    pub(crate) fn set_link_addresses(
        &mut self,
        now: Instant,
        path: PathId,
        addresses: LinkAddresses,
        stack: &mut Stack,
    ) {
        let LinkAddresses { v4, v6, .. } = addresses;
        stack.set_path_addresses(now, path, (v4, v6));
        let Some(index) = self.links.all.iter().position(|l| l.path == path) else {
            return;
        };
        let link = &mut self.links.all[index];
        let had = (link.v4, link.v6);
        (link.v4, link.v6) = (v4.is_some(), v6.is_some());
        if had != (link.v4, link.v6) {
            self.forget_servers(now, index, stack);
            self.update(now, stack);
        }
    }

    pub(crate) fn set_link_up(&mut self, now: Instant, path: PathId, up: bool, stack: &mut Stack) {
        if let Some(link) = self.links.all.iter_mut().find(|l| l.path == path) {
            link.up = up;
        }
        self.update(now, stack);
    }

    pub(crate) fn best_path(&self) -> Option<PathId> {
        self.links.best
    }

    pub(crate) fn intake_wanted(&self) -> bool {
        self.intake && self.proxy_on
    }

    pub(crate) fn poll_notice(&mut self, counters: &mut BoxCounters) -> Option<Notice> {
        if self.told.0 != self.links.best {
            self.told.0 = self.links.best;
            counters.best_path_changes += 1;
            return Some(Notice::BestPath(self.links.best));
        }
        let intake = self.intake_wanted();
        if self.told.1 != intake {
            self.told.1 = intake;
            counters.intake_stopped += u64::from(self.proxy_on && !intake);
            if !self.ending {
                self.said_intake = true;
                news::log_intake(intake, self.proxy_on);
            }
            return Some(Notice::Intake(intake));
        }
        if let Some(families) = self.families_news() {
            return Some(Notice::Families(families));
        }
        let mut links = 0..self.links.all.len();
        links.find_map(|link| {
            let reached = !self.is_left(link);
            let link = &mut self.links.all[link];
            let news = reached != std::mem::replace(&mut link.told_reached, reached);
            news.then_some(Notice::Reached(link.path, reached))
        })
    }

    /// Whether a link leads to no server and it is the link's doing. Where no link leads to one, that is
    /// the servers', and so is what fails while they come and go. Where no other link leads to any of its
    /// servers nobody can tell: there the failure suffices.
    fn is_left(&self, link: usize) -> bool {
        let link = &self.links.all[link];
        if link.off || link.carriage() != Reach::Down {
            return link.off;
        }
        let others = || {
            self.links
                .all
                .iter()
                .filter(|l| l.open && l.path != link.path)
        };
        let others_work = others().any(|l| l.carriage() != Reach::Down);
        if !link.told_reached {
            return others_work;
        }
        let servers =
            || (0..self.servers.entries.len()).filter(|s| link.reaches(&self.servers.entries[*s]));
        let witnesses = |s: usize| others().filter(move |l| l.reaches(&self.servers.entries[s]));
        let proved = |s: usize| witnesses(s).any(|l| l.cells[s].disproves(&link.cells[s]));
        let witnessed = servers().any(|s| witnesses(s).next().is_some());
        servers().any(proved) || others_work && !witnessed
    }

    /// Has servers asked over other links where that tells whether a link is to be [left](Self::is_left).
    fn ask_others(&mut self, now: Instant) {
        for link in 0..self.links.all.len() {
            let suspect = &self.links.all[link];
            if suspect.off || !suspect.told_reached || suspect.carriage() != Reach::Down {
                continue;
            }
            for server in 0..self.servers.entries.len() {
                let failing = self.links.all[link].cells[server];
                for other in self.links.all.iter_mut().filter(|l| l.open) {
                    let cell = &mut other.cells[server];
                    if cell.may_disprove(&failing) {
                        cell.next = Some(now);
                    }
                }
            }
        }
    }

    /// A connection to the best server, warm or opened over the best link that was not tried. The
    /// greeting is written; whether it comes to be is told by the engine's events.
    pub(crate) fn acquire(
        &mut self,
        cx: &mut Context<'_>,
        wish: &Wish<'_>,
    ) -> Result<Lease, ApiError> {
        self.note_traffic(cx.now);
        let need = self.servers.choice.need(wish.flow);
        let mut candidates = self.candidates(need, wish.tried, wish.to);
        candidates.sort_by_key(|(rank, ..)| *rank);
        let best = candidates.first().map(|(_, server, _)| *server);
        if let Some(server) = best.filter(|_| !wish.cold)
            && let Some(lease) = self.take_warm(cx.now, (need, server), wish.to, cx.stack)
        {
            cx.counters.warm_used += 1;
            // What it waited under is not what this flow is to have.
            let _ = cx.stack.begin_flow(cx.now, lease.channel.conn);
            wish.flow.begin(cx.now, lease.channel.conn, cx.stack);
            self.warm_up(cx);
            return Ok(lease);
        }
        let mut error = ApiError::NoUsablePath;
        for (_, server, path) in candidates {
            match self.open(cx.now, (server, path), Some(wish), cx.stack) {
                Ok(lease) => return Ok(lease),
                Err(ApiError::NoUsablePath) => {}
                Err(e) => {
                    error = e;
                    break;
                }
            }
        }
        Err(error)
    }

    /// Writes the request for a destination to a connection that [`acquire`](Self::acquire) gave.
    pub(crate) fn request(
        &self,
        now: Instant,
        (channel, server): (&mut Channel, usize),
        sign_in: Option<&SignIn>,
        (destination, hints): (&Destination, &FlowHints),
        stack: &mut Stack,
    ) -> Result<(), ApiError> {
        let entry = self.server(server).ok_or(ApiError::NoUsablePath)?;
        let keys = (&self.servers.key, entry.key);
        let about = (destination, hints);
        lease::request((now, channel), keys, sign_in, about, stack)
    }

    /// Returns servers and links to try, with their rank: servers that reach the address family of `to`, of these
    /// the chosen one, the others in order of preference, those that do not answer last; links that work first,
    /// those without Multipath TCP behind them, backups late, then by round trip. Links without Multipath TCP
    /// take turns by rate.
    fn candidates(
        &self,
        need: Need,
        tried: &[(usize, PathId)],
        to: Option<IpAddr>,
    ) -> Vec<(impl Ord + Copy + use<>, usize, PathId)> {
        let chosen = self.servers.current(need);
        let mut candidates = Vec::new();
        for (server, entry) in self.servers.entries.iter().enumerate() {
            // The engine itself tries its paths in turn: a server that was tried in vain is more
            // likely to be down than the link to it.
            let in_vain = tried.iter().any(|(s, _)| *s == server);
            let server_down = self.server_down(server) || in_vain;
            let doubtful = !self.is_usable(server);
            let reaches = to.is_none_or(|ip| self.servers.reached.of(server).has(ip));
            for (order, link) in self.links.all.iter().enumerate() {
                let tried = tried.contains(&(server, link.path));
                if !link.open || tried || !link.reaches(entry) {
                    continue;
                }
                let cell = &link.cells[server];
                let doubt = (cell.reach == Reach::Down, cell.failures > 0);
                let cost = match cell.is_plain() {
                    true => (link.carried * 1e9) as u64,
                    false => cell.rank_rtt(),
                };
                let rank = (
                    server_down,
                    (doubtful, !reaches, server != chosen, server),
                    (doubt, cell.is_plain()),
                    link.backup,
                    cost,
                    order,
                );
                candidates.push((rank, server, link.path));
            }
        }
        candidates
    }

    /// Opens a connection for a user's flow, or one to wait for a user, and signs in.
    fn open(
        &mut self,
        now: Instant,
        (server, path): (usize, PathId),
        wish: Option<&Wish<'_>>,
        stack: &mut Stack,
    ) -> Result<Lease, ApiError> {
        let flow = wish.map(|wish| wish.flow);
        let strategy = match flow {
            Some(flow) => flow.strategy().unwrap_or_else(|| (self.strategy)()),
            None => Box::new(braid_strategy::Waiting::default()),
        };
        let options = self.options(server, path, strategy)?;
        // A strategy knows round trips, and not which links are in trouble.
        let again = wish.is_some_and(|wish| !wish.tried.is_empty());
        let options = ConnectOptions {
            flow_size: flow.map_or(FlowSize::Unknown, |f| f.size),
            urgency: flow.and_then(|f| f.urgency).unwrap_or_default(),
            insist: again || self.open_cells(server).any(Cell::is_unsound),
            ..options
        };
        let lease = self.sign_in_over(now, (server, path), options, stack)?;
        self.note_share(server, path, stack);
        Ok(lease)
    }

    /// Counts a connection that is opened on a link without Multipath TCP as carried there.
    fn note_share(&mut self, server: usize, path: PathId, stack: &Stack) {
        let others = self.links.all.iter().filter(|l| l.open && l.path != path);
        let behind = others.map(|l| l.carried).reduce(f64::min);
        let Some(link) = self.links.all.iter_mut().find(|l| l.path == path) else {
            return;
        };
        if !link.cells[server].is_plain() {
            return;
        }
        let records = stack.records().filter(|(_, on, _)| *on == path);
        let seen = records.map(|(.., record)| record.delivery_rate as f64 * 8.0);
        let measured = link.cells.iter().filter_map(|c| c.gauge.capacity());
        let rate = measured.chain(seen).reduce(f64::max);
        // One that has been away takes its turn, and does not make up for what it has missed.
        let floor = behind.map_or(0.0, |least| least - 1.0);
        link.carried = link.carried.max(floor) + UNIT / rate.unwrap_or(UNIT).max(1.0);
    }

    /// Opens a connection, and signs in.
    fn sign_in_over(
        &mut self,
        now: Instant,
        (server, path): (usize, PathId),
        options: ConnectOptions,
        stack: &mut Stack,
    ) -> Result<Lease, ApiError> {
        let (channel, sign_in) = self.servers.channel((now, server), options, stack)?;
        let mut lease = Lease {
            channel,
            server,
            path,
            sign_in,
            answers: None,
            past: Past::new(now),
        };
        let keys = (&self.servers.key, self.servers.entries[server].key);
        let written = lease::sign_in(now, &mut lease, keys, stack);
        if let Err(error) = written {
            lease.channel.abort(now, stack);
            return Err(error);
        }
        Ok(lease)
    }

    /// How a connection is opened.
    fn options(
        &self,
        server: usize,
        path: PathId,
        strategy: Box<dyn Strategy>,
    ) -> Result<ConnectOptions, ApiError> {
        let entry = &self.servers.entries[server];
        let link = self.links.all.iter().find(|l| l.path == path);
        let v4 = entry.endpoint_v4().filter(|_| link.is_some_and(|l| l.v4));
        let v6 = entry.endpoint_v6().filter(|_| link.is_some_and(|l| l.v6));
        let remote = v4.or(v6).ok_or(ApiError::NoUsablePath)?;
        let remote_alt = match remote.is_ipv4() {
            true => entry.endpoint_v6(),
            false => entry.endpoint_v4(),
        };
        Ok(ConnectOptions {
            remote_alt,
            path: Some(path),
            ..ConnectOptions::new(remote, strategy)
        })
    }

    /// Every open link that fits found the server unreachable.
    fn server_down(&self, server: usize) -> bool {
        let mut cells = self.open_cells(server).peekable();
        cells.peek().is_some() && cells.all(|c| c.reach == Reach::Down)
    }

    /// What is known of a server over the links that could lead there.
    fn open_cells(&self, server: usize) -> impl Iterator<Item = &Cell> {
        let links = self.links.all.iter().filter(|l| l.open);
        let links = links.filter(move |l| l.reaches(&self.servers.entries[server]));
        links.map(move |l| &l.cells[server])
    }

    /// A user's bytes moved: links are watched more closely for a while.
    pub(crate) fn note_traffic(&mut self, now: Instant) {
        let was_busy = self.busy(now);
        self.last_traffic = Some(now);
        self.meter.may = self.may_measure(now);
        if was_busy {
            return;
        }
        let latest = now + self.probing.busy;
        for need in self.servers.needs() {
            let server = self.servers.current(need);
            for link in &mut self.links.all {
                if let Some(next) = &mut link.cells[server].next {
                    *next = latest.min(*next);
                }
            }
        }
    }

    fn busy(&self, now: Instant) -> bool {
        let lately = self.probing.busy * 2;
        self.last_traffic
            .is_some_and(|t| now.saturating_since(t) < lately)
    }

    /// A subflow of a user's connection came to be: as good as a probe.
    pub(crate) fn on_subflow(
        &mut self,
        now: Instant,
        server: usize,
        path: PathId,
        rtt: Duration,
        stack: &mut Stack,
    ) {
        let next = now + self.interval(now, server, path);
        if let Some(cell) = self.links.cell(server, path) {
            let returned = cell.is_returning();
            cell.succeeded(now, rtt);
            cell.next = Some(next).filter(|_| !cell.is_fatal());
            if returned {
                stack.doubt_path(now, path);
            }
            self.update(now, stack);
        }
    }

    /// Something of a user's connection failed there: look into it at once.
    pub(crate) fn on_doubt(&mut self, now: Instant, server: usize, path: PathId) {
        let Some(cell) = self.links.cell(server, path) else {
            return;
        };
        if cell.is_fatal() {
            // Nothing else tells whether it still answers.
            cell.want_examination(now);
        } else if cell.failures == 0 {
            cell.failures = 1;
            cell.next = Some(now);
            // What failed may answer a probe.
            cell.want_examination(now);
        }
    }

    /// Nothing comes back over a link: look into it at once.
    pub(crate) fn doubt_link(&mut self, now: Instant, path: PathId) {
        for need in self.servers.needs() {
            self.on_doubt(now, self.servers.current(need), path);
        }
    }

    /// A link leads through another network, or with another address: what was wrong there may be over.
    pub(crate) fn renew_link(&mut self, now: Instant, path: PathId) {
        for link in self
            .links
            .all
            .iter_mut()
            .filter(|l| l.path == path && l.open)
        {
            for cell in &mut link.cells {
                *cell = cell.reloaded(now);
            }
        }
        self.doubt_link(now, path);
    }

    /// Something of a user's connection failed, wherever: look into all links at once.
    pub(crate) fn on_doubt_everywhere(&mut self, now: Instant, server: usize) {
        for i in 0..self.links.all.len() {
            self.on_doubt(now, server, self.links.all[i].path);
        }
    }

    /// Whether an event is of a probe, a measurement or a warm connection; if so it is dealt with here.
    pub(crate) fn on_event(&mut self, cx: &mut Context<'_>, event: &Event) -> bool {
        self.on_probe_event(cx, event)
            || self.on_examination_event(cx, event)
            || self.on_measuring_event(cx, event)
            || self.on_warm_event(cx, event)
    }

    /// A subflow ended; where that was not in order, the link is looked into.
    pub(crate) fn on_subflow_closed(
        &mut self,
        now: Instant,
        server: usize,
        path: PathId,
        reason: SubflowCloseReason,
    ) {
        if matches!(
            reason,
            SubflowCloseReason::TimedOut | SubflowCloseReason::Reset
        ) {
            self.on_doubt(now, server, path);
        }
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        if self.ending {
            return None;
        }
        let timeouts = [
            self.links.next_timeout(),
            self.servers.next_timeout(),
            self.pools.next_timeout(),
            self.measuring_timeout(),
            self.examination_timeout(),
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
        // Before it is needed, hope is enough to do without a metered link; to let go of it takes
        // another that works.
        let in_need = self.links.all.iter().any(|l| l.metered && l.open);
        let least = if in_need { Reach::Up } else { Reach::Unknown };
        let suffices = |l: &Link| !l.metered && l.up && !l.off && l.reach() <= least;
        let need_metered = !self.links.all.iter().any(suffices);
        for i in 0..self.links.all.len() {
            let usable = self.links.all[i].up && !self.links.all[i].off;
            let open = usable && (!self.links.all[i].metered || need_metered);
            if open != self.links.all[i].open {
                self.set_open(now, i, open, stack);
            }
        }
        self.links.best = self.links.choose_best();
        self.choose(now);
        self.offer_families(now);
        let open = || self.links.all.iter().filter(|l| l.open);
        if open().any(|l| l.reach() == Reach::Up) {
            self.intake = true;
        } else if open().all(|l| l.reach() == Reach::Down) {
            self.intake = false;
        }
        self.ask_others(now);
        self.cool_down(now, stack);
    }

    /// Takes no more users' connections in, closes those that wait for users, and asks nothing of links
    /// and servers from now on.
    pub(crate) fn drain(&mut self, now: Instant, stack: &mut Stack) {
        self.proxy_on = false;
        self.ending = true;
        self.cool_down(now, stack);
    }

    fn set_open(&mut self, now: Instant, index: usize, open: bool, stack: &mut Stack) {
        // What comes of it would say nothing of the link.
        if let Some(ongoing) = self.meter.ongoing.take_if(|o| o.link == index) {
            ongoing.channel.abort(now, stack);
        }
        if let Some(parting) = self.meter.parting.take_if(|p| p.link == index) {
            parting.channel.abort(now, stack);
        }
        self.stop_examining(now, Some(self.links.all[index].path), stack);
        let link = &mut self.links.all[index];
        link.open = open;
        stack.forget_middleboxes(link.path);
        if link.up && !open {
            // The far end would go on sending over what it takes for a working link.
            stack.leave_path(now, link.path);
        } else {
            stack.set_path_up(now, link.path, open);
        }
        self.forget_servers(now, index, stack);
    }

    /// Finds out anew which servers a link reaches.
    fn forget_servers(&mut self, now: Instant, link: usize, stack: &mut Stack) {
        let link = &mut self.links.all[link];
        let open = link.open;
        for server in 0..self.servers.entries.len() {
            let fits = link.reaches(&self.servers.entries[server]);
            let probes = link.cells[server].probes();
            probes.for_each(|probe| stack.abort(now, probe));
            link.cells[server] = Cell {
                next: (open && fits).then_some(now),
                // A server of the other family is never reached here.
                reach: if fits { Reach::Unknown } else { Reach::Down },
                gauge: link.cells[server].gauge.reopened(),
                ..Cell::default()
            };
        }
    }
}
