//! Warm connections: opened, joined on every link and signed in before anybody asks for them, so
//! that a user's first bytes leave at once.

use core::time::Duration;

use braid_engine::{ConnId, Stack};
use braid_wire::Instant;

use crate::admin::status::WarmStatus;
use crate::config::Warm as Settings;
use crate::protocol::socks::{ClientHandshake, ClientStep};
use crate::relay::{StepError, read_step};

use super::lease::{Lease, Past};

/// How long a connection may take until it is signed in.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that are asked for within this time have no time to be replaced in between.
const BURST: Duration = Duration::from_secs(1);
/// In this time half of what was needed at most is forgotten.
const HALF_LIFE: Duration = Duration::from_secs(30);
/// Nothing is opened for so long after a connection was lost, and doubled with each further one.
const MIN_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(60);
/// So many times as many as are opened may wait where users gave theirs back: they are in use and wait in
/// turn, and none is to be closed now and opened a moment later.
const KEPT: usize = 4;
/// A connection that was not heard for this long is given to nobody: a NAT may have forgotten it. The engine
/// asks for a sign of life after 53 s at the latest, so a connection that is sound has had its answer.
const FRESH: Duration = Duration::from_secs(57);
/// A connection that lasted this long makes good for those that were lost.
const GOOD_LIFE: Duration = Duration::from_secs(10);

/// A connection that waits for a user.
#[derive(Debug)]
pub(super) struct Warm {
    pub(super) lease: Lease,
    answers: Box<ClientHandshake>,
    since: Instant,
}

impl Warm {
    pub(super) fn new(now: Instant, lease: Lease) -> Self {
        Warm {
            answers: Box::new(ClientHandshake::new(lease.channel.is_protected())),
            lease,
            since: now,
        }
    }

    /// One that has served a user.
    pub(super) fn again(now: Instant, lease: Lease, answers: Box<ClientHandshake>) -> Self {
        Warm {
            lease,
            answers,
            since: now,
        }
    }

    fn is_ready(&self) -> bool {
        self.answers.is_signed_in()
    }

    /// Returns whether the server was heard on it lately.
    fn is_fresh(&self, now: Instant, stack: &Stack) -> bool {
        let heard = stack.heard_at(self.lease.channel.conn);
        heard.is_some_and(|at| now.saturating_since(at) < FRESH)
    }

    /// When it is of no use any more.
    fn ends_at(&self, age: Duration) -> Instant {
        let time = if self.is_ready() { age } else { PATIENCE };
        (self.since + time).min(self.lease.past.good_until())
    }

    /// Reads what the server says; `More` is well.
    pub(super) fn read(
        &mut self,
        now: Instant,
        stack: &mut Stack,
    ) -> Result<ClientStep, StepError> {
        let input = |bytes: &[u8]| self.answers.input(bytes);
        read_step(now, &mut self.lease.channel, stack, ClientStep::More, input)
    }
}

/// How many connections users ask for at a time.
#[derive(Debug, Default)]
struct Demand {
    /// When the last burst began, and how many it asked for.
    burst: Option<(Instant, u32)>,
    /// The largest of late, as of `at`.
    peak: f64,
    at: Instant,
}

