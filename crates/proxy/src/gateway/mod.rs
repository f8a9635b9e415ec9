//! The aggregation box: intercepts users' connections and carries them to a server over all links.
//!
//! The module has users' sessions, from the first byte to the end. It does not choose servers and links, nor keep
//! their state: the gateway asks the uplink.

mod classifier;
mod log;
mod reload;
mod session;
mod socks_clients;
mod status;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;

use braid_engine::{
    ApiError, CloseReason, Event, PathId, Stack, StrategyFactory, SubflowCloseReason,
};
use braid_secure::channel::Channel;
use braid_wire::{Instant, Rng};

use crate::admin::records::SavedState;
use crate::admin::report::{BoxCounters, FORGED_JOIN, LogLimiter};
use crate::admin::status::{CoreInfo, RulesStatus};
use crate::admin::verdict::Reason;
use crate::app::{Arrival, Core, Ctx, DownstreamError, DownstreamEvent, DownstreamId};
use crate::config::{BoxConfig, BoxLimits, BoxTimeouts};
use crate::protocol::hints::FlowHints;
use crate::protocol::socks::{ClientError, ClientHandshake, ClientStep, Reply};
use crate::relay::sniff::{self, Sniffed};
use crate::relay::table::{Due, SessionId, Table};
use crate::relay::{self, End, Moved, Relay, StepError, Turn};
use crate::uplink::{self, AcquireRequest, LinkAddresses, Notice, Trouble, Upstream};

use classifier::{Flow, FlowClassifier};
use session::{Outcome, Session, Stage};
use socks_clients::{SocksClients, Step};

/// The box as a sans-I/O core.
///
/// # Use
///
/// 1. Call [`set_wall_clock`](Self::set_wall_clock) once at the start, then whenever the system's clock was set,
///    at least once a minute.
/// 2. Call [`add_link`](Self::add_link) for each configured link, and [`set_link_up`](Self::set_link_up) whenever
///    one comes or goes (never [`Stack::set_path_up`], because the core keeps metered links down until they are
///    needed).
/// 3. Pass events as [`Core`] describes; then call [`poll_notice`](Self::poll_notice) until `None`.
///
/// Intercept users' connections only while [`wants_interception`](Self::wants_interception); one more or one less
/// around a change does no harm.
#[derive(Debug)]
pub struct BoxCore {
    about: CoreInfo,
    timeouts: BoxTimeouts,
    limits: BoxLimits,
    upstream: Upstream,
    classifier: FlowClassifier,
    socks_clients: SocksClients,
    sessions: Table<Session>,
    /// Number of connections of each LAN host.
    per_host: BTreeMap<IpAddr, usize>,
    /// Number of connections whose destination is not connected yet.
    handshakes: usize,
    counters: BoxCounters,
    limiter: LogLimiter,
    /// Problems of this host, which the driver reports.
    host_faults: Vec<Reason>,
    /// The box is about to end: failures to open connections are expected then.
    is_ending: bool,
}

/// Most timers and turns handled before packets are sent.
const TURN_BATCH: usize = 32;

/// Most attempts to reach a server for one connection.
const MAX_ATTEMPTS: usize = 4;

/// Most bytes of a user that are sent before the server has signed the box in or, on an idle connection, has
/// answered. They are kept to be repeated on another connection. The size is about what two links carry in a first
/// round trip.
const MAX_RESENT_BYTES: usize = 32 << 10;

impl BoxCore {
    /// Creates a core without links. `strategy` creates the strategy of each connection, as the stack's factory
    /// does; `rng` must be an independent stream.
    pub fn new(config: &BoxConfig, rng: Rng, strategy: StrategyFactory) -> Self {
        BoxCore {
            about: CoreInfo {
                name: config.name.clone(),
                strategy: config.strategy.clone(),
                congestion: config.congestion.name(),
                rules: RulesStatus::default(),
            },
            timeouts: config.timeouts.clone(),
            limits: config.limits.clone(),
            upstream: Upstream::new(config, rng, strategy),
            classifier: FlowClassifier::new(config.rules.clone()),
            socks_clients: SocksClients::default(),
            sessions: Table::default(),
            per_host: BTreeMap::new(),
            handshakes: 0,
            counters: BoxCounters::default(),
            limiter: LogLimiter::default(),
            host_faults: Vec::new(),
            is_ending: false,
        }
    }

