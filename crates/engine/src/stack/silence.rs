//! Connections whose peer is silent: the time they are kept, and their end when others need the place.

use core::time::Duration;

use braid_wire::Instant;

use super::Stack;
use crate::mptcp::Connection;
use crate::{CloseReason, ConnId};

/// The least silence after which a connection is given up for others. The user timeout is far longer, but a
/// connection should survive short outages whatever others need.
const MIN_RECLAIM_SILENCE: Duration = Duration::from_secs(30);
/// The pause after a search in vain: a search looks at all connections.
const RECLAIM_SEARCH_INTERVAL: Duration = Duration::from_millis(100);

impl Stack {
    /// Returns the time at which the peer was last heard on any subflow; `None` if the connection has no
    /// established subflow, or does not exist.
    pub fn received_at(&self, conn: ConnId) -> Option<Instant> {
        let subflows = self.table.get(conn)?.transport.subflows.iter();
        let there = subflows.filter(|s| s.is_established());
        there.map(|s| s.signs.received_at).max()
    }

    /// Replaces [`Config::user_timeout`](crate::Config::user_timeout), also for existing connections.
    pub fn set_user_timeout(&mut self, user_timeout: Duration) {
        self.shared.config.user_timeout = user_timeout;
    }

    /// Ends the connection whose peer has been silent longest, and for at least 30 s, though it owes an
    /// answer, to make room for another one. If `group` is given, only its connections count
    /// ([`set_group`](Self::set_group)). Returns the connection, if any; its [`Event::Closed`] follows.
    ///
    /// [`Event::Closed`]: crate::Event::Closed
    pub fn reclaim(&mut self, now: Instant, group: Option<u32>) -> Option<ConnId> {
        let of_group = |conn: &Connection| group.is_none() || conn.transport.share.group == group;
        self.reclaim_one(now, of_group)
    }

    /// Ends the connection that holds memory and whose peer has been silent longest, if memory is scarce.
    pub(super) fn reclaim_under_pressure(&mut self, now: Instant) {
        if self.shared.pool.is_scarce() {
            self.reclaim_one(now, |conn| conn.transport.holds_memory());
        }
    }

    fn reclaim_one(
        &mut self,
        now: Instant,
        counts: impl Fn(&Connection) -> bool,
    ) -> Option<ConnId> {
        if now < self.search_at {
            return None;
        }
        let silent = self.table.iter().filter(|conn| counts(conn));
        let silent =
            silent.filter_map(|conn| Some((conn.transport.silent_since()?, conn.transport.id)));
        let longest = silent.min();
        let found =
            longest.filter(|(since, _)| now.saturating_since(*since) >= MIN_RECLAIM_SILENCE);
        let Some((_, id)) = found else {
            self.search_at = now + RECLAIM_SEARCH_INTERVAL;
            return None;
        };
        self.shared.stats.reclaimed += 1;
        self.with(now, id, |conn, ctx| {
            conn.fail(ctx, CloseReason::NoResources);
            conn.reconcile(ctx);
        });
        Some(id)
    }
}
