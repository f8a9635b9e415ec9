//! The path manager of a connection: the peer's addresses that can be reached from here, the failed
//! attempts, and the next attempt and its time. The strategy decides which paths are wanted.

mod attempts;
mod blackholes;
mod claim;
mod fast_open;
mod record;
mod remotes;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use arrayvec::ArrayVec;
use braid_wire::Instant;

use self::attempts::Attempts;
use self::remotes::Remotes;
use crate::strategy::{OpenView, Opening, PathView, Strategy};
use crate::{ApiError, ConnectOptions, PathConfig, PathId, Protocol};

pub(crate) use attempts::{Failure, Target};
pub(crate) use blackholes::Blackholes;
pub(crate) use claim::Claims;
pub(crate) use fast_open::{FastOpens, Grant};
pub use record::PathRecord;
pub(crate) use record::Records;

/// The most paths shown to a strategy; paths of higher number are not used.
const MAX_PATHS: usize = 32;

/// A local path and its state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    pub config: PathConfig,
    pub up: bool,
    /// The addresses at which peers reach it, IPv4 and IPv6, if they are to be announced.
    pub announced: [Option<SocketAddr>; 2],
}

impl Path {
    /// Creates a path that is up and not announced.
    pub fn new(config: PathConfig) -> Self {
        Path {
            config,
            up: true,
            announced: [None; 2],
        }
    }
}

/// The situation in which the path manager plans.
pub(crate) struct Situation<'a> {
    pub paths: &'a [Path],
    pub records: &'a Records,
    pub blackholes: &'a Blackholes,
    pub stripped: &'a Blackholes,
    /// The targets of the subflows, including those being opened.
    pub in_use: ArrayVec<Target, MAX_PATHS>,
    /// The opener's third ACK, while it is not known to have arrived.
    pub third_ack: Option<ThirdAck>,
    /// The strategy's view, without its paths.
    pub view: OpenView<'static>,
}

/// The opener's third ACK under way. The peer refuses joins that arrive before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThirdAck {
    pub sent_at: Instant,
    pub rtt: Duration,
}

impl ThirdAck {
    /// Returns the time at which a join may leave on `path` so that it arrives second, with an eighth of
    /// the round trip to spare. An unknown path is assumed to be as long.
    fn lead(&self, path: &PathView) -> Instant {
        let rtt = path.record.map_or(self.rtt, |record| record.base_rtt);
        self.sent_at + (self.rtt + self.rtt / 4).saturating_sub(rtt) / 2
    }
}

/// The path manager of a connection.
#[derive(Debug)]
pub(crate) struct PathManager {
    remotes: Remotes,
    /// Our end of the initial subflow: the address whose id is 0 (RFC 8684 section 3.2).
    initial_local: Option<SocketAddr>,
    /// The source address of the initial subflow, if one was chosen.
    source: Option<SocketAddr>,
    /// The path of the initial subflow, if one was named.
    requested: Option<PathId>,
    /// Set if the first SYN must leave on the named path.
    pins_requested: bool,
    protocol: Protocol,
    attempts: Attempts,
    /// The paths on which a SYN with MP_CAPABLE left.
    offered: ArrayVec<PathId, MAX_PATHS>,
    /// The paths on which a join was refused that may have arrived before the third ACK.
    early: ArrayVec<PathId, MAX_PATHS>,
    /// The next target, and the time at which it is tried.
    next: Option<(Target, Instant)>,
}

impl PathManager {
    /// Creates the path manager of a connection that `remote` opened.
    pub fn accepted(remote: SocketAddr) -> Self {
        PathManager {
            remotes: Remotes::new(remote, None),
            initial_local: None,
            source: None,
            requested: None,
            pins_requested: false,
            protocol: Protocol::Mptcp,
            attempts: Attempts::default(),
            offered: ArrayVec::new(),
            early: ArrayVec::new(),
            next: None,
        }
    }

    /// Creates the path manager of a connection that is opened here.
    pub fn opened(options: &ConnectOptions) -> Self {
        PathManager {
            remotes: Remotes::new(options.remote, options.remote_alt),
            source: options.local,
            requested: options.path,
            pins_requested: options.pin_path,
            protocol: options.protocol,
            ..PathManager::accepted(options.remote)
        }
    }

    /// Returns the peer's address as the connection was opened.
    pub fn remote(&self) -> SocketAddr {
        self.remotes.initial()
    }

    /// Notes that the connection opens from `local`.
    pub fn set_initial_local(&mut self, local: SocketAddr) {
        self.initial_local = Some(local);
    }

    /// Returns our end of the initial subflow.
    pub fn initial_local(&self) -> Option<SocketAddr> {
        self.initial_local
    }