    /// Sets the state of the kernel's rules, for the status.
    pub fn set_rules(&mut self, rules: RulesStatus) {
        self.about.rules = rules;
    }

    /// Sets the wall clock: at `now` it shows `since_epoch` (since 1970-01-01 UTC).
    pub fn set_wall_clock(&mut self, now: Instant, since_epoch: Duration) {
        self.upstream.set_wall_clock(now, since_epoch);
    }

    /// Adds link number `link` of the configuration to the stack; it starts down.
    ///
    /// # Errors
    /// Fails as [`Stack::add_path`] does.
    pub fn add_link(
        &mut self,
        now: Instant,
        link: usize,
        addresses: LinkAddresses,
        stack: &mut Stack,
    ) -> Result<PathId, ApiError> {
        self.upstream.add_link(now, link, addresses, None, stack)
    }

    /// Adds a link in place of one whose path was [removed](Self::remove_path).
    pub fn replace_link(
        &mut self,
        now: Instant,
        path: PathId,
        (link, addresses): (usize, LinkAddresses),
        stack: &mut Stack,
    ) -> Result<PathId, ApiError> {
        self.upstream
            .add_link(now, link, addresses, Some(path), stack)
    }

    /// Sets the addresses of a link, which may lose a family and regain it. The MTU does not change.
    pub fn set_link_addresses(
        &mut self,
        now: Instant,
        path: PathId,
        addresses: LinkAddresses,
        stack: &mut Stack,
    ) {
        self.upstream
            .set_link_addresses(now, path, addresses, stack);
    }

    /// Sets whether the link of `path` has carrier, address and gateway.
    pub fn set_link_up(&mut self, now: Instant, path: PathId, up: bool, stack: &mut Stack) {
        self.upstream.set_link_up(now, path, up, stack);
    }

    /// Notes that packets may leave the link of `path` with another address or through another network: the state
    /// of the link is validated at once.
    pub fn on_link_readdressed(&mut self, now: Instant, path: PathId, stack: &mut Stack) {
        stack.revalidate_path(now, path);
        stack.forget_middleboxes(path);
        self.upstream.on_link_readdressed(now, path);
    }

    /// Notes that packets leave over the link of `path` but none come back: it is probed at once.
    pub fn revalidate_link(&mut self, now: Instant, path: PathId) {
        self.upstream.revalidate_link(now, path);
    }

    /// Handles a long standstill of this machine, such as suspend, in which its clock did not advance: peers and
    /// NATs have heard nothing meanwhile. Validates every link and every connection, and closes idle connections.
    pub fn on_resumed(&mut self, now: Instant, stack: &mut Stack) {
        self.upstream.on_resumed(now, stack);
    }

    /// Returns the link for everything that is not TCP; `None` where no link is up.
    pub fn best_path(&self) -> Option<PathId> {
        self.upstream.best_path()
    }

    /// Returns whether new connections are to be intercepted ([`Notice::Intercept`]); `false` until a server has
    /// answered for the first time.
    pub fn wants_interception(&self) -> bool {
        self.upstream.wants_interception()
    }

    /// Returns whether the link of `path` is switched off ([`Request::Link`](crate::admin::control::Request)).
    pub fn is_off(&self, path: PathId) -> bool {
        self.upstream.is_off(path)
    }

    /// Returns the records and measurements to be kept beyond this process, except outdated ones.
    pub fn saved_state(&self, now: Instant, stack: &Stack) -> SavedState {
        SavedState {
            records: self.upstream.saved_records(now, stack),
            measurements: self.upstream.saved_measurements(now),
        }
    }

    /// Restores kept records and measurements of existing links; to be called after the links were added and the
    /// wall clock was set. Outdated and implausible entries are left out. Where `now` is less than
    /// [`MAX_RECORD_AGE`](crate::admin::records::MAX_RECORD_AGE) after the origin of time, some look younger than
    /// they are.
    pub fn restore_state(&mut self, now: Instant, stack: &mut Stack, saved: &SavedState) {
        self.upstream.restore_records(now, stack, &saved.records);
        self.upstream.restore_measurements(now, &saved.measurements);
    }

