//! The path manager of a connection: where its peer can be reached from here, what was tried, and
//! what is to be tried next and when. Which paths are wanted the strategy says.

mod claim;
mod record;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use arrayvec::ArrayVec;
use braid_wire::Instant;

use crate::strategy::{OpenView, Opening, PathView, Strategy};
use crate::{ApiError, ConnectOptions, PathConfig, PathId, Protocol};

pub(crate) use claim::Claims;
pub use record::PathRecord;
pub(crate) use record::Records;

/// First delay after a subflow could not be opened or died; doubles up to [`MAX_DELAY`].
const MIN_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(10);
/// A subflow that lived this long clears its path's record.
const GOOD_LIFE: Duration = Duration::from_secs(10);
/// Most paths shown to a strategy: those of higher number are not used.
const MAX_PATHS: usize = 32;

/// A local path and its state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    pub config: PathConfig,
    pub up: bool,
}

/// What the path manager looks at when it plans.
pub(crate) struct Situation<'a> {
    pub paths: &'a [Path],
    pub records: &'a Records,
    /// Paths that have a subflow, or one that is being opened.
    pub in_use: ArrayVec<PathId, MAX_PATHS>,
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

/// Failures on a path.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    path: PathId,
    not_before: Instant,
    delay: Duration,
}

/// Where a connection's subflows go. The peer's addresses are of one family each.
#[derive(Debug)]
pub(crate) struct PathManager {
    remote: SocketAddr,
    remote_alt: Option<SocketAddr>,
    /// Source of the initial subflow, where one was chosen.
    source: Option<SocketAddr>,
    /// Path of the initial subflow, where one was named.
    asked: Option<PathId>,
    /// The first SYN leaves there.
    insists: bool,
    protocol: Protocol,
    /// Paths with failures.
    attempts: Vec<Attempt>,
    /// Paths on which a join was refused that may have come before the third ACK.
    early: ArrayVec<PathId, MAX_PATHS>,
    /// What is tried next, and when.
    next: Option<(PathId, Instant)>,
}

impl PathManager {
    /// Of a connection that `remote` opened.
    pub fn accepted(remote: SocketAddr) -> Self {
        PathManager {
            remote,
            remote_alt: None,
            source: None,
            asked: None,
            insists: false,
            protocol: Protocol::Mptcp,
            attempts: Vec::new(),
            early: ArrayVec::new(),
            next: None,
        }
    }

    /// Of a connection that is opened here.
    pub fn opened(options: &ConnectOptions) -> Self {
        PathManager {
            remote_alt: options.remote_alt,
            source: options.local,
            asked: options.path,
            insists: options.insist,
            protocol: options.protocol,
            ..PathManager::accepted(options.remote)
        }
    }

    /// The peer's address, as the connection was opened.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Both ends of a subflow on `path`; the port of our own is 0 where it may be any. `initial` is
    /// the one that opens the connection.
    pub fn ends(
        &self,
        path: &PathConfig,
        initial: bool,
    ) -> Result<(SocketAddr, SocketAddr), ApiError> {
        let (own, remote) = self.lead(path).ok_or(ApiError::NoUsablePath)?;
        let source = self.source.filter(|_| initial);
        let local = source.unwrap_or(SocketAddr::new(own, 0));
        match local.is_ipv4() == remote.is_ipv4() {
            true => Ok((local, remote)),
            false => Err(ApiError::NoUsablePath),
        }
    }

    /// The path's own address, and the peer's that goes with it.
    fn lead(&self, path: &PathConfig) -> Option<(IpAddr, SocketAddr)> {
        path.towards([Some(self.remote), self.remote_alt].into_iter().flatten())
    }

    /// Whether a subflow can be opened on `path`.
    pub fn reaches(&self, path: &Path) -> bool {
        path.up && self.lead(&path.config).is_some()
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
        let paths = self.show(situation);
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
                in_use: situation.in_use.contains(&id),
                record: self
                    .lead(&path.config)
                    .and_then(|(_, peer)| situation.records.get(peer.ip(), id)),
            })
            .collect()
    }

    /// Decides what is tried next.
    pub fn plan(&mut self, strategy: &mut dyn Strategy, situation: &Situation<'_>) {
        let paths = self.show(situation);
        let view = OpenView {
            paths: &paths,
            ..situation.view
        };
        let early = &self.early;
        let waits = |id| situation.third_ack.is_some() && early.contains(&id);
        let free = paths.iter().filter(|p| !p.in_use && !waits(p.id));
        let wanted = free.filter_map(|path| {
            let wanted = strategy.join(&view, path)?;
            let lead = situation.third_ack.map(|ack| ack.lead(path));
            let at = wanted.max(self.not_before(path.id));
            Some((path.id, at.max(lead.unwrap_or(at))))
        });
        self.next = wanted.min_by_key(|(_, at)| *at);
    }

    /// Nothing is to be tried.
    pub fn rest(&mut self) {
        self.next = None;
    }

    /// When something is to be tried.
    pub fn next_at(&self) -> Option<Instant> {
        self.next.map(|(_, at)| at)
    }

    /// The path to open a subflow on now, if any; [`Self::plan`] says what comes after it.
    pub fn take_due(&mut self, now: Instant) -> Option<PathId> {
        let (path, _) = self.next.take_if(|(_, at)| *at <= now)?;
        Some(path)
    }

    /// When a subflow may be opened on `path`.
    fn not_before(&self, path: PathId) -> Instant {
        self.attempts
            .iter()
            .find(|a| a.path == path)
            .map_or(Instant::ZERO, |a| a.not_before)
    }

    /// A subflow on `path` ended unwanted, after `lived` (zero where it never was established).
    pub fn on_failure(&mut self, now: Instant, path: PathId, lived: Duration) {
        if let Some(attempt) = self.attempts.iter_mut().find(|a| a.path == path) {
            attempt.delay = match lived >= GOOD_LIFE {
                true => MIN_DELAY,
                false => (attempt.delay * 2).min(MAX_DELAY),
            };
            attempt.not_before = now + attempt.delay;
            return;
        }
        // The first failure of a working path is most often a changed NAT binding: retry at once.
        let delay = if lived.is_zero() {
            MIN_DELAY
        } else {
            Duration::ZERO
        };
        self.attempts.push(Attempt {
            path,
            not_before: now + delay,
            delay: MIN_DELAY,
        });
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
        self.attempts.retain(|a| a.path != path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backs_off_and_forgets() {
        let path = PathId(1);
        let mut pm = PathManager::accepted(([10, 0, 0, 2], 80).into());
        let t = Instant::from_millis(1000);
        assert_eq!(pm.not_before(path), Instant::ZERO);
        pm.on_failure(t, path, Duration::ZERO);
        assert_eq!(pm.not_before(path), t + MIN_DELAY);
        for _ in 0..10 {
            pm.on_failure(t, path, Duration::ZERO);
        }
        assert_eq!(pm.not_before(path), t + MAX_DELAY);
        pm.on_failure(t, path, Duration::from_secs(60));
        assert_eq!(pm.not_before(path), t + MIN_DELAY);
        pm.retry_now(path);
        assert_eq!(pm.not_before(path), Instant::ZERO);
    }

    #[test]
    fn a_working_subflow_is_replaced_at_once() {
        let mut pm = PathManager::accepted(([10, 0, 0, 2], 80).into());
        let t = Instant::from_millis(1000);
        pm.on_failure(t, PathId(0), Duration::from_secs(2));
        assert_eq!(pm.not_before(PathId(0)), t);
    }
}
