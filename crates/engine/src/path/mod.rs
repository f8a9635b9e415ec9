//! The path manager of a connection: the reachable addresses of the peer, the failed attempts, and the next
//! attempt with its time. The strategy decides which paths get a subflow.

mod attempts;
mod blackholes;
mod claim;
mod fast_open;
mod load;
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
pub(crate) use claim::{Claim, Claims};
pub(crate) use fast_open::{FastOpens, Grant};
pub(crate) use load::{Load, Loads, Part};
pub use record::PathRecord;
pub(crate) use record::Records;

/// The maximum number of paths shown to a strategy; further paths are not used. The value is a guess: hosts have
/// fewer links.
const MAX_PATHS: usize = 32;

/// A local path and its state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    pub config: PathConfig,
    pub up: bool,
    /// The addresses (IPv4 and IPv6) at which peers can reach the path; `None` for an address that is not to be
    /// announced.
    pub announced: [Option<SocketAddr>; 2],
}

impl Path {
    /// Creates a path that is up and whose addresses are not announced.
    pub fn new(config: PathConfig) -> Self {
        Path {
            config,
            up: true,
            announced: [None; 2],
        }
    }
}

/// The state of the connection and the stack that the path manager's decisions depend on.
pub(crate) struct Situation<'a> {
    pub paths: &'a [Path],
    pub records: &'a Records,
    pub loads: &'a Loads,
    /// The paths on which the network drops SYNs with MP_CAPABLE.
    pub blackholes: &'a Blackholes,
    /// The paths on which the network strips MP_CAPABLE.
    pub stripped: &'a Blackholes,
    /// The targets of the subflows, including subflows that are being opened.
    pub in_use: ArrayVec<Target, MAX_PATHS>,
    /// The opener's third ACK while it may still be on its way; otherwise `None`.
    pub third_ack: Option<ThirdAck>,
    /// The view for the strategy. The path manager adds the paths.
    pub view: OpenView<'static>,
}

/// The opener's third ACK on its way to the peer. The peer refuses joins that arrive before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThirdAck {
    pub sent_at: Instant,
    pub rtt: Duration,
}

impl ThirdAck {
    /// Returns the earliest time at which a join sent on `path` arrives after the third ACK. A margin covers
    /// jitter: an eighth of the third ACK's round trip, which is a guess. If `path` has no record, its round trip
    /// counts as equal to that of the third ACK.
    fn earliest_join(&self, path: &PathView) -> Instant {
        let rtt = path.record.map_or(self.rtt, |record| record.base_rtt);
        // One way takes half of a round trip: the third ACK takes rtt / 2 + rtt / 8, and the join's own way is
        // subtracted.
        self.sent_at + (self.rtt + self.rtt / 4).saturating_sub(rtt) / 2
    }
}

/// The path manager of a connection.
#[derive(Debug)]
pub(crate) struct PathManager {
    remotes: Remotes,
    /// The local address of the initial subflow, whose id is 0 (RFC 8684 section 3.2).
    initial_local: Option<SocketAddr>,
    /// The source address of the initial subflow, if the caller chose one.
    source: Option<SocketAddr>,
    /// The path of the initial subflow, if the caller named one.
    requested: Option<PathId>,
    /// True if the first SYN must be sent on the requested path.
    pins_requested: bool,
    protocol: Protocol,
    attempts: Attempts,
    /// The paths on which a SYN with MP_CAPABLE was sent.
    offered: ArrayVec<PathId, MAX_PATHS>,
    /// The paths on which a join was refused, perhaps because it had overtaken the third ACK.
    refused_early: ArrayVec<PathId, MAX_PATHS>,
    /// The target of the planned attempt and its time.
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
            refused_early: ArrayVec::new(),
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

    /// Returns the peer's address that the connection was opened with.
    pub fn remote(&self) -> SocketAddr {
        self.remotes.initial()
    }

    /// Notes that the connection opens from `local`.
    pub fn set_initial_local(&mut self, local: SocketAddr) {
        self.initial_local = Some(local);
    }

    /// Returns the local address of the initial subflow.
    pub fn initial_local(&self) -> Option<SocketAddr> {
        self.initial_local
    }

    /// Returns the id of a local address: 0 for the address of the initial subflow; the others are numbered by
    /// path and family (RFC 8684 section 3.2).
    // Conforms: 8684-3.2-4, 8684-3.2-5, 8684-3.4.1-8
    pub fn own_id(&self, path: PathId, addr: IpAddr) -> u8 {
        match self.initial_local.is_some_and(|local| local.ip() == addr) {
            true => 0,
            // The ids of the first 127 paths differ from each other and from 0. Hosts have fewer links.
            false => path
                .0
                .wrapping_mul(2)
                .wrapping_add(1 + u8::from(addr.is_ipv6())),
        }
    }

    /// Returns the local and the remote address of the initial subflow on `path`. The local port is 0 if the
    /// stack is to choose it.
    pub fn ends(&self, path: &PathConfig) -> Result<(SocketAddr, SocketAddr), ApiError> {
        let (local_ip, remote) = path
            .towards(self.remotes.known())
            .ok_or(ApiError::NoUsablePath)?;
        let local = self.source.unwrap_or(SocketAddr::new(local_ip, 0));
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
        let is_reachable = path.up && path.config.towards([to]).is_some();
        is_reachable && self.attempts.not_before((id, to)).is_some()
    }

