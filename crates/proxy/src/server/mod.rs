//! The aggregation server: SOCKS5 over MPTCP from boxes, regular TCP to destinations.
//!
//! The module decides which user may connect, to which destination, and with which share of the resources. It does
//! not depend on the code of a box.

mod admission;
mod drain;
mod egress;
mod handshakes;
mod lookups;
mod next;
mod probes;
mod reload;
mod session;
mod sign_in;
mod status;
mod train;
mod tunnel;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use braid_engine::strategy::FlowSize;
use braid_engine::{CloseReason, ConnId, Event};
use braid_secure::Families;
use braid_secure::auth::{Grant, SignedMetadata, Verifier, WallClock};
use braid_secure::channel::{self, Channel};
use braid_wire::Instant;
use ipnet::IpNet;

use crate::admin::report::{FORGED_JOIN, LogLimiter, ServerCounters};
use crate::admin::status::{CoreInfo, RulesStatus};
use crate::admin::verdict::NEWS_TARGET;
use crate::app::{
    ConnectFailure, Core, Ctx, DownstreamEvent, DownstreamId, PathId, TunnelTransmit,
};
use crate::config::policy::DestinationPolicy;
use crate::config::{ServerConfig, ServerLimits, ServerTimeouts, TunnelPools};
use crate::protocol::hints::FlowHints;
use crate::protocol::socks::{Destination, EarlyHints, EarlyHintsStep, Reply, Request};
use crate::relay::sniff::{self, Length};
use crate::relay::table::{Due, SessionId, Table};
use crate::relay::{self, End, Relay, StepError};

use egress::{EgressMeter, RelayRate};
use handshakes::{HandshakeLimit, Handshakes};
use lookups::Lookups;
use session::{Refusal, Session, Stage};
use train::Allowance;
use tunnel::Tunnel;

/// The server as a sans-I/O core. The driver adds paths to the stack and listens on them. The core serves every
/// connection that the stack accepts.
///
/// # Use
///
/// 1. Call [`set_wall_clock`](Self::set_wall_clock) once at the start, after each change of the system's clock,
///    and at least once a minute. The server refuses passwords from before the first of these calls, because a
///    restarted server cannot know whether such a password was used.
/// 2. Call [`set_own_addresses`](Self::set_own_addresses) at the start, and when they change.
/// 3. Pass events as [`Core`] describes.
#[derive(Debug)]
pub struct ServerCore {
    /// The parts of the status that do not depend on connections.
    about: CoreInfo,
    /// The listening address of each path.
    listen: Vec<IpAddr>,
    timeouts: ServerTimeouts,
    limits: ServerLimits,
    /// Maximum number of connections to destinations that the process can open.
    max_streams: usize,
    /// Maximum difference between a password's time and the wall clock.
    time_window: Duration,
    /// This machine's own address ranges, as the configuration names them.
    configured_own: Vec<IpNet>,
    destinations: DestinationPolicy,
    verifier: Verifier,
    tls: channel::Server,
    /// Families with routes to some networks but not to the Internet.
    isolated: Families,
    /// Families in `isolated` in which the server has reached a destination since the routes changed.
    connected: Families,
    /// True if the server accepts plaintext connections too.
    allows_plaintext: bool,
    user_names: Vec<String>,
    sessions: Table<Session>,
    /// Number of sessions of each user. A session counts from its complete request to the end of its relay.
    per_user: Vec<usize>,
    handshakes: Handshakes,
    lookups: Lookups,
    /// Each user's limit on packet trains.
    allowances: Vec<Allowance>,
    egress: EgressMeter,
    tunnel: Tunnel,
    clock: Option<WallClock>,
    counters: ServerCounters,
    limiter: LogLimiter,
    /// True once the server drains: a connection whose user has ended serves no other user.
    ending: bool,
}

/// The routes of a server to destinations in one address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Routes {
    /// No routes.
    Nowhere,
    /// Routes to some networks, but not to the Internet.
    Networks,
    /// Routes to the Internet.
    Internet,
}

/// Maximum number of timers and turns that one call handles. Packets leave between calls, and without the limit a
/// long queue of sessions would delay them. The value is a guess.
const TURN_BATCH: usize = 32;

