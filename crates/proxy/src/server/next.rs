//! From one user's connection to the next, on the same connection of a box.

use crate::app::Ctx;

use super::session::{Handshake, Stage};
use super::{ServerCore, send_all};
use crate::protocol::socks::ServerHandshake;
use crate::relay::table::SessionId;

impl ServerCore {
    /// What was relayed both ways has ended; says whether the session goes on: until the box has all of it,
    /// then with its next request, or until the end of the connection.
    pub(super) fn goes_on(&mut self, ctx: &mut Ctx<'_>, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let channel = &mut session.channel;
        if !channel.is_free() {
            return channel.close(ctx.now, ctx.stack).is_ok();
        }
        !channel.is_delivered() || self.await_next(ctx, id)
    }

    /// A session without a destination any more has its next request to make, unless there are too many
    /// without one: then its connection is closed. Says whether the session goes on.
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
        let mut handshake = Handshake::again(user);
        let until = match channel.is_silent(ctx.stack) {
            // It has been made already.
            false => now + self.timeouts.handshake,
            true if handshakes.let_wait(now, remote, &mut handshake, self.limits.waiting) => {
                *handshake.waits_until.insert(now + self.timeouts.waiting)
            }
            true => {
                handshakes.leave(now, remote);
                return channel.close(now, ctx.stack).is_ok();
            }
        };
        channel.release();
        // A connection that is gone says so by its `Closed`.
        let _ = ctx.stack.begin_flow(now, channel.conn);
        let told = send_all(ctx, channel, &ServerHandshake::READY);
        (session.destination, session.foreword, session.started) = (None, None, now);
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

    /// No further request came in time: ends a connection that had a user, but does not cut it off, since the
    /// box acknowledges what its own user may take slowly. Says whether the session goes on, as long as a
    /// direction that is half closed may be still.
    pub(super) fn end_in_order(&mut self, ctx: &mut Ctx<'_>, id: SessionId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let Stage::Handshake(handshake) = &mut session.stage else {
            return false;
        };
        let channel = &mut session.channel;
        let may = handshake.follows && !channel.is_ending();
        if !may || channel.close(ctx.now, ctx.stack).is_err() {
            return false;
        }
        let until = ctx.now + self.timeouts.half_closed;
        handshake.waits_until = Some(until);
        self.sessions.arm(id, until);
        true
    }
}
