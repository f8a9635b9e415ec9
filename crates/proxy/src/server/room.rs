//! Room for sessions within the limits.

use core::net::IpAddr;

use braid_engine::CloseReason;

use super::handshakes::Over;
use super::{ServerCore, group};
use crate::app::Ctx;
use crate::relay::table::SessionId;

impl ServerCore {
    /// Counts one more handshake, if there may be one.
    pub(super) fn admit(&mut self, ctx: &mut Ctx<'_>, remote: IpAddr) -> Result<(), Over> {
        if self.sessions.len() >= self.limits.connections {
            self.reclaim(ctx, None);
        }
        match self.sessions.len() < self.limits.connections {
            true => self.handshakes.begin(ctx.now, remote, &self.limits),
            false => Err(Over::All),
        }
    }

    /// Ends the session, of this user or of anybody, whose box has been silent longest, if one has been
    /// for long: a bound is reached, and others are there.
    pub(super) fn reclaim(&mut self, ctx: &mut Ctx<'_>, user: Option<usize>) {
        if let Some(conn) = ctx.stack.reclaim(ctx.now, user.map(group))
            && let Some(id) = self.sessions.by_conn(conn)
        {
            self.on_closed(ctx, id, CloseReason::NoResources);
        }
    }

    /// Returns how many connections one user may have. Where there are several users, an eighth of all
    /// stays for the others, however the limits are configured and whatever the process can open.
    pub(super) fn most_of_user(&self) -> usize {
        let all = self.limits.connections.min(self.most_streams);
        let most = match self.user_names.len() {
            0 | 1 => all,
            _ => all - all.div_ceil(8),
        };
        self.limits.per_user.min(most.max(1))
    }

    /// A session does not count among those of its user any more.
    pub(super) fn leave(&mut self, user: Option<usize>, id: SessionId) {
        if let Some(n) = user.and_then(|u| self.per_user.get_mut(u)) {
            *n -= 1;
        }
        self.lookups.forget(user, id);
    }
}
