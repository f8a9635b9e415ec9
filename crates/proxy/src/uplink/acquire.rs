//! Connections for users: from the idle pool, or opened to the best server over the best link.

use core::net::IpAddr;

use braid_engine::strategy::FlowSize;
use braid_engine::{ApiError, ConnectOptions, PathId, Stack};
use braid_secure::auth::SignIn;
use braid_secure::channel::Channel;
use braid_wire::Instant;

use super::checkout::{self, Checkout};
use super::health::{Reach, ServerHealth};
use super::links::Links;
use super::{Context, Upstream};
use crate::protocol::hints::FlowHints;
use crate::protocol::socks::Destination;
use crate::select::selection::Need;

/// The cost of a connection against a link's share, bits. A link of unknown rate counts as one of 1 Mbit/s.
const LOAD_UNIT_BITS: f64 = 1e6;

/// The requirements on a connection.
#[derive(Debug)]
pub(crate) struct AcquireRequest<'a> {
    /// Hints about the user's connection.
    pub(crate) hints: &'a FlowHints,
    /// Server and path of attempts that have failed.
    pub(crate) tried: &'a [(usize, PathId)],
    /// A connection of the idle pool has failed, so a new one must be opened.
    pub(crate) skip_pool: bool,
    /// The address of the destination, unless it is a name.
    pub(crate) destination_ip: Option<IpAddr>,
}

impl Upstream {
    /// Returns a connection to the best server, from the idle pool or opened over the best link that was not
    /// tried. The greeting is written; the engine's events tell whether the connection succeeds.
    pub(crate) fn acquire(
        &mut self,
        cx: &mut Context<'_>,
        request: &AcquireRequest<'_>,
    ) -> Result<Checkout, ApiError> {
        self.note_traffic(cx.now);
        let need = self.servers.choice.need(request.hints);
        let mut candidates = self.candidates(need, request.tried, request.destination_ip);
        candidates.sort_by_key(|(rank, ..)| *rank);
        let best = candidates.first().map(|(_, server, _)| *server);
        if let Some(server) = best.filter(|_| !request.skip_pool)
            && let Some(checkout) =
                self.take_idle(cx.now, (need, server), request.destination_ip, cx.stack)
        {
            cx.counters.idle_used += 1;
            // The engine must not apply what it learnt of an earlier user's flow to this one.
            let _ = cx.stack.begin_flow(cx.now, checkout.channel.conn);
            request.hints.begin(cx.now, checkout.channel.conn, cx.stack);
            self.fill_pools(cx);
            return Ok(checkout);
        }
        let mut error = ApiError::NoUsablePath;
        for (_, server, path) in candidates {
            match self.open(cx.now, (server, path), Some(request), cx.stack) {
                Ok(checkout) => return Ok(checkout),
                Err(ApiError::NoUsablePath) => {}
                Err(e) => {
                    error = e;
                    break;
                }
            }
        }
        Err(error)
    }

    /// Writes the request for a destination to a connection from [`acquire`](Self::acquire).
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
        checkout::request((now, channel), keys, sign_in, about, stack)
    }

    /// Returns servers and links to try, each with a rank; lower is better. Servers that do not answer come last.
    /// Among the others, those that reach the address family of `to` come first, then the chosen one, then the
    /// configuration's order. Of the links, working ones come first, then those with Multipath TCP, then those
    /// that are no backup, then by round-trip time. Links without Multipath TCP take turns by rate.
    pub(super) fn candidates(
        &self,
        need: Need,
        tried: &[(usize, PathId)],
        to: Option<IpAddr>,
    ) -> Vec<(impl Ord + Copy + use<>, usize, PathId)> {
        let chosen = self.servers.current(need);
        let mut candidates = Vec::new();
        for server in 0..self.servers.entries.len() {
            // The engine tries its paths in turn by itself, so a failed attempt rather means that the server is
            // down than that the link to it is.
            let attempt_failed = tried.iter().any(|(s, _)| *s == server);
            let server_down = self.links.is_server_down(server) || attempt_failed;
            let is_unusable = !self.links.is_server_usable(server);
            let reaches = to.is_none_or(|ip| self.servers.reached.of(server).has(ip));
            for (order, link) in self.links.all.iter().enumerate() {
                let tried = tried.contains(&(server, link.path));
                let health = &link.health[server];
                if !link.open || tried || !health.fits {
                    continue;
                }
                let failing = (health.reach == Reach::Down, health.failures > 0);
                let cost = match health.is_plain() {
                    // An integer, because ranks need a total order: the load in nanoseconds.
                    true => (link.plain_load_secs * 1e9) as u64,
                    false => health.rank_rtt(),
                };
                let rank = (
                    server_down,
                    (is_unusable, !reaches, server != chosen, server),
                    (failing, health.is_plain()),
                    link.backup,
                    cost,
                    order,
                );
                candidates.push((rank, server, link.path));
            }
        }
        candidates
    }

    /// Opens a connection for a user's flow, or for the idle pool where `request` is `None`, and signs in.
    pub(super) fn open(
        &mut self,
        now: Instant,
        (server, path): (usize, PathId),
        request: Option<&AcquireRequest<'_>>,
        stack: &mut Stack,
    ) -> Result<Checkout, ApiError> {
        let flow = request.map(|request| request.hints);
        let strategy = match flow {
            Some(flow) => flow.strategy().unwrap_or_else(|| (self.strategy)()),
            None => Box::new(braid_strategy::Waiting::default()),
        };
        let entry = &self.servers.entries[server];
        let options = self.links.options((entry, path), strategy)?;
        // A strategy knows round-trip times, but not which links are in trouble.
        let again = request.is_some_and(|request| !request.tried.is_empty());
        let options = ConnectOptions {
            flow_size: flow.map_or(FlowSize::Unknown, |f| f.size),
            urgency: flow.and_then(|f| f.urgency).unwrap_or_default(),
            pin_path: again || self.links.open_health(server).any(ServerHealth::is_unsound),
            ..options
        };
        let checkout = self
            .servers
            .sign_in_over(now, (server, path), options, stack)?;
        self.links.note_plain_load(server, path, stack);
        Ok(checkout)
    }
}

impl Links {
    /// Adds the cost of a new connection to its link, where the link has no Multipath TCP.
    fn note_plain_load(&mut self, server: usize, path: PathId, stack: &Stack) {
        let others = self.open().filter(|l| l.path != path);
        let behind = others.map(|l| l.plain_load_secs).reduce(f64::min);
        let Some(link) = self.find_mut(path) else {
            return;
        };
        if !link.health[server].is_plain() {
            return;
        }
        let records = stack.records().filter(|(_, on, _)| *on == path);
        let seen = records.map(|(.., record)| record.delivery_rate as f64 * 8.0);
        let measured = link.health.iter().filter_map(|c| c.gauge.capacity());
        let rate = measured.chain(seen).reduce(f64::max);
        // A link that was away must not catch up on the turns that it missed.
        let floor = behind.map_or(0.0, |least| least - 1.0);
        link.plain_load_secs = link.plain_load_secs.max(floor)
            + LOAD_UNIT_BITS / rate.unwrap_or(LOAD_UNIT_BITS).max(1.0);
    }
}
