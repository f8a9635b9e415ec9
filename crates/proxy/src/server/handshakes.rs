//! Limits on connections whose request is incomplete, in total and by source.
//!
//! The users are unknown at this stage, so the limits are on what costs the server: handshakes under way, and
//! failed ones. A successful handshake counts towards its user from then on. Boxes behind one address can thus
//! have as many connections as their users need.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use braid_wire::Instant;

use crate::admin::report::source_of;
use crate::config::ServerLimits;

use super::session::Handshake;

/// Failed handshakes that a source may have at once, in seconds of its rate.
const FAILURE_BURST: Duration = Duration::from_secs(10);
/// Most sources that are remembered only for failures.
const MAX_FAILED_SOURCES: usize = 16_384;

/// Counts of sessions whose request is incomplete.
#[derive(Debug)]
pub(super) struct Handshakes {
    /// Handshakes under way, of all sources.
    under_way: usize,
    /// Idle connections of each user.
    pub(super) waiting: Vec<usize>,
    /// Sources with handshakes under way, of which there are at most as many as handshakes, and those with recent
    /// failures, at most [`MAX_FAILED_SOURCES`].
    sources: BTreeMap<IpAddr, Source>,
    /// Sources with recent failures only, by the time at which these expire. When full, the source with the fewest
    /// failures is dropped and treated as blameless: a full table is no reason to refuse anybody.
    failed: BTreeSet<(Instant, IpAddr)>,
    /// Number of sources dropped because the table was full.
    pub(super) forgotten: u64,
}

/// A host: an IPv4 address, or a /64 of IPv6.
#[derive(Debug, Default)]
struct Source {
    under_way: usize,
    /// The time at which the failures have expired.
    failures_expire_at: Instant,
}

/// The reason why another handshake is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandshakeLimit {
    /// The limit on all handshakes is reached.
    All,
    /// The source has as many handshakes as are left for others.
    Source,
    /// Too many handshakes of the source have failed.
    Failed,
}

impl Handshakes {
    pub(super) fn new(users: usize) -> Self {
        Handshakes {
            under_way: 0,
            waiting: vec![0; users],
            sources: BTreeMap::new(),
            failed: BTreeSet::new(),
            forgotten: 0,
        }
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.iter().sum()
    }

