//! The sign-in of a box or a SOCKS5 client, up to its request.

use braid_secure::auth::Grant;
use braid_secure::channel::Channel;
use braid_wire::Instant;

use super::session::{Refusal, Session, Stage};
use super::{ServerCore, send_all};
use crate::app::Ctx;
use crate::protocol::socks::{ServerHandshake, ServerStep};
use crate::relay::table::SessionId;
use crate::relay::{self, StepError};

impl ServerCore {
    /// Reads and answers the messages of the peer that have come.
    pub(super) fn handshake(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let mut was_idle = false;
        // Each iteration handles one message, and a handshake has four. The limit only guards against an endless
        // loop, so its value is a guess.
        for _ in 0..8 {
            let Some(session) = self.sessions.get_mut(id) else {
                return;
            };
            let Stage::Handshake(handshake) = &mut session.stage else {
                return;
            };
            let remote = session.remote;
            let has_sent_nothing = session.channel.is_drained(ctx.stack);
            was_idle |= !has_sent_nothing && self.handshakes.end_waiting(remote, handshake);
            let step = match self.read_handshake_step(ctx, id) {
                Ok(Some(step)) => step,
                Ok(None) => return,
                Err(refusal) => return self.refuse(ctx, id, refusal),
            };
            let Some(session) = self.sessions.get_mut(id) else {
                return;
            };
            let Stage::Handshake(handshake) = &mut session.stage else {
                return;
            };
            let channel = &mut session.channel;
            // The server has ended its own direction, so it cannot answer a message that comes now.
            if channel.is_closing() && step != ServerStep::More {
                return self.drop_session(ctx, id);
            }
            match step {
                ServerStep::More => return self.await_more(ctx, id, was_idle),
                ServerStep::Send(bytes) => {
                    if !send_all(ctx, channel, &bytes) {
                        return self.drop_session(ctx, id);
                    }
                }
                ServerStep::Credentials { user, password } => {
                    let unix_ms = self.clock.unwrap_or_default().unix_ms(ctx.now);
                    match self.verifier.check(&user, &password, unix_ms) {
                        Ok(grant) => {
                            session.user = Some(grant.user);
                            handshake.grant = Some(grant);
                            handshake.socks.accepted();
                            if !send_all(ctx, channel, &ServerHandshake::ACCEPTED) {
                                return self.drop_session(ctx, id);
                            }
                        }
                        Err(e) => return self.refuse(ctx, id, Refusal::Auth(e)),
                    }
                }
                ServerStep::Request(request) => return self.on_request(ctx, id, request),
                ServerStep::Probe(metadata) => return self.on_probe(ctx, id, &metadata),
                ServerStep::Tunnel(fields) => return self.on_tunnel_request(ctx, id, &fields),
                ServerStep::Failed(e) => return self.refuse(ctx, id, Refusal::Socks(e)),
            }
        }
    }

    /// Handles a handshake whose next message is incomplete: ends it if the peer has ended its direction.
    /// Otherwise lets the session wait: idle if it may, or else within the timeout of a handshake. `was_idle` is
    /// true if the peer has sent something after an idle wait. Then the timeout of a handshake begins now.
    fn await_more(&mut self, ctx: &mut Ctx<'_>, id: SessionId, was_idle: bool) {
        let Some(Session {
            channel,
            remote,
            stage: Stage::Handshake(handshake),
            ..
        }) = self.sessions.get_mut(id)
        else {
            return;
        };
        let conn = channel.conn;
        let peer_finished = ctx.stack.read_finished(conn) || channel.read_finished(ctx.stack);
        let is_signed_in = handshake.grant.is_some();
        // A box that has signed in may have made a request before, and a reset would discard the bytes that the
        // box still has to deliver. A peer that has not signed in loses nothing by a reset. The `Closed` event after
        // the reset ends the session.
        if peer_finished && !(is_signed_in && channel.close(ctx.now, ctx.stack).is_ok()) {
            ctx.stack.abort(ctx.now, conn);
        }
        let max_waiting = self.limits.waiting;
        if self
            .handshakes
            .begin_waiting(ctx.now, *remote, handshake, max_waiting)
        {
            let deadline = handshake.waiting_until;
            let deadline = deadline.unwrap_or(ctx.now + self.timeouts.waiting);
            handshake.waiting_until = Some(deadline);
            self.sessions.arm(id, deadline);
        } else if was_idle {
            self.sessions.arm(id, ctx.now + self.timeouts.handshake);
        }
    }

    /// Reads the next step of a handshake; returns `None` if the connection is gone.
    fn read_handshake_step(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: SessionId,
    ) -> Result<Option<ServerStep>, Refusal> {
        let Some(Session {
            channel,
            user,
            stage: Stage::Handshake(handshake),
            ..
        }) = self.sessions.get_mut(id)
        else {
            return Ok(None);
        };
        if !handshake.protection_known
            && let Some(accepted) = Channel::accept(ctx.now, channel.conn, &self.tls, ctx.stack)
        {
            (handshake.protection_known, handshake.peer_has_sent) = (true, true);
            match (accepted.is_protected(), self.allows_plaintext) {
                // The key has identified the user, so the client needs no SOCKS5 password.
                (true, _) => handshake.socks = ServerHandshake::authenticated(),
                (false, true) => {}
                (false, false) => return Err(Refusal::Plaintext),
            }
            *channel = accepted;
        }
        let input = |buf: &[u8]| handshake.socks.input(buf);
        let step = relay::read_step(ctx.now, channel, ctx.stack, ServerStep::More, input);
        self.counters.unknown_tickets = self.tls.unknown_tickets();
        let step = match step {
            Ok(step) => step,
            // The connection's `Closed` event follows.
            Err(StepError::Gone) => return Ok(None),
            Err(StepError::Broken(why)) => return Err(Refusal::Unprotected(why)),
        };
        if step != ServerStep::More && channel.is_protected() && handshake.grant.is_none() {
            // Bytes that the channel could decrypt prove that the peer holds the private key.
            let key_owner = channel.peer().and_then(|key| self.verifier.user(key));
            let key_owner = key_owner.ok_or(Refusal::UnknownKey)?;
            *user = Some(key_owner);
            handshake.grant = Some(Grant::proven(key_owner));
        }
        Ok(Some(step))
    }

    /// Counts the failure of a handshake against its source, unless the peer has signed in. So the failures of a
    /// user's box do not keep out other users behind the same address.
    pub(super) fn count_failed(&mut self, now: Instant, id: SessionId) {
        if let Some(Session {
            remote,
            stage: Stage::Handshake(handshake),
            ..
        }) = self.sessions.get(id)
            && handshake.grant.is_none()
        {
            self.handshakes.fail(now, *remote, self.limits.failures);
        }
    }
}
