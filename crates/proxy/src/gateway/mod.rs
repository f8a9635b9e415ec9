//! The aggregation box: intercepts users' connections and carries them to a server over all links.
//!
//! The module owns users' sessions, from the first byte to the last. The [`uplink`] module chooses servers and
//! links and keeps their state; the gateway asks it for connections.

mod classifier;
mod links;
mod log;
mod reload;
mod session;
mod socks_clients;
mod status;
mod tunnel;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;

use braid_engine::{CloseReason, Event, PathId, Stack, StrategyFactory, SubflowCloseReason};
use braid_secure::channel::Channel;
use braid_wire::{Instant, Rng};

use crate::admin::records::SavedState;
use crate::admin::report::{BoxCounters, FORGED_JOIN, LogLimiter};
use crate::admin::status::{CoreInfo, RulesStatus};
use crate::admin::verdict::Reason;
use crate::app::{
    Arrival, Core, Ctx, DownstreamError, DownstreamEvent, DownstreamId, TunnelChange,
    TunnelTransmit,
};
use crate::config::{BoxConfig, BoxLimits, BoxTimeouts};
use crate::protocol::hints::FlowHints;
use crate::protocol::socks::{ClientError, ClientHandshake, ClientStep, Reply};
use crate::relay::sniff::{self, Sniffed};
use crate::relay::table::{Due, SessionId, Table};
use crate::relay::{self, End, Moved, Relay, StepError, Turn};
use crate::uplink::{self, AcquireRequest, Notice, Trouble, Upstream};

use classifier::{Flow, FlowClassifier};
use session::{Outcome, Session, Stage};
use socks_clients::{SocksClients, Step};
use tunnel::Tunnel;

/// The box as a sans-I/O core.
///
/// # Use
///
/// 1. Call [`set_wall_clock`](Self::set_wall_clock) at the start, after each change of the system's clock, and at
///    least once a minute.
/// 2. Call [`add_link`](Self::add_link) for each configured link, and [`set_link_up`](Self::set_link_up) whenever
///    a link comes up or goes down. Never call [`Stack::set_path_up`] instead, because the core keeps metered
///    links down until they are needed.
/// 3. Pass events as [`Core`] describes. After each call into the core, call
///    [`poll_notice`](Self::poll_notice) until it returns `None`.
///
/// Intercept users' connections only while [`wants_interception`](Self::wants_interception) returns true. After a
/// change, a few more connections may be intercepted or forwarded as before; that does no harm.
#[derive(Debug)]
pub struct BoxCore {
    /// Name and settings of this box, as the status shows them.
    about: CoreInfo,
    timeouts: BoxTimeouts,
    limits: BoxLimits,
    upstream: Upstream,
    classifier: FlowClassifier,
    socks_clients: SocksClients,
    sessions: Table<Session>,
    /// Number of connections of each LAN host.
    per_host: BTreeMap<IpAddr, usize>,
    /// Number of users' connections that are not yet connected to their destination. SOCKS clients whose request
    /// is incomplete are included.
    handshakes: usize,
    tunnel: Tunnel,
    counters: BoxCounters,
    /// Limits log lines that strangers and users can cause.
    limiter: LogLimiter,
    /// Problems of this machine that the driver has found, for the status.
    machine_faults: Vec<Reason>,
    /// True once the box is being stopped. Failures to open connections are then expected, and not logged.
    is_ending: bool,
}

/// The maximum number of timers and turns that one call handles. The limit lets the driver send packets between
/// calls. The remaining timers and turns are due at once again. The value is a guess.
const TURN_BATCH: usize = 32;

/// The maximum number of attempts to reach a server for one user's connection. By default the attempts end after
/// 2, 4, 8 and 16 s. Four silent attempts thus take 30 s, less than the default of [`BoxTimeouts::connect`], 45 s.
const MAX_ATTEMPTS: usize = 4;

