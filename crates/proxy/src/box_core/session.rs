//! One user's connection, from its acceptance to its end.

use core::net::{IpAddr, SocketAddr};

use braid_engine::app::{Ctx, LocalId};
use braid_engine::{ApiError, ConnId, PathId};
use braid_wire::Instant;

use crate::auth;
use crate::relay::{End, Relay};
use crate::socks::{self, ClientError, ClientHandshake, ClientStep, Destination, Reply};
use crate::table::SessionId;
use crate::upstream::{Hints, Lease};

use super::BoxCore;

/// Most attempts to reach a server for one connection.
const MAX_ATTEMPTS: usize = 4;

/// One user's connection.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) relay: Relay,
    pub(super) stage: Stage,
    pub(super) server: usize,
    /// Path of the initial subflow.
    pub(super) path: PathId,
    host: IpAddr,
    destination: SocketAddr,
    started: Instant,
    /// Attempts that failed; empty, and so without memory, for nearly all.
    tried: Vec<(usize, PathId)>,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Towards a server. Nothing of the user's bytes was taken, so another attempt can be made.
    Connecting,
    /// Towards the destination: the server's answer is awaited, while the user's bytes follow the
    /// request.
    Negotiating(Box<ClientHandshake>),
    /// There.
    Relaying,
}

/// How a session ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome {
    /// After there was a destination, or because the user went.
    Relayed(End),
    Refused(ClientError),
    ServerFailed,
    NoServer,
    NoAnswer,
}

impl BoxCore {
    pub(super) fn on_accepted(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: LocalId,
        peer: SocketAddr,
        destination: SocketAddr,
    ) {
        self.counters.accepted += 1;
        let host = peer.ip().to_canonical();
        let of_host = self.per_host.get(&host).copied().unwrap_or(0);
        if self.sessions.len() >= self.limits.connections
            || self.handshakes >= self.limits.handshakes
            || of_host >= self.limits.per_host
        {
            self.counters.over_limit += 1;
            if let Some(left_out) = self.limiter.allow(ctx.now, "limit", host) {
                let open = self.sessions.len();
                tracing::warn!(%host, open, of_host, left_out, "too many connections");
            }
            return ctx.local.reset(id);
        }
        let destination = SocketAddr::new(destination.ip().to_canonical(), destination.port());
        let hints = Hints::default();
        let lease = match self.lease(ctx, &hints, destination) {
            Ok(lease) => lease,
            Err(error) => {
                self.counters.no_server += 1;
                self.warn_no_server(ctx.now, host, Some(error));
                return ctx.local.reset(id);
            }
        };
        let session = Session {
            relay: Relay::new(ctx.now, lease.conn, id, self.timeouts.patience()),
            stage: Stage::Connecting,
            server: lease.server,
            path: lease.path,
            host,
            destination,
            started: ctx.now,
            tried: Vec::new(),
        };
        let sid = self.sessions.insert(session);
        self.sessions.bind_local(id, sid);
        self.sessions.bind_conn(lease.conn, sid);
        self.sessions.arm(sid, ctx.now + self.timeouts.attempt);
        self.handshakes += 1;
        *self.per_host.entry(host).or_default() += 1;
    }

    /// A connection to a server with the whole SOCKS handshake queued, so that it leaves with the
    /// end of the engine's.
    fn lease(
        &mut self,
        ctx: &mut Ctx<'_>,
        hints: &Hints,
        destination: SocketAddr,
    ) -> Result<Lease, ApiError> {
        let lease = self.upstream.acquire(ctx.now, hints, ctx.stack)?;
        let server = self.upstream.server(lease.server);
        let mut nonce = [0; 16];
        self.rng.fill(&mut nonce);
        let user = server.user.as_bytes();
        let destination = Destination::Address(destination);
        let time = self.clock.unix_ms(ctx.now);
        let password = auth::password(&server.secret, user, &destination, time, nonce);
        let flight = socks::flight(user, &password, &destination);
        match ctx.stack.write(ctx.now, lease.conn, &flight) {
            Ok(n) if n == flight.len() => Ok(lease),
            result => {
                ctx.stack.abort(ctx.now, lease.conn);
                Err(result.err().unwrap_or(ApiError::LimitReached))
            }
        }
    }

