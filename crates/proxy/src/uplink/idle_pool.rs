//! Idle connections: opened, joined on every link and signed in before users need them, so that a user's first
//! bytes leave at once.

use core::time::Duration;

use braid_engine::{ConnId, Stack};
use braid_wire::Instant;

use crate::admin::status::IdlePoolStatus;
use crate::config::Warm as Settings;
use crate::protocol::socks::{ClientHandshake, ClientStep};
use crate::relay::{StepError, read_step};

use super::checkout::{Checkout, ConnHistory};

/// Longest time until a connection is signed in.
const SIGN_IN_TIMEOUT: Duration = Duration::from_secs(10);
/// Requests within this time belong to one burst, because replacements cannot be ready between them.
const BURST_WINDOW: Duration = Duration::from_secs(1);
/// The half-life of the remembered peak demand.
const DEMAND_HALF_LIFE: Duration = Duration::from_secs(30);
/// The first pause after a lost connection, doubled with each further loss up to [`MAX_RETRY_DELAY`].
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Factor by which returned connections may exceed the number that would be opened: connections in turn use must
/// not be closed now and reopened a moment later.
const KEPT_FACTOR: usize = 4;
/// Longest silence on a connection that may still be given to a user: after it, a NAT may have dropped its
/// mapping. The engine sends a keepalive after 53 s at the latest, so the answer on a sound connection has come by
/// then.
const MAX_SILENCE: Duration = Duration::from_secs(57);
/// A connection of this age resets the pause after losses.
const MIN_GOOD_LIFE: Duration = Duration::from_secs(10);

/// A connection that waits for a user.
#[derive(Debug)]
pub(super) struct IdleConn {
    pub(super) checkout: Checkout,
    handshake: Box<ClientHandshake>,
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

    fn is_ready(&self) -> bool {
        self.handshake.is_signed_in()
    }

    /// Returns whether the server was heard on the connection lately.
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

    /// Reads the server's answers; [`ClientStep::More`] means that all is well.
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

/// The number of connections that users need at the same time.
#[derive(Debug, Default)]
struct Demand {
    /// Start and size of the last burst.
    burst: Option<(Instant, u32)>,
    /// The decaying peak of the burst sizes, as of `at`.
    peak: f64,
    at: Instant,
}

impl Demand {
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

    /// Notes a returned connection, which can accepted_by the next request.
    fn on_returned(&mut self) {
        if let Some((_, count)) = &mut self.burst {
            *count = count.saturating_sub(1);
        }
    }

    fn peak_at(&self, now: Instant) -> f64 {
        let half_lives = now
            .saturating_since(self.at)
            .div_duration_f64(DEMAND_HALF_LIFE);
        self.peak * 0.5f64.powf(half_lives)
    }

