//! Room for sessions within the limits.

use core::net::IpAddr;

use braid_engine::CloseReason;
use braid_engine::app::Ctx;

use super::handshakes::Over;
use super::{ServerCore, group};

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
}
