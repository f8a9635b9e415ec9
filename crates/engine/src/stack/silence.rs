//! Connections whose peer is silent: how long they are kept, and when others get their place.

use core::time::Duration;

use braid_wire::Instant;

use super::Stack;
use crate::mptcp::Connection;
use crate::{CloseReason, ConnId};

/// A connection is given up for others after this silence at the earliest. The user timeout is far longer,
/// and a connection should outlive short outages whatever others need.
const MIN_SILENCE: Duration = Duration::from_secs(30);
/// A search looks at all connections. After one there is no other for this long.
const SEARCH_PAUSE: Duration = Duration::from_millis(100);

impl Stack {
    /// Returns when the peer was heard last on the subflow that was heard last; `None` where the
    /// connection has no established subflow, or does not exist.
    pub fn heard_at(&self, conn: ConnId) -> Option<Instant> {
        let subflows = self.table.get(conn)?.transport.subflows.iter();
        let there = subflows.filter(|s| s.is_established());
        there.map(|s| s.signs.heard_at).max()
    }

    /// Replaces [`Config::user_timeout`](crate::Config::user_timeout), for connections that are there too.
    pub fn set_user_timeout(&mut self, user_timeout: Duration) {
        self.shared.config.user_timeout = user_timeout;
    }

    /// Ends the connection whose peer has been silent longest though it owes an answer, for 30 s at
    /// least, so that another one has its place. Where `group` is named only its connections count
    /// ([`set_group`](Self::set_group)). Returns which it was, if any; its [`Event::Closed`] follows.
    ///
    /// [`Event::Closed`]: crate::Event::Closed
    pub fn reclaim(&mut self, now: Instant, group: Option<u32>) -> Option<ConnId> {
        let of_group = |conn: &Connection| group.is_none() || conn.transport.share.group == group;
        self.reclaim_one(now, of_group)
    }

    /// Where memory is short, ends the connection that holds some and whose peer has been silent longest.
    pub(super) fn relieve(&mut self, now: Instant) {
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
        let found = longest.filter(|(since, _)| now.saturating_since(*since) >= MIN_SILENCE);
        let Some((_, id)) = found else {
            self.search_at = now + SEARCH_PAUSE;
            return None;
        };
        self.shared.stats.reclaimed += 1;
        self.with(now, id, |conn, ctx| {
            conn.fail(ctx, CloseReason::NoResources);
            conn.settle(ctx);
        });
        Some(id)
    }
}