/// Maximum number of a name's addresses that are tried: as many as the driver's resolver returns. Eight addresses
/// at [`ADDRESS_TIMEOUT`] each take 24 s, less than the default of [`ServerTimeouts::connect`], 30 s.
const MAX_ADDRESSES: usize = 8;
/// Maximum time to connect to one address while other addresses remain. The time covers one lost SYN, which the
/// kernel retransmits after 1 s (RFC 6298 section 2.1).
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time for a peer to close its direction after the server has ended its own. A guess: several round
/// trips of a slow link.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl ServerCore {
    /// Creates a core without connections.
    pub fn new(config: &ServerConfig) -> Self {
        let listen = config.listen.iter().copied().map(IpNet::from);
        let configured: Vec<IpNet> = listen
            .chain(config.tun.ranges())
            .chain(config.tunnel.iter().flat_map(TunnelPools::ranges))
            .collect();
        let mut destinations = DestinationPolicy::new(config.destination_rules());
        destinations.set_own(configured.clone());
        let keys = config.users.iter().map(|u| u.key);
        ServerCore {
            tls: channel::Server::new(&config.key, keys, config.versions),
            allows_plaintext: config.unprotected,
            isolated: Families::NONE,
            connected: Families::NONE,
            about: CoreInfo {
                name: config.name.clone(),
                strategy: config.strategy.clone(),
                congestion: config.congestion.name(),
                rules: RulesStatus::default(),
            },
            listen: config.listen.clone(),
            timeouts: config.timeouts.clone(),
            limits: config.limits.clone(),
            // The driver sets the limit once it knows how many connections the process can open.
            max_streams: usize::MAX,
            time_window: config.time_window,
            configured_own: configured,
            destinations,
            verifier: Verifier::new(
                config.key.public(),
                config.users.iter().map(|user| user.key),
                config.time_window,
                config.limits.replay,
            ),
            user_names: config.users.iter().map(|u| u.name.clone()).collect(),
            sessions: Table::default(),
            per_user: vec![0; config.users.len()],
            handshakes: Handshakes::new(config.users.len()),
            lookups: Lookups::new(config.users.len()),
            allowances: vec![Allowance::new(config.limits.trains); config.users.len()],
            egress: EgressMeter::new(&config.targets, config.users.len()),
            tunnel: Tunnel::new(config),
            clock: None,
            counters: ServerCounters::default(),
            limiter: LogLimiter::default(),
            ending: false,
        }
    }

    /// Sets the state of the kernel's rules, for the status.
    pub fn set_rules(&mut self, rules: RulesStatus) {
        self.about.rules = rules;
    }

    /// Sets the wall clock: at `now` it shows `since_epoch` (since 1970-01-01 UTC).
    pub fn set_wall_clock(&mut self, now: Instant, since_epoch: Duration) {
        let before = self.clock.map(|c| c.unix_ms(now));
        let clock = self.clock.insert(WallClock::default());
        clock.set(now, since_epoch);
        self.tls.set_clock(now, clock);
        let after = clock.unix_ms(now);
        match before {
            None => self.verifier.forget_before(after),
            // The clock was set back. The replay cache has dropped passwords that had become too old, and the new
            // time would make them valid again.
            Some(before) if after < before => {
                let window = u64::try_from(self.time_window.as_millis()).unwrap_or(u64::MAX);
                self.verifier
                    .clock_set_back(before.saturating_sub(window), after);
            }
            Some(_) => {}
        }
    }

    /// Sets the addresses of this machine. The server refuses them as destinations unless the configuration allows
    /// them. `addresses` need not contain the listening addresses, which the configuration names.
    pub fn set_own_addresses(&mut self, addresses: Vec<IpAddr>) {
        let mut own = self.configured_own.clone();
        own.extend(addresses.into_iter().map(IpNet::from));
        self.destinations.set_own(own);
    }

    /// Sets the maximum number of connections to destinations that the process can open. The number limits each
    /// user if it is lower than [`ServerLimits::connections`].
    pub fn set_max_streams(&mut self, streams: usize) {
        self.max_streams = streams;
    }

    /// Sets the reach of this machine's routes: in IPv6 if `v6` is true, otherwise in IPv4. The server tells boxes
    /// which families it reaches. Before the first call it assumes routes to the Internet in both families.
    pub fn set_routes(&mut self, v6: bool, routes: Routes) {
        self.connected.set(v6, false);
        self.isolated.set(v6, routes == Routes::Networks);
        self.set_reached(v6, routes != Routes::Nowhere);
    }

    fn set_reached(&mut self, v6: bool, reached: bool) {
        let before = self.tls.reached;
        self.tls.reached.set(v6, reached);
        if self.tls.reached == before {
            return;
        }
        let family = if v6 { "IPv6" } else { "IPv4" };
        match reached {
            true => tracing::info!(target: NEWS_TARGET, "{family} destinations are reached again"),
            false => tracing::warn!(
                target: NEWS_TARGET,
                "this server has no route to {family} destinations: boxes refuse their users' connections to \
                 these, so that programs use the other family; give this server {family} if users need it"
            ),
        }
    }

    /// Returns the counters since the start.
    pub fn counters(&self) -> &ServerCounters {
        &self.counters
    }

    /// Returns the number of connections, except those that wait for a request.
    pub fn connections(&self) -> usize {
        self.sessions.len() - self.waiting()
    }

    /// Returns the number of boxes' connections that are signed in and wait for a request.
    pub fn waiting(&self) -> usize {
        self.handshakes.waiting()
    }
}