    /// Returns the id of an address of ours: 0 for the initial subflow's, the others are numbered by path
    /// and family (RFC 8684 section 3.2).
    // Conforms: 8684-3.2-4, 8684-3.2-5, 8684-3.4.1-8
    pub fn own_id(&self, path: PathId, addr: IpAddr) -> u8 {
        match self.initial_local.is_some_and(|local| local.ip() == addr) {
            true => 0,
            false => path
                .0
                .wrapping_mul(2)
                .wrapping_add(1 + u8::from(addr.is_ipv6())),
        }
    }

    /// Returns both ends of the subflow on `path` that opens the connection; our own port is 0 if any will
    /// do.
    pub fn ends(&self, path: &PathConfig) -> Result<(SocketAddr, SocketAddr), ApiError> {
        let (own, remote) = path
            .towards(self.remotes.known())
            .ok_or(ApiError::NoUsablePath)?;
        let local = self.source.unwrap_or(SocketAddr::new(own, 0));
        match local.is_ipv4() == remote.is_ipv4() {
            true => Ok((local, remote)),
            false => Err(ApiError::NoUsablePath),
        }
    }

    /// Returns whether a subflow can be opened on `path`.
    pub fn reaches(&self, path: &Path) -> bool {
        path.up && path.config.towards(self.remotes.joinable()).is_some()
    }

    /// Returns whether a subflow to `to` may be opened on `path`, now or later.
    fn may_try(&self, (id, path): (PathId, &Path), to: SocketAddr) -> bool {
        let possible = path.up && path.config.towards([to]).is_some();
        possible && self.attempts.not_before((id, to)).is_some()
    }

    /// Returns whether a subflow is missing that can be opened: on a path that has none, or to an address
    /// that the peer announced. Cheaper than to collect the whole situation.
    pub fn is_subflow_missing(
        &self,
        paths: &[Path],
        in_use: impl Iterator<Item = Target> + Clone,
    ) -> bool {
        let paths = (0..).map(PathId).zip(paths);
        let mut free = paths
            .clone()
            .filter(|(id, _)| in_use.clone().all(|(at, _)| at != *id));
        let mut announced = self.remotes.announced();
        free.any(|path| self.remotes.joinable().any(|to| self.may_try(path, to)))
            || announced.any(|remote| {
                in_use.clone().all(|(_, to)| to != remote)
                    && paths.clone().any(|path| self.may_try(path, remote))
            })
    }

    /// Returns whether the initial subflow must stay on the path it was opened on.
    fn is_pinned(&self) -> bool {
        self.source.is_some() || (self.requested.is_some() && self.protocol == Protocol::Tcp)
    }

    /// Returns the path and protocol with which the connection opens; `unanswered` is the path that was
    /// tried in vain. `None` if there is no path, or no other one.
    pub fn open(
        &self,
        strategy: &mut dyn Strategy,
        unanswered: Option<PathId>,
        situation: &Situation<'_>,
    ) -> Option<Opening> {
        let pins_requested = self.pins_requested && unanswered.is_none();
        let requested = self
            .requested
            .filter(|_| pins_requested || self.is_pinned());
        let pinned = requested.map(|path| Opening {
            path,
            protocol: self.protocol,
        });
        if unanswered.is_some() && self.is_pinned() {
            return None;
        }
        let mut paths = self.show(situation);
        let plain = |path: &PathView| self.is_plain(path.id, situation);
        if !paths.iter().all(plain) {
            paths.retain(|path| !plain(path));
        }
        let view = OpenView {
            paths: &paths,
            requested: self
                .requested
                .filter(|path| paths.iter().any(|p| p.id == *path)),
            unanswered,
            ..situation.view
        };
        let mut opening = pinned.or_else(|| strategy.open(&view))?;
        if self.protocol == Protocol::Tcp {
            opening.protocol = Protocol::Tcp;
        }
        (unanswered != Some(opening.path)).then_some(opening)
    }

    /// Returns whether connections that opened there lately are regular TCP, because the network drops SYNs
    /// with MP_CAPABLE or strips the option.
    fn is_plain(&self, path: PathId, situation: &Situation<'_>) -> bool {
        let (now, paths) = (situation.view.now, situation.paths);
        let config = paths.get(usize::from(path.0)).map(|path| path.config);
        let peer = config.and_then(|config| config.towards(self.remotes.known()));
        peer.is_some_and(|(_, peer)| {
            let holds = |found: &Blackholes| found.contains(now, peer.ip(), path);
            holds(situation.blackholes) || holds(situation.stripped)
        })
    }

