//! One connection of a box, from its acceptance to its end.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use braid_engine::app::{ConnectFailure, Ctx, LocalId};
use braid_engine::{ApiError, CloseReason, ConnId};
use braid_wire::Instant;

use crate::auth::{AuthError, Grant};
use crate::relay::{End, Relay};
use crate::socks::{Destination, Reply, ServerError, ServerHandshake, ServerStep};
use crate::table::SessionId;

use super::ServerCore;

/// Most addresses of a name that are tried.
const MAX_ADDRESSES: usize = 8;
/// How long one address is tried while there are others.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(3);
/// How long a peer has to close after it was told of a failure.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// One connection of a box.
#[derive(Debug)]
pub(super) struct Session {
    conn: ConnId,
    remote: IpAddr,
    /// Position of the user in the configuration, once the password was right.
    user: Option<usize>,
    stage: Stage,
    /// End of the stage, but for [`Stage::Relaying`], whose relay knows.
    time: Instant,
}

#[derive(Debug)]
enum Stage {
    /// The request is awaited.
    Handshake(Box<Handshake>),
    /// The destination's name is looked up.
    Resolving(LocalId),
    /// One of the destination's addresses is connected to; the others wait.
    Connecting {
        local: LocalId,
        others: Vec<SocketAddr>,
    },
    /// There.
    Relaying(Relay),
    /// The peer was told of a failure and is to close.
    Closing,
}

#[derive(Debug, Default)]
struct Handshake {
    socks: ServerHandshake,
    grant: Option<Grant>,
    /// The peer said something.
    spoken: bool,
}

impl Session {
    pub(super) fn relay_mut(&mut self) -> Option<&mut Relay> {
        match &mut self.stage {
            Stage::Relaying(relay) => Some(relay),
            _ => None,
        }
    }
}

/// What ends a handshake before there is a destination.
enum Refusal {
    Socks(ServerError),
    Auth(AuthError),
    WrongDestination,
    Forbidden(IpAddr),
    OverLimit,
    Failure(ConnectFailure),
}

impl ServerCore {
    pub(super) fn on_accepted(&mut self, ctx: &mut Ctx<'_>, conn: ConnId, remote: IpAddr) {
        self.counters.accepted += 1;
        let open = self.sessions.len();
        if open >= self.limits.connections || self.handshakes >= self.limits.handshakes {
            self.counters.over_limit += 1;
            if let Some(left_out) = self.limiter.allow(ctx.now, "limit", remote) {
                let handshakes = self.handshakes;
                tracing::warn!(%remote, open, handshakes, left_out, "too many connections");
            }
            return ctx.stack.abort(ctx.now, conn);
        }
        let deadline = ctx.now + self.timeouts.handshake;
        let id = self.sessions.insert(Session {
            conn,
            remote: remote.to_canonical(),
            user: None,
            stage: Stage::Handshake(Box::default()),
            time: deadline,
        });
        self.sessions.bind_conn(conn, id);
        self.sessions.arm(id, deadline);
        self.handshakes += 1;
        self.advance(ctx, id);
    }

    /// Does what a session can do now.
    pub(super) fn advance(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        match &mut session.stage {
            Stage::Handshake(_) => self.handshake(ctx, id),
            Stage::Relaying(_) => self.relay(ctx, id),
            Stage::Resolving(_) | Stage::Connecting { .. } | Stage::Closing => {}
        }
    }

    fn handshake(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        // A handshake has three messages; each turn of the loop ends one.
        for _ in 0..8 {
            let Some(session) = self.sessions.get_mut(id) else {
                return;
            };
            let Stage::Handshake(handshake) = &mut session.stage else {
                return;
            };
            let conn = session.conn;
            let Ok(step) = read_step(ctx, conn, handshake) else {
                // Its `Closed` follows.
                return;
            };
            match step {
                ServerStep::More => {
                    if ctx.stack.read_finished(conn) {
                        ctx.stack.abort(ctx.now, conn);
                    }
                    return;
                }
                ServerStep::Send(bytes) => {
                    if !send_all(ctx, conn, &bytes) {
                        return self.drop_session(ctx, id);
                    }
                }
                ServerStep::Credentials { user, password } => {
                    let time = self.clock.unwrap_or_default().unix_ms(ctx.now);
                    match self.verifier.check(&user, &password, time) {
                        Ok(grant) => {
                            session.user = Some(grant.user);
                            handshake.grant = Some(grant);
                            handshake.socks.accepted();
                            if !send_all(ctx, conn, &ServerHandshake::ACCEPTED) {
                                return self.drop_session(ctx, id);
                            }
                        }
                        Err(e) => return self.refuse(ctx, id, Refusal::Auth(e)),
                    }
                }
                ServerStep::Request(destination) => {
                    return self.on_request(ctx, id, destination);
                }
                ServerStep::Failed(e) => return self.refuse(ctx, id, Refusal::Socks(e)),
            }
        }
    }