impl Core for ServerCore {
    fn on_engine_event(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        if let Event::Accepted { conn, remote, .. } = event {
            return self.on_accepted(ctx, conn, remote.ip());
        }
        let Some(id) = self.sessions.by_conn(event.conn()) else {
            return;
        };
        match event {
            Event::Readable { .. } => self.advance_with(ctx, id, Relay::set_conn_readable),
            Event::Writable { .. } => self.advance_with(ctx, id, Relay::set_conn_writable),
            Event::FlowDelivered { .. } => {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.channel.on_delivered();
                }
                self.advance(ctx, id);
            }
            Event::JoinForged { remote, .. } => self.log_forged_join(ctx.now, id, remote),
            Event::Closed { reason, .. } => self.on_closed(ctx, id, reason),
            // The other events report connections that this end opens, of which a server has none, and subflows,
            // which the engine manages.
            _ => {}
        }
    }

    fn on_downstream_event(&mut self, ctx: &mut Ctx<'_>, event: DownstreamEvent) {
        if self.egress.on_event(ctx, &event) {
            return;
        }
        let downstream = event.id();
        // A look-up counts towards its user's limit until it ends, even if its session has ended earlier.
        if let DownstreamEvent::Resolved { .. } = event {
            self.on_looked_up(ctx, downstream);
        }
        let Some(id) = self.sessions.by_downstream(downstream) else {
            if let DownstreamEvent::Accepted { .. } = event {
                // A server listens on no downstream socket, so it does not expect the connection.
                ctx.downstream.reset(downstream);
            }
            return;
        };
        match event {
            DownstreamEvent::Connected { .. } => self.on_connected(ctx, id, downstream),
            DownstreamEvent::ConnectFailed { failure, .. } => {
                self.on_connect_failed(ctx, id, failure)
            }
            DownstreamEvent::Resolved { addresses, .. } => self.on_resolved(ctx, id, addresses),
            DownstreamEvent::Readable { .. } => {
                self.advance_with(ctx, id, Relay::set_downstream_readable)
            }
            DownstreamEvent::Writable { .. } => {
                self.advance_with(ctx, id, Relay::set_downstream_writable)
            }
            DownstreamEvent::Broken { .. } => self.on_broken(ctx, id, downstream),
            DownstreamEvent::Accepted { .. } => {}
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let times = [
            self.sessions.next_timeout(),
            self.egress.next_timeout(),
            self.tunnel.next_timeout(),
        ];
        times.into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        self.egress.handle_timeout(ctx);
        self.tunnel.handle_timeout(ctx.now, ctx.stack);
        for _ in 0..TURN_BATCH {
            match self.sessions.pop_due(ctx.now) {
                Some((id, Due::Timer)) => self.on_timer(ctx, id),
                Some((id, Due::Turn)) => self.advance(ctx, id),
                None => break,
            }
        }
    }

    fn on_datagram(&mut self, now: Instant, path: PathId, remote: SocketAddr, datagram: &mut [u8]) {
        self.tunnel.on_datagram(now, path, remote, datagram);
    }

    fn on_packet(&mut self, now: Instant, packet: &[u8]) {
        self.tunnel.on_packet(now, packet);
    }

    fn poll_datagram(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<TunnelTransmit> {
        self.tunnel.poll_datagram(now, buf)
    }

    fn poll_packet(&mut self) -> Option<&[u8]> {
        self.tunnel.poll_packet(&self.destinations)
    }
}

impl ServerCore {
    /// Advances a session after `set_ready` has noted in its relay, if any, which direction can continue.
    fn advance_with(&mut self, ctx: &mut Ctx<'_>, id: SessionId, set_ready: fn(&mut Relay)) {
        let session = self.sessions.get_mut(id);
        if let Some(relay) = session.and_then(Session::relay_mut) {
            set_ready(relay);
        }
        self.advance(ctx, id);
    }

    fn on_accepted(&mut self, ctx: &mut Ctx<'_>, conn: ConnId, remote: IpAddr) {
        self.counters.accepted += 1;
        if let Err(limit) = self.admit(ctx, remote) {
            let counter = match limit {
                HandshakeLimit::All => &mut self.counters.over_limit,
                HandshakeLimit::Source => &mut self.counters.over_source,
                HandshakeLimit::Failed => &mut self.counters.over_failures,
            };
            *counter += 1;
            if let Some(suppressed) = self.limiter.allow(ctx.now, "limit", remote) {
                let open = self.sessions.len();
                let handshakes = self.handshakes.under_way();
                tracing::warn!(
                    %remote, open, handshakes, suppressed, over = ?limit,
                    "too many connections or handshakes: refused a connection; see max_connections in [expert] of \
                     server.toml"
                );
            }
            return ctx.stack.abort(ctx.now, conn);
        }
        let deadline = ctx.now + self.timeouts.handshake;
        let id = self.sessions.insert(Session {
            channel: Channel::incoming(ctx.now, conn, ctx.stack),
            remote: remote.to_canonical(),
            user: None,
            destination: None,
            early_hints: None,
            started: ctx.now,
            stage: Stage::Handshake(Box::default()),
            deadline,
        });
        self.sessions.bind_conn(conn, id);
        self.sessions.arm(id, deadline);
        self.advance(ctx, id);
    }

    /// Logs a refused subflow, at most once a minute for each address of a box. The engine counts all refused subflows.
    fn log_forged_join(&mut self, now: Instant, id: SessionId, from: SocketAddr) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let remote = session.remote;
        if let Some(suppressed) = self.limiter.allow(now, "forged subflow", remote) {
            let user = session.user.and_then(|user| self.user_names.get(user));
            tracing::warn!(%remote, user, %from, suppressed, "{FORGED_JOIN}");
        }
    }

    /// Advances a session as far as possible.
    fn advance(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        match session.stage {
            Stage::Handshake(_) => self.handshake(ctx, id),
            Stage::Relaying(..) => self.relay(ctx, id),
            // These stages wait for the destination, the timer of the next record, or the peer.
            Stage::Resolving
            | Stage::Connecting { .. }
            | Stage::Departing(_)
            | Stage::Closing
            | Stage::Refused => {}
        }
        let session = self.sessions.get_mut(id);
        if let Some(session) = session.filter(|s| !matches!(s.stage, Stage::Relaying(..))) {
            // Queued records may still have to leave. A channel error can be ignored here: the next read reports
            // the error, or the `Closed` event ends the session.
            let _ = session.channel.drive::<StepError>(ctx.now, ctx.stack);
        }
    }

    fn on_request(&mut self, ctx: &mut Ctx<'_>, id: SessionId, request: Request) {
        let max_per_user = self.max_per_user();
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Stage::Handshake(handshake) = &mut session.stage else {
            return;
        };
        let Request {
            destination,
            metadata,
        } = request;
        let (destination_bytes, signed) = (
            destination.to_bytes(),
            metadata.as_ref().map(SignedMetadata::from),
        );
        let may_request = |g: &Grant| self.verifier.check_request(g, &destination_bytes, signed);
        if !handshake.grant.as_ref().is_some_and(may_request) {
            return self.refuse(ctx, id, Refusal::WrongDestination);
        }
        let user = session.user;
        // A user at the limit may have connections whose box has long been silent.
        if user.is_some_and(|u| self.per_user.get(u).is_some_and(|n| *n >= max_per_user)) {
            self.reclaim(ctx, user);
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Stage::Handshake(handshake) = &mut session.stage else {
            return;
        };
        let sessions_of_user = session.user.and_then(|u| self.per_user.get_mut(u));
        let Some(sessions_of_user) = sessions_of_user.filter(|n| **n < max_per_user) else {
            return self.refuse(ctx, id, Refusal::OverLimit);
        };
        *sessions_of_user += 1;
        self.handshakes.end(ctx.now, session.remote, handshake);
        session.channel.begin_reading();
        session.started = ctx.now;
        // The handshake has ended, so a failure below must not end it again. `look_up` or `connect_next` sets the
        // next stage.
        session.stage = Stage::Closing;
        let deadline = ctx.now + self.timeouts.connect;
        session.deadline = deadline;
        let name = session.user.and_then(|u| self.user_names.get(u));
        let conn = session.channel.conn;
        tracing::debug!(remote = %session.remote, user = name, %destination, "request");
        // Early hints follow each request that came with metadata, and no other.
        session.early_hints = metadata.is_some().then(EarlyHints::default);
        let hints = metadata.map_or(FlowHints::default(), |metadata| {
            self.hints(conn, &metadata.hints)
        });
        hints.begin(ctx.now, conn, ctx.stack);
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.destination = Some(Box::new(destination.clone()));
        if let Some(user) = session.user {
            join_group(ctx, conn, user);
        }
        match destination {
            Destination::Address(addr) => self.on_resolved(ctx, id, vec![addr]),
            Destination::Name(..) => self.look_up(ctx, id),
        }
    }

    /// Decodes a box's hints, and counts invalid ones.
    fn hints(&mut self, conn: ConnId, hints: &[u8]) -> FlowHints {
        let (hints, bad) = FlowHints::decode(hints);
        let unknown = hints.strategy.is_some() && hints.strategy().is_none();
        self.counters.bad_hints += bad + u64::from(unknown);
        tracing::debug!(?conn, ?hints, "hints");
        hints
    }

    /// Reads early hints; returns false if the session has ended.
    fn read_early_hints(&mut self, ctx: &mut Ctx<'_>, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let Session {
            channel,
            early_hints: Some(early_hints),
            remote,
            ..
        } = session
        else {
            return true;
        };
        let (conn, remote) = (channel.conn, *remote);
        let input = |buf: &[u8]| early_hints.input(buf);
        match relay::read_step(ctx.now, channel, ctx.stack, EarlyHintsStep::More, input) {
            Ok(EarlyHintsStep::More) => true,
            Ok(EarlyHintsStep::Hints(hints)) => {
                session.early_hints = None;
                let hints = self.hints(conn, &hints);
                hints.apply(ctx.now, conn, ctx.stack);
                true
            }
            Ok(EarlyHintsStep::Garbage) => {
                self.counters.garbage += 1;
                if let Some(suppressed) = self.limiter.allow(ctx.now, "hints", remote) {
                    tracing::warn!(
                        %remote, suppressed,
                        "malformed hints in front of a user's data; the connection was reset"
                    );
                }
                self.end_relay(ctx, id, End::Conn);
                false
            }
            // The connection's `Closed` event follows.
            Err(StepError::Gone) => false,
            Err(StepError::Broken(why)) => {
                self.end_relay(ctx, id, End::Broken(why));
                false
            }
        }
    }

    /// Connects to the first of the destination's addresses that the rules permit and that answers. Tries
    /// addresses of families that the server reaches before the others.
    fn on_resolved(&mut self, ctx: &mut Ctx<'_>, id: SessionId, addresses: Vec<SocketAddr>) {
        let canonical = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
        let permitted = addresses
            .iter()
            .copied()
            .map(canonical)
            .filter(|a| self.destinations.permits(*a));
        let mut others: Vec<SocketAddr> = permitted.collect();
        // A family that counts as unreached may be reachable again, so its addresses stay in the list.
        others.sort_by_key(|a| !self.tls.reached.has(a.ip()));
        others.truncate(MAX_ADDRESSES);
        // `connect_next` takes addresses from the end.
        others.reverse();
        if others.is_empty() {
            let refusal = match addresses.first() {
                Some(addr) => Refusal::Forbidden(*addr),
                None => Refusal::Failure(ConnectFailure::NameNotResolved),
            };
            return self.refuse(ctx, id, refusal);
        }
        self.connect_next(ctx, id, others, ConnectFailure::HostUnreachable);
    }

    /// Connects to the last of `others`. If none is left, refuses the session because of `failure`, the reason why
    /// the previous address failed.
    fn connect_next(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: SessionId,
        mut others: Vec<SocketAddr>,
        failure: ConnectFailure,
    ) {
        let mut refusal = Refusal::Failure(failure);
        while let Some(addr) = others.pop() {
            // A reload may have changed the rules meanwhile.
            if !self.destinations.permits(addr) {
                refusal = Refusal::Forbidden(addr);
                continue;
            }
            match ctx.downstream.connect(addr) {
                Ok(stream) => {
                    self.sessions.bind_downstream(stream, id);
                    let Some(session) = self.sessions.get_mut(id) else {
                        return;
                    };
                    let deadline = match others.is_empty() {
                        true => session.deadline,
                        false => session.deadline.min(ctx.now + ADDRESS_TIMEOUT),
                    };
                    session.stage = Stage::Connecting {
                        downstream: stream,
                        others,
                        addr: addr.ip(),
                        since: ctx.now,
                    };
                    return self.sessions.arm(id, deadline);
                }
                // The routes of this family lead to some networks only, and the server has reached one of these
                // networks. So this destination is unreachable, but the family is not.
                Err(ConnectFailure::FamilyUnreachable) if self.connected.has(addr.ip()) => {
                    refusal = Refusal::Failure(ConnectFailure::NetworkUnreachable);
                }
                Err(e) => {
                    if e == ConnectFailure::FamilyUnreachable {
                        self.set_reached(addr.is_ipv6(), false);
                    }
                    refusal = Refusal::Failure(e);
                }
            }
        }
        self.refuse(ctx, id, refusal);
    }

    fn on_connect_failed(&mut self, ctx: &mut Ctx<'_>, id: SessionId, failure: ConnectFailure) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if let Stage::Connecting { others, .. } = &mut session.stage {
            let others = core::mem::take(others);
            // The failed stream needs no further reset. `connect_next` sets the stage of the next attempt.
            session.stage = Stage::Closing;
            self.connect_next(ctx, id, others, failure);
        }
    }

    fn on_connected(&mut self, ctx: &mut Ctx<'_>, id: SessionId, stream: DownstreamId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let addr = match session.stage {
            Stage::Connecting {
                downstream,
                addr,
                since,
                ..
            } if downstream == stream => {
                let took = ctx.now.saturating_since(since);
                self.egress.on_connected(ctx.now, session.user, addr, took);
                addr
            }
            _ => return,
        };
        if !send_all(ctx, &mut session.channel, &Reply::Succeeded.encode()) {
            self.counters.over_limit += 1;
            return self.drop_session(ctx, id);
        }
        // After the reply, the connection carries the user's bytes. The end of these bytes does not end the
        // connection.
        session.channel.begin_writing();
        let mut relay = Relay::new(ctx.now, stream, self.timeouts.relay);
        relay.keep_first_bytes(sniff::MAX_SNIFFED_BYTES);
        let due = relay.due();
        session.stage = Stage::Relaying(relay, RelayRate::new(ctx.now, addr));
        self.counters.connected += 1;
        self.counters.joined_by_keys += u64::from(session.channel.joins_use_keys());
        self.sessions.arm(id, due);
        // In a family with routes to the Internet, `connected` has no meaning and stays unset.
        self.connected.set(addr.is_ipv6(), self.isolated.has(addr));
        self.set_reached(addr.is_ipv6(), true);
        self.advance(ctx, id);
    }

    fn on_broken(&mut self, ctx: &mut Ctx<'_>, id: SessionId, stream: DownstreamId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        match session.stage {
            Stage::Relaying(..) => self.end_relay(ctx, id, End::Downstream),
            Stage::Connecting { .. } => {
                ctx.downstream.close(stream);
                // The event gives no reason, so the attempt counts as refused by the destination.
                self.on_connect_failed(ctx, id, ConnectFailure::Refused);
            }
            _ => {}
        }
    }

    fn relay(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        if !self.read_early_hints(ctx, id) {
            return;
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Session {
            channel,
            stage: Stage::Relaying(relay, relay_rate),
            user,
            ..
        } = session
        else {
            return;
        };
        // The check comes before the turn, because the turn may fill the connection again.
        if relay_rate.is_check_due(ctx.now) {
            let stats = ctx.stack.conn_stats(channel.conn);
            let unsent: u64 = stats.map_or(0, |s| s.unsent.iter().sum());
            relay_rate.check(ctx.now, unsent == 0);
        }
        let turn = relay.turn(ctx, channel);
        if turn.moved.to_conn > 0 {
            sniff_response(ctx, channel.conn, relay);
        }
        if let Some(rate) = relay_rate.on_moved(ctx.now, turn.moved.to_conn) {
            self.egress.on_rate(ctx.now, *user, relay_rate.addr, rate);
        }
        let due = relay.due();
        self.counters.bytes_up += turn.moved.to_downstream;
        self.counters.bytes_down += turn.moved.to_conn;
        // A finished relay does not end the session if the connection can serve another user.
        if let Some(end) = self.sessions.after_turn(id, &turn, due)
            && !(end == End::Finished && self.try_continue(ctx, id))
        {
            self.end_relay(ctx, id, end);
        }
    }

    fn on_timer(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        match &mut session.stage {
            Stage::Handshake(h) if h.is_waiting => {
                if !self.end_in_order(ctx, id) {
                    self.counters.unused_sign_ins += 1;
                    self.drop_session(ctx, id);
                }
            }
            Stage::Handshake(_) => {
                let remote = session.remote;
                self.counters.handshake_timeout += 1;
                self.count_failed(ctx.now, id);
                if let Some(suppressed) = self.limiter.allow(ctx.now, "slow handshake", remote) {
                    tracing::warn!(
                        %remote, suppressed,
                        "a handshake was not complete within the timeout; the connection was closed"
                    );
                }
                self.drop_session(ctx, id);
            }
            Stage::Resolving => {
                self.refuse(ctx, id, Refusal::Failure(ConnectFailure::NameNotResolved));
            }
            Stage::Connecting { downstream, .. } => {
                ctx.downstream.reset(*downstream);
                self.on_connect_failed(ctx, id, ConnectFailure::TimedOut);
            }
            Stage::Relaying(relay, _) => {
                if relay.is_overdue(ctx, &session.channel) {
                    return self.end_relay(ctx, id, End::Idle);
                }
                let due = relay.due();
                self.sessions.arm(id, due);
            }
            Stage::Departing(_) => self.send_due_records(ctx, id),
            Stage::Closing | Stage::Refused => self.drop_session(ctx, id),
        }
    }

    fn on_closed(&mut self, ctx: &mut Ctx<'_>, id: SessionId, reason: CloseReason) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        match &session.stage {
            Stage::Relaying(relay, _) => {
                let end = relay.on_closed(&session.channel, reason);
                return self.end_relay(ctx, id, end);
            }
            Stage::Handshake(h) if !h.peer_has_sent => self.counters.probes += 1,
            // The box closed an idle connection that it no longer needs. That is no failure.
            Stage::Handshake(_) if reason == CloseReason::Finished => {}
            Stage::Handshake(h) if h.is_waiting => self.counters.unused_sign_ins += 1,
            Stage::Handshake(_) => {
                self.counters.handshake_aborted += 1;
                self.count_failed(ctx.now, id);
            }
            Stage::Resolving | Stage::Connecting { .. } => self.counters.reset_by_box += 1,
            Stage::Departing(_) | Stage::Closing | Stage::Refused => {}
        }
        self.drop_session(ctx, id);
    }

    /// Ends a session with a connected destination.
    fn end_relay(&mut self, ctx: &mut Ctx<'_>, id: SessionId, end: End) {
        let Some(Session {
            channel,
            remote,
            stage: Stage::Relaying(relay, _),
            ..
        }) = self.forget(ctx.now, id)
        else {
            debug_assert!(false, "no relay to end");
            return;
        };
        relay.end(ctx, &channel, end);
        let counter = match end {
            End::Finished => &mut self.counters.finished,
            End::Downstream => &mut self.counters.reset_by_destination,
            End::Conn => &mut self.counters.reset_by_box,
            End::Broken(why) => {
                let (counter, kind) = session::kind_of(why, &mut self.counters);
                if let Some(suppressed) = self.limiter.allow(ctx.now, kind, remote) {
                    tracing::warn!(%remote, suppressed, ?why, "ended a connection: {kind}");
                }
                counter
            }
            End::Idle => &mut self.counters.idle_timeout,
        };
        *counter += 1;
    }

    /// Ends a session without a connected destination.
    fn drop_session(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        if let Some(session) = self.forget(ctx.now, id) {
            if let Stage::Connecting { downstream, .. } = session.stage {
                ctx.downstream.reset(downstream);
            }
            session.channel.abort(ctx.now, ctx.stack);
        }
    }

    /// Removes a session from the table and from all counts of the limits.
    fn forget(&mut self, now: Instant, id: SessionId) -> Option<Session> {
        let mut session = self.sessions.remove(id)?;
        match &mut session.stage {
            Stage::Handshake(handshake) => self.handshakes.end(now, session.remote, handshake),
            Stage::Refused => self.handshakes.leave(now, session.remote),
            _ => self.leave(session.user, id),
        }
        self.counters.sources_forgotten = self.handshakes.forgotten;
        Some(session)
    }

    /// Sends the peer the reason of the refusal, and gives it [`CLOSE_TIMEOUT`] to close the connection.
    fn refuse(&mut self, ctx: &mut Ctx<'_>, id: SessionId, refusal: Refusal) {
        self.count_failed(ctx.now, id);
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.stage = match &mut session.stage {
            Stage::Handshake(handshake) => {
                // The session counts as a handshake until it ends, so that refusals cannot evade the limits. The
                // session does not count towards its user yet.
                self.handshakes.end_waiting(session.remote, handshake);
                session.user = None;
                Stage::Refused
            }
            _ => {
                self.lookups.forget(session.user, id);
                Stage::Closing
            }
        };
        let remote = session.remote;
        let reply = refusal.reply();
        // After a channel error no reply can be sent: the channel has sent an alert already.
        let reply_sent = match &refusal {
            Refusal::Unprotected(_) => ctx.stack.shutdown(ctx.now, session.channel.conn).is_ok(),
            _ => {
                !reply.is_empty()
                    && send_all(ctx, &mut session.channel, &reply)
                    && session.channel.shutdown(ctx.now, ctx.stack).is_ok()
            }
        };
        self.sessions.unbind_downstream(id);
        self.count_refusal(ctx.now, &refusal, remote);
        if reply_sent {
            self.sessions.arm(id, ctx.now + CLOSE_TIMEOUT);
        } else {
            self.drop_session(ctx, id);
        }
    }

    fn count_refusal(&mut self, now: Instant, refusal: &Refusal, remote: IpAddr) {
        let (counter, kind) = refusal.kind(&mut self.counters);
        *counter += 1;
        if let Some(kind) = kind
            && let Some(suppressed) = self.limiter.allow(now, kind, remote)
        {
            match refusal {
                Refusal::Auth(e) => {
                    tracing::warn!(%remote, suppressed, "refused a connection: {kind}: {e}")
                }
                Refusal::Unprotected(why) => {
                    tracing::warn!(%remote, suppressed, ?why, "refused a connection: {kind}")
                }
                Refusal::Forbidden(addr) => {
                    tracing::warn!(%remote, %addr, suppressed, "refused a connection: {kind}")
                }
                _ => tracing::warn!(%remote, suppressed, "refused a connection: {kind}"),
            }
        }
    }
}