    /// Returns the time for which the SYN on `path` may go unanswered before another one leaves beside it.
    pub fn attempt_delay(
        &self,
        strategy: &dyn Strategy,
        path: PathId,
        situation: &Situation<'_>,
    ) -> Option<Duration> {
        let paths = self.show(situation);
        let view = OpenView {
            paths: &paths,
            ..situation.view
        };
        let shown = paths.iter().find(|p| p.id == path)?;
        let attempt_delay = strategy.attempt_delay(&view, shown);
        attempt_delay.filter(|_| !self.is_pinned())
    }

    /// Returns the usable paths as a strategy sees them.
    fn show(&self, situation: &Situation<'_>) -> ArrayVec<PathView, MAX_PATHS> {
        let paths = (0..).map(PathId).zip(situation.paths);
        paths
            .filter(|(_, path)| self.reaches(path))
            .take(MAX_PATHS)
            .map(|(id, path)| PathView {
                backup: path.config.backup,
                in_use: situation.in_use.iter().any(|(used, _)| *used == id),
                record: path
                    .config
                    .towards(self.remotes.joinable())
                    .and_then(|(_, peer)| situation.records.get(peer.ip(), id)),
                ..PathView::new(id)
            })
            .collect()
    }

    /// Plans the next attempt. A connection without a subflow gets one whatever the strategy says:
    /// otherwise it would hang.
    pub fn plan(&mut self, strategy: &mut dyn Strategy, situation: &Situation<'_>) {
        let paths = self.show(situation);
        let at_once = situation.in_use.is_empty().then_some(situation.view.now);
        let view = OpenView {
            paths: &paths,
            ..situation.view
        };
        let wanted = self
            .missing(&paths, situation)
            .filter_map(|(path, remote)| {
                let wanted = at_once.or_else(|| strategy.join(&view, path))?;
                let lead = situation.third_ack.map(|ack| ack.lead(path));
                let target = (path.id, remote);
                let at = wanted.max(self.not_before(target)?);
                Some((target, at.max(lead.unwrap_or(at))))
            });
        self.next = wanted.min_by_key(|(_, at)| *at);
    }

    /// Returns whether a connection without a subflow cannot get any: every target that it can reach
    /// refused the last subflow, as a server does that has lost the connection.
    pub fn is_refused(&self, situation: &Situation<'_>) -> bool {
        let paths = self.show(situation);
        let targets = paths.iter().flat_map(|path| {
            let local = &situation.paths[usize::from(path.id.0)];
            let remotes = self.remotes.joinable();
            let remotes = remotes.filter(move |to| self.may_try((path.id, local), *to));
            remotes.map(|to| (path.id, to))
        });
        let mut targets = targets.peekable();
        let none_in_use = situation.in_use.is_empty() && targets.peek().is_some();
        none_in_use && targets.all(|target| self.attempts.is_refused(target))
    }

    /// Returns the time from which on a join may be tried; `None` if the target was refused too often.
    fn not_before(&self, target: Target) -> Option<Instant> {
        let at = self.attempts.not_before(target)?;
        Some(at.max(self.remotes.not_before(target.1)))
    }