    /// Returns the next notice, only about changes. The initial state is `BestPath(None)`, `Reached(_, true)` and
    /// `Intercept(false)`.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.upstream.poll_notice(&mut self.counters)
    }

    /// Returns the counters since the start.
    pub fn counters(&self) -> &BoxCounters {
        &self.counters
    }

    /// Returns the number of users' connections.
    pub fn connections(&self) -> usize {
        self.sessions.len() + self.socks_clients.len()
    }
}

impl Core for BoxCore {
    fn on_engine_event(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        if let Event::JoinForged { remote: from, .. } = event {
            // The engine counts all of them.
            if let Some(suppressed) = self.limiter.allow(ctx.now, "forged subflow", from.ip()) {
                tracing::warn!(%from, suppressed, "{FORGED_JOIN}");
            }
            return;
        }
        let cx = &mut uplink::Context::new(ctx, &mut self.counters);
        if self.upstream.on_event(cx, &event) {
            return;
        }
        if let Some(id) = self.sessions.by_conn(event.conn()) {
            self.on_conn_event(ctx, id, event);
        } else if let Event::Accepted { conn, .. } = event {
            // A box listens on nothing.
            ctx.stack.abort(ctx.now, conn);
        }
    }

    fn on_downstream_event(&mut self, ctx: &mut Ctx<'_>, event: DownstreamEvent) {
        if let DownstreamEvent::Accepted {
            id,
            peer,
            destination,
            arrival,
            dscp,
        } = event
        {
            return self.on_accepted(ctx, id, peer.ip(), (arrival, destination, dscp));
        }
        if let Some(step) = self.socks_clients.on_event(ctx, &event) {
            return self.on_socks_step(ctx, step);
        }
        let Some(id) = self.sessions.by_downstream(event.id()) else {
            return;
        };
        match event {
            DownstreamEvent::Readable { .. } => {
                self.advance_with(ctx, id, Relay::set_downstream_readable)
            }
            DownstreamEvent::Writable { .. } => {
                self.advance_with(ctx, id, Relay::set_downstream_writable)
            }
            DownstreamEvent::Broken { .. } => self.end(ctx, id, Outcome::Relayed(End::Downstream)),
            // A box neither connects nor looks up names.
            _ => {}
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let own = self.sessions.next_timeout();
        let times = [
            own,
            self.socks_clients.next_timeout(),
            self.upstream.next_timeout(),
        ];
        times.into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        if self.upstream.next_timeout().is_some_and(|at| at <= ctx.now) {
            let cx = &mut uplink::Context::new(ctx, &mut self.counters);
            self.upstream.handle_timeout(cx);
        }
        for _ in 0..TURN_BATCH {
            match self.sessions.pop_due(ctx.now) {
                Some((id, Due::Timer)) => self.on_timer(ctx, id),
                Some((id, Due::Turn)) => self.advance(ctx, id),
                None => break,
            }
        }
        for _ in 0..TURN_BATCH {
            let Some(client) = self.socks_clients.pop_overdue(ctx) else {
                break;
            };
            self.on_socks_step(ctx, Step::Gone(client));
        }
    }
}

impl BoxCore {
    fn on_conn_event(&mut self, ctx: &mut Ctx<'_>, id: SessionId, event: Event) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let server = session.server;
        session.history.on_event(&event);
        match event {
            Event::Connected { .. } => {
                let handshake = ClientHandshake::new(session.channel.is_protected());
                self.on_connected(ctx, id, Box::new(handshake));
            }
            Event::Readable { .. } => self.advance_with(ctx, id, Relay::set_conn_readable),
            Event::Writable { .. } => self.advance_with(ctx, id, Relay::set_conn_writable),
            Event::SubflowEstablished { path, rtt, .. } => {
                if matches!(session.stage, Stage::Connecting(_)) && session.path != path {
                    // The engine had no answer on that path and used another.
                    let silent = core::mem::replace(&mut session.path, path);
                    self.upstream.on_failure(ctx.now, server, silent);
                }
                self.upstream
                    .on_subflow(ctx.now, server, path, rtt, ctx.stack);
            }
            Event::SubflowClosed {
                reason: SubflowCloseReason::Reset,
                ..
            } if session.may_fall_back(ctx.stack) => {
                self.fall_back(ctx, id);
            }
            Event::SubflowClosed { path, reason, .. } => {
                self.upstream
                    .on_subflow_closed(ctx.now, server, path, reason);
            }
            Event::Closed { reason, .. } => self.on_closed(ctx, id, reason),
            Event::FellBack { cause, .. } => {
                let at = (server, session.path);
                self.upstream.on_fell_back(ctx.now, at, cause, ctx.stack);
            }
            // The server announces itself that it is ready for another user.
            _ => {}
        }
    }