/// Returns the engine's memory group of a user.
fn group(user: usize) -> u32 {
    // A configuration has far fewer than 2^32 users, so the fallback is never used.
    u32::try_from(user).unwrap_or(u32::MAX)
}

/// Limits the memory of all of a user's connections together, by the engine's group.
fn join_group(ctx: &mut Ctx<'_>, conn: ConnId, user: usize) {
    // A connection that is already gone reports itself by its `Closed` event.
    let _ = ctx.stack.set_group(ctx.now, conn, group(user));
}

/// Reads the length of the response from the first bytes of a destination, and tells the strategy this length. The
/// bytes have gone to the box already, so the reading does not delay them.
fn sniff_response(ctx: &mut Ctx<'_>, conn: ConnId, relay: &mut Relay) {
    let Some((first, full)) = relay.first_bytes() else {
        return;
    };
    match sniff::response(first) {
        Length::Incomplete if !full => return,
        Length::Incomplete | Length::Unknown => {}
        Length::Bytes(bytes) => {
            let size = FlowSize::Read(bytes);
            // A connection that is already gone reports itself by its `Closed` event.
            let _ = ctx.stack.set_flow_size(ctx.now, conn, size);
        }
    }
    relay.drop_first_bytes();
}

/// Sends a message of the handshake; returns false if the connection does not take all of it. A message is small,
/// so the connection lacks room only if the memory pool is exhausted.
fn send_all(ctx: &mut Ctx<'_>, channel: &mut Channel, bytes: &[u8]) -> bool {
    channel.write_all(ctx.now, ctx.stack, bytes).is_ok()
}