    /// Returns whether a further subflow can be opened: on a path without a subflow, or to an announced address
    /// without a subflow. This is cheaper than collecting a [`Situation`] for [`plan`](Self::plan).
    pub fn is_subflow_missing(
        &self,
        paths: &[Path],
        in_use: impl Iterator<Item = Target> + Clone,
    ) -> bool {
        let paths = (0..).map(PathId).zip(paths);
        let mut free_paths = paths
            .clone()
            .filter(|(id, _)| in_use.clone().all(|(used, _)| used != *id));
        let mut announced = self.remotes.announced();
        free_paths.any(|path| self.remotes.joinable().any(|to| self.may_try(path, to)))
            || announced.any(|remote| {
                in_use.clone().all(|(_, to)| to != remote)
                    && paths.clone().any(|path| self.may_try(path, remote))
            })
    }

    /// Returns whether the first SYN may not be retried on another path: the caller chose the source address, or
    /// a path for a regular TCP connection, which cannot add paths.
    fn is_pinned(&self) -> bool {
        self.source.is_some() || (self.requested.is_some() && self.protocol == Protocol::Tcp)
    }

    /// Returns the path and protocol with which the connection opens; `unanswered` is the path on which a SYN got
    /// no answer. Returns `None` if no path, or no path other than `unanswered`, is left.
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
        let mut paths = self.usable_paths(situation);
        // If any path can open an MPTCP connection, the paths that cannot are left out.
        let is_tcp_only = |path: &PathView| self.is_tcp_only(path.id, situation);
        if !paths.iter().all(is_tcp_only) {
            paths.retain(|path| !is_tcp_only(path));
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

    /// Returns whether a connection opened on `path` would become regular TCP, because the network was seen to
    /// drop SYNs with MP_CAPABLE or to strip the option.
    fn is_tcp_only(&self, path: PathId, situation: &Situation<'_>) -> bool {
        let (now, paths) = (situation.view.now, situation.paths);
        let config = paths.get(usize::from(path.0)).map(|path| path.config);
        let peer = config.and_then(|config| config.towards(self.remotes.known()));
        peer.is_some_and(|(_, peer)| {
            let is_in = |table: &Blackholes| table.contains(now, peer.ip(), path);
            is_in(situation.blackholes) || is_in(situation.stripped)
        })
    }

    /// Returns the time for which the SYN on `path` may remain unanswered before another SYN is sent in parallel
    /// (as in Happy Eyeballs, RFC 8305); `None` if no parallel SYN is sent.
    pub fn attempt_delay(
        &self,
        strategy: &dyn Strategy,
        path: PathId,
        situation: &Situation<'_>,
    ) -> Option<Duration> {
        let paths = self.usable_paths(situation);
        let view = OpenView {
            paths: &paths,
            ..situation.view
        };
        let path_view = paths.iter().find(|p| p.id == path)?;
        let attempt_delay = strategy.attempt_delay(&view, path_view);
        attempt_delay.filter(|_| !self.is_pinned())
    }

    /// Returns the usable paths in the form that strategies use.
    fn usable_paths(&self, situation: &Situation<'_>) -> ArrayVec<PathView, MAX_PATHS> {
        let paths = (0..).map(PathId).zip(situation.paths);
        paths
            .filter(|(_, path)| self.reaches(path))
            .take(MAX_PATHS)
            .map(|(id, path)| {
                let link = path.config.towards(self.remotes.joinable());
                let link = link.map(|(_, peer)| (peer.ip(), id));
                PathView {
                    backup: path.config.backup,
                    in_use: situation.in_use.iter().any(|(used, _)| *used == id),
                    record: link.and_then(|(peer, id)| situation.records.get(peer, id)),
                    openings: link.map_or(0, |link| situation.loads.openings(link)),
                    ..PathView::new(id)
                }
            })
            .collect()
    }

    /// Plans the next attempt. A connection without a subflow gets one even if the strategy wants none;
    /// otherwise the connection would hang.
    pub fn plan(&mut self, strategy: &mut dyn Strategy, situation: &Situation<'_>) {
        let paths = self.usable_paths(situation);
        let at_once = situation.in_use.is_empty().then_some(situation.view.now);
        let view = OpenView {
            paths: &paths,
            ..situation.view
        };
        let candidates = self
            .missing(&paths, situation)
            .filter_map(|(path, remote)| {
                let wanted = at_once.or_else(|| strategy.join(&view, path))?;
                let earliest = situation.third_ack.map(|ack| ack.earliest_join(path));
                let target = (path.id, remote);
                let at = wanted.max(self.not_before(target)?);
                Some((target, at.max(earliest.unwrap_or(at))))
            });
        self.next = candidates.min_by_key(|(_, at)| *at);
    }

    /// Returns whether a connection without a subflow cannot get one, because all reachable targets refused the
    /// last attempt. A server that has lost the connection, for instance by a restart, refuses all attempts.
    pub fn is_refused(&self, situation: &Situation<'_>) -> bool {
        let paths = self.usable_paths(situation);
        let targets = paths.iter().flat_map(|path| {
            let local = &situation.paths[usize::from(path.id.0)];
            let remotes = self.remotes.joinable();
            let remotes = remotes.filter(move |to| self.may_try((path.id, local), *to));
            remotes.map(|to| (path.id, to))
        });
        let mut targets = targets.peekable();
        let has_only_targets = situation.in_use.is_empty() && targets.peek().is_some();
        has_only_targets && targets.all(|target| self.attempts.is_refused(target))
    }

    /// Returns the earliest time of a join to `target`; `None` if the target refused too often.
    fn not_before(&self, target: Target) -> Option<Instant> {
        let at = self.attempts.not_before(target)?;
        Some(at.max(self.remotes.not_before(target.1)))
    }

    /// Returns the possible further subflows. Each path without a subflow can get one: to the address that may be
    /// tried soonest. Each announced address without a subflow can get one: from the path with the fewest
    /// subflows.
    fn missing<'a>(
        &'a self,
        paths: &'a [PathView],
        situation: &'a Situation<'_>,
    ) -> impl Iterator<Item = (&'a PathView, SocketAddr)> {
        let awaits_third_ack =
            |id| situation.third_ack.is_some() && self.refused_early.contains(&id);
        let may_join = move |path: &PathView, to: &SocketAddr| {
            let local = &situation.paths[usize::from(path.id.0)];
            !awaits_third_ack(path.id) && self.may_try((path.id, local), *to)
        };
        let free_paths = paths.iter().filter(|path| !path.in_use);
        let for_paths = free_paths.filter_map(move |path| {
            let remotes = self.remotes.joinable().filter(|to| may_join(path, to));
            let best = remotes.min_by_key(|to| self.not_before((path.id, *to)));
            best.map(|to| (path, to))
        });
        let is_used = |to| situation.in_use.iter().any(|(_, used)| *used == to);
        let announced = self.remotes.announced().filter(move |to| !is_used(*to));
        let for_addresses = announced.filter_map(move |to| {
            let subflow_count = |path: &&PathView| {
                let on_path = situation.in_use.iter().filter(|(id, _)| *id == path.id);
                on_path.count()
            };
            let candidates = paths.iter().filter(|path| may_join(path, &to));
            candidates.min_by_key(subflow_count).map(|path| (path, to))
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

    /// Returns the target to which a subflow is to be opened now, if any; [`Self::plan`] plans the next one.
    pub fn take_due(&mut self, now: Instant) -> Option<Target> {
        let (target, _) = self.next.take_if(|(_, at)| *at <= now)?;
        Some(target)
    }

    /// Notes that a subflow ended although it was wanted. If the peer has withdrawn the address of the subflow, no
    /// further attempt follows and the failure is not recorded.
    pub fn on_failure(&mut self, now: Instant, target: Target, failure: Failure) {
        if self.remotes.has(target.1) {
            self.attempts.on_failure(now, target, failure);
        }
    }

    /// Notes that a SYN with MP_CAPABLE is sent on `path`.
    pub fn on_offer(&mut self, path: PathId) {
        if !self.was_offered(path) && !self.offered.is_full() {
            self.offered.push(path);
        }
    }

    /// Returns whether a SYN with MP_CAPABLE was sent on `path`. Otherwise the answer to a SYN without the option
    /// does not show that the network drops the option.
    pub fn was_offered(&self, path: PathId) -> bool {
        self.offered.contains(&path)
    }

    /// Notes that a join on `path` was refused while the third ACK may not have arrived. The join is tried again
    /// once the third ACK has arrived.
    pub fn on_early_refusal(&mut self, path: PathId) {
        if !self.refused_early.contains(&path) && !self.refused_early.is_full() {
            self.refused_early.push(path);
        }
    }

    /// Forgets the failures of a path that came up.
    pub fn retry_now(&mut self, path: PathId) {
        self.attempts.forget_path(path);
    }

    /// Notes that the peer accepts no further subflows at the address that the connection was opened with.
    pub fn deny_initial(&mut self) {
        self.remotes.deny_initial();
    }

    /// Handles an address that the peer announces (RFC 8684 section 3.4.1).
    pub fn on_announced(&mut self, now: Instant, id: u8, addr: SocketAddr) {
        if let Some(replaced) = self.remotes.learn(now, id, addr) {
            self.attempts.forget_remote(replaced);
        }
    }

    /// Handles the withdrawal of the peer's address with the given id (RFC 8684 section 3.4.2). Returns the
    /// address if it is known. Failures at the address that the connection was opened with remain recorded,
    /// because that address may be announced again.
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

    /// An announced IPv6 address cannot be reached over an IPv4 path. An IPv4 address can be reached until it has
    /// refused eight times.
    #[test]
    fn no_subflow_is_missing_that_cannot_be_opened() {
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

    /// The failure of a join whose address was withdrawn meanwhile is not recorded.
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
