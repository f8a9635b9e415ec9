//! Idle connections. The box opens them, joins them on every link and signs in before users need them, so that a
//! user's first bytes leave at once.

use core::time::Duration;

use braid_engine::{ConnId, Stack};
use braid_wire::Instant;

use crate::admin::status::IdlePoolStatus;
use crate::config::Warm as Settings;
use crate::protocol::socks::{ClientHandshake, ClientStep};
use crate::relay::{StepError, read_step};

use super::checkout::{Checkout, ConnHistory};

/// The maximum time from opening a connection to the end of the sign-in. The value is a guess, far above the few
/// round trips of a sign-in.
const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(10);
/// The time within which requests belong to one burst, because replacements for the taken connections cannot be
/// ready earlier. The value is a guess: opening, joining and signing in take several round trips.
const BURST_WINDOW: Duration = Duration::from_secs(1);
/// The half-life of the remembered peak demand. The value is a guess; it decides how long connections outlast a
/// burst.
const DEMAND_HALF_LIFE: Duration = Duration::from_secs(30);
/// The pause after a lost connection, doubled with each further loss up to [`MAX_RETRY_DELAY`]. Both are guesses.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
/// The maximum pause after a lost connection.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
/// The maximum number of connections to keep, as a multiple of the number that the pool would open. Users can
/// return more connections than the pool would open. Without the factor, the pool would close these as surplus,
/// and open others a moment later. The value is a guess.
const KEPT_FACTOR: usize = 4;
/// The maximum silence on a connection that a user may still get. Many NATs drop the mapping of a connection after
/// 60 s without packets. The engine sends a keepalive after 53 s at the latest, so on a working connection an
/// answer comes within 57 s.
const MAX_SILENCE: Duration = Duration::from_secs(57);
/// The minimum age at which a lost connection resets the pause to [`MIN_RETRY_DELAY`]. A connection of this age
/// shows that the server does not close every connection at once. The value is a guess.
const MIN_GOOD_LIFE: Duration = Duration::from_secs(10);

/// A connection that waits for a user.
#[derive(Debug)]
pub(super) struct IdleConn {
    pub(super) checkout: Checkout,
    /// Reads the server's answers.
    handshake: Box<ClientHandshake>,
    /// The time at which the connection was opened or returned.
    since: Instant,
}

impl IdleConn {
    pub(super) fn new(now: Instant, checkout: Checkout) -> Self {
        IdleConn {
            handshake: Box::new(ClientHandshake::new(checkout.channel.is_protected())),
            checkout,
            since: now,
        }
    }

    /// Creates the entry of a connection that has served a user.
    pub(super) fn returned(
        now: Instant,
        checkout: Checkout,
        handshake: Box<ClientHandshake>,
    ) -> Self {
        IdleConn {
            checkout,
            handshake,
            since: now,
        }
    }

    /// Returns whether the box is signed in, so that a user can get the connection.
    fn is_ready(&self) -> bool {
        self.handshake.is_signed_in()
    }

    /// Returns whether a segment of the server was received on the connection within [`MAX_SILENCE`].
    fn is_fresh(&self, now: Instant, stack: &Stack) -> bool {
        let heard_at = stack.received_at(self.checkout.channel.conn);
        heard_at.is_some_and(|at| now.saturating_since(at) < MAX_SILENCE)
    }

    /// Returns the time at which the connection becomes useless.
    fn ends_at(&self, age: Duration) -> Instant {
        let time = if self.is_ready() {
            age
        } else {
            SIGN_IN_TIMEOUT
        };
        (self.since + time).min(self.checkout.history.good_until())
    }

    /// Reads the server's answers. The expected result is [`ClientStep::More`], because no request was sent that
    /// another step would answer.
    pub(super) fn read(
        &mut self,
        now: Instant,
        stack: &mut Stack,
    ) -> Result<ClientStep, StepError> {
        let input = |bytes: &[u8]| self.handshake.input(bytes);
        read_step(
            now,
            &mut self.checkout.channel,
            stack,
            ClientStep::More,
            input,
        )
    }
}

/// An estimate of the number of connections that users need at the same time.
#[derive(Debug, Default)]
struct Demand {
    /// Start of the last burst, and the number of connections taken in it and not returned.
    burst: Option<(Instant, u32)>,
    /// The decaying peak of the burst sizes, as of `at`.
    peak: f64,
    /// The time of the last request.
    at: Instant,
}

