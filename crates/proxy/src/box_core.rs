//! The aggregation box: takes users' connections in and carries them to a server over all links.

mod session;

use core::net::{Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use std::collections::BTreeMap;

use braid_engine::{
    CloseReason, ConnId, Event, PathId, Stack, StrategyFactory, SubflowCloseReason,
};
use braid_wire::{Instant, Rng};

use crate::auth::WallClock;
use crate::config::{BoxConfig, BoxLimits, BoxTimeouts};
use crate::relay::End;
use crate::report::{BoxCounters, LogLimiter};
use crate::table::{SessionId, Table};
use crate::upstream::Upstream;
use crate::{Core, LocalEvent, LocalStreams};

use session::{Outcome, Session, Stage};

/// What the driver is to do outside of streams and packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// Everything that is not TCP goes over this link from now on; `None` where no link is up.
    BestPath(Option<PathId>),
    /// Whether the link leads to a server. Where it does not while another one does, nothing that
    /// is only forwarded is to stay on it.
    Reached(PathId, bool),
    /// Whether new connections of users are to be taken in. `false` when no server is reachable:
    /// then they are forwarded unjoined, while those taken in before keep being served.
    Intake(bool),
}

/// The addresses of one link on the TUN device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkAddresses {
    /// IPv4, where the link has IPv4.
    pub v4: Option<Ipv4Addr>,
    /// IPv6, where the link has IPv6.
    pub v6: Option<Ipv6Addr>,
    /// Largest IP packet of the link, bytes.
    pub mtu: u16,
}

/// The box as a sans-IO core.
///
/// # How to drive it
///
/// 1. [`set_wall_clock`](Self::set_wall_clock) once at the start, then whenever the system's clock
///    was set, at least once a minute.
/// 2. [`add_link`](Self::add_link) for each link of the configuration, and
///    [`set_link_up`](Self::set_link_up) whenever one comes or goes (never
///    [`Stack::set_path_up`] itself: the core keeps metered links down until they are needed).
/// 3. Events as [`Core`] describes; then [`poll_notice`](Self::poll_notice) until `None`.
///
/// Users' connections are to be taken in only while [`intake_wanted`](Self::intake_wanted);
/// taking in one less or one more around a change does no harm.
#[derive(Debug)]
pub struct BoxCore {
    timeouts: BoxTimeouts,
    limits: BoxLimits,
    upstream: Upstream,
    sessions: Table<Session>,
    /// Sessions of each host of the LAN.
    per_host: BTreeMap<core::net::IpAddr, usize>,
    /// Sessions whose destination is not connected yet.
    handshakes: usize,
    clock: WallClock,
    rng: Rng,
    counters: BoxCounters,
    limiter: LogLimiter,
}

/// Most sessions that get another turn, and timers that are served, before packets are sent.
const BATCH: usize = 32;

impl BoxCore {
    /// A core without links. `strategy` gives each connection its own; `rng`
    /// must be a stream of its own.
    pub fn new(config: &BoxConfig, rng: Rng, strategy: StrategyFactory) -> Self {
        BoxCore {
            timeouts: config.timeouts.clone(),
            limits: config.limits.clone(),
            upstream: Upstream::new(config, strategy),
            sessions: Table::default(),
            per_host: BTreeMap::new(),
            handshakes: 0,
            clock: WallClock::default(),
            rng,
            counters: BoxCounters::default(),
            limiter: LogLimiter::default(),
        }
    }

    /// Says that at `now` the wall clock shows `since_epoch` (since 1970-01-01 UTC).
    pub fn set_wall_clock(&mut self, now: Instant, since_epoch: Duration) {
        self.clock.set(now, since_epoch);
    }

    /// Adds link number `link` of the configuration to the stack; it starts down.
    pub fn add_link(
        &mut self,
        now: Instant,
        link: usize,
        addresses: LinkAddresses,
        stack: &mut Stack,
    ) -> PathId {
        self.upstream.add_link(now, link, addresses, stack)
    }

    /// Says whether the link of `path` has carrier, address and gateway.
    pub fn set_link_up(&mut self, now: Instant, path: PathId, up: bool, stack: &mut Stack) {
        self.upstream.set_link_up(now, path, up, stack);
    }

    /// Says that packets go out over the link of `path` and none come back: whether it still leads
    /// to a server is asked at once.
    pub fn doubt_link(&mut self, now: Instant, path: PathId) {
        self.upstream.doubt_link(now, path);
    }

    /// The link for everything that is not TCP; `None` where no link is up.
    pub fn best_path(&self) -> Option<PathId> {
        self.upstream.best_path()
    }

    /// Whether new connections are to be taken in ([`Notice::Intake`]); `false` until a server
    /// answered for the first time.
    pub fn intake_wanted(&self) -> bool {
        self.upstream.intake_wanted()
    }