/// The maximum number of a user's bytes that are sent before the server has signed the box in. On an idle
/// connection, which is signed in already, the limit applies until the server answers the request. The box keeps a
/// copy of these bytes, to send them again on another connection if this connection fails. The size is about what
/// two links carry in the first round trip: two initial windows of 10 segments (RFC 6928) are 28 kB.
const MAX_RESENT_BYTES: usize = 32 << 10;

impl BoxCore {
    /// Creates a core without links. `strategy` creates the strategy of each connection to a server; the stack has
    /// a factory of its own. `rng` yields nonces, so it must be independent of the stack's random stream.
    pub fn new(config: &BoxConfig, mut rng: Rng, strategy: StrategyFactory) -> Self {
        let mut seed = [0; 32];
        rng.fill(&mut seed);
        BoxCore {
            tunnel: Tunnel::new(config, Rng::from_seed(seed)),
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
            machine_faults: Vec::new(),
            is_ending: false,
        }
    }

    /// Sets the state of the kernel's packet filter and routing rules, for the status.
    pub fn set_rules(&mut self, rules: RulesStatus) {
        self.about.rules = rules;
    }

    /// Sets the wall clock: at `now` it shows `since_epoch` (since 1970-01-01 UTC).
    pub fn set_wall_clock(&mut self, now: Instant, since_epoch: Duration) {
        self.upstream.set_wall_clock(now, since_epoch);
    }

    /// Returns the path of the link that carries all traffic other than TCP; `None` if no link is up and switched
    /// on.
    pub fn best_path(&self) -> Option<PathId> {
        self.upstream.best_path()
    }

    /// Returns whether the driver should intercept new connections ([`Notice::Intercept`]). The result is false
    /// until a server has answered for the first time.
    pub fn wants_interception(&self) -> bool {
        self.upstream.wants_interception()
    }

    /// Returns whether the link of `path` is switched off ([`Request::Link`](crate::admin::control::Request)).
    pub fn is_off(&self, path: PathId) -> bool {
        self.upstream.is_off(path)
    }

    /// Returns the path records and measurements that the next process can use, without outdated ones.
    pub fn saved_state(&self, now: Instant, stack: &Stack) -> SavedState {
        SavedState {
            records: self.upstream.saved_records(now, stack),
            measurements: self.upstream.saved_measurements(now),
        }
    }

    /// Restores saved records and measurements of existing links. Call this after the links were added and the
    /// wall clock was set. Outdated and implausible entries are ignored. An [`Instant`] cannot precede the origin
    /// of time. So an entry from before the origin gets the origin as its time, and looks younger than it is.
    pub fn restore_state(&mut self, now: Instant, stack: &mut Stack, saved: &SavedState) {
        self.upstream.restore_records(now, stack, &saved.records);
        self.upstream.restore_measurements(now, &saved.measurements);
    }