impl Demand {
    /// Counts a request of a user for a connection.
    fn on_taken(&mut self, now: Instant) {
        let count = match self.burst {
            Some((since, count)) if now.saturating_since(since) < BURST_WINDOW => {
                self.burst = Some((since, count.saturating_add(1)));
                count.saturating_add(1)
            }
            _ => {
                self.burst = Some((now, 1));
                1
            }
        };
        self.peak = self.peak_at(now).max(count.into());
        self.at = now;
    }

    /// Counts a returned connection, which can serve the next request of the same burst.
    fn on_returned(&mut self) {
        if let Some((_, count)) = &mut self.burst {
            *count = count.saturating_sub(1);
        }
    }

    /// Returns the peak after its decay until `now`.
    fn peak_at(&self, now: Instant) -> f64 {
        let half_lives = now
            .saturating_since(self.at)
            .div_duration_f64(DEMAND_HALF_LIFE);
        self.peak * 0.5f64.powf(half_lives)
    }

    /// Returns the number of connections worth keeping: none after a time of `idle` without a request, otherwise
    /// at least one.
    fn wanted(&self, now: Instant, idle: Duration) -> usize {
        match self.burst {
            Some(_) if now.saturating_since(self.at) < idle => {
                (self.peak_at(now).ceil() as usize).max(1)
            }
            _ => 0,
        }
    }
}

/// A pool of idle connections to one server. After another server was chosen, connections to the former server
/// stay until a connection to the new server is ready.
#[derive(Debug)]
pub(super) struct IdlePool {
    settings: Settings,
    /// The connections, oldest first.
    waiting: Vec<IdleConn>,
    demand: Demand,
    /// Servers that accepted this box for a user or a measurement, and have not refused it since. The pool opens no
    /// connections to other servers, because a server that refuses this box would refuse each of them.
    accepted_by: Vec<usize>,
    /// The time before which no connection is opened, because one was lost.
    retry_at: Option<Instant>,
    /// The pause after the next loss.
    delay: Duration,
}

impl IdlePool {
    pub(super) fn new(settings: Settings) -> Self {
        IdlePool {
            settings,
            waiting: Vec::new(),
            demand: Demand::default(),
            accepted_by: Vec::new(),
            retry_at: None,
            delay: MIN_RETRY_DELAY,
        }
    }

    pub(super) fn status(&self) -> IdlePoolStatus {
        let ready = self.waiting.iter().filter(|w| w.is_ready()).count();
        IdlePoolStatus {
            ready,
            opening: self.waiting.len() - ready,
            // Includes the connections that users returned.
            most: KEPT_FACTOR * self.settings.max,
        }
    }

    /// Applies new settings and indices of servers: `moved` maps old indices to new ones. Returns the connections
    /// whose server is gone.
    fn reload(&mut self, settings: Settings, moved: &[Option<usize>]) -> Vec<IdleConn> {
        self.settings = settings;
        let new_index = |server: usize| moved.get(server).copied().flatten();
        self.accepted_by = self
            .accepted_by
            .iter()
            .filter_map(|s| new_index(*s))
            .collect();
        let mut gone = Vec::new();
        for mut idle_conn in core::mem::take(&mut self.waiting) {
            match new_index(idle_conn.checkout.server) {
                Some(server) => {
                    idle_conn.checkout.server = server;
                    self.waiting.push(idle_conn);
                }
                None => gone.push(idle_conn),
            }
        }
        gone
    }

    /// Takes a connection to `server` for a user: the connection joined on the largest number of links and, of
    /// equal connections, the oldest. Without a connection to `server`, takes a connection to another `usable`
    /// server, because that is faster than a new handshake. Does not take a connection on which no segment came
    /// within [`MAX_SILENCE`].
    pub(super) fn take(
        &mut self,
        (now, stack): (Instant, &Stack),
        server: usize,
        usable: impl Fn(usize) -> bool,
    ) -> Option<Checkout> {
        self.demand.on_taken(now);
        let ready = self.waiting.iter().enumerate();
        let fits = |w: &IdleConn| w.checkout.server == server || usable(w.checkout.server);
        let ready = ready.filter(|(_, w)| w.is_ready() && fits(w) && w.is_fresh(now, stack));
        let rank = |w: &IdleConn| (w.checkout.server == server, w.checkout.history.subflows());
        // `max_by_key` returns the last of equal elements, so the reversed order yields the oldest.
        let (best, _) = ready.rev().max_by_key(|(_, w)| rank(w))?;
        let idle_conn = self.waiting.remove(best);
        let handshake = Some(idle_conn.handshake);
        Some(Checkout {
            handshake,
            ..idle_conn.checkout
        })
    }

