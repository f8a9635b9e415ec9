//! Connections whose peer is silent: the time for which they are kept, and their end when other connections need
//! their place or their memory.

use core::time::Duration;

use braid_wire::Instant;

use super::Stack;
use crate::mptcp::Connection;
use crate::{CloseReason, ConnId};

/// The minimum silence after which a connection is ended to make room for others. The user timeout is far longer,
/// but applies only if there is room. The value is a guess: a connection should survive short outages in any
/// case.
const MIN_RECLAIM_SILENCE: Duration = Duration::from_secs(30);
/// The pause after a search that found no connection to end. A search looks at all connections, and a flood of
/// SYNs would cause one for each SYN. The value is a guess.
const RECLAIM_SEARCH_INTERVAL: Duration = Duration::from_millis(100);

impl Stack {
    /// Returns the time at which a segment was last received on any established subflow; `None` if the
    /// connection has no established subflow or does not exist.
    pub fn received_at(&self, conn: ConnId) -> Option<Instant> {
        let subflows = self.table.get(conn)?.transport.subflows.iter();
        let established = subflows.filter(|s| s.is_established());
        established.map(|s| s.signs.received_at).max()
    }

    /// Replaces [`Config::user_timeout`](crate::Config::user_timeout) for new and existing connections.
    pub fn set_user_timeout(&mut self, user_timeout: Duration) {
        self.shared.config.user_timeout = user_timeout;
    }

    /// Ends one connection to make room for another one. It is the connection whose peer owes an answer and has
    /// been silent longest, provided that the silence is at least 30 s. If `group` is given, only connections of
    /// that group are considered ([`set_group`](Self::set_group)). Returns the ended connection, if any; its
    /// [`Event::Closed`] follows.
    ///
    /// [`Event::Closed`]: crate::Event::Closed
    pub fn reclaim(&mut self, now: Instant, group: Option<u32>) -> Option<ConnId> {
        let is_in_group =
            |conn: &Connection| group.is_none() || conn.transport.share.group == group;
        self.reclaim_one(now, is_in_group)
    }

    /// Ends a connection that holds memory, if memory is scarce: the one whose peer has been silent longest.
    pub(super) fn reclaim_under_pressure(&mut self, now: Instant) {
        if self.shared.pool.is_scarce() {
            self.reclaim_one(now, |conn| conn.transport.holds_memory());
        }
    }

    /// Ends the connection whose peer has been silent longest, among those that satisfy `is_considered`. No
    /// connection ends if even the longest silence is shorter than [`MIN_RECLAIM_SILENCE`].
    fn reclaim_one(
        &mut self,
        now: Instant,
        is_considered: impl Fn(&Connection) -> bool,
    ) -> Option<ConnId> {
        if now < self.search_at {
            return None;
        }
        let considered = self.table.iter().filter(|conn| is_considered(conn));
        let silent =
            considered.filter_map(|conn| Some((conn.transport.silent_since()?, conn.transport.id)));
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
