//! The aggregation server: SOCKS5 behind MPTCP, regular TCP to the destination.

mod session;

use core::net::IpAddr;
use core::time::Duration;

use braid_engine::Event;
use braid_engine::app::{Core, Ctx, LocalEvent};
use braid_wire::Instant;

use crate::auth::{Verifier, WallClock};
use crate::config::{Cidr, ServerConfig, ServerLimits, ServerTimeouts};
use crate::policy::DestinationPolicy;
use crate::relay::Relay;
use crate::report::{LogLimiter, ServerCounters};
use crate::table::{SessionId, Table};

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
    configured: Vec<Cidr>,
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
        let listen = config.listen.iter().copied().map(Cidr::host);
        let configured: Vec<Cidr> = listen.chain([config.tun.v4, config.tun.v6]).collect();
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
        own.extend(addresses.into_iter().map(Cidr::host));
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
    fn on_engine_event(&mut self, ctx: &mut Ctx<'_>, event: Event) {
        if let Event::Accepted { conn, remote, .. } = event {
            return self.on_accepted(ctx, conn, remote.ip());
        }
        let Some(id) = self.sessions.by_conn(event.conn()) else {
            return;
        };
        match event {
            Event::Readable { .. } => self.go_on(ctx, id, Relay::set_conn_readable),
            Event::Writable { .. } => self.go_on(ctx, id, Relay::set_conn_writable),
            Event::Closed { reason, .. } => self.on_closed(ctx, id, reason),
            // A server opens nothing; which subflows there are is the engine's business.
            _ => {}
        }
    }

    fn on_local_event(&mut self, ctx: &mut Ctx<'_>, event: LocalEvent) {
        let local = event.id();
        let Some(id) = self.sessions.by_local(local) else {
            if let LocalEvent::Accepted { .. } = event {
                // A server takes nothing in on its local side.
                ctx.local.reset(local);
            }
            return;
        };
        match event {
            LocalEvent::Connected { .. } => self.on_connected(ctx, id, local),
            LocalEvent::ConnectFailed { failure, .. } => {
                self.sessions.unbind_local(local);
                self.on_connect_failed(ctx, id, failure);
            }
            LocalEvent::Resolved { addresses, .. } => {
                self.sessions.unbind_local(local);
                self.on_resolved(ctx, id, addresses);
            }
            LocalEvent::Readable { .. } => self.go_on(ctx, id, Relay::set_local_readable),
            LocalEvent::Writable { .. } => self.go_on(ctx, id, Relay::set_local_writable),
            LocalEvent::Broken { .. } => self.on_broken(ctx, id, local),
            LocalEvent::Accepted { .. } => {}
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.sessions.next_timeout()
    }

    fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        for _ in 0..BATCH {
            let Some(id) = self.sessions.pop_expired(ctx.now) else {
                break;
            };
            self.on_timer(ctx, id);
        }
        for _ in 0..BATCH {
            let Some(id) = self.sessions.pop_ready() else {
                break;
            };
            self.advance(ctx, id);
        }
    }
}

impl ServerCore {
    /// Goes on with a session where `mark` says what of its relay may be tried again.
    fn go_on(&mut self, ctx: &mut Ctx<'_>, id: SessionId, mark: fn(&mut Relay)) {
        let session = self.sessions.get_mut(id);
        if let Some(relay) = session.and_then(Session::relay_mut) {
            mark(relay);
        }
        self.advance(ctx, id);
    }
}