    /// Returns the entry of connection `conn`.
    pub(super) fn get_mut(&mut self, conn: ConnId) -> Option<&mut IdleConn> {
        self.waiting
            .iter_mut()
            .find(|w| w.checkout.channel.conn == conn)
    }

    pub(super) fn push(&mut self, idle_conn: IdleConn) {
        self.waiting.push(idle_conn);
    }

    /// Returns whether a connection to `server` that has served a user may serve another.
    pub(super) fn may_reuse(&self, now: Instant, server: usize, history: &ConnHistory) -> bool {
        history.is_good(now)
            && self.connections_to(server) < KEPT_FACTOR * self.wanted(now, Some(server))
    }

    /// Puts a connection back that a user has finished with.
    pub(super) fn put_back(&mut self, idle_conn: IdleConn) {
        self.demand.on_returned();
        self.push(idle_conn);
    }

    /// Returns the number of idle connections to `server`.
    fn connections_to(&self, server: usize) -> usize {
        let to_server = |w: &&IdleConn| w.checkout.server == server;
        self.waiting.iter().filter(to_server).count()
    }

    /// Records that a server has accepted this box for a user or a measurement.
    pub(super) fn on_served(&mut self, server: usize) {
        if !self.accepted_by.contains(&server) {
            self.accepted_by.push(server);
        }
    }

    /// Records that a server has refused this box.
    pub(super) fn on_refused(&mut self, server: usize) {
        self.accepted_by.retain(|s| *s != server);
    }

    /// Removes a lost connection, and pauses the opening of further connections.
    pub(super) fn on_lost(&mut self, now: Instant, conn: ConnId) {
        let Some(at) = self
            .waiting
            .iter()
            .position(|w| w.checkout.channel.conn == conn)
        else {
            return;
        };
        let idle_conn = self.waiting.remove(at);
        if now.saturating_since(idle_conn.since) >= MIN_GOOD_LIFE {
            self.delay = MIN_RETRY_DELAY;
        }
        self.back_off(now);
    }

    /// Pauses the opening of connections, longer each time.
    pub(super) fn back_off(&mut self, now: Instant) {
        self.retry_at = Some(now + self.delay);
        self.delay = (self.delay * 2).min(MAX_RETRY_DELAY);
    }

    /// Removes and returns a useless connection: a connection that is too old, was not signed in in time, is
    /// surplus, or leads to another server than `server`. A connection to another `usable` server stays until a
    /// connection to `server` is ready.
    pub(super) fn pop_useless(
        &mut self,
        now: Instant,
        server: Option<usize>,
        usable: impl Fn(usize) -> bool,
    ) -> Option<IdleConn> {
        let wanted = self.wanted(now, server);
        let age = self.settings.age;
        let to_server = |w: &IdleConn| server == Some(w.checkout.server);
        let is_replaced = self.waiting.iter().any(|w| to_server(w) && w.is_ready());
        let keep_others = wanted > 0 && !is_replaced;
        let useless = |w: &IdleConn| {
            let kept = to_server(w) || keep_others && usable(w.checkout.server);
            w.ends_at(age) <= now || !kept
        };
        let at = self.waiting.iter().position(useless);
        let too_many =
            server.is_some_and(|server| self.connections_to(server) > KEPT_FACTOR * wanted);
        let oldest = self.waiting.iter().position(to_server);
        let at = at.or(oldest.filter(|_| too_many))?;
        let idle_conn = self.waiting.remove(at);
        // The sign-in timed out, and a new attempt at once would probably time out too.
        if !idle_conn.is_ready() && idle_conn.ends_at(age) <= now {
            self.back_off(now);
        }
        Some(idle_conn)
    }

    /// Removes and returns a connection to `server`.
    pub(super) fn pop_to(&mut self, server: usize) -> Option<IdleConn> {
        let at = self
            .waiting
            .iter()
            .position(|w| w.checkout.server == server)?;
        Some(self.waiting.remove(at))
    }