    /// Advances a session after `mark` has noted which direction of its relay may continue.
    fn advance_with(&mut self, ctx: &mut Ctx<'_>, id: SessionId, mark: fn(&mut Relay)) {
        if let Some(session) = self.sessions.get_mut(id) {
            mark(&mut session.relay);
        }
        self.advance(ctx, id);
    }

    fn on_closed(&mut self, ctx: &mut Ctx<'_>, id: SessionId, reason: CloseReason) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if matches!(reason, CloseReason::TimedOut | CloseReason::Unreachable) {
            self.upstream
                .on_failure_on_all_links(ctx.now, session.server);
        }
        tracing::debug!(?reason, "connection to the server closed");
        match session.stage {
            Stage::Connecting(_) => self.retry(ctx, id),
            Stage::Negotiating(_) if session.may_fall_back(ctx.stack) => {
                if !self.fall_back(ctx, id) {
                    self.end(ctx, id, Outcome::NoServer);
                }
            }
            Stage::Negotiating(_) => self.try_another(ctx, id, Outcome::ServerFailed),
            Stage::Leaving(_) if reason == CloseReason::Finished => {
                self.end(ctx, id, Outcome::Relayed(End::Finished));
            }
            // The session's timer is due and ends it.
            Stage::Unreached => {}
            Stage::Relaying | Stage::Leaving(_) => {
                let end = session.relay.on_closed(&session.channel, reason);
                self.end(ctx, id, Outcome::Relayed(end));
            }
        }
    }

    fn on_accepted(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: DownstreamId,
        peer: IpAddr,
        (arrival, destination, dscp): (Arrival, SocketAddr, u8),
    ) {
        self.counters.accepted += 1;
        let host = peer.to_canonical();
        if !self.admit(ctx, host) {
            return ctx.downstream.reset(id);
        }
        match arrival {
            Arrival::Intercepted => {
                let ip = destination.ip().to_canonical();
                let destination = SocketAddr::new(ip, destination.port()).into();
                let flow = Flow::new(destination, FlowHints::default(), dscp);
                self.open(ctx, (id, host), flow, false);
            }
            Arrival::Addressed => {
                let deadline = ctx.now + self.timeouts.connect;
                let step = self.socks_clients.accept(ctx, (id, host), dscp, deadline);
                self.on_socks_step(ctx, step);
            }
        }
    }

    /// Returns whether there is room for another connection of `host`, and counts it.
    fn admit(&mut self, ctx: &mut Ctx<'_>, host: IpAddr) -> bool {
        if self.connections() >= self.limits.connections()
            && let Some(conn) = ctx.stack.reclaim(ctx.now, None)
            && let Some(id) = self.sessions.by_conn(conn)
        {
            self.on_closed(ctx, id, CloseReason::NoResources);
        }
        let now = ctx.now;
        let open = self.connections();
        let of_host = self.per_host.get(&host).copied().unwrap_or(0);
        if open >= self.limits.connections()
            || self.handshakes >= self.limits.handshakes()
            || of_host >= self.limits.per_host()
        {
            self.counters.over_limit += 1;
            if let Some(suppressed) = self.limiter.allow(now, "limit", host) {
                tracing::warn!(
                    %host, open, of_host, suppressed,
                    "too many connections: refused one of a user; see [limits] in box.toml"
                );
            }
            return false;
        }
        self.handshakes += 1;
        *self.per_host.entry(host).or_default() += 1;
        true
    }

    /// Removes a connection of `host` from the count.
    fn leave(&mut self, host: IpAddr) {
        if let Some(n) = self.per_host.get_mut(&host) {
            *n -= 1;
            if *n == 0 {
                self.per_host.remove(&host);
            }
        }
    }