    /// Tries another server or another link, in the hope that one of them works.
    pub(super) fn retry(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.tried.push((session.server, session.path));
        let attempts = session.tried.len();
        let (destination, old) = (session.destination, session.relay.conn);
        let hints = Hints {
            tried: core::mem::take(&mut session.tried),
        };
        let late = ctx.now >= session.started + self.timeouts.connect;
        self.sessions.unbind_conn(old);
        ctx.stack.abort(ctx.now, old);
        if late || attempts >= MAX_ATTEMPTS {
            return self.end(ctx, id, Outcome::NoServer);
        }
        let Ok(lease) = self.lease(ctx, &hints, destination) else {
            return self.end(ctx, id, Outcome::NoServer);
        };
        self.counters.retries += 1;
        self.sessions.bind_conn(lease.conn, id);
        if let Some(session) = self.sessions.get_mut(id) {
            session.relay.conn = lease.conn;
            session.server = lease.server;
            session.path = lease.path;
            session.tried = hints.tried;
        }
        // The next one may take longer: the links may just be slow.
        let patience = self.timeouts.attempt * (1 << attempts.min(8));
        self.sessions.arm(id, ctx.now + patience);
    }

    pub(super) fn on_connected(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.stage = Stage::Negotiating(Box::default());
        session.tried = Vec::new();
        let deadline = session.started + self.timeouts.connect;
        self.sessions.arm(id, deadline);
        self.advance(ctx, id);
    }

    /// Does what a session can do now.
    pub(super) fn advance(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if let Stage::Negotiating(handshake) = &mut session.stage {
            match negotiate(ctx, session.relay.conn, handshake) {
                Ok(ClientStep::Connected) => {
                    session.stage = Stage::Relaying;
                    session.relay.touch(ctx.now);
                    let due = session.relay.due();
                    self.counters.connected += 1;
                    self.handshakes -= 1;
                    self.sessions.arm(id, due);
                }
                Ok(ClientStep::More) => {}
                Ok(ClientStep::Failed(error)) => {
                    return self.end(ctx, id, Outcome::Refused(error));
                }
                Err(_) => return self.end(ctx, id, Outcome::ServerFailed),
            }
        }
        self.relay(ctx, id);
    }

    fn relay(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let relay = &mut session.relay;
        let turn = match session.stage {
            Stage::Connecting => return,
            Stage::Negotiating(_) => relay.turn_up(ctx),
            Stage::Relaying => relay.turn(ctx),
        };
        let due = relay.due();
        self.counters.bytes_up += turn.moved.to_conn;
        self.counters.bytes_down += turn.moved.to_local;
        if turn.moved.any() {
            self.upstream.note_traffic(ctx.now);
        }
        if let Some(end) = self.sessions.follow(id, &turn, due) {
            self.end(ctx, id, Outcome::Relayed(end));
        }
    }

    pub(super) fn on_timer(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        match session.stage {
            Stage::Connecting => {
                let (server, path) = (session.server, session.path);
                self.upstream.on_doubt(ctx.now, server, path);
                self.retry(ctx, id);
            }
            Stage::Negotiating(_) => self.end(ctx, id, Outcome::NoAnswer),
            Stage::Relaying => {
                let due = session.relay.due();
                if due <= ctx.now {
                    return self.end(ctx, id, Outcome::Relayed(End::Idle));
                }
                self.sessions.arm(id, due);
            }
        }
    }

    /// Ends a session: both sides, the tables, counters and, where it is worth one, a log line.
    pub(super) fn end(&mut self, ctx: &mut Ctx<'_>, id: SessionId, outcome: Outcome) {
        let Some(session) = self.sessions.remove(id) else {
            return;
        };
        self.sessions.unbind_conn(session.relay.conn);
        self.sessions.unbind_local(session.relay.local);
        if !matches!(session.stage, Stage::Relaying) {
            self.handshakes -= 1;
        }
        if let Some(n) = self.per_host.get_mut(&session.host) {
            *n -= 1;
            if *n == 0 {
                self.per_host.remove(&session.host);
            }
        }
        let end = match outcome {
            Outcome::Relayed(end) => end,
            // A user without the box would see RST, or nothing for minutes; RST it is.
            _ => End::Conn,
        };
        session.relay.end(ctx, end);
        self.count(outcome);
        self.log_end(ctx.now, &session, outcome);
    }

