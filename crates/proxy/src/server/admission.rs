//! Admission of sessions within the limits.

use core::net::IpAddr;

use braid_engine::CloseReason;

use super::handshakes::HandshakeLimit;
use super::{ServerCore, group};
use crate::app::Ctx;
use crate::relay::table::SessionId;

impl ServerCore {
    /// Counts another handshake, or refuses it.
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

    /// Ends the session, of this user or of any, whose box has been silent longest, if that is long enough. For a
    /// limit that is reached while others need room.
    pub(super) fn reclaim(&mut self, ctx: &mut Ctx<'_>, user: Option<usize>) {
        if let Some(conn) = ctx.stack.reclaim(ctx.now, user.map(group))
            && let Some(id) = self.sessions.by_conn(conn)
        {
            self.on_closed(ctx, id, CloseReason::NoResources);
        }
    }

    /// Returns the most connections of one user. With several users, an eighth of all stays for the others,
    /// whatever the configured limits and the process's limit.
    pub(super) fn max_per_user(&self) -> usize {
        let all = self.limits.connections().min(self.max_streams);
        let most = match self.user_names.len() {
            0 | 1 => all,
            _ => all - all.div_ceil(8),
        };
        self.limits.per_user().min(most.max(1))
    }

    /// Removes a session from its user's count.
    pub(super) fn leave(&mut self, user: Option<usize>, id: SessionId) {
        if let Some(n) = user.and_then(|u| self.per_user.get_mut(u)) {
            *n -= 1;
        }
        self.lookups.forget(user, id);
    }
}
