//! The transition from one user to the next on a box's connection.

use crate::app::Ctx;

use super::session::{Handshake, Stage};
use super::{ServerCore, send_all};
use crate::protocol::socks::ServerHandshake;
use crate::relay::table::SessionId;

impl ServerCore {
    /// Continues a session whose relay has ended both ways: waits until the box has everything, then for the next
    /// request or the end of the connection. Returns whether the session continues.
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

    /// Waits for the next request of a session without a destination, unless too many wait: then closes the
    /// connection. Returns whether the session continues.
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
        let until = match channel.is_drained(ctx.stack) {
            // The request has come already.
            false => now + self.timeouts.handshake,
            true if handshakes.begin_waiting(now, remote, &mut handshake, self.limits.waiting) => {
                *handshake.waiting_until.insert(now + self.timeouts.waiting)
            }
            true => {
                handshakes.leave(now, remote);
                return channel.close(now, ctx.stack).is_ok();
            }
        };
        channel.release();
        // A connection that is already gone reports itself by its `Closed` event.
        let _ = ctx.stack.begin_flow(now, channel.conn);
        let told = send_all(ctx, channel, &ServerHandshake::READY);
        (session.destination, session.early_hints, session.started) = (None, None, now);
        session.stage = Stage::Handshake(Box::new(handshake));
        self.leave(Some(user), id);
        self.counters.finished += 1;
        self.sessions.arm(id, until);
        self.sessions.queue(id);
        if !told {
            self.drop_session(ctx, id);
        }
        true
    }

    /// Closes a connection that had a user when no further request came in time. It is not reset, because the box
    /// may still deliver bytes slowly to its user. Returns whether the session continues, which it may for the
    /// timeout of a half-closed relay.
    pub(super) fn end_in_order(&mut self, ctx: &mut Ctx<'_>, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let Stage::Handshake(handshake) = &mut session.stage else {
            return false;
        };
        let channel = &mut session.channel;
        let may = handshake.had_user && !channel.is_closing();
        if !may || channel.close(ctx.now, ctx.stack).is_err() {
            return false;
        }
        let until = ctx.now + self.timeouts.half_closed;
        handshake.waiting_until = Some(until);
        self.sessions.arm(id, until);
        true
    }
}
