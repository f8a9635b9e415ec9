//! Upkeep of the pools of idle connections: filling, trimming, checkout and return.

use core::net::IpAddr;

use braid_engine::{CloseReason, Event, Stack};
use braid_wire::Instant;

use super::checkout::{Checkout, ConnHistory};
use super::idle_pool::IdleConn;
use super::servers::Servers;
use super::{Context, Upstream};
use crate::protocol::socks::ClientStep;
use crate::relay::StepError;
use crate::select::selection::Need;

impl Servers {
    /// Returns the index of the pool for `need`: 0 for the server of most flows, 1 if the need has another server.
    fn pool(&self, need: Need) -> usize {
        let default = self.choice.default_need();
        usize::from(self.current(need) != self.current(default))
    }

    /// Returns for each pool the server to which its connections lead; `None` for an unused pool.
    fn pools(&self) -> [Option<usize>; 2] {
        let mut servers = [None; 2];
        for need in self.needs() {
            servers[self.pool(need)] = Some(self.current(need));
        }
        servers
    }
}

impl Upstream {
    /// Records that a server has accepted this box and connected to a user's destination. From now on, idle
    /// connections to the server are useful, so this method opens them.
    pub(crate) fn on_served(&mut self, cx: &mut Context<'_>, server: usize) {
        // A reload may have removed the server meanwhile.
        if server < self.servers.entries.len() {
            self.pools.on_served(server);
        }
        self.fill_pools(cx);
    }

    /// Returns whether a connection to `server` that has served a user should serve further users.
    pub(crate) fn may_reuse(&self, now: Instant, server: usize, history: &ConnHistory) -> bool {
        self.pool_to(server)
            .is_some_and(|pool| self.pools.all[pool].may_reuse(now, server, history))
    }

    /// Returns a connection to its pool, after [`may_reuse`](Self::may_reuse) has returned true.
    pub(crate) fn put_back(&mut self, cx: &mut Context<'_>, mut checkout: Checkout) {
        let pool = self.pool_to(checkout.server);
        let Some((pool, handshake)) = pool.zip(checkout.handshake.take()) else {
            debug_assert!(false, "may_reuse has found a pool");
            return checkout.channel.abort(cx.now, cx.stack);
        };
        cx.counters.idle_returned += 1;
        // The former user's strategy has ended. An error means that the connection is gone; its `Closed` event
        // follows.
        let waiting = Box::new(braid_strategy::Waiting::default());
        let _ = cx
            .stack
            .set_strategy(cx.now, checkout.channel.conn, waiting);
        self.pools.all[pool].put_back(IdleConn::returned(cx.now, checkout, handshake));
    }

    /// Returns the index of the pool whose connections lead to `server`.
    fn pool_to(&self, server: usize) -> Option<usize> {
        let servers = self.pool_servers();
        servers.iter().position(|to| *to == Some(server))
    }

    /// Takes a connection to `server` from the pool for `need`, or a connection to another server that is usable
    /// and reaches the address family of `to`.
    pub(super) fn take_idle(
        &mut self,
        now: Instant,
        (need, server): (Need, usize),
        to: Option<IpAddr>,
        stack: &Stack,
    ) -> Option<Checkout> {
        let usable = self.usable_servers();
        let reaches = |s: usize| to.is_none_or(|ip| self.servers.reached.of(s).has(ip));
        let suits: Vec<bool> = (0..usable.len()).map(|s| usable[s] && reaches(s)).collect();
        let pool = self.servers.pool(need);
        self.pools.all[pool].take((now, stack), server, |s| suits[s])
    }

    /// Takes a connection to `server`, which is the best for the user's destination. A connection to another server
    /// is no substitute: it would save one round trip to the server, and lose by every round trip to the
    /// destination.
    pub(super) fn take_idle_to(
        &mut self,
        now: Instant,
        server: usize,
        stack: &Stack,
    ) -> Option<Checkout> {
        let pool = self.pool_to(server)?;
        self.pools.all[pool].take((now, stack), server, |_| false)
    }