    /// Returns whether another connection should be opened.
    pub(super) fn needs_more(&mut self, now: Instant, server: Option<usize>) -> bool {
        self.retry_at = self.retry_at.filter(|at| *at > now);
        let existing = server.map_or(0, |server| self.connections_to(server));
        existing < self.wanted(now, server) && self.retry_at.is_none()
    }

    /// Returns the number of connections to `server` that the pool should hold in advance.
    fn wanted(&self, now: Instant, server: Option<usize>) -> usize {
        match server {
            Some(server) if self.accepted_by.contains(&server) => {
                let wanted = self.demand.wanted(now, self.settings.idle);
                wanted.min(self.settings.max)
            }
            _ => 0,
        }
    }

    /// Returns the time at which the pool has to be trimmed or filled, if no event comes before.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let ends = self.waiting.iter().map(|w| w.ends_at(self.settings.age));
        let idle = (!self.waiting.is_empty()).then(|| self.demand.at + self.settings.idle);
        ends.chain(idle).chain(self.retry_at).min()
    }
}

/// The pools of idle connections: one to the server of most flows, and one to the server of short flows if that is
/// another server.
#[derive(Debug)]
pub(super) struct IdlePools {
    pub(super) all: [IdlePool; 2],
    /// True after another server was chosen or the configuration was reloaded, until the pools were filled anew.
    pub(super) changed: bool,
}

impl IdlePools {
    pub(super) fn new(settings: &Settings) -> Self {
        IdlePools {
            all: [(); 2].map(|()| IdlePool::new(settings.clone())),
            changed: false,
        }
    }

    /// Returns whether the configuration allows idle connections while a metered link is in use.
    pub(super) fn allows_metered(&self) -> bool {
        self.all.iter().all(|pool| pool.settings.metered)
    }

    /// Returns the connection `conn`, and the index of its pool.
    pub(super) fn find(&mut self, conn: ConnId) -> Option<(usize, &mut IdleConn)> {
        let mut pools = self.all.iter_mut().enumerate();
        pools.find_map(|(at, pool)| Some((at, pool.get_mut(conn)?)))
    }

    /// Notes that a server has accepted this box for a user or a measurement.
    pub(super) fn on_served(&mut self, server: usize) {
        for pool in &mut self.all {
            pool.on_served(server);
        }
    }

    /// Closes the idle connections to `server`.
    pub(super) fn give_up(&mut self, now: Instant, server: usize, stack: &mut Stack) {
        for pool in &mut self.all {
            while let Some(idle_conn) = pool.pop_to(server) {
                stack.abort(now, idle_conn.checkout.channel.conn);
            }
        }
    }

    /// Closes useless connections. `servers` has the server for each pool, if any, and `usable` says whether each
    /// server answers.
    pub(super) fn trim(
        &mut self,
        now: Instant,
        servers: [Option<usize>; 2],
        usable: &[bool],
        stack: &mut Stack,
    ) {
        for (pool, server) in self.all.iter_mut().zip(servers) {
            while let Some(idle_conn) = pool.pop_useless(now, server, |s| usable[s]) {
                stack.abort(now, idle_conn.checkout.channel.conn);
            }
        }
    }

    /// Applies new settings and indices of servers: `moved` maps old indices to new ones. Closes connections whose
    /// server is gone.
    pub(super) fn reload(
        &mut self,
        now: Instant,
        settings: &Settings,
        moved: &[Option<usize>],
        stack: &mut Stack,
    ) {
        for pool in &mut self.all {
            for idle_conn in pool.reload(settings.clone(), moved) {
                stack.abort(now, idle_conn.checkout.channel.conn);
            }
        }
        self.changed = true;
    }

    /// Pauses the opening of connections in all pools.
    pub(super) fn back_off(&mut self, now: Instant) {
        for pool in &mut self.all {
            pool.back_off(now);
        }
    }

    pub(super) fn status(&self) -> IdlePoolStatus {
        let pools = self.all.iter().map(IdlePool::status);
        let all = pools.reduce(|sum, pool| IdlePoolStatus {
            ready: sum.ready + pool.ready,
            opening: sum.opening + pool.opening,
            // All pools have the same maximum, and usually only one is in use.
            most: pool.most,
        });
        all.unwrap_or_default()
    }

    /// Returns the time at which a pool has to be trimmed or filled, if no event comes before.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let changed = self.changed.then_some(Instant::ZERO);
        let pools = self.all.iter().filter_map(IdlePool::next_timeout);
        pools.chain(changed).min()
    }
}