impl Demand {
    fn on_taken(&mut self, now: Instant) {
        let count = match self.burst {
            Some((since, count)) if now.saturating_since(since) < BURST => {
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

    /// One was given back: it is there for the next.
    fn on_returned(&mut self) {
        if let Some((_, count)) = &mut self.burst {
            *count = count.saturating_sub(1);
        }
    }

    fn peak_at(&self, now: Instant) -> f64 {
        let half_lives = now.saturating_since(self.at).div_duration_f64(HALF_LIFE);
        self.peak * 0.5f64.powf(half_lives)
    }

    /// Connections that are worth having; one at least until nobody asked for as long as `idle`.
    fn wanted(&self, now: Instant, idle: Duration) -> usize {
        match self.burst {
            Some(_) if now.saturating_since(self.at) < idle => {
                (self.peak_at(now).ceil() as usize).max(1)
            }
            _ => 0,
        }
    }
}

/// Connections that wait for users, all to one server but while another one is taken in its place.
#[derive(Debug)]
pub(super) struct Pool {
    settings: Settings,
    /// In order of age.
    waiting: Vec<Warm>,
    demand: Demand,
    /// Servers that have taken this box for one of their users, and refused nothing since.
    serve: Vec<usize>,
    /// Nothing is opened before, after a loss.
    retry_at: Option<Instant>,
    delay: Duration,
}

impl Pool {
    pub(super) fn new(settings: Settings) -> Self {
        Pool {
            settings,
            waiting: Vec::new(),
            demand: Demand::default(),
            serve: Vec::new(),
            retry_at: None,
            delay: MIN_DELAY,
        }
    }

    pub(super) fn status(&self) -> WarmStatus {
        let ready = self.waiting.iter().filter(|w| w.is_ready()).count();
        WarmStatus {
            ready,
            opening: self.waiting.len() - ready,
            most: KEPT * self.settings.max,
        }
    }

    /// Goes on with other settings, and with servers that are in other places: `moved` has where each is,
    /// if it is still there. Returns what leads nowhere any more.
    fn reload(&mut self, settings: Settings, moved: &[Option<usize>]) -> Vec<Warm> {
        self.settings = settings;
        let place = |server: usize| moved.get(server).copied().flatten();
        self.serve = self.serve.iter().filter_map(|s| place(*s)).collect();
        let mut gone = Vec::new();
        for mut warm in core::mem::take(&mut self.waiting) {
            match place(warm.lease.server) {
                Some(server) => {
                    warm.lease.server = server;
                    self.waiting.push(warm);
                }
                None => gone.push(warm),
            }
        }
        gone
    }

    /// A user asks for a connection: the one to `server` that is joined on most links, the oldest of
    /// them. Where there is none, one to another server that is `usable`: it costs less than a
    /// handshake. Only one whose peer was heard lately is worth that.
    pub(super) fn take(
        &mut self,
        (now, stack): (Instant, &Stack),
        server: usize,
        usable: impl Fn(usize) -> bool,
    ) -> Option<Lease> {
        self.demand.on_taken(now);
        let ready = self.waiting.iter().enumerate();
        let fits = |w: &Warm| w.lease.server == server || usable(w.lease.server);
        let ready = ready.filter(|(_, w)| w.is_ready() && fits(w) && w.is_fresh(now, stack));
        let rank = |w: &Warm| (w.lease.server == server, w.lease.past.subflows());
        let (best, _) = ready.rev().max_by_key(|(_, w)| rank(w))?;
        let warm = self.waiting.remove(best);
        let answers = Some(warm.answers);
        Some(Lease {
            answers,
            ..warm.lease
        })
    }

    pub(super) fn get_mut(&mut self, conn: ConnId) -> Option<&mut Warm> {
        self.waiting
            .iter_mut()
            .find(|w| w.lease.channel.conn == conn)
    }

    pub(super) fn push(&mut self, warm: Warm) {
        self.waiting.push(warm);
    }

    /// Whether one to `server` that has served a user is of use for another.
    pub(super) fn keeps(&self, now: Instant, server: usize, past: &Past) -> bool {
        past.is_good(now) && self.there(server) < KEPT * self.wanted(now, Some(server))
    }

    /// A user gave one back.
    pub(super) fn give_back(&mut self, warm: Warm) {
        self.demand.on_returned();
        self.push(warm);
    }

    /// Those that wait to go to `server`.
    fn there(&self, server: usize) -> usize {
        let to_server = |w: &&Warm| w.lease.server == server;
        self.waiting.iter().filter(to_server).count()
    }

    pub(super) fn on_served(&mut self, server: usize) {
        if !self.serve.contains(&server) {
            self.serve.push(server);
        }
    }

    pub(super) fn on_refused(&mut self, server: usize) {
        self.serve.retain(|s| *s != server);
    }

    /// A connection is lost.
    pub(super) fn on_lost(&mut self, now: Instant, conn: ConnId) {
        let Some(at) = self
            .waiting
            .iter()
            .position(|w| w.lease.channel.conn == conn)
        else {
            return;
        };
        let warm = self.waiting.remove(at);
        if now.saturating_since(warm.since) >= GOOD_LIFE {
            self.delay = MIN_DELAY;
        }
        self.back_off(now);
    }

    /// Opens nothing for a while.
    pub(super) fn back_off(&mut self, now: Instant) {
        self.retry_at = Some(now + self.delay);
        self.delay = (self.delay * 2).min(MAX_DELAY);
    }

    /// One that is of no use any more: too old, too slow, one too many, or to another server than
    /// `server`. Those are kept while they are `usable` and there is none in their place.
    pub(super) fn pop_useless(
        &mut self,
        now: Instant,
        server: Option<usize>,
        usable: impl Fn(usize) -> bool,
    ) -> Option<Warm> {
        let wanted = self.wanted(now, server);
        let age = self.settings.age;
        let to_server = |w: &Warm| server == Some(w.lease.server);
        let replaced = self.waiting.iter().any(|w| to_server(w) && w.is_ready());
        let keep = wanted > 0 && !replaced;
        let useless = |w: &Warm| {
            let kept = to_server(w) || keep && usable(w.lease.server);
            w.ends_at(age) <= now || !kept
        };
        let at = self.waiting.iter().position(useless);
        let too_many = server.is_some_and(|server| self.there(server) > KEPT * wanted);
        let oldest = self.waiting.iter().position(to_server);
        let at = at.or(oldest.filter(|_| too_many))?;
        let warm = self.waiting.remove(at);
        if !warm.is_ready() && warm.ends_at(age) <= now {
            self.back_off(now);
        }
        Some(warm)
    }

    /// Takes one to `server` out.
    pub(super) fn pop_to(&mut self, server: usize) -> Option<Warm> {
        let at = self.waiting.iter().position(|w| w.lease.server == server)?;
        Some(self.waiting.remove(at))
    }

    /// Whether to open another one.
    pub(super) fn lacks(&mut self, now: Instant, server: Option<usize>) -> bool {
        self.retry_at = self.retry_at.filter(|at| *at > now);
        let there = server.map_or(0, |server| self.there(server));
        there < self.wanted(now, server) && self.retry_at.is_none()
    }

    fn wanted(&self, now: Instant, server: Option<usize>) -> usize {
        match server {
            Some(server) if self.serve.contains(&server) => {
                let wanted = self.demand.wanted(now, self.settings.idle);
                wanted.min(self.settings.max)
            }
            _ => 0,
        }
    }

    /// When there is something to do, if nothing happens before.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let ends = self.waiting.iter().map(|w| w.ends_at(self.settings.age));
        let idle = (!self.waiting.is_empty()).then(|| self.demand.at + self.settings.idle);
        ends.chain(idle).chain(self.retry_at).min()
    }
}

/// The pools of connections that wait for users: to the server that is used most, and where short flows go to another
/// one, to that.
#[derive(Debug)]
pub(super) struct Pools {
    pub(super) all: [Pool; 2],
    /// Another server was chosen: connections to it are to follow.
    pub(super) changed: bool,
}

impl Pools {
    pub(super) fn new(settings: &Settings) -> Self {
        Pools {
            all: [(); 2].map(|()| Pool::new(settings.clone())),
            changed: false,
        }
    }

    /// Returns whether connections are to wait although they cost metered traffic.
    pub(super) fn use_metered(&self) -> bool {
        self.all.iter().all(|pool| pool.settings.metered)
    }

    /// The connection `conn`, and its pool.
    pub(super) fn find(&mut self, conn: ConnId) -> Option<(usize, &mut Warm)> {
        let mut pools = self.all.iter_mut().enumerate();
        pools.find_map(|(at, pool)| Some((at, pool.get_mut(conn)?)))
    }

    /// A server took this box for one of its users.
    pub(super) fn on_served(&mut self, server: usize) {
        for pool in &mut self.all {
            pool.on_served(server);
        }
    }

    /// Closes the connections to `server`.
    pub(super) fn give_up(&mut self, now: Instant, server: usize, stack: &mut Stack) {
        for pool in &mut self.all {
            while let Some(warm) = pool.pop_to(server) {
                stack.abort(now, warm.lease.channel.conn);
            }
        }
    }

    /// Closes connections that are of no use any more. `servers` has where those of each pool are to lead, if
    /// there are to be any, and `usable` says of each server whether it answers.
    pub(super) fn cool_down(
        &mut self,
        now: Instant,
        servers: [Option<usize>; 2],
        usable: &[bool],
        stack: &mut Stack,
    ) {
        for (pool, server) in self.all.iter_mut().zip(servers) {
            while let Some(warm) = pool.pop_useless(now, server, |s| usable[s]) {
                stack.abort(now, warm.lease.channel.conn);
            }
        }
    }

    /// Goes on with other settings, and with servers that are in other places: `moved` has where each is,
    /// if it is still there. Closes what leads nowhere any more.
    pub(super) fn reload(
        &mut self,
        now: Instant,
        settings: &Settings,
        moved: &[Option<usize>],
        stack: &mut Stack,
    ) {
        for pool in &mut self.all {
            for warm in pool.reload(settings.clone(), moved) {
                stack.abort(now, warm.lease.channel.conn);
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

    pub(super) fn status(&self) -> WarmStatus {
        let pools = self.all.iter().map(Pool::status);
        let all = pools.reduce(|sum, pool| WarmStatus {
            ready: sum.ready + pool.ready,
            opening: sum.opening + pool.opening,
            most: pool.most,
        });
        all.unwrap_or_default()
    }

    /// When there is something to do, if nothing happens before.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let changed = self.changed.then_some(Instant::ZERO);
        let pools = self.all.iter().filter_map(Pool::next_timeout);
        pools.chain(changed).min()
    }
}
