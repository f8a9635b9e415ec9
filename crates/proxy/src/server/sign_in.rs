//! The sign-in of a box, before its request.

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
    /// Reads and answers the box's messages, as far as they have come.
    pub(super) fn handshake(&mut self, ctx: &mut Ctx<'_>, id: SessionId) {
        let mut try_continue = false;
        // A handshake has four messages; each turn of the loop ends one.
        for _ in 0..8 {
            let Some(session) = self.sessions.get_mut(id) else {
                return;
            };
            let Stage::Handshake(handshake) = &mut session.stage else {
                return;
            };
            let remote = session.remote;
            let silent = session.channel.is_drained(ctx.stack);
            try_continue |= !silent && self.handshakes.end_waiting(remote, handshake);
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
            // The connection is being closed, so the message came too late.
            if channel.is_closing() && step != ServerStep::More {
                return self.drop_session(ctx, id);
            }
            match step {
                ServerStep::More => return self.await_more(ctx, id, try_continue),
                ServerStep::Send(bytes) => {
                    if !send_all(ctx, channel, &bytes) {
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
                            if !send_all(ctx, channel, &ServerHandshake::ACCEPTED) {
                                return self.drop_session(ctx, id);
                            }
                        }
                        Err(e) => return self.refuse(ctx, id, Refusal::Auth(e)),
                    }
                }
                ServerStep::Request(request) => return self.on_request(ctx, id, request),
                ServerStep::Probe(metadata) => return self.on_probe(ctx, id, &metadata),
                ServerStep::Failed(e) => return self.refuse(ctx, id, Refusal::Socks(e)),
            }
        }
    }

    /// Lets a box that has sent no more wait long for its request, if there is room. `try_continue` where it has
    /// sent something after an earlier wait.
    fn await_more(&mut self, ctx: &mut Ctx<'_>, id: SessionId, try_continue: bool) {
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
        let over = ctx.stack.read_finished(conn) || channel.read_finished(ctx.stack);
        let known = handshake.grant.is_some();
        // A box that signed in may have made a request before, so it gets an orderly close.
        if over && !(known && channel.close(ctx.now, ctx.stack).is_ok()) {
            ctx.stack.abort(ctx.now, conn);
        }
        let most = self.limits.waiting;
        if self
            .handshakes
            .begin_waiting(ctx.now, *remote, handshake, most)
        {
            let until = handshake.waiting_until;
            let until = until.unwrap_or(ctx.now + self.timeouts.waiting);
            handshake.waiting_until = Some(until);
            self.sessions.arm(id, until);
        } else if try_continue {
            self.sessions.arm(id, ctx.now + self.timeouts.handshake);
        }
    }

    /// Reads the next step of a handshake; `None` where the connection is gone.
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
            // Readable bytes prove that the peer holds the key.
            let known = channel.peer().and_then(|key| self.verifier.user(key));
            let known = known.ok_or(Refusal::UnknownKey)?;
            *user = Some(known);
            handshake.grant = Some(Grant::proven(known));
        }
        Ok(Some(step))
    }

    /// Counts the failure of an unauthenticated handshake against its source.
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
