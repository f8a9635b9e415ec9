//! Admission of sessions within the limits.

use core::net::IpAddr;

use braid_engine::CloseReason;

use super::handshakes::HandshakeLimit;
use super::{ServerCore, group};
use crate::app::Ctx;
use crate::relay::table::SessionId;

impl ServerCore {
    /// Counts another handshake, or refuses it. If the server has no room for a connection, first ends a
    /// connection whose box has long been silent.
    pub(super) fn admit(
        &mut self,
        ctx: &mut Ctx<'_>,
        remote: IpAddr,
    ) -> Result<(), HandshakeLimit> {
        if self.sessions.len() >= self.limits.connections() {
            self.reclaim(ctx, None);
        }
        match self.sessions.len() < self.limits.connections() {
            true => self.handshakes.begin(ctx.now, remote, &self.limits),
            false => Err(HandshakeLimit::All),
        }
    }

    /// Makes room where a limit is reached: ends the session whose box owes an answer and has been silent
    /// longest, if the engine considers that long enough. `user` restricts the choice to the sessions of one
    /// user.
    pub(super) fn reclaim(&mut self, ctx: &mut Ctx<'_>, user: Option<usize>) {
        if let Some(conn) = ctx.stack.reclaim(ctx.now, user.map(group))
            && let Some(id) = self.sessions.by_conn(conn)
        {
            // The `Closed` event comes later, but the caller needs the room now.
            self.on_closed(ctx, id, CloseReason::NoResources);
        }
    }

    /// Returns the maximum number of connections of one user. If there are several users, one of them cannot take
    /// all connections: an eighth (a guess) of what the configuration and the process permit stays for the others.
    pub(super) fn max_per_user(&self) -> usize {
        let all = self.limits.connections().min(self.max_streams);
        let without_reserve = match self.user_names.len() {
            0 | 1 => all,
            _ => all - all.div_ceil(8),
        };
        // At least one, so that a server with a tiny limit serves users at all.
        self.limits.per_user().min(without_reserve.max(1))
    }

    /// Removes a session from its user's count and from the sessions that wait for a look-up.
    pub(super) fn leave(&mut self, user: Option<usize>, id: SessionId) {
        if let Some(n) = user.and_then(|u| self.per_user.get_mut(u)) {
            *n -= 1;
        }
        self.lookups.forget(user, id);
    }
}
