//! Limits on connections whose request is incomplete, in total and by source.
//!
//! The users are unknown at this stage. Therefore the limits apply to the things that cost the server resources:
//! current handshakes, and failed handshakes. Once a handshake succeeds, its connection counts towards the user,
//! and not towards the source. So the number of boxes and connections behind one address (NAT) is not limited.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use braid_wire::Instant;

use crate::admin::report::source_of;
use crate::config::ServerLimits;

use super::session::Handshake;

/// Number of failed handshakes that a source may have at once, in seconds of the permitted rate. A guess: 1,000
/// failures at the default of 100 per second.
const FAILURE_BURST: Duration = Duration::from_secs(10);
/// Maximum number of sources that are remembered only for failures. A guess that limits both tables to a few MB.
const MAX_FAILED_SOURCES: usize = 16_384;

/// Counts of sessions whose request is incomplete.
#[derive(Debug)]
pub(super) struct Handshakes {
    /// Number of current handshakes of all sources, without idle connections.
    under_way: usize,
    /// Number of idle connections of each user.
    pub(super) waiting: Vec<usize>,
    /// Sources with current handshakes or with recent failures. The limit on handshakes and [`MAX_FAILED_SOURCES`]
    /// together limit the size of this table.
    sources: BTreeMap<IpAddr, Source>,
    /// Sources with recent failures but no current handshake, by the expiry of the failures. If there are too many
    /// sources, the source with the fewest failures is dropped, and then counts as a source without failures. So
    /// attackers with many addresses cannot fill the table to keep other sources out.
    failed: BTreeSet<(Instant, IpAddr)>,
    /// Number of sources dropped because `failed` was full.
    pub(super) forgotten: u64,
}

/// The state of a source. A source is an IPv4 address, or a /64 of IPv6, because a single host can have a whole
/// /64.
#[derive(Debug, Default)]
struct Source {
    under_way: usize,
    /// The time at which all failures have expired. Each failure moves it by the reciprocal of the permitted rate,
    /// so the time left until then measures the number of recent failures (a leaky bucket).
    failures_expire_at: Instant,
}