    fn on_socks_step(&mut self, ctx: &mut Ctx<'_>, step: Step) {
        let (client, flow) = match step {
            Step::Waits => return,
            Step::Requests(client, flow) => (client, Some(flow)),
            Step::Gone(client) => (client, None),
        };
        self.log_bad_hints(ctx.now, &client);
        match flow {
            Some(flow) => self.open(ctx, (client.downstream, client.host), flow, true),
            None => {
                self.counters.socks_refused += 1;
                self.handshakes -= 1;
                self.leave(client.host);
            }
        }
    }

    /// Opens a connection to a server for an admitted user; `awaits_reply` where a SOCKS client waits for a reply.
    fn open(
        &mut self,
        ctx: &mut Ctx<'_>,
        (downstream, host): (DownstreamId, IpAddr),
        flow: Flow,
        awaits_reply: bool,
    ) {
        let hints = self.classifier.hints(ctx.now, &flow);
        let request = AcquireRequest {
            hints: &hints,
            tried: &[],
            skip_pool: false,
            destination_ip: flow.destination.ip(),
        };
        let cx = &mut uplink::Context::new(ctx, &mut self.counters);
        let checkout = self.upstream.acquire(cx, &request);
        let checkout = match checkout {
            Ok(checkout) => checkout,
            Err(error) => {
                self.counters.no_server += 1;
                self.warn_no_server(ctx.now, host, Some(error));
                self.handshakes -= 1;
                self.leave(host);
                let words = awaits_reply.then(|| Outcome::NoServer.reply().encode());
                return socks_clients::close_after(
                    ctx,
                    downstream,
                    words.as_ref().map_or(&[], |w| &w[..]),
                );
            }
        };
        let conn = checkout.channel.conn;
        let mut relay = Relay::new(ctx.now, downstream, self.timeouts.relay_timeouts());
        relay.keep_first_bytes(MAX_RESENT_BYTES);
        let session = Session {
            channel: checkout.channel,
            relay,
            stage: Stage::Connecting(checkout.sign_in),
            server: checkout.server,
            path: checkout.path,
            history: checkout.history,
            host,
            awaits_reply,
            flow,
            hints,
            is_sniffed: false,
            unsent_hints: FlowHints::default(),
            unsent_early_hints: Vec::new(),
            moved: Moved::default(),
            started: ctx.now,
            request_offset: 0,
            failed_attempts: Vec::new(),
        };
        let sid = self.sessions.insert(session);
        self.sessions.bind_downstream(downstream, sid);
        self.sessions.bind_conn(conn, sid);
        self.sessions.arm(sid, ctx.now + self.timeouts.attempt);
        if let Some(handshake) = checkout.handshake {
            self.on_connected(ctx, sid, handshake);
        }
    }

    /// Tries another server or link after an attempt that reached no server.
    fn retry(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        self.upstream
            .on_failure(ctx.now, session.server, session.path);
        session.failed_attempts.push((session.server, session.path));
        let attempts = session.failed_attempts.len();
        let late = ctx.now >= session.started + self.timeouts.connect;
        if late || attempts >= MAX_ATTEMPTS {
            return self.end(ctx, id, Outcome::NoServer);
        }
        if self.reconnect(ctx, id) {
            self.counters.retries += 1;
        } else {
            self.end(ctx, id, Outcome::NoServer);
        }
    }