    /// Counts another handshake, or refuses it.
    ///
    /// A source may have no more than are left over (dynamic thresholds, Choudhury and Hahne 1998): half of all if
    /// it is alone, fewer if others come. About a dozen sources are needed to use up all.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        remote: IpAddr,
        limits: &ServerLimits,
    ) -> Result<(), HandshakeLimit> {
        self.expire_failures(now);
        let left = limits.handshakes().saturating_sub(self.under_way);
        let (own, failures_expire_at) = match self.sources.get(&source_of(remote)) {
            Some(source) => (source.under_way, source.failures_expire_at),
            None => (0, now),
        };
        match () {
            () if left == 0 => Err(HandshakeLimit::All),
            () if own >= left => Err(HandshakeLimit::Source),
            () if failures_expire_at > now + FAILURE_BURST => Err(HandshakeLimit::Failed),
            () => {
                self.enter(remote);
                Ok(())
            }
        }
    }

    /// Records the failure of a handshake under way from `remote`; `most` per second may fail, on average.
    pub(super) fn fail(&mut self, now: Instant, remote: IpAddr, most: usize) {
        let source = self.sources.get_mut(&source_of(remote));
        debug_assert!(source.is_some(), "nothing of {remote} is under way");
        if let Some(source) = source {
            let each = Duration::from_secs_f64(1.0 / most as f64);
            source.failures_expire_at = source.failures_expire_at.max(now) + each;
        }
    }

    /// Lets a session wait idle, if it is signed in, has sent no more, and fewer than `most` of its user wait;
    /// returns whether it now waits.
    pub(super) fn begin_waiting(
        &mut self,
        now: Instant,
        remote: IpAddr,
        handshake: &mut Handshake,
        most: usize,
    ) -> bool {
        let grant = handshake.grant.as_ref().filter(|g| g.is_sign_in());
        let may = handshake.socks.awaits_request() && !handshake.is_waiting;
        let waiting = grant.and_then(|g| self.waiting.get_mut(g.user));
        let Some(waiting) = waiting.filter(|n| may && **n < most) else {
            return false;
        };
        *waiting += 1;
        handshake.is_waiting = true;
        self.leave(now, remote);
        true
    }

    /// Resumes a session; returns whether it had waited.
    pub(super) fn end_waiting(&mut self, remote: IpAddr, handshake: &mut Handshake) -> bool {
        let waited = core::mem::take(&mut handshake.is_waiting);
        if waited {
            let user = handshake.grant.as_ref().map(|g| g.user);
            if let Some(n) = user.and_then(|u| self.waiting.get_mut(u)) {
                *n -= 1;
            }
            self.enter(remote);
        }
        waited
    }

    /// Ends the handshake of a session.
    pub(super) fn end(&mut self, now: Instant, remote: IpAddr, handshake: &mut Handshake) {
        self.end_waiting(remote, handshake);
        self.leave(now, remote);
    }

    /// Counts another handshake under way from `remote`.
    fn enter(&mut self, remote: IpAddr) {
        let key = source_of(remote);
        let source = self.sources.entry(key).or_default();
        if source.under_way == 0 {
            self.failed.remove(&(source.failures_expire_at, key));
        }
        source.under_way += 1;
        self.under_way += 1;
    }

    /// Removes a handshake under way from `remote`.
    pub(super) fn leave(&mut self, now: Instant, remote: IpAddr) {
        let key = source_of(remote);
        self.under_way -= 1;
        let Some(source) = self.sources.get_mut(&key) else {
            debug_assert!(false, "nothing of {remote} is under way");
            return;
        };
        source.under_way -= 1;
        if source.under_way > 0 {
            return;
        }
        self.failed.insert((source.failures_expire_at, key));
        self.expire_failures(now);
        if self.failed.len() > MAX_FAILED_SOURCES
            && let Some((_, least)) = self.failed.pop_first()
        {
            self.sources.remove(&least);
            self.forgotten += 1;
        }
    }

    /// Forgets sources whose failures have expired.
    fn expire_failures(&mut self, now: Instant) {
        while let Some((at, source)) = self.failed.first().copied()
            && at <= now
        {
            self.failed.pop_first();
            self.sources.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const NOW: Instant = Instant::from_millis(5_000);

    fn limits(handshakes: usize) -> ServerLimits {
        ServerLimits {
            handshakes: Some(handshakes),
            failures: 2,
            ..ServerLimits::default()
        }
    }

    fn v4(n: u32) -> IpAddr {
        Ipv4Addr::from_bits(0xc000_0200 + n).into()
    }

    fn v6(net: u64, host: u64) -> IpAddr {
        let net = u128::from(0x2001_0db8_0000_0000 + net);
        Ipv6Addr::from_bits(net << 64 | u128::from(host)).into()
    }

    /// Returns the number of `remotes` admitted, one after the other.
    fn begun(handshakes: &mut Handshakes, most: usize, remotes: &[IpAddr]) -> usize {
        let begun = remotes
            .iter()
            .filter(|remote| handshakes.begin(NOW, **remote, &limits(most)).is_ok());
        begun.count()
    }

    /// Begins a handshake that fails at once; returns false where it is refused.
    fn fails(handshakes: &mut Handshakes, now: Instant, remote: IpAddr) -> bool {
        let begun = handshakes.begin(now, remote, &limits(8)).is_ok();
        if begun {
            handshakes.fail(now, remote, 2);
            handshakes.leave(now, remote);
        }
        begun
    }

    #[test]
    fn greedy_sources_leave_room_for_others() {
        let mut handshakes = Handshakes::new(1);
        for (n, expected) in [(0, 32), (1, 16), (2, 8), (3, 4)] {
            assert_eq!(begun(&mut handshakes, 64, &[v4(n); 64]), expected);
        }
        let refused = handshakes.begin(NOW, v4(0), &limits(64));
        assert_eq!(refused, Err(HandshakeLimit::Source));
        for _ in 0..31 {
            handshakes.leave(NOW, v4(0));
        }
        assert_eq!(begun(&mut handshakes, 64, &[v4(4); 64]), 18);
        assert_eq!(
            handshakes.begin(NOW, v4(5), &limits(47)),
            Err(HandshakeLimit::All)
        );
    }

    #[test]
    fn a_host_is_one_source_whatever_its_addresses() {
        let mut handshakes = Handshakes::new(1);
        let of_one: Vec<IpAddr> = (0..64).map(|host| v6(0, host)).collect();
        assert_eq!(begun(&mut handshakes, 64, &of_one), 32);
        assert_eq!(begun(&mut handshakes, 64, &[v6(1, 0); 64]), 16);
        let mapped = "::ffff:192.0.2.1".parse().unwrap();
        assert_eq!(begun(&mut handshakes, 64, &[v4(1), mapped].repeat(32)), 8);
    }

    #[test]
    fn who_fails_too_often_has_to_wait_and_nobody_else() {
        let mut handshakes = Handshakes::new(1);
        let count = |handshakes: &mut Handshakes, ms: u64| {
            let now = Instant::from_millis(ms);
            (0..100).filter(|_| fails(handshakes, now, v4(1))).count()
        };
        assert_eq!(count(&mut handshakes, 0), 21);
        assert_eq!(count(&mut handshakes, 499), 0);
        assert_eq!(count(&mut handshakes, 1_000), 2);
        let now = Instant::from_millis(1_000);
        let refused = handshakes.begin(now, v4(1), &limits(8));
        assert_eq!(refused, Err(HandshakeLimit::Failed));
        assert!(fails(&mut handshakes, now, v4(2)));
        assert_eq!(count(&mut handshakes, 60_000), 21);
    }

    #[test]
    fn whose_handshakes_succeed_may_have_any_number() {
        let mut handshakes = Handshakes::new(1);
        for _ in 0..100_000 {
            assert_eq!(handshakes.begin(NOW, v4(1), &limits(8)), Ok(()));
            handshakes.leave(NOW, v4(1));
        }
        assert!(handshakes.sources.is_empty() && handshakes.failed.is_empty());
    }

    #[test]
    fn failures_of_any_number_of_sources_are_remembered_within_a_bound() {
        let mut handshakes = Handshakes::new(1);
        // A source that is refused for its failures, and is the last to be forgotten.
        while fails(&mut handshakes, NOW, v4(0)) {}
        for n in 1..100_000 {
            assert!(fails(&mut handshakes, NOW, v6(n, 0)), "the table is full");
        }
        assert_eq!(handshakes.sources.len(), MAX_FAILED_SOURCES);
        assert_eq!(handshakes.failed.len(), MAX_FAILED_SOURCES);
        assert_eq!(handshakes.forgotten, 100_000 - MAX_FAILED_SOURCES as u64);
        assert!(!fails(&mut handshakes, NOW, v4(0)));
        // Failures expire, and the tables become empty.
        let later = NOW + Duration::from_secs(60);
        assert!(handshakes.begin(later, v4(0), &limits(8)).is_ok());
        assert_eq!((handshakes.sources.len(), handshakes.failed.len()), (1, 0));
    }
}