/// The reason why another handshake is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandshakeLimit {
    /// All sources together have as many handshakes as the server permits.
    All,
    /// The source has at least as many handshakes as are still free.
    Source,
    /// Too many handshakes of the source have failed recently.
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
    /// A source may have no more handshakes than are free (dynamic thresholds, Choudhury and Hahne 1998). A lone
    /// source gets half of all handshakes, and each further greedy source gets half of the remainder. So the
    /// number of sources that use up all handshakes is about log2 of the limit. It is a dozen for the smallest
    /// default, 4,096.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        remote: IpAddr,
        limits: &ServerLimits,
    ) -> Result<(), HandshakeLimit> {
        self.expire_failures(now);
        let free = limits.handshakes().saturating_sub(self.under_way);
        let (of_source, failures_expire_at) = match self.sources.get(&source_of(remote)) {
            Some(source) => (source.under_way, source.failures_expire_at),
            None => (0, now),
        };
        match () {
            () if free == 0 => Err(HandshakeLimit::All),
            () if of_source >= free => Err(HandshakeLimit::Source),
            () if failures_expire_at > now + FAILURE_BURST => Err(HandshakeLimit::Failed),
            () => {
                self.enter(remote);
                Ok(())
            }
        }
    }

    /// Records the failure of a current handshake from `remote`. On average, `max_per_second` handshakes of a
    /// source may fail.
    pub(super) fn fail(&mut self, now: Instant, remote: IpAddr, max_per_second: usize) {
        let source = self.sources.get_mut(&source_of(remote));
        debug_assert!(source.is_some(), "no handshake of {remote} is under way");
        if let Some(source) = source {
            let per_failure = Duration::from_secs_f64(1.0 / max_per_second as f64);
            source.failures_expire_at = source.failures_expire_at.max(now) + per_failure;
        }
    }

    /// Lets a session wait idle if it is signed in, has sent nothing of its request, and its user has fewer than
    /// `max_waiting` idle sessions. Returns whether the wait begins. An idle session does not count as a
    /// handshake, because its user is known.
    pub(super) fn begin_waiting(
        &mut self,
        now: Instant,
        remote: IpAddr,
        handshake: &mut Handshake,
        max_waiting: usize,
    ) -> bool {
        let grant = handshake.grant.as_ref().filter(|g| g.is_sign_in());
        let can_wait = handshake.socks.awaits_request() && !handshake.is_waiting;
        let waiting = grant.and_then(|g| self.waiting.get_mut(g.user));
        let Some(waiting) = waiting.filter(|n| can_wait && **n < max_waiting) else {
            return false;
        };
        *waiting += 1;
        handshake.is_waiting = true;
        self.leave(now, remote);
        true
    }

    /// Makes an idle session a handshake again; returns whether it was idle.
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

    /// Ends the handshake of a session. The session may be idle.
    pub(super) fn end(&mut self, now: Instant, remote: IpAddr, handshake: &mut Handshake) {
        self.end_waiting(remote, handshake);
        self.leave(now, remote);
    }

    /// Counts another current handshake from `remote`.
    fn enter(&mut self, remote: IpAddr) {
        let key = source_of(remote);
        let source = self.sources.entry(key).or_default();
        // `failed` has only sources without current handshakes.
        if source.under_way == 0 {
            self.failed.remove(&(source.failures_expire_at, key));
        }
        source.under_way += 1;
        self.under_way += 1;
    }

    /// Removes a current handshake from `remote` from the counts.
    pub(super) fn leave(&mut self, now: Instant, remote: IpAddr) {
        let key = source_of(remote);
        self.under_way -= 1;
        let Some(source) = self.sources.get_mut(&key) else {
            debug_assert!(false, "no handshake of {remote} is under way");
            return;
        };
        source.under_way -= 1;
        if source.under_way > 0 {
            return;
        }
        // A source without failures has an expiry in the past, so the next line removes it.
        self.failed.insert((source.failures_expire_at, key));
        self.expire_failures(now);
        // The first entry expires earliest, so its source has the fewest failures.
        if self.failed.len() > MAX_FAILED_SOURCES
            && let Some((_, fewest_failures)) = self.failed.pop_first()
        {
            self.sources.remove(&fewest_failures);
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

    /// Begins a handshake from each of `remotes` within a limit of `max_handshakes`. None of these handshakes
    /// ends. Returns the number of handshakes admitted.
    fn begun(handshakes: &mut Handshakes, max_handshakes: usize, remotes: &[IpAddr]) -> usize {
        let begun = remotes.iter().filter(|remote| {
            handshakes
                .begin(NOW, **remote, &limits(max_handshakes))
                .is_ok()
        });
        begun.count()
    }

    /// Begins a handshake that fails at once; returns false if it is refused.
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
        // Each source gets half of the handshakes that the earlier sources have left of 64.
        for (n, expected) in [(0, 32), (1, 16), (2, 8), (3, 4)] {
            assert_eq!(begun(&mut handshakes, 64, &[v4(n); 64]), expected);
        }
        let refused = handshakes.begin(NOW, v4(0), &limits(64));
        assert_eq!(refused, Err(HandshakeLimit::Source));
        for _ in 0..31 {
            handshakes.leave(NOW, v4(0));
        }
        // 60 - 31 = 29 handshakes are under way and 35 are free; a source stops at 18, when 17 are left.
        assert_eq!(begun(&mut handshakes, 64, &[v4(4); 64]), 18);
        // 29 + 18 = 47 handshakes are under way.
        assert_eq!(
            handshakes.begin(NOW, v4(5), &limits(47)),
            Err(HandshakeLimit::All)
        );
    }

    #[test]
    fn a_host_is_one_source_whatever_its_addresses() {
        let mut handshakes = Handshakes::new(1);
        let one_host: Vec<IpAddr> = (0..64).map(|host| v6(0, host)).collect();
        assert_eq!(begun(&mut handshakes, 64, &one_host), 32);
        assert_eq!(begun(&mut handshakes, 64, &[v6(1, 0); 64]), 16);
        let mapped = "::ffff:192.0.2.1".parse().unwrap();
        assert_eq!(begun(&mut handshakes, 64, &[v4(1), mapped].repeat(32)), 8);
    }

    #[test]
    fn a_source_that_fails_too_often_has_to_wait_and_no_other_one() {
        let mut handshakes = Handshakes::new(1);
        let count = |handshakes: &mut Handshakes, ms: u64| {
            let now = Instant::from_millis(ms);
            (0..100).filter(|_| fails(handshakes, now, v4(1))).count()
        };
        // FAILURE_BURST at 2 failures per second is 20 failures; the limit must be exceeded, so 21 pass.
        assert_eq!(count(&mut handshakes, 0), 21);
        // A failure expires after 1 s / 2 = 500 ms.
        assert_eq!(count(&mut handshakes, 499), 0);
        assert_eq!(count(&mut handshakes, 1_000), 2);
        let now = Instant::from_millis(1_000);
        let refused = handshakes.begin(now, v4(1), &limits(8));
        assert_eq!(refused, Err(HandshakeLimit::Failed));
        assert!(fails(&mut handshakes, now, v4(2)));
        assert_eq!(count(&mut handshakes, 60_000), 21);
    }

    #[test]
    fn successful_handshakes_are_not_limited() {
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
        // This source fails until it is refused. It has the most failures, so it is the last to be forgotten.
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