    /// Returns the possible further subflows: one on each path that has none, to the address that failed
    /// least; and one to each announced address that has none, from the path that has the fewest.
    fn missing<'a>(
        &'a self,
        paths: &'a [PathView],
        situation: &'a Situation<'_>,
    ) -> impl Iterator<Item = (&'a PathView, SocketAddr)> {
        let waits = |id| situation.third_ack.is_some() && self.early.contains(&id);
        let may = move |path: &PathView, to: &SocketAddr| {
            let local = &situation.paths[usize::from(path.id.0)];
            !waits(path.id) && self.may_try((path.id, local), *to)
        };
        let free = paths.iter().filter(|path| !path.in_use);
        let for_paths = free.filter_map(move |path| {
            let remotes = self.remotes.joinable().filter(|to| may(path, to));
            let best = remotes.min_by_key(|to| self.not_before((path.id, *to)));
            best.map(|to| (path, to))
        });
        let used = |to| situation.in_use.iter().any(|(_, used)| *used == to);
        let announced = self.remotes.announced().filter(move |to| !used(*to));
        let for_addresses = announced.filter_map(move |to| {
            let subflows = |path: &&PathView| {
                let on = situation.in_use.iter().filter(|(id, _)| *id == path.id);
                on.count()
            };
            let from = paths.iter().filter(|path| may(path, &to));
            from.min_by_key(subflows).map(|path| (path, to))
        });
        for_paths.chain(for_addresses)
    }

    /// Cancels the planned attempt.
    pub fn rest(&mut self) {
        self.next = None;
    }

    /// Returns the time of the planned attempt.
    pub fn next_at(&self) -> Option<Instant> {
        self.next.map(|(_, at)| at)
    }

    /// Returns the subflow to open now, if any; [`Self::plan`] plans the next one.
    pub fn take_due(&mut self, now: Instant) -> Option<Target> {
        let (target, _) = self.next.take_if(|(_, at)| *at <= now)?;
        Some(target)
    }

    /// Notes that a wanted subflow ended. If the peer has withdrawn its address since, no attempt there
    /// follows, and the failure is not recorded.
    pub fn on_failure(&mut self, now: Instant, target: Target, failure: Failure) {
        if self.remotes.has(target.1) {
            self.attempts.on_failure(now, target, failure);
        }
    }

    /// Notes that a SYN with MP_CAPABLE leaves on `path`.
    pub fn on_offer(&mut self, path: PathId) {
        if !self.was_offered(path) && !self.offered.is_full() {
            self.offered.push(path);
        }
    }

    /// Returns whether a SYN with MP_CAPABLE left on `path`. Only then does an answer to another kind of
    /// SYN say anything about the network.
    pub fn was_offered(&self, path: PathId) -> bool {
        self.offered.contains(&path)
    }

    /// Notes that a join on `path` was refused before the peer was known to have the third ACK. It is tried
    /// again once that is known.
    pub fn on_early_refusal(&mut self, path: PathId) {
        if !self.early.contains(&path) && !self.early.is_full() {
            self.early.push(path);
        }
    }

    /// Forgets the failures of a path that came up.
    pub fn retry_now(&mut self, path: PathId) {
        self.attempts.forget_path(path);
    }

    /// Notes that the peer accepts no further subflows at the address the connection was opened with.
    pub fn deny_initial(&mut self) {
        self.remotes.deny_initial();
    }

    /// Handles an address that the peer announces (RFC 8684 section 3.4.1).
    pub fn on_announced(&mut self, now: Instant, id: u8, addr: SocketAddr) {
        if let Some(before) = self.remotes.learn(now, id, addr) {
            self.attempts.forget_remote(before);
        }
    }

    /// Handles the withdrawal of the peer's address number `id` (RFC 8684 section 3.4.2), and returns the
    /// address if it is known. Failures at the address the connection was opened with stay recorded.
    pub fn on_withdrawn(&mut self, id: u8) -> Option<SocketAddr> {
        let addr = self.remotes.forget(id)?;
        if !self.remotes.has(addr) {
            self.attempts.forget_remote(addr);
        }
        Some(addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target that can never be joined is not tried again and again.
    #[test]
    fn nothing_lacks_that_cannot_be_opened() {
        let now = Instant::from_millis(1_000);
        let initial = SocketAddr::from(([192, 0, 2, 1], 80));
        let mut manager = PathManager::accepted(initial);
        let paths = [Path {
            config: PathConfig::v4(core::net::Ipv4Addr::new(10, 0, 0, 1)),
            up: true,
            announced: [None; 2],
        }];
        assert!(manager.is_subflow_missing(&paths, [].into_iter()));
        let used = [(PathId(0), initial)];
        assert!(!manager.is_subflow_missing(&paths, used.into_iter()));
        manager.on_announced(now, 1, "[2001:db8::1]:80".parse().unwrap());
        assert!(!manager.is_subflow_missing(&paths, used.into_iter()));
        let other = SocketAddr::from(([192, 0, 2, 2], 80));
        manager.on_announced(now, 2, other);
        assert!(manager.is_subflow_missing(&paths, used.into_iter()));
        for _ in 0..8 {
            manager.on_failure(now, (PathId(0), other), Failure::Refused);
        }
        assert!(!manager.is_subflow_missing(&paths, used.into_iter()));
    }

    /// A join that was under way when its address was withdrawn leaves nothing behind.
    #[test]
    fn nothing_is_remembered_of_an_address_that_is_gone() {
        let (now, path) = (Instant::from_millis(1_000), PathId(0));
        let [initial, other] = [1, 2].map(|n| SocketAddr::from(([192, 0, 2, n], 80)));
        let mut paths = PathManager::accepted(initial);
        paths.on_announced(now, 5, other);
        paths.on_failure(now, (path, other), Failure::Unanswered);
        assert!(paths.attempts.not_before((path, other)) > Some(now));
        assert_eq!(paths.on_withdrawn(5), Some(other));
        paths.on_failure(now, (path, other), Failure::Unanswered);
        let forgotten = Some(Instant::ZERO);
        assert_eq!(paths.attempts.not_before((path, other)), forgotten);
        // The initial address may be joined again once it is announced.
        paths.on_withdrawn(0);
        paths.on_failure(now, (path, initial), Failure::Unanswered);
        assert!(paths.attempts.not_before((path, initial)) > Some(now));
    }
}