    fn count(&mut self, outcome: Outcome) {
        let c = &mut self.counters;
        let counter = match outcome {
            Outcome::Relayed(End::Finished) => &mut c.finished,
            Outcome::Relayed(End::Local) => &mut c.reset_by_user,
            Outcome::Relayed(End::Conn) => &mut c.reset_by_server,
            Outcome::Relayed(End::Idle) => &mut c.idle_timeout,
            Outcome::NoServer => &mut c.no_server,
            Outcome::NoAnswer => &mut c.destination_timeout,
            Outcome::ServerFailed => &mut c.server_failed,
            Outcome::Refused(error) => match error {
                ClientError::AuthRefused | ClientError::MethodRefused => &mut c.auth_refused,
                ClientError::Garbage => &mut c.server_failed,
                ClientError::Refused(reply) => match reply {
                    Reply::ConnectionRefused => &mut c.destination_refused,
                    Reply::NetworkUnreachable | Reply::HostUnreachable => {
                        &mut c.destination_unreachable
                    }
                    Reply::TtlExpired => &mut c.destination_timeout,
                    Reply::NotAllowed => &mut c.destination_forbidden,
                    _ => &mut c.server_failed,
                },
            },
        };
        *counter += 1;
    }

    fn log_end(&mut self, now: Instant, session: &Session, outcome: Outcome) {
        let (host, destination) = (session.host, session.destination);
        tracing::debug!(%host, %destination, ?outcome, "connection ended");
        let entry = self.upstream.server(session.server);
        let address = entry.endpoint_v4().or(entry.endpoint_v6());
        let Some(server) = address else {
            return;
        };
        match outcome {
            Outcome::NoServer => self.warn_no_server(now, server.ip(), None),
            Outcome::Refused(ClientError::AuthRefused | ClientError::MethodRefused) => {
                if let Some(left_out) = self.limiter.allow(now, "auth", server.ip()) {
                    let user = &entry.user;
                    tracing::error!(
                        %server, user, left_out,
                        "the server refuses this box: check user, secret and clock"
                    );
                }
            }
            Outcome::Refused(ClientError::Garbage) | Outcome::ServerFailed => {
                if let Some(left_out) = self.limiter.allow(now, "server", server.ip()) {
                    tracing::warn!(%server, left_out, "the server does not answer as one");
                }
            }
            Outcome::Refused(ClientError::Refused(Reply::NotAllowed)) => {
                if let Some(left_out) = self.limiter.allow(now, "rules", destination.ip()) {
                    tracing::warn!(%destination, left_out, "the server's rules forbid this");
                }
            }
            _ => {}
        }
    }

    fn warn_no_server(&mut self, now: Instant, source: IpAddr, error: Option<ApiError>) {
        if let Some(left_out) = self.limiter.allow(now, "no server", source) {
            let error = error.map_or_else(|| "no answer".to_owned(), |e| e.to_string());
            tracing::warn!(error, left_out, "no server can be reached");
        }
    }
}

/// Reads the server's answer and leaves alone what follows it.
fn negotiate(
    ctx: &mut Ctx<'_>,
    conn: ConnId,
    handshake: &mut ClientHandshake,
) -> Result<ClientStep, ApiError> {
    let mut step = ClientStep::More;
    ctx.stack.read_with(ctx.now, conn, |bufs| {
        let mut taken = 0;
        for buf in bufs {
            let (n, next) = handshake.input(buf);
            taken += n;
            step = next;
            if step != ClientStep::More {
                break;
            }
        }
        Ok::<_, ApiError>(taken)
    })?;
    if step == ClientStep::More && ctx.stack.read_finished(conn) {
        step = ClientStep::Failed(ClientError::Garbage);
    }
    Ok(step)
}
