//! The aggregation server: SOCKS5 behind MPTCP, regular TCP to the destination.

mod session;

use core::net::IpAddr;
use core::time::Duration;

use braid_engine::{ConnId, Event, Stack};
use braid_wire::Instant;
use ipnet::IpNet;

use crate::auth::{Verifier, WallClock};
use crate::config::{ServerConfig, ServerLimits, ServerTimeouts};
use crate::policy::DestinationPolicy;
use crate::report::{LogLimiter, ServerCounters};
use crate::table::Table;
use crate::{Core, LocalEvent, LocalId, LocalStreams};

use session::Session;

/// The server as a sans-IO core. The driver adds paths to the stack and listens on them; every
/// accepted connection is served.
///
/// # How to drive it
///
/// 1. [`set_wall_clock`](Self::set_wall_clock) once at the start (passwords made before that
///    moment are refused, for a server that was restarted cannot know whether they were used),
///    then whenever the system's clock was set, at least once a minute.
/// 2. [`set_own_addresses`](Self::set_own_addresses) at the start and when they change.
/// 3. Events as [`Core`] describes.
#[derive(Debug)]
pub struct ServerCore {
    timeouts: ServerTimeouts,
    limits: ServerLimits,
    window: Duration,
    /// Ranges of this machine that the configuration tells.
    configured: Vec<IpNet>,
    destinations: DestinationPolicy,
    verifier: Verifier,
    user_names: Vec<String>,
    sessions: Table<Session>,
    /// Sessions of each user.
    per_user: Vec<usize>,
    /// Sessions whose request is not complete.
    handshakes: usize,
    clock: Option<WallClock>,
    counters: ServerCounters,
    limiter: LogLimiter,
}

/// Most sessions that get another turn, and timers that are served, before packets are sent.
const BATCH: usize = 32;

impl ServerCore {
    /// A core without connections.
    pub fn new(config: &ServerConfig) -> Self {
        let listen = config.listen.iter().copied().map(IpNet::from);
        let configured: Vec<IpNet> = listen
            .chain([config.tun.v4.into(), config.tun.v6.into()])
            .collect();
        let mut destinations = DestinationPolicy::new(config.allow.clone(), config.deny.clone());
        destinations.set_own(configured.clone());
        ServerCore {
            timeouts: config.timeouts.clone(),
            limits: config.limits.clone(),
            window: config.time_window,
            configured,
            destinations,
            verifier: Verifier::new(&config.users, config.time_window, config.limits.replay),
            user_names: config.users.iter().map(|u| u.name.clone()).collect(),
            sessions: Table::default(),
            per_user: vec![0; config.users.len()],
            handshakes: 0,
            clock: None,
            counters: ServerCounters::default(),
            limiter: LogLimiter::default(),
        }
    }

    /// Says that at `now` the wall clock shows `since_epoch` (since 1970-01-01 UTC).
    pub fn set_wall_clock(&mut self, now: Instant, since_epoch: Duration) {
        let before = self.clock.map(|c| c.unix_ms(now));
        let clock = self.clock.insert(WallClock::default());
        clock.set(now, since_epoch);
        let after = clock.unix_ms(now);
        match before {
            None => self.verifier.forget_before(after),
            Some(before) if after < before => {
                let window = u64::try_from(self.window.as_millis()).unwrap_or(u64::MAX);
                self.verifier
                    .clock_set_back(before.saturating_sub(window), after);
            }
            Some(_) => {}
        }
    }

    /// The addresses of this machine, which are refused as destinations unless allowed by the
    /// configuration. Those listened on are among them without being named.
    pub fn set_own_addresses(&mut self, addresses: Vec<IpAddr>) {
        let mut own = self.configured.clone();
        own.extend(addresses.into_iter().map(IpNet::from));
        self.destinations.set_own(own);
    }

    /// What was counted so far.
    pub fn counters(&self) -> &ServerCounters {
        &self.counters
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.sessions.len()
    }
}

impl Core for ServerCore {
    fn on_engine_event(
        &mut self,
        now: Instant,
        event: Event,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
    ) {
        match event {
            Event::Accepted { conn, remote, .. } => {
                self.on_accepted(now, conn, remote.ip(), stack, local);
            }
            Event::Readable { conn } => {
                self.on_conn(now, conn, stack, local, |s| s.set_conn_readable());
            }
            Event::Writable { conn } => {
                self.on_conn(now, conn, stack, local, |s| s.set_conn_writable());
            }
            Event::Closed { conn, reason } => {
                if let Some(id) = self.sessions.by_conn(conn) {
                    tracing::debug!(?reason, "connection from a box closed");
                    self.on_closed(now, id, reason, stack, local);
                }
            }
            // A server opens nothing; which subflows there are is the engine's business.
            Event::Connected { .. }
            | Event::FellBack { .. }
            | Event::SubflowEstablished { .. }
            | Event::SubflowClosed { .. } => {}
        }
    }

    fn on_local_event(
        &mut self,
        now: Instant,
        event: LocalEvent,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
    ) {
        let find = |id: LocalId| self.sessions.by_local(id);
        match event {
            LocalEvent::Connected { id } => {
                if let Some(sid) = find(id) {
                    self.on_connected(now, sid, id, stack, local);
                }
            }
            LocalEvent::ConnectFailed { id, failure } => {
                if let Some(sid) = find(id) {
                    self.sessions.unbind_local(id);
                    self.on_connect_failed(now, sid, failure, stack, local);
                }
            }
            LocalEvent::Resolved { id, addresses } => {
                if let Some(sid) = find(id) {
                    self.sessions.unbind_local(id);
                    self.on_resolved(now, sid, addresses, stack, local);
                }
            }
            LocalEvent::Readable { id } => {
                self.on_local(now, id, stack, local, |s| s.set_local_readable());
            }
            LocalEvent::Writable { id } => {
                self.on_local(now, id, stack, local, |s| s.set_local_writable());
            }
            LocalEvent::Broken { id } => {
                if let Some(sid) = find(id) {
                    self.on_broken(now, sid, id, stack, local);
                }
            }
            // A server takes nothing in on its local side.
            LocalEvent::Accepted { id, .. } => local.reset(id),
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.sessions.next_timeout()
    }

    fn handle_timeout(&mut self, now: Instant, stack: &mut Stack, local: &mut dyn LocalStreams) {
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

impl ServerCore {
    fn on_conn(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
        mark: impl FnOnce(&mut Session),
    ) {
        if let Some(id) = self.sessions.by_conn(conn)
            && let Some(session) = self.sessions.get_mut(id)
        {
            mark(session);
            self.advance(now, id, stack, local);
        }
    }

    fn on_local(
        &mut self,
        now: Instant,
        local_id: LocalId,
        stack: &mut Stack,
        local: &mut dyn LocalStreams,
        mark: impl FnOnce(&mut Session),
    ) {
        if let Some(id) = self.sessions.by_local(local_id)
            && let Some(session) = self.sessions.get_mut(id)
        {
            mark(session);
            self.advance(now, id, stack, local);
        }
    }
}
