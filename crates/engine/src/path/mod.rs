//! The path manager of a connection: where its peer can be reached from here, what was tried, and
//! what is to be tried next and when. Which paths are wanted the strategy says.

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

/// Most paths shown to a strategy: those of higher number are not used.
const MAX_PATHS: usize = 32;

/// A local path and its state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    pub config: PathConfig,
    pub up: bool,
    /// Where peers reach it, IPv4 and IPv6, if they are to be told.
    pub announced: [Option<SocketAddr>; 2],
}

impl Path {
    /// A path that is up and of which nobody is told.
    pub fn new(config: PathConfig) -> Self {
        Path {
            config,
            up: true,
            announced: [None; 2],
        }
    }
}

/// What the path manager looks at when it plans.
pub(crate) struct Situation<'a> {
    pub paths: &'a [Path],
    pub records: &'a Records,
    pub blackholes: &'a Blackholes,
    pub stripped: &'a Blackholes,
    /// Subflows, those that are being opened included.
    pub in_use: ArrayVec<Target, MAX_PATHS>,
    /// The opener's third ACK, while it is not known to have arrived.
    pub third_ack: Option<ThirdAck>,
    /// As the strategy will see it, without its paths.
    pub view: OpenView<'static>,
}

/// The opener's third ACK under way. The peer refuses joins that come before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThirdAck {
    pub sent_at: Instant,
    pub rtt: Duration,
}

impl ThirdAck {
    /// When a join may leave on `path` so that it comes second, with an eighth of the round trip to
    /// spare. A path of which nothing is known is taken to be as long.
    fn lead(&self, path: &PathView) -> Instant {
        let rtt = path.record.map_or(self.rtt, |record| record.base_rtt);
        self.sent_at + (self.rtt + self.rtt / 4).saturating_sub(rtt) / 2
    }
}

/// Where a connection's subflows go.
#[derive(Debug)]
pub(crate) struct PathManager {
    remotes: Remotes,
    /// Own end of the initial subflow: the address whose id is 0 (RFC 8684 section 3.2).
    home: Option<SocketAddr>,
    /// Source of the initial subflow, where one was chosen.
    source: Option<SocketAddr>,
    /// Path of the initial subflow, where one was named.
    asked: Option<PathId>,
    /// The first SYN leaves there.
    insists: bool,
    protocol: Protocol,
    attempts: Attempts,
    /// Paths on which a SYN with MP_CAPABLE left.
    offered: ArrayVec<PathId, MAX_PATHS>,
    /// Paths on which a join was refused that may have come before the third ACK.
    early: ArrayVec<PathId, MAX_PATHS>,
    /// What is tried next, and when.
    next: Option<(Target, Instant)>,
}

impl PathManager {
    /// Of a connection that `remote` opened.
    pub fn accepted(remote: SocketAddr) -> Self {
        PathManager {
            remotes: Remotes::new(remote, None),
            home: None,
            source: None,
            asked: None,
            insists: false,
            protocol: Protocol::Mptcp,
            attempts: Attempts::default(),
            offered: ArrayVec::new(),
            early: ArrayVec::new(),
            next: None,
        }
    }

    /// Of a connection that is opened here.
    pub fn opened(options: &ConnectOptions) -> Self {
        PathManager {
            remotes: Remotes::new(options.remote, options.remote_alt),
            source: options.local,
            asked: options.path,
            insists: options.insist,
            protocol: options.protocol,
            ..PathManager::accepted(options.remote)
        }
    }

    /// The peer's address, as the connection was opened.
    pub fn remote(&self) -> SocketAddr {
        self.remotes.initial()
    }

    /// The connection opens from `local`.
    pub fn set_home(&mut self, local: SocketAddr) {
        self.home = Some(local);
    }

    /// Own end of the initial subflow.
    pub fn home(&self) -> Option<SocketAddr> {
        self.home
    }

    /// The id of an address of ours: 0 is that of the initial subflow, the others are numbered by
    /// path and family (RFC 8684 section 3.2).
    // Conforms: 8684-3.2-4, 8684-3.2-5, 8684-3.4.1-8
    pub fn own_id(&self, path: PathId, addr: IpAddr) -> u8 {
        match self.home.is_some_and(|home| home.ip() == addr) {
            true => 0,
            false => path
                .0
                .wrapping_mul(2)
                .wrapping_add(1 + u8::from(addr.is_ipv6())),
        }
    }

    /// Both ends of the subflow on `path` that opens the connection; the port of our own is 0 where
    /// it may be any.
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

    /// Whether a subflow can be opened on `path`.
    pub fn reaches(&self, path: &Path) -> bool {
        path.up && path.config.towards(self.remotes.joinable()).is_some()
    }

    /// Whether a subflow to `to` may be opened on `path`, now or later.
    fn may_try(&self, (id, path): (PathId, &Path), to: SocketAddr) -> bool {
        let possible = path.up && path.config.towards([to]).is_some();
        possible && self.attempts.not_before((id, to)).is_some()
    }