    /// Returns the next notice about a change. At the start the driver should assume `BestPath(None)`,
    /// `Reached(_, true)`, `Intercept(false)` and all address families.
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
            // The log gets few of these lines; the engine's counter has all forged joins.
            if let Some(suppressed) = self.limiter.allow(ctx.now, "forged subflow", from.ip()) {
                tracing::warn!(%from, suppressed, "{FORGED_JOIN}");
            }
            return;
        }
        let cx = &mut uplink::Context::new(ctx, &mut self.counters);
        if self.upstream.on_event(cx, &event) {
            return self.follow_tunnel(ctx);
        }
        if let Some(id) = self.sessions.by_conn(event.conn()) {
            self.on_conn_event(ctx, id, event);
        } else if let Event::Accepted { conn, .. } = event {
            // A box offers no service to the engine's peers: its users come over downstream sockets.
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
            // The other events follow `connect` and `resolve`, which only a server calls.
            _ => {}
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let times = [
            self.sessions.next_timeout(),
            self.socks_clients.next_timeout(),
            self.upstream.next_timeout(),
            self.tunnel_timeout(),
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
        self.serve_tunnel(ctx);
    }

    fn on_datagram(&mut self, now: Instant, path: PathId, remote: SocketAddr, datagram: &mut [u8]) {
        self.tunnel.end.on_datagram(now, path, remote, datagram);
    }

    fn on_packet(&mut self, now: Instant, packet: &[u8]) {
        self.tunnel
            .end
            .on_packet(now, self.classifier.rules(), packet);
    }

    fn poll_datagram(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<TunnelTransmit> {
        self.tunnel.end.poll_datagram(now, buf)
    }

    fn poll_packet(&mut self) -> Option<&[u8]> {
        self.tunnel.end.poll_packet()
    }

    fn poll_tunnel_change(&mut self) -> Option<TunnelChange> {
        self.tunnel.end.poll_change()
    }
}

impl BoxCore {
    /// Handles an event of a session's connection to the server.
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
                    // The engine had no answer on the requested path, and opened the connection over another path.
                    let silent_path = core::mem::replace(&mut session.path, path);
                    self.upstream.on_failure(ctx.now, server, silent_path);
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
            // `FlowDelivered` needs no action: the server sends a message when it is ready for another user.
            _ => {}
        }
    }

    /// Advances a session, after `mark` has marked one side of its relay as ready.
    fn advance_with(&mut self, ctx: &mut Ctx<'_>, id: SessionId, mark: fn(&mut Relay)) {
        if let Some(session) = self.sessions.get_mut(id) {
            mark(&mut session.relay);
        }
        self.advance(ctx, id);
    }

    /// Handles the end of a session's connection to the server. Depending on the stage, the session gets another
    /// connection or ends.
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
            // The session's timer is due already and ends the session with the right reply.
            Stage::Unreached => {}
            Stage::Relaying | Stage::Leaving(_) => {
                let end = session.relay.on_closed(&session.channel, reason);
                self.end(ctx, id, Outcome::Relayed(end));
            }
        }
    }

    /// Handles a new connection of a user. Resets the connection if a limit is reached. Otherwise opens a
    /// connection to a server or, for a SOCKS client, begins the handshake with the client.
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

    /// Admits and counts another connection of the LAN host `host`; returns false if a limit is reached.
    fn admit(&mut self, ctx: &mut Ctx<'_>, host: IpAddr) -> bool {
        // At the limit, a connection whose server has long been silent gives way to the new connection.
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
                    "too many connections: refused a connection of a user; see max_connections in [expert] of box.toml"
                );
            }
            return false;
        }
        self.handshakes += 1;
        *self.per_host.entry(host).or_default() += 1;
        true
    }

    /// Removes a connection from the count of `host`.
    fn leave(&mut self, host: IpAddr) {
        if let Some(n) = self.per_host.get_mut(&host) {
            *n -= 1;
            if *n == 0 {
                self.per_host.remove(&host);
            }
        }
    }

    /// Handles the progress of a SOCKS client's handshake.
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

    /// Opens a connection to a server for an admitted user. `awaits_reply` is true for a SOCKS client, to which
    /// the box replies.
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
                let reply = awaits_reply.then(|| Outcome::NoServer.reply().encode());
                return socks_clients::close_after(
                    ctx,
                    downstream,
                    reply.as_ref().map_or(&[], |bytes| &bytes[..]),
                );
            }
        };
        let conn = checkout.channel.conn;
        let mut relay = Relay::new(ctx.now, downstream, self.timeouts.relay);
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
        // An idle connection is established and signed in already.
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
        let is_overdue = ctx.now >= session.started + self.timeouts.connect;
        if is_overdue || attempts >= MAX_ATTEMPTS {
            return self.end(ctx, id, Outcome::NoServer);
        }
        if self.reconnect(ctx, id) {
            self.counters.retries += 1;
        } else {
            self.end(ctx, id, Outcome::NoServer);
        }
    }

    /// Replaces a dead connection that came from the idle pool; the user does not notice. Returns whether there is
    /// a replacement.
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

    /// Replaces a failed connection by a new connection. Returns false if no pair of server and link is left to
    /// try.
    fn reconnect(&mut self, ctx: &mut Ctx<'_>, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let request = AcquireRequest {
            hints: &session.hints,
            tried: &session.failed_attempts,
            // The idle connections may be dead for the same reason as the failed connection.
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

    /// Tries another server after the session's server, or something that answered in its place, has failed.
    /// Records the failure, so that other connections avoid this server or link. Ends the session with `outcome`
    /// if the server may have acted on the request.
    fn try_another(&mut self, ctx: &mut Ctx<'_>, id: SessionId, outcome: Outcome) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let at = (session.server, session.path);
        let key_proved = session.server_proved_key();
        let refused_family = session.flow.destination.ip();
        let refused_family = refused_family.filter(|_| outcome.is_family_refusal());
        match (outcome.trouble(session.history.fell_back()), refused_family) {
            // Once the server has proved its key, only one outcome counts as a problem of server or link: the
            // server refuses the box's key. This case exists, because a server can prove its own key by a ticket
            // and then refuse a box that is no longer a user.
            (Some(trouble), _) if !key_proved || trouble == Trouble::KeyRefused => {
                self.upstream.on_trouble(ctx.now, at, trouble, ctx.stack);
            }
            (_, Some(ip)) => {
                self.upstream.on_family_refused(ctx.now, at.0, ip);
                if !self.upstream.is_family_reached(ip) {
                    // See `Stage::Unreached` for the reason why the session ends in a later turn.
                    session.stage = Stage::Unreached;
                    return self.sessions.arm(id, ctx.now);
                }
            }
            // The server's answer about the destination (refused, unreachable, …) is final. A close without an
            // answer is not final, because a server that stops or is full closes connections that it has not
            // served.
            _ if key_proved && !matches!(outcome, Outcome::ServerFailed) => {
                return self.end(ctx, id, outcome);
            }
            _ => self.upstream.on_failure(ctx.now, at.0, at.1),
        }
        let may_resend = session.may_resend(outcome);
        session.failed_attempts.push(at);
        let attempts = session.failed_attempts.len();
        let is_overdue = ctx.now >= session.started + self.timeouts.connect;
        if may_resend && attempts < MAX_ATTEMPTS && !is_overdue && self.reconnect(ctx, id) {
            self.counters.retries += 1;
        } else {
            self.end(ctx, id, outcome);
        }
    }

    /// Sends the request for the destination, and then the user's first bytes. `handshake` reads the server's
    /// answers.
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
        // The request carries all hints known so far, so no early hints are needed for them.
        session.unsent_hints = FlowHints::default();
        session.unsent_early_hints = Vec::new();
        let hints_sent = written.is_ok() && session.send_early_hints(ctx);
        // An idle connection is always the first attempt, so no user's bytes have to be sent again.
        if !hints_sent || !is_idle && !session.relay.resend_first_bytes(ctx, &mut session.channel) {
            return self.end(ctx, id, Outcome::ServerFailed);
        }
        session.stage = Stage::Negotiating(handshake);
        let deadline = ctx.now + session.attempt_timeout(self.timeouts.attempt);
        self.sessions.arm(id, deadline);
        self.advance(ctx, id);
    }

    /// Examines the user's first bytes for further hints, if they have arrived.
    fn sniff_first_bytes(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let mut first = [0; sniff::MAX_SNIFFED_BYTES];
        let len = match ctx.downstream.peek(session.relay.downstream, &mut first) {
            Err(DownstreamError::WouldBlock) => return,
            // The relay's read will report the failure.
            Err(DownstreamError::Broken) => 0,
            Ok(len) => len,
        };
        session.is_sniffed = true;
        let sniffed = sniff::examine(&first[..len]);
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
            // The user's bytes must follow the request, and a connection that is being opened has not carried the
            // request yet.
            Stage::Connecting(_) | Stage::Unreached => {}
            Stage::Negotiating(_) => self.relay(ctx, id, Relay::turn_to_conn),
            Stage::Relaying => self.relay(ctx, id, Relay::turn),
            Stage::Leaving(_) => self.await_ready(ctx, id),
        }
    }

    /// Reads the server's answer to the request if the session waits for it. Returns false if the session has
    /// ended or has another connection now.
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
            // The server acts on the request of a signed-in box, so neither the request nor the bytes after it may
            // be sent again.
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
                let user_replied =
                    !session.awaits_reply || socks_clients::confirm(ctx, session.relay.downstream);
                self.counters.connected += 1;
                let by_keys = session.channel.joins_use_keys();
                self.counters.joined_by_keys += u64::from(by_keys);
                self.handshakes -= 1;
                self.sessions.arm(id, due);
                let cx = &mut uplink::Context::new(ctx, &mut self.counters);
                self.upstream.on_served(cx, server);
                if !user_replied {
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

    /// Moves the user's bytes by one `turn` of the relay.
    fn relay(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: SessionId,
        turn: fn(&mut Relay, &mut Ctx<'_>, &mut Channel) -> Turn,
    ) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        // The relay holds the user's bytes back until the early hints are written.
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

    /// Handles the session's timer, whose meaning depends on the stage.
    fn on_timer(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        match session.stage {
            Stage::Connecting(_) => self.retry(ctx, id),
            Stage::Negotiating(_) => {
                let deadline = session.started + self.timeouts.connect;
                let dead = session.may_fall_back(ctx.stack);
                // A server that has proved its key is connecting to the destination, and this may take until
                // `deadline`.
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
                // A dead connection without a replacement is kept while no link works: a later attempt, or the
                // engine's own retransmission, may succeed.
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

    /// Continues a session whose user has ended both directions. If the connection is to serve another user, the
    /// session lasts until the server is ready for that user. Otherwise the session lasts until the connection is
    /// closed. Returns whether the session continues.
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
        // The server serves another user only after it knows that all its data has arrived, so acknowledge at
        // once. An error means that the connection is gone; its `Closed` event follows.
        let _ = ctx.stack.acknowledge(now, channel.conn);
        channel.release();
        // Only a protected connection is reusable, hence `true`.
        session.stage = Stage::Leaving(Box::new(ClientHandshake::new(true)));
        // The server's message may have been received already, and then no event follows.
        self.sessions.queue(id);
        true
    }

    /// Reads the server's message that it is ready for another user, and then ends the session.
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
            // A reply here answers no request.
            Ok(_) => End::Conn,
            Err(StepError::Broken(why)) => End::Broken(why),
        };
        self.end(ctx, id, Outcome::Relayed(end));
    }

    /// Ends a session: ends both streams, updates tables and counters, and logs what the operator must know. The
    /// connection to the server may serve other users after that.
    fn end(&mut self, ctx: &mut Ctx<'_>, id: SessionId, outcome: Outcome) {
        let Some(session) = self.sessions.remove(id) else {
            return;
        };
        if !session.stage.is_served() {
            self.handshakes -= 1;
        }
        self.leave(session.host);
        session.end(ctx, outcome);
        // The size of a flow that the network cut off does not predict the sizes of later flows.
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
        // Bytes left over from this user would be read as the answer to the next user's request.
        let is_unusable = !channel.is_drained(stack) || channel.read_finished(stack);
        if !is_unusable
            && self
                .upstream
                .may_reuse(now, checkout.server, &checkout.history)
        {
            let cx = &mut uplink::Context::new(ctx, &mut self.counters);
            self.upstream.put_back(cx, checkout);
        } else {
            // Both ends have sent and received everything, so a reset loses nothing and is quicker than FINs.
            channel.abort(now, stack);
        }
    }
}