    /// The next notice; repeats nothing that did not change. What holds at the start is
    /// `BestPath(None)`, `Reached(_, true)` and `Intake(false)`.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.upstream.poll_notice(&mut self.counters)
    }

    /// What was counted so far.
    pub fn counters(&self) -> &BoxCounters {
        &self.counters
    }

    /// Users' connections now.
    pub fn connections(&self) -> usize {
        self.sessions.len()
    }

    fn on_conn_event(
        &mut self,
        now: Instant,
        conn: ConnId,
        event: &Event,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
    ) {
        let Some(id) = self.sessions.by_conn(conn) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let server = session.server;
        match event {
            Event::Connected { .. } => self.on_connected(now, id, stack, local),
            Event::Readable { .. } => {
                session.relay.set_conn_readable();
                self.advance(now, id, stack, local);
            }
            Event::Writable { .. } => {
                session.relay.set_conn_writable();
                self.advance(now, id, stack, local);
            }
            Event::SubflowEstablished { path, rtt, .. } => {
                if matches!(session.stage, Stage::Connecting) && session.path != *path {
                    // The engine had no answer there and went elsewhere by itself.
                    let silent = core::mem::replace(&mut session.path, *path);
                    self.upstream.on_doubt(now, server, silent);
                }
                self.upstream.on_subflow(now, server, *path, *rtt, stack);
            }
            Event::SubflowClosed { path, reason, .. } => {
                let doubt = matches!(
                    reason,
                    SubflowCloseReason::TimedOut | SubflowCloseReason::Reset
                );
                if doubt {
                    self.upstream.on_doubt(now, server, *path);
                }
            }
            Event::Closed { reason, .. } => self.on_closed(now, id, *reason, stack, local),
            Event::Accepted { .. } | Event::FellBack { .. } => {}
        }
    }

    fn on_closed(
        &mut self,
        now: Instant,
        id: SessionId,
        reason: CloseReason,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
    ) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if matches!(reason, CloseReason::TimedOut | CloseReason::Unreachable) {
            self.upstream.on_doubt_everywhere(now, session.server);
        }
        tracing::debug!(?reason, "connection to the server closed");
        match session.stage {
            Stage::Connecting => {
                let path = session.path;
                self.upstream.on_doubt(now, session.server, path);
                self.retry(now, id, stack, local);
            }
            Stage::Negotiating(_) => self.end(now, id, Outcome::ServerFailed, stack, local),
            Stage::Relaying => {
                let outcome = Outcome::Relayed(End::of_conn(reason));
                self.end(now, id, outcome, stack, local);
            }
        }
    }
}

impl Core for BoxCore {
    fn on_engine_event(
        &mut self,
        now: Instant,
        event: Event,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
    ) {
        if self
            .upstream
            .on_probe_event(now, &event, stack, &mut self.counters)
        {
            return;
        }
        let conn = match event {
            Event::Connected { conn }
            | Event::Readable { conn }
            | Event::Writable { conn }
            | Event::Closed { conn, .. }
            | Event::SubflowEstablished { conn, .. }
            | Event::SubflowClosed { conn, .. }
            | Event::FellBack { conn, .. } => conn,
            // A box listens on nothing.
            Event::Accepted { conn, .. } => return stack.abort(now, conn),
        };
        self.on_conn_event(now, conn, &event, stack, local);
    }

    fn on_local_event(
        &mut self,
        now: Instant,
        event: LocalEvent,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
    ) {
        let id = match event {
            LocalEvent::Accepted {
                id,
                peer,
                destination,
            } => return self.on_accepted(now, (id, peer, destination), stack, local),
            LocalEvent::Readable { id }
            | LocalEvent::Writable { id }
            | LocalEvent::Broken { id } => id,
            // A box neither connects nor looks up.
            LocalEvent::Connected { .. }
            | LocalEvent::ConnectFailed { .. }
            | LocalEvent::Resolved { .. } => return,
        };
        let Some(sid) = self.sessions.by_local(id) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(sid) else {
            return;
        };
        match event {
            LocalEvent::Readable { .. } => session.relay.set_local_readable(),
            LocalEvent::Writable { .. } => session.relay.set_local_writable(),
            _ => return self.end(now, sid, Outcome::Relayed(End::Local), stack, local),
        }
        self.advance(now, sid, stack, local);
    }

    fn next_timeout(&self) -> Option<Instant> {
        let own = self.sessions.next_timeout();
        let upstream = self.upstream.next_timeout();
        own.into_iter().chain(upstream).min()
    }

    fn handle_timeout(&mut self, now: Instant, stack: &mut Stack, local: &mut dyn LocalStreams) {
        if self.upstream.next_timeout().is_some_and(|at| at <= now) {
            self.upstream.handle_timeout(now, stack, &mut self.counters);
        }
        for _ in 0..BATCH {
            let Some(id) = self.sessions.pop_expired(now) else {
                break;
            };
            self.on_timer(now, id, stack, local);
        }
        for _ in 0..BATCH {
            let Some(id) = self.sessions.pop_ready() else {
                break;
            };
            self.advance(now, id, stack, local);
        }
    }
}