    /// Whether a subflow is missing that can be opened: a path has none, or an address that the peer
    /// announced. Cheaper than to look at the whole situation.
    pub fn lacks(&self, paths: &[Path], in_use: impl Iterator<Item = Target> + Clone) -> bool {
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

    /// The initial subflow stays on the path it was opened on.
    fn is_pinned(&self) -> bool {
        self.source.is_some() || (self.asked.is_some() && self.protocol == Protocol::Tcp)
    }

    /// Where the connection opens; `unanswered` is where it was tried in vain. `None` where there is
    /// no path, or none other.
    pub fn open(
        &self,
        strategy: &mut dyn Strategy,
        unanswered: Option<PathId>,
        situation: &Situation<'_>,
    ) -> Option<Opening> {
        let insists = self.insists && unanswered.is_none();
        let asked = self.asked.filter(|_| insists || self.is_pinned());
        let pinned = asked.map(|path| Opening {
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
            asked: self
                .asked
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

    /// Returns whether connections that opened there lately are regular TCP: the network drops SYNs
    /// with MP_CAPABLE, or takes the option out.
    fn is_plain(&self, path: PathId, situation: &Situation<'_>) -> bool {
        let (now, paths) = (situation.view.now, situation.paths);
        let config = paths.get(usize::from(path.0)).map(|path| path.config);
        let peer = config.and_then(|config| config.towards(self.remotes.known()));
        peer.is_some_and(|(_, peer)| {
            let holds = |found: &Blackholes| found.swallow(now, peer.ip(), path);
            holds(situation.blackholes) || holds(situation.stripped)
        })
    }

    /// How long the SYN on `path` may go unanswered before another one leaves beside it.
    pub fn patience(
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
        let patience = strategy.patience(&view, shown);
        patience.filter(|_| !self.is_pinned())
    }

    /// The paths that can be used.
    fn show(&self, situation: &Situation<'_>) -> ArrayVec<PathView, MAX_PATHS> {
        let paths = (0..).map(PathId).zip(situation.paths);
        paths
            .filter(|(_, path)| self.reaches(path))
            .take(MAX_PATHS)
            .map(|(id, path)| PathView {
                id,
                backup: path.config.backup,
                in_use: situation.in_use.iter().any(|(used, _)| *used == id),
                record: path
                    .config
                    .towards(self.remotes.joinable())
                    .and_then(|(_, peer)| situation.records.get(peer.ip(), id)),
            })
            .collect()
    }

    /// Decides what is tried next. A connection without a subflow gets one whatever the strategy says: it
    /// would hang otherwise.
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

    /// Returns whether a connection without a subflow can get none: each target that it can reach has
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

    /// From when on a join is to be tried; `None` where there is no more to be had.
    fn not_before(&self, target: Target) -> Option<Instant> {
        let at = self.attempts.not_before(target)?;
        Some(at.max(self.remotes.not_before(target.1)))
    }

    /// Subflows that there may be beside those there are: one on each path that has none, to the
    /// address that failed least; and one to each announced address that has none, from the path
    /// that has the fewest.
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

    /// Nothing is to be tried.
    pub fn rest(&mut self) {
        self.next = None;
    }

    /// When something is to be tried.
    pub fn next_at(&self) -> Option<Instant> {
        self.next.map(|(_, at)| at)
    }

    /// The subflow to open now, if any; [`Self::plan`] says what comes after it.
    pub fn take_due(&mut self, now: Instant) -> Option<Target> {
        let (target, _) = self.next.take_if(|(_, at)| *at <= now)?;
        Some(target)
    }

    /// A subflow ended unwanted. Where the peer has withdrawn its address since, none is to be tried
    /// there and nothing to be remembered.
    pub fn on_failure(&mut self, now: Instant, target: Target, failure: Failure) {
        if self.remotes.has(target.1) {
            self.attempts.on_failure(now, target, failure);
        }
    }

    /// A SYN with MP_CAPABLE leaves on `path`.
    pub fn on_offer(&mut self, path: PathId) {
        if !self.was_offered(path) && !self.offered.is_full() {
            self.offered.push(path);
        }
    }

    /// Whether one left there: only then it tells anything of the network that another kind of SYN
    /// was answered.
    pub fn was_offered(&self, path: PathId) -> bool {
        self.offered.contains(&path)
    }

    /// A join on `path` was refused before the peer was known to have the third ACK: it is tried
    /// again when that is known.
    pub fn on_early_refusal(&mut self, path: PathId) {
        if !self.early.contains(&path) && !self.early.is_full() {
            self.early.push(path);
        }
    }

    /// The path came up: forget its failures.
    pub fn retry_now(&mut self, path: PathId) {
        self.attempts.forget_path(path);
    }

    /// The peer takes no further subflows at the address it was opened with.
    pub fn deny_initial(&mut self) {
        self.remotes.deny_initial();
    }

    /// The peer announces an address of its own (RFC 8684 section 3.4.1).
    pub fn on_announced(&mut self, now: Instant, id: u8, addr: SocketAddr) {
        if let Some(before) = self.remotes.learn(now, id, addr) {
            self.attempts.forget_remote(before);
        }
    }

    /// The peer withdraws its address number `id` (RFC 8684 section 3.4.2): which it is, where that
    /// is known. What failed at the address the connection was opened with stays in mind.
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

    /// What can never be joined is not looked at again and again.
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
        assert!(manager.lacks(&paths, [].into_iter()));
        let used = [(PathId(0), initial)];
        assert!(!manager.lacks(&paths, used.into_iter()));
        manager.on_announced(now, 1, "[2001:db8::1]:80".parse().unwrap());
        assert!(!manager.lacks(&paths, used.into_iter()));
        let other = SocketAddr::from(([192, 0, 2, 2], 80));
        manager.on_announced(now, 2, other);
        assert!(manager.lacks(&paths, used.into_iter()));
        for _ in 0..8 {
            manager.on_failure(now, (PathId(0), other), Failure::Refused);
        }
        assert!(!manager.lacks(&paths, used.into_iter()));
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
        // The initial address is there to be joined again once it is announced.
        paths.on_withdrawn(0);
        paths.on_failure(now, (path, initial), Failure::Unanswered);
        assert!(paths.attempts.not_before((path, initial)) > Some(now));
    }
}