    fn on_request(&mut self, ctx: &mut Ctx<'_>, id: SessionId, destination: Destination) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Stage::Handshake(handshake) = &session.stage else {
            return;
        };
        let right = handshake
            .grant
            .as_ref()
            .is_some_and(|g| self.verifier.check_destination(g, &destination));
        let user = session.user.and_then(|u| self.per_user.get(u));
        if !right {
            return self.refuse(ctx, id, Refusal::WrongDestination);
        }
        if user.is_none_or(|n| *n >= self.limits.per_user) {
            // It is not one of the user's, and so must not be taken off them.
            session.user = None;
            return self.refuse(ctx, id, Refusal::OverLimit);
        }
        let stage = core::mem::replace(&mut session.stage, Stage::Closing);
        drop(stage);
        session.time = ctx.now + self.timeouts.connect;
        let deadline = session.time;
        if let Some(n) = session.user.and_then(|u| self.per_user.get_mut(u)) {
            *n += 1;
        }
        let name = session.user.and_then(|u| self.user_names.get(u));
        tracing::debug!(remote = %session.remote, user = name, %destination, "request");
        self.handshakes -= 1;
        self.sessions.arm(id, deadline);
        match destination {
            Destination::Address(addr) => self.on_resolved(ctx, id, vec![addr]),
            Destination::Name(name, port) => match ctx.local.resolve(&name, port) {
                Some(lookup) => {
                    self.sessions.bind_local(lookup, id);
                    self.set_stage(id, Stage::Resolving(lookup));
                }
                None => {
                    let refusal = Refusal::Failure(ConnectFailure::NoResources);
                    self.refuse(ctx, id, refusal);
                }
            },
        }
    }

    fn set_stage(&mut self, id: SessionId, stage: Stage) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.stage = stage;
        }
    }

    /// The destination's addresses are known: those that the rules permit are tried in turn.
    pub(super) fn on_resolved(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: SessionId,
        addresses: Vec<SocketAddr>,
    ) {
        let canonical = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
        let permitted = addresses
            .iter()
            .copied()
            .map(canonical)
            .filter(|a| self.destinations.permits(a.ip()));
        let mut others: Vec<SocketAddr> = permitted.take(MAX_ADDRESSES).collect();
        others.reverse();
        if others.is_empty() {
            let refusal = match addresses.first() {
                Some(addr) => Refusal::Forbidden(addr.ip()),
                None => Refusal::Failure(ConnectFailure::NameNotResolved),
            };
            return self.refuse(ctx, id, refusal);
        }
        self.connect_next(ctx, id, others, ConnectFailure::HostUnreachable);
    }

    /// Connects to the last of `others`, or reports `failure` where there is none left.
    fn connect_next(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: SessionId,
        mut others: Vec<SocketAddr>,
        mut failure: ConnectFailure,
    ) {
        while let Some(addr) = others.pop() {
            match ctx.local.connect(addr) {
                Ok(stream) => {
                    self.sessions.bind_local(stream, id);
                    let Some(session) = self.sessions.get_mut(id) else {
                        return;
                    };
                    let deadline = match others.is_empty() {
                        true => session.time,
                        false => session.time.min(ctx.now + ADDRESS_PATIENCE),
                    };
                    session.stage = Stage::Connecting {
                        local: stream,
                        others,
                    };
                    return self.sessions.arm(id, deadline);
                }
                Err(e) => failure = e,
            }
        }
        self.refuse(ctx, id, Refusal::Failure(failure));
    }

    pub(super) fn on_connect_failed(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: SessionId,
        failure: ConnectFailure,
    ) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if let Stage::Connecting { others, .. } = &mut session.stage {
            let others = core::mem::take(others);
            session.stage = Stage::Closing;
            self.connect_next(ctx, id, others, failure);
        }
    }

    pub(super) fn on_connected(&mut self, ctx: &mut Ctx<'_>, id: SessionId, stream: LocalId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if !matches!(session.stage, Stage::Connecting { local, .. } if local == stream) {
            return;
        }
        if !send_all(ctx, session.conn, &Reply::Succeeded.encode()) {
            self.sessions.unbind_local(stream);
            ctx.local.reset(stream);
            self.counters.over_limit += 1;
            return self.drop_session(ctx, id);
        }
        let relay = Relay::new(ctx.now, session.conn, stream, self.timeouts.patience());
        let due = relay.due();
        session.stage = Stage::Relaying(relay);
        self.counters.connected += 1;
        self.sessions.arm(id, due);
        self.advance(ctx, id);
    }

    pub(super) fn on_broken(&mut self, ctx: &mut Ctx<'_>, id: SessionId, stream: LocalId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        match session.stage {
            Stage::Relaying(_) => self.end_relay(ctx, id, End::Local),
            Stage::Connecting { .. } => {
                self.sessions.unbind_local(stream);
                ctx.local.close(stream);
                self.on_connect_failed(ctx, id, ConnectFailure::Refused);
            }
            _ => {}
        }
    }

    fn relay(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let Stage::Relaying(relay) = &mut session.stage else {
            return;
        };
        let turn = relay.turn(ctx);
        let due = relay.due();
        self.counters.bytes_up += turn.moved.to_local;
        self.counters.bytes_down += turn.moved.to_conn;
        if let Some(end) = self.sessions.follow(id, &turn, due) {
            self.end_relay(ctx, id, end);
        }
    }

    pub(super) fn on_timer(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        match &mut session.stage {
            Stage::Handshake(_) => {
                let remote = session.remote;
                self.counters.handshake_timeout += 1;
                if let Some(left_out) = self.limiter.allow(ctx.now, "slow handshake", remote) {
                    tracing::warn!(%remote, left_out, "the handshake was not complete in time");
                }
                self.drop_session(ctx, id);
            }
            Stage::Resolving(lookup) => {
                let lookup = *lookup;
                self.sessions.unbind_local(lookup);
                let refusal = Refusal::Failure(ConnectFailure::NameNotResolved);
                self.refuse(ctx, id, refusal);
            }
            Stage::Connecting { local: stream, .. } => {
                let stream = *stream;
                self.sessions.unbind_local(stream);
                ctx.local.reset(stream);
                self.on_connect_failed(ctx, id, ConnectFailure::TimedOut);
            }
            Stage::Relaying(relay) => {
                let due = relay.due();
                if due <= ctx.now {
                    return self.end_relay(ctx, id, End::Idle);
                }
                self.sessions.arm(id, due);
            }
            Stage::Closing => self.drop_session(ctx, id),
        }
    }

    pub(super) fn on_closed(&mut self, ctx: &mut Ctx<'_>, id: SessionId, reason: CloseReason) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        match &session.stage {
            Stage::Relaying(_) => {
                return self.end_relay(ctx, id, End::of_conn(reason));
            }
            Stage::Handshake(h) if !h.spoken => self.counters.probes += 1,
            Stage::Handshake(_) => self.counters.handshake_aborted += 1,
            Stage::Resolving(lookup) => {
                let lookup = *lookup;
                self.counters.reset_by_box += 1;
                self.sessions.unbind_local(lookup);
            }
            Stage::Connecting { local: stream, .. } => {
                let stream = *stream;
                self.counters.reset_by_box += 1;
                self.sessions.unbind_local(stream);
                ctx.local.reset(stream);
            }
            Stage::Closing => {}
        }
        self.drop_session(ctx, id);
    }

    /// Ends a session that has a destination.
    fn end_relay(&mut self, ctx: &mut Ctx<'_>, id: SessionId, end: End) {
        let Some(Session {
            stage: Stage::Relaying(relay),
            ..
        }) = self.forget(id)
        else {
            debug_assert!(false, "no relay to end");
            return;
        };
        self.sessions.unbind_local(relay.local);
        relay.end(ctx, end);
        let counter = match end {
            End::Finished => &mut self.counters.finished,
            End::Local => &mut self.counters.reset_by_destination,
            End::Conn => &mut self.counters.reset_by_box,
            End::Idle => &mut self.counters.idle_timeout,
        };
        *counter += 1;
    }

    /// Aborts the connection of a session whose local side is gone already.
    fn drop_session(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        if let Some(session) = self.forget(id) {
            ctx.stack.abort(ctx.now, session.conn);
        }
    }

    fn forget(&mut self, id: SessionId) -> Option<Session> {
        let session = self.sessions.remove(id)?;
        self.sessions.unbind_conn(session.conn);
        if matches!(session.stage, Stage::Handshake(_)) {
            self.handshakes -= 1;
        } else if let Some(n) = session.user.and_then(|u| self.per_user.get_mut(u)) {
            *n -= 1;
        }
        Some(session)
    }

    /// Tells the peer, and waits a little for it to close.
    fn refuse(&mut self, ctx: &mut Ctx<'_>, id: SessionId, refusal: Refusal) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if matches!(session.stage, Stage::Handshake(_)) {
            // Not counted among the user's connections yet.
            self.handshakes -= 1;
            session.user = None;
        }
        session.stage = Stage::Closing;
        let (conn, remote) = (session.conn, session.remote);
        let reply = self.count_refusal(ctx.now, &refusal, remote);
        let told = !reply.is_empty()
            && send_all(ctx, conn, &reply)
            && ctx.stack.shutdown(ctx.now, conn).is_ok();
        if told {
            self.sessions.arm(id, ctx.now + CLOSE_PATIENCE);
        } else {
            self.drop_session(ctx, id);
        }
    }

    /// Counts and logs a refusal, and returns what the peer is told.
    fn count_refusal(&mut self, now: Instant, refusal: &Refusal, remote: IpAddr) -> Vec<u8> {
        let c = &mut self.counters;
        let (counter, kind, reply) = match refusal {
            Refusal::Socks(e) => {
                let (counter, kind) = match e {
                    ServerError::Garbage => (&mut c.garbage, "not SOCKS5"),
                    ServerError::NoMethod => (&mut c.no_method, "no password offered"),
                    ServerError::Command => (&mut c.bad_command, "not CONNECT"),
                    ServerError::AddressType => (&mut c.bad_address, "unknown address type"),
                    ServerError::Name => (&mut c.bad_address, "invalid name"),
                };
                (counter, kind, e.reply())
            }
            Refusal::Auth(e) => {
                let (counter, kind) = match e {
                    AuthError::Malformed => (&mut c.auth_malformed, "password malformed"),
                    AuthError::UnknownUser | AuthError::WrongSecret => {
                        (&mut c.auth_wrong, "wrong password")
                    }
                    AuthError::ClockSkew(_) => (&mut c.auth_time, "clock skew"),
                    AuthError::BeforeStart => (&mut c.auth_time, "password before start"),
                    AuthError::Replayed => (&mut c.auth_replayed, "password replayed"),
                    AuthError::ReplayCacheFull => (&mut c.auth_cache_full, "password cache full"),
                };
                (counter, kind, ServerHandshake::REFUSED.to_vec())
            }
            Refusal::WrongDestination => {
                let reply = Reply::NotAllowed.encode().to_vec();
                (
                    &mut c.auth_destination,
                    "password for another destination",
                    reply,
                )
            }
            Refusal::Forbidden(_) => {
                let reply = Reply::NotAllowed.encode().to_vec();
                (&mut c.forbidden, "destination forbidden", reply)
            }
            Refusal::OverLimit => {
                let reply = Reply::GeneralFailure.encode().to_vec();
                (&mut c.over_limit, "too many connections of one user", reply)
            }
            Refusal::Failure(failure) => {
                let (counter, kind) = match failure {
                    ConnectFailure::Refused => (&mut c.refused, ""),
                    ConnectFailure::HostUnreachable | ConnectFailure::NetworkUnreachable => {
                        (&mut c.unreachable, "")
                    }
                    ConnectFailure::TimedOut => (&mut c.connect_timeout, ""),
                    ConnectFailure::NameNotResolved => (&mut c.not_resolved, ""),
                    ConnectFailure::NoResources => (&mut c.over_limit, "out of resources"),
                };
                (counter, kind, Reply::from(*failure).encode().to_vec())
            }
        };
        *counter += 1;
        // That a destination does not answer is no error of anyone here.
        if !kind.is_empty()
            && let Some(left_out) = self.limiter.allow(now, kind, remote)
        {
            match refusal {
                Refusal::Auth(e) => tracing::warn!(%remote, left_out, "{kind}: {e}"),
                Refusal::Forbidden(addr) => tracing::warn!(%remote, %addr, left_out, "{kind}"),
                _ => tracing::warn!(%remote, left_out, "{kind}"),
            }
        }
        reply
    }
}

/// Sends a message of the handshake, whole or not at all: there is no room only where memory has
/// run out.
fn send_all(ctx: &mut Ctx<'_>, conn: ConnId, bytes: &[u8]) -> bool {
    ctx.stack.write(ctx.now, conn, bytes) == Ok(bytes.len())
}

/// Reads up to the next step and leaves alone what follows it.
fn read_step(
    ctx: &mut Ctx<'_>,
    conn: ConnId,
    handshake: &mut Handshake,
) -> Result<ServerStep, ApiError> {
    let mut step = ServerStep::More;
    let n = ctx.stack.read_with(ctx.now, conn, |bufs| {
        let mut taken = 0;
        for buf in bufs {
            let (n, next) = handshake.socks.input(buf);
            taken += n;
            step = next;
            if step != ServerStep::More {
                break;
            }
        }
        Ok::<_, ApiError>(taken)
    })?;
    handshake.spoken |= n > 0;
    Ok(step)
}