    /// Returns the number of connections worth keeping; at least one until no request has come for `idle`.
    fn wanted(&self, now: Instant, idle: Duration) -> usize {
        match self.burst {
            Some(_) if now.saturating_since(self.at) < idle => {
                (self.peak_at(now).ceil() as usize).max(1)
            }
            _ => 0,
        }
    }
}

/// A pool of idle connections, all to one server except while another server replaces it.
#[derive(Debug)]
pub(super) struct IdlePool {
    settings: Settings,
    /// The connections, oldest first.
    waiting: Vec<IdleConn>,
    demand: Demand,
    /// Servers that accepted this box for a user, and have not refused it since.
    accepted_by: Vec<usize>,
    /// No connection is opened before this time, after a loss.
    retry_at: Option<Instant>,
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
            most: KEPT_FACTOR * self.settings.max,
        }
    }

    /// Applies new settings and indices of servers: `moved` maps old indices to new ones. Returns the connections
    /// whose server is gone.
    fn reload(&mut self, settings: Settings, moved: &[Option<usize>]) -> Vec<IdleConn> {
        self.settings = settings;
        let place = |server: usize| moved.get(server).copied().flatten();
        self.accepted_by = self.accepted_by.iter().filter_map(|s| place(*s)).collect();
        let mut gone = Vec::new();
        for mut idle_conn in core::mem::take(&mut self.waiting) {
            match place(idle_conn.checkout.server) {
                Some(server) => {
                    idle_conn.checkout.server = server;
                    self.waiting.push(idle_conn);
                }
                None => gone.push(idle_conn),
            }
        }
        gone
    }

    /// Takes a connection for a user: the one to `server` that is joined on most links, the oldest of those.
    /// Without one, takes a connection to another `usable` server, which costs less than a handshake. Only a
    /// connection whose peer was heard lately is taken.
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
        // Reversed, so that the last of equals, which `max_by_key` returns, is the oldest.
        let (best, _) = ready.rev().max_by_key(|(_, w)| rank(w))?;
        let idle_conn = self.waiting.remove(best);
        let handshake = Some(idle_conn.handshake);
        Some(Checkout {
            handshake,
            ..idle_conn.checkout
        })
    }

    pub(super) fn get_mut(&mut self, conn: ConnId) -> Option<&mut IdleConn> {
        self.waiting
            .iter_mut()
            .find(|w| w.checkout.channel.conn == conn)
    }

    pub(super) fn push(&mut self, idle_conn: IdleConn) {
        self.waiting.push(idle_conn);
    }

    /// Returns whether a connection to `server` that has served a user may accepted_by another.
    pub(super) fn may_reuse(&self, now: Instant, server: usize, history: &ConnHistory) -> bool {
        history.is_good(now)
            && self.connections_to(server) < KEPT_FACTOR * self.wanted(now, Some(server))
    }

    /// Puts a connection back that a user has finished with.
    pub(super) fn put_back(&mut self, idle_conn: IdleConn) {
        self.demand.on_returned();
        self.push(idle_conn);
    }

    /// Returns the number of connections to `server`.
    fn connections_to(&self, server: usize) -> usize {
        let to_server = |w: &&IdleConn| w.checkout.server == server;
        self.waiting.iter().filter(to_server).count()
    }

    pub(super) fn on_served(&mut self, server: usize) {
        if !self.accepted_by.contains(&server) {
            self.accepted_by.push(server);
        }
    }

    pub(super) fn on_refused(&mut self, server: usize) {
        self.accepted_by.retain(|s| *s != server);
    }

    /// Removes a lost connection.
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

    /// Opens nothing for a while.
    pub(super) fn back_off(&mut self, now: Instant) {
        self.retry_at = Some(now + self.delay);
        self.delay = (self.delay * 2).min(MAX_RETRY_DELAY);
    }

    /// Removes a useless connection: too old, too slow, surplus, or not to `server`. Those to another server stay
    /// while they are `usable` and none to `server` is ready.
    pub(super) fn pop_useless(
        &mut self,
        now: Instant,
        server: Option<usize>,
        usable: impl Fn(usize) -> bool,
    ) -> Option<IdleConn> {
        let wanted = self.wanted(now, server);
        let age = self.settings.age;
        let to_server = |w: &IdleConn| server == Some(w.checkout.server);
        let replaced = self.waiting.iter().any(|w| to_server(w) && w.is_ready());
        let keep = wanted > 0 && !replaced;
        let useless = |w: &IdleConn| {
            let kept = to_server(w) || keep && usable(w.checkout.server);
            w.ends_at(age) <= now || !kept
        };
        let at = self.waiting.iter().position(useless);
        let too_many =
            server.is_some_and(|server| self.connections_to(server) > KEPT_FACTOR * wanted);
        let oldest = self.waiting.iter().position(to_server);
        let at = at.or(oldest.filter(|_| too_many))?;
        let idle_conn = self.waiting.remove(at);
        if !idle_conn.is_ready() && idle_conn.ends_at(age) <= now {
            self.back_off(now);
        }
        Some(idle_conn)
    }

    /// Removes a connection to `server`.
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
        let there = server.map_or(0, |server| self.connections_to(server));
        there < self.wanted(now, server) && self.retry_at.is_none()
    }

    fn wanted(&self, now: Instant, server: Option<usize>) -> usize {
        match server {
            Some(server) if self.accepted_by.contains(&server) => {
                let wanted = self.demand.wanted(now, self.settings.idle);
                wanted.min(self.settings.max)
            }
            _ => 0,
        }
    }

    /// Returns the time at which the pool is due, if nothing happens before.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let ends = self.waiting.iter().map(|w| w.ends_at(self.settings.age));
        let idle = (!self.waiting.is_empty()).then(|| self.demand.at + self.settings.idle);
        ends.chain(idle).chain(self.retry_at).min()
    }
}

/// The pools of idle connections: one to the server of most flows, and one to the server of short flows where that
/// is another.
#[derive(Debug)]
pub(super) struct IdlePools {
    pub(super) all: [IdlePool; 2],
    /// Another server was chosen, so the pools have to change.
    pub(super) changed: bool,
}

impl IdlePools {
    pub(super) fn new(settings: &Settings) -> Self {
        IdlePools {
            all: [(); 2].map(|()| IdlePool::new(settings.clone())),
            changed: false,
        }
    }

    /// Returns whether connections may wait although they cost metered traffic.
    pub(super) fn allows_metered(&self) -> bool {
        self.all.iter().all(|pool| pool.settings.metered)
    }

    /// Returns the connection `conn`, and the index of its pool.
    pub(super) fn find(&mut self, conn: ConnId) -> Option<(usize, &mut IdleConn)> {
        let mut pools = self.all.iter_mut().enumerate();
        pools.find_map(|(at, pool)| Some((at, pool.get_mut(conn)?)))
    }

    /// Notes that a server has accepted this box for a user.
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

    /// Opens nothing for a while.
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
            most: pool.most,
        });
        all.unwrap_or_default()
    }

    /// Returns the time at which a pool is due, if nothing happens before.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let changed = self.changed.then_some(Instant::ZERO);
        let pools = self.all.iter().filter_map(IdlePool::next_timeout);
        pools.chain(changed).min()
    }
}