    /// Returns for each pool the server to which its connections should lead; `None` if the pool should be empty.
    fn pool_servers(&self) -> [Option<usize>; 2] {
        // Idle connections need keepalives and handshakes, and these cost money over metered links.
        let is_metered_used = || self.links.open().any(|l| l.metered);
        let are_useful =
            self.notices.intercepts() && (self.pools.allows_metered() || !is_metered_used());
        if are_useful {
            self.servers.pools()
        } else {
            [None; 2]
        }
    }

    /// Closes useless idle connections.
    pub(super) fn trim_pools(&mut self, now: Instant, stack: &mut Stack) {
        let servers = self.pool_servers();
        let usable = self.usable_servers();
        self.pools.trim(now, servers, &usable, stack);
    }

    /// Opens missing idle connections and closes useless ones.
    pub(super) fn fill_pools(&mut self, cx: &mut Context<'_>) {
        self.trim_pools(cx.now, cx.stack);
        for (pool, wanted) in self.pool_servers().into_iter().enumerate() {
            while self.pools.all[pool].needs_more(cx.now, wanted) {
                let best = wanted.and_then(|server| {
                    let all = self.candidates(server, &[], None).into_iter();
                    let (_, best, path) = all.min_by_key(|(rank, ..)| *rank)?;
                    // If another server ranks first, `server` has a problem now.
                    (best == server).then_some((best, path))
                });
                match best.map(|at| self.open(cx.now, at, None, cx.stack)) {
                    Some(Ok(checkout)) => {
                        cx.counters.idle_opened += 1;
                        self.pools.all[pool].push(IdleConn::new(cx.now, checkout));
                    }
                    _ => self.pools.all[pool].back_off(cx.now),
                }
            }
        }
    }

    /// Handles an event of an idle connection; returns whether the event was of such a connection.
    pub(super) fn on_idle_event(&mut self, cx: &mut Context<'_>, event: &Event) -> bool {
        let conn = event.conn();
        let Some((pool, idle_conn)) = self.pools.find(conn) else {
            return false;
        };
        let (server, opened_on) = (idle_conn.checkout.server, idle_conn.checkout.path);
        idle_conn.checkout.history.on_event(event);
        match *event {
            Event::SubflowEstablished { path, rtt, .. } => {
                self.on_subflow(cx.now, server, path, rtt, cx.stack);
            }
            Event::SubflowClosed { path, reason, .. } => {
                self.on_subflow_closed(cx.now, server, path, reason);
            }
            Event::Readable { .. } | Event::Writable { .. } => {
                let step = idle_conn.read(cx.now, cx.stack);
                let families = idle_conn.checkout.channel.take_families();
                let over = idle_conn.checkout.channel.read_finished(cx.stack);
                self.on_families_reported(cx.now, server, families);
                if step == Ok(ClientStep::More) && !over {
                    return true;
                }
                if let Ok(ClientStep::Failed(_)) | Err(StepError::Broken(_)) = step {
                    // The pool opens no connection to the server until a user's connection or a measurement shows
                    // that the server accepts this box.
                    self.pools.all[pool].on_refused(server);
                    self.on_failure(cx.now, server, opened_on);
                }
                self.pools.all[pool].on_lost(cx.now, conn);
                cx.counters.idle_lost += 1;
                cx.stack.abort(cx.now, conn);
            }
            Event::FellBack { cause, .. } => {
                self.on_fell_back(cx.now, (server, opened_on), cause, cx.stack);
                // While Multipath TCP works over some link, a new connection is better for a user than this
                // connection.
                if self
                    .links
                    .open_health(server)
                    .any(|health| !health.is_unsound())
                {
                    self.pools.all[pool].on_lost(cx.now, conn);
                    cx.stack.abort(cx.now, conn);
                }
            }
            Event::Closed { reason, .. } => {
                self.pools.all[pool].on_lost(cx.now, conn);
                cx.counters.idle_lost += 1;
                if reason == CloseReason::Reset {
                    // A server that is being stopped resets its idle connections first. So probe the server at
                    // once, before the next user has to wait for it.
                    self.on_failure_on_all_links(cx.now, server);
                }
            }
            _ => {}
        }
        true
    }
}
