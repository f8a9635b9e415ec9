//! The transition from one user to the next on the same connection of a box.

use crate::app::Ctx;

use super::session::{Handshake, Stage};
use super::{ServerCore, send_all};
use crate::protocol::socks::ServerHandshake;
use crate::relay::table::SessionId;

impl ServerCore {
    /// Continues a session whose relay has ended in both directions. Until the box has acknowledged all bytes, the
    /// session stays as it is; afterwards it waits for the next request or, if the connection cannot serve another
    /// user, for the end of the connection. Returns whether the session continues.
    pub(super) fn try_continue(&mut self, ctx: &mut Ctx<'_>, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let channel = &mut session.channel;
        if !channel.is_reusable() {
            return channel.close(ctx.now, ctx.stack).is_ok();
        }
        !channel.is_delivered() || self.await_next(ctx, id)
    }

    /// Lets a session whose user has ended wait for the next request. Closes the connection instead if the server
    /// drains or a limit is reached. Returns whether the session continues.
    fn await_next(&mut self, ctx: &mut Ctx<'_>, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let Some(user) = session.user else {
            return false;
        };
        let channel = &mut session.channel;
        let (now, remote, handshakes) = (ctx.now, session.remote, &mut self.handshakes);
        if self.ending || handshakes.begin(now, remote, &self.limits).is_err() {
            return channel.close(now, ctx.stack).is_ok();
        }
        let mut handshake = Handshake::after_user(user);
        let deadline = match channel.is_drained(ctx.stack) {
            // Bytes of the next request have come already, so the box gets the time of a handshake.
            false => now + self.timeouts.handshake,
            true if handshakes.begin_waiting(now, remote, &mut handshake, self.limits.waiting) => {
                *handshake.waiting_until.insert(now + self.timeouts.waiting)
            }
            // Too many connections of the user are idle.
            true => {
                handshakes.leave(now, remote);
                return channel.close(now, ctx.stack).is_ok();
            }
        };
        channel.release();
        // A connection that is already gone reports itself by its `Closed` event.
        let _ = ctx.stack.begin_flow(now, channel.conn);
        let ready_sent = send_all(ctx, channel, &ServerHandshake::READY);
        (session.destination, session.early_hints, session.started) = (None, None, now);
        session.stage = Stage::Handshake(Box::new(handshake));
        self.leave(Some(user), id);
        self.counters.finished += 1;
        self.sessions.arm(id, deadline);
        // The next request may be here already, and no further event would report it.
        self.sessions.queue(id);
        if !ready_sent {
            self.drop_session(ctx, id);
        }
        // The result is true also after `drop_session`, because the caller must not end a relay that is gone.
        true
    }

    /// Closes a connection that has had a user if no further request came in time. A reset would discard bytes
    /// that the box still delivers slowly to this user. Therefore the box gets the timeout of a half-closed
    /// relay. Returns whether the session continues for that time; the caller drops it otherwise.
    pub(super) fn end_in_order(&mut self, ctx: &mut Ctx<'_>, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let Stage::Handshake(handshake) = &mut session.stage else {
            return false;
        };
        let channel = &mut session.channel;
        // A channel that is closing already has had its time.
        let may_close = handshake.had_user && !channel.is_closing();
        if !may_close || channel.close(ctx.now, ctx.stack).is_err() {
            return false;
        }
        let deadline = ctx.now + self.timeouts.relay.half_closed;
        handshake.waiting_until = Some(deadline);
        self.sessions.arm(id, deadline);
        true
    }
}
