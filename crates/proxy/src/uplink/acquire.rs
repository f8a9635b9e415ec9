//! Provides connections for users, from the idle pool or opened to the best server over the best link.

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

/// The cost of one connection, bits. The cost divided by the link's rate is the connection's load in seconds. The
/// same number is the rate assumed for a link whose rate is unknown, 1 Mbit/s. So a connection over such a link
/// has a load of 1 s.
const LOAD_UNIT_BITS: f64 = 1e6;

/// The requirements on a connection.
#[derive(Debug)]
pub(crate) struct AcquireRequest<'a> {
    /// Hints about the user's connection.
    pub(crate) hints: &'a FlowHints,
    /// Server and path of each attempt that has failed.
    pub(crate) tried: &'a [(usize, PathId)],
    /// True if a new connection must be opened, because another one has failed.
    pub(crate) skip_pool: bool,
    /// The IP address of the destination; `None` if the destination is a name.
    pub(crate) destination_ip: Option<IpAddr>,
}

impl Upstream {
    /// Returns a connection to the best server: from the idle pool, or a new connection over the best link that
    /// was not tried. On a new connection the greeting is written already, and events of the engine will show
    /// whether the connection succeeds.
    pub(crate) fn acquire(
        &mut self,
        cx: &mut Context<'_>,
        request: &AcquireRequest<'_>,
    ) -> Result<Checkout, ApiError> {
        self.note_traffic(cx.now);
        let need = self.servers.choice.need(request.hints);
        let chosen = self.server_for(cx.now, need, request.destination_ip);
        let mut candidates = self.candidates(chosen, request.tried, request.destination_ip);
        candidates.sort_by_key(|(rank, ..)| *rank);
        let best = candidates.first().map(|(_, server, _)| *server);
        // The chosen server, if the metrics of the destination's prefix chose it in place of the usual server.
        let other = Some(chosen).filter(|chosen| *chosen != self.servers.current(need));
        let idle = best.filter(|_| !request.skip_pool).and_then(|server| {
            if Some(server) == other {
                return self.take_idle_to(cx.now, server, cx.stack);
            }
            self.take_idle(cx.now, (need, server), request.destination_ip, cx.stack)
        });
        if let Some(checkout) = idle {
            cx.counters.idle_used += 1;
            // The strategy's knowledge of an earlier user's flow does not apply to this one. An error means that
            // the connection is gone; its `Closed` event follows.
            let _ = cx.stack.begin_flow(cx.now, checkout.channel.conn);
            request.hints.begin(cx.now, checkout.channel.conn, cx.stack);
            self.fill_pools(cx);
            return Ok(checkout);
        }
        let mut error = ApiError::NoUsablePath;
        for (_, server, path) in candidates {
            match self.open(cx.now, (server, path), Some(request), cx.stack) {
                Ok(checkout) => return Ok(checkout),
                // Another candidate may have a usable path; other errors would repeat.
                Err(ApiError::NoUsablePath) => {}
                Err(e) => {
                    error = e;
                    break;
                }
            }
        }
        Err(error)
    }

    /// Writes the request for `destination` on a connection from [`acquire`](Self::acquire).
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

    /// Returns the pairs of server and link to try, each with its rank; lower is better.
    ///
    /// A server ranks higher if it answers. Among equals it ranks higher if it has no recent failure, then if it
    /// reaches the address family of `to`, then if it is the `chosen` one, and last by the configuration's order.
    /// The links to one server are ranked by these criteria in turn: no failures, Multipath TCP, not a backup,
    /// short round-trip time. Links without Multipath TCP take turns in proportion to their rates.
    pub(super) fn candidates(
        &self,
        chosen: usize,
        tried: &[(usize, PathId)],
        to: Option<IpAddr>,
    ) -> Vec<(impl Ord + Copy + use<>, usize, PathId)> {
        let mut candidates = Vec::new();
        for server in 0..self.servers.entries.len() {
            // The engine itself tries the other paths to a server that does not answer. So after a failed attempt
            // the server is more likely down than the link.
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
                    // Ranks need a total order, which a float lacks. So the load is converted to whole
                    // nanoseconds.
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

    /// Opens a connection for a user's flow, or for the idle pool if `request` is `None`, and signs in.
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
        // If there are problems, the first subflow must use `path`: a strategy does not know of the problems, and
        // would choose by round-trip times.
        let is_retry = request.is_some_and(|request| !request.tried.is_empty());
        let options = ConnectOptions {
            flow_size: flow.map_or(FlowSize::Unknown, |f| f.size),
            urgency: flow.and_then(|f| f.urgency).unwrap_or_default(),
            pin_path: is_retry || self.links.open_health(server).any(ServerHealth::is_unsound),
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
    /// Adds the cost of a new connection to its link, if connections there are regular TCP.
    fn note_plain_load(&mut self, server: usize, path: PathId, stack: &Stack) {
        let others = self.open().filter(|l| l.path != path);
        let min_load = others.map(|l| l.plain_load_secs).reduce(f64::min);
        let Some(link) = self.find_mut(path) else {
            return;
        };
        if !link.health[server].is_plain() {
            return;
        }
        let records = stack.records().filter(|(_, on, _)| *on == path);
        let recorded_rates = records.map(|(.., record)| record.delivery_rate as f64 * 8.0);
        let measured = link
            .health
            .iter()
            .filter_map(|health| health.gauge.capacity());
        let rate = measured.chain(recorded_rates).reduce(f64::max);
        // A link that was down for long has a low load, and must not get all connections until it has caught up.
        // So if its load is lower, it is raised to 1 s (one connection at 1 Mbit/s) below the lowest load of the
        // other links.
        let floor = min_load.map_or(0.0, |load| load - 1.0);
        link.plain_load_secs = link.plain_load_secs.max(floor)
            + LOAD_UNIT_BITS / rate.unwrap_or(LOAD_UNIT_BITS).max(1.0);
    }
}