    /// Replaces an idle connection that turned out dead, without the user's notice. Returns whether that
    /// succeeded.
    fn fall_back(&mut self, ctx: &mut Ctx<'_>, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(id) else {
            return false;
        };
        let dead = (session.server, &session.history);
        self.upstream.on_idle_conn_failed(ctx.now, dead, ctx.stack);
        let replaced = self.reconnect(ctx, id);
        self.counters.idle_failed += u64::from(replaced);
        replaced
    }

    /// Replaces a failed connection by a new one; returns whether that succeeded.
    fn reconnect(&mut self, ctx: &mut Ctx<'_>, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let request = AcquireRequest {
            hints: &session.hints,
            tried: &session.failed_attempts,
            skip_pool: true,
            destination_ip: session.flow.destination.ip(),
        };
        let cx = &mut uplink::Context::new(ctx, &mut self.counters);
        let checkout = self.upstream.acquire(cx, &request);
        let Ok(checkout) = checkout else {
            return false;
        };
        session.channel.abort(ctx.now, ctx.stack);
        let conn = checkout.channel.conn;
        session.channel = checkout.channel;
        session.server = checkout.server;
        session.path = checkout.path;
        session.history = checkout.history;
        session.stage = Stage::Connecting(checkout.sign_in);
        let deadline = ctx.now + session.attempt_timeout(self.timeouts.attempt);
        self.sessions.bind_conn(conn, id);
        self.sessions.arm(id, deadline);
        true
    }

    /// Tries another server after one, or something in its place, has failed a session, and directs other
    /// connections elsewhere. Ends the session by `outcome` where the server may have acted on the request.
    fn try_another(&mut self, ctx: &mut Ctx<'_>, id: SessionId, outcome: Outcome) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let at = (session.server, session.path);
        let proved = session.server_proved_key();
        match outcome.trouble(session.history.fell_back()) {
            // A server that knows this box from a ticket may still refuse its key.
            Some(trouble) if !proved || trouble == Trouble::KeyRefused => {
                self.upstream.on_trouble(ctx.now, at, trouble, ctx.stack);
            }
            _ if outcome.is_family_refusal()
                && let Some(ip) = session.flow.destination.ip() =>
            {
                self.upstream.on_family_refused(ctx.now, at.0, ip);
                if !self.upstream.is_family_reached(ip) {
                    session.stage = Stage::Unreached;
                    return self.sessions.arm(id, ctx.now);
                }
            }
            // A server that is stopping, or has no room, closes connections that it has not served.
            _ if proved && !matches!(outcome, Outcome::ServerFailed) => {
                return self.end(ctx, id, outcome);
            }
            _ => self.upstream.on_failure(ctx.now, at.0, at.1),
        }
        let may_resend = session.may_resend(outcome);
        session.failed_attempts.push(at);
        let attempts = session.failed_attempts.len();
        let late = ctx.now >= session.started + self.timeouts.connect;
        if may_resend && attempts < MAX_ATTEMPTS && !late && self.reconnect(ctx, id) {
            self.counters.retries += 1;
        } else {
            self.end(ctx, id, outcome);
        }
    }

    /// Sends the request for the destination; `answers` reads the server's answers.
    fn on_connected(&mut self, ctx: &mut Ctx<'_>, id: SessionId, handshake: Box<ClientHandshake>) {
        self.sniff_first_bytes(ctx, id);
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Stage::Connecting(sign_in) = &session.stage else {
            return;
        };
        let is_idle = handshake.is_signed_in();
        if is_idle {
            let stats = ctx.stack.conn_stats(session.channel.conn);
            session.request_offset = stats.map_or(0, |s| s.snd_end);
        }
        let written = self.upstream.request(
            ctx.now,
            (&mut session.channel, session.server),
            sign_in.as_ref(),
            (&session.flow.destination, &session.hints),
            ctx.stack,
        );
        session.channel.begin_writing();
        // The request has carried all hints known so far.
        session.unsent_hints = FlowHints::default();
        session.unsent_early_hints = Vec::new();
        let told = written.is_ok() && session.send_early_hints(ctx);
        if !told || !is_idle && !session.relay.resend_first_bytes(ctx, &mut session.channel) {
            return self.end(ctx, id, Outcome::ServerFailed);
        }
        session.stage = Stage::Negotiating(handshake);
        let deadline = ctx.now + session.attempt_timeout(self.timeouts.attempt);
        self.sessions.arm(id, deadline);
        self.advance(ctx, id);
    }

    /// Examines the first bytes of a user, once they are there, for further hints.
    fn sniff_first_bytes(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let mut first = [0; sniff::MAX_SNIFFED_BYTES];
        let there = match ctx.downstream.peek(session.relay.downstream, &mut first) {
            Err(DownstreamError::WouldBlock) => return,
            // The read that follows will report it.
            Err(DownstreamError::Broken) => 0,
            Ok(there) => there,
        };
        session.is_sniffed = true;
        let sniffed = sniff::examine(&first[..there]);
        if sniffed != Sniffed::default() {
            session.flow.add_sniffed(sniffed);
            let hints = self.classifier.hints(ctx.now, &session.flow);
            session.add_hints(ctx, hints);
        }
    }

    /// Advances a session as far as possible.
    fn advance(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        if !self.negotiate(ctx, id) {
            return;
        }
        if self.sessions.get_mut(id).is_some_and(|s| !s.is_sniffed) {
            self.sniff_first_bytes(ctx, id);
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        match session.stage {
            // On a replacement connection the request must come first.
            Stage::Connecting(_) | Stage::Unreached => {}
            Stage::Negotiating(_) => self.relay(ctx, id, Relay::turn_to_conn),
            Stage::Relaying => self.relay(ctx, id, Relay::turn),
            Stage::Leaving(_) => self.await_ready(ctx, id),
        }
    }

    /// Reads the server's answer to a request, where it is awaited. Returns whether the session continues with its
    /// current connection.
    fn negotiate(&mut self, ctx: &mut Ctx<'_>, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let Stage::Negotiating(handshake) = &mut session.stage else {
            return true;
        };
        let was_signed_in = handshake.is_signed_in();
        let input = |buf: &[u8]| handshake.input(buf);
        let channel = &mut session.channel;
        let step = relay::read_step(ctx.now, channel, ctx.stack, ClientStep::More, input);
        if step == Ok(ClientStep::More) && !was_signed_in && handshake.is_signed_in() {
            // From now on the server acts on the request, so it must not be repeated.
            session.relay.drop_first_bytes();
        }
        let reported = channel.take_families();
        self.upstream
            .on_families_reported(ctx.now, session.server, reported);
        match step {
            Ok(ClientStep::Connected) => {
                session.stage = Stage::Relaying;
                session.failed_attempts = Vec::new();
                session.channel.begin_reading();
                session.relay.drop_first_bytes();
                session.relay.restart_timeout(ctx.now);
                let due = session.relay.due();
                let server = session.server;
                let told =
                    !session.awaits_reply || socks_clients::confirm(ctx, session.relay.downstream);
                self.counters.connected += 1;
                let by_keys = session.channel.joins_use_keys();
                self.counters.joined_by_keys += u64::from(by_keys);
                self.handshakes -= 1;
                self.sessions.arm(id, due);
                let cx = &mut uplink::Context::new(ctx, &mut self.counters);
                self.upstream.on_served(cx, server);
                if !told {
                    self.end(ctx, id, Outcome::Relayed(End::Downstream));
                    return false;
                }
            }
            Ok(ClientStep::More) if session.channel.read_finished(ctx.stack) => {
                self.try_another(ctx, id, Outcome::Refused(ClientError::Garbage));
                return false;
            }
            Ok(ClientStep::More) => {}
            Ok(ClientStep::Failed(error)) => {
                self.try_another(ctx, id, Outcome::Refused(error));
                return false;
            }
            Err(StepError::Gone) => {
                self.try_another(ctx, id, Outcome::ServerFailed);
                return false;
            }
            Err(StepError::Broken(why)) => {
                self.try_another(ctx, id, Outcome::Unprotected(why));
                return false;
            }
        }
        true
    }

    /// Moves users' bytes by a `turn` of the relay.
    fn relay(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: SessionId,
        turn: fn(&mut Relay, &mut Ctx<'_>, &mut Channel) -> Turn,
    ) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.is_sniffed && session.relay.is_held() && !session.send_early_hints(ctx) {
            return self.end(ctx, id, Outcome::ServerFailed);
        }
        let turn = turn(&mut session.relay, ctx, &mut session.channel);
        let due = session.relay.due();
        session.moved.add(turn.moved);
        self.counters.bytes_up += turn.moved.to_conn;
        self.counters.bytes_down += turn.moved.to_downstream;
        if turn.moved.any() {
            self.upstream.note_traffic(ctx.now);
        }
        if let Some(end) = self.sessions.after_turn(id, &turn, due)
            && !(end == End::Finished && self.try_continue(ctx, id))
        {
            self.end(ctx, id, Outcome::Relayed(end));
        }
    }

    fn on_timer(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        match session.stage {
            Stage::Connecting(_) => self.retry(ctx, id),
            Stage::Negotiating(_) => {
                let deadline = session.started + self.timeouts.connect;
                let dead = session.may_fall_back(ctx.stack);
                let silent = !dead && !session.server_proved_key() && ctx.now < deadline;
                let (server, path) = (session.server, session.path);
                let may_resend = !session.has_sent_user_bytes()
                    && session.failed_attempts.len() + 1 < MAX_ATTEMPTS;
                if dead && self.fall_back(ctx, id) {
                    return;
                }
                if silent {
                    self.upstream.on_failure(ctx.now, server, path);
                    if may_resend {
                        return self.try_another(ctx, id, Outcome::ServerFailed);
                    }
                }
                // Where no link works now, keep the connection there is.
                let again = match dead {
                    true => deadline.min(ctx.now + self.timeouts.attempt),
                    false => deadline,
                };
                match ctx.now < deadline {
                    true => self.sessions.arm(id, again),
                    false => self.end(ctx, id, Outcome::NoAnswer),
                }
            }
            Stage::Relaying | Stage::Leaving(_) => {
                if session.relay.is_overdue(ctx, &session.channel) {
                    return self.end(ctx, id, Outcome::Relayed(End::Idle));
                }
                let due = session.relay.due();
                self.sessions.arm(id, due);
            }
            Stage::Unreached => {
                let reply = Reply::AddressTypeNotSupported;
                self.end(ctx, id, Outcome::Refused(ClientError::Refused(reply)));
            }
        }
    }

    /// Continues a session whose user's bytes have ended both ways: until the server is ready for another user, or
    /// until the end of a connection that will serve none. Returns whether the session continues.
    fn try_continue(&mut self, ctx: &mut Ctx<'_>, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let (now, channel) = (ctx.now, &mut session.channel);
        let may_reuse = self
            .upstream
            .may_reuse(now, session.server, &session.history);
        if !channel.is_reusable() || !may_reuse {
            return channel.close(now, ctx.stack).is_ok();
        }
        // The server waits for this acknowledgement. A connection that is already gone reports itself by its
        // `Closed` event.
        let _ = ctx.stack.acknowledge(now, channel.conn);
        channel.release();
        session.stage = Stage::Leaving(Box::new(ClientHandshake::new(true)));
        // The server may be ready already.
        self.sessions.queue(id);
        true
    }

    /// Reads whether the server is ready for another user.
    fn await_ready(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(Session {
            channel,
            stage: Stage::Leaving(handshake),
            ..
        }) = self.sessions.get_mut(id)
        else {
            return;
        };
        let input = |buf: &[u8]| handshake.input(buf);
        let step = relay::read_step(ctx.now, channel, ctx.stack, ClientStep::More, input);
        let ready = handshake.is_signed_in();
        if !ready && step == Ok(ClientStep::More) && channel.read_finished(ctx.stack) {
            // The server takes no further request; a `Closed` event follows.
            let _ = channel.close(ctx.now, ctx.stack);
            return;
        }
        let end = match step {
            Ok(ClientStep::More) if ready => End::Finished,
            Ok(ClientStep::More) | Err(StepError::Gone) => return,
            Ok(_) => End::Conn,
            Err(StepError::Broken(why)) => End::Broken(why),
        };
        self.end(ctx, id, Outcome::Relayed(end));
    }

    /// Ends a session: both streams, tables, counters and, where useful, a log line. The connection may go on to
    /// serve others.
    fn end(&mut self, ctx: &mut Ctx<'_>, id: SessionId, outcome: Outcome) {
        let Some(session) = self.sessions.remove(id) else {
            return;
        };
        if !session.stage.is_served() {
            self.handshakes -= 1;
        }
        self.leave(session.host);
        session.end(ctx, outcome);
        // A flow cut off by the network does not predict the size of later ones.
        if let Outcome::Relayed(End::Finished | End::Downstream | End::Idle) = outcome {
            let bytes = session.moved.larger();
            self.classifier.learn(ctx.now, &session.flow, bytes);
        }
        *outcome.counter(&mut self.counters) += 1;
        self.log_end(ctx.now, &session, outcome);
        if !matches!(outcome, Outcome::Relayed(End::Finished)) {
            return;
        }
        let Some(checkout) = session.into_checkout() else {
            return;
        };
        let (now, stack, channel) = (ctx.now, &mut *ctx.stack, &checkout.channel);
        let ends = !channel.is_drained(stack) || channel.read_finished(stack);
        if !ends
            && self
                .upstream
                .may_reuse(now, checkout.server, &checkout.history)
        {
            let cx = &mut uplink::Context::new(ctx, &mut self.counters);
            self.upstream.put_back(cx, checkout);
        } else {
            // Neither end has more to send.
            channel.abort(now, stack);
        }
    }
}
