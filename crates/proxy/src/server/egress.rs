//! A server's egress metrics: its bandwidth and delay to destinations, (B_s, D_s) of T-MPTCP.
//!
//! The server measures users' connections, and connects to the configured targets. A box can request a measurement
//! but cannot choose its target, so that the server cannot be made to attack a third host.
//!
//! A box may ask for the metrics of single prefixes. The answer is only from connections of the box's own user, so
//! that no user learns where others go.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::Instant;

use crate::admin::status::milliseconds;
use crate::app::{ConnectFailure, Ctx, DownstreamEvent, DownstreamId};
use crate::protocol::prefix::Prefix;
use crate::select::selection::Quality;

/// Maximum number of destination prefixes that are remembered of all users together. A guess: each answer to a
/// probe reads all of them.
const MAX_PREFIXES: usize = 256;
/// Maximum number of destination prefixes that are remembered of one user. A guess: as many as a box remembers.
const MAX_USER_PREFIXES: usize = 64;
/// Time for which the measurements of a prefix are used. A guess: twice the longest interval between a box's
/// measurements, 5 min by default.
const MEASUREMENT_LIFETIME: Duration = Duration::from_secs(600);
/// Minimum time between connections to targets, regardless of the number of boxes that probe. A guess, equal to
/// the minimum interval between a box's measurements of a server over one link.
const MIN_TARGET_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time for a target to answer. It covers one lost SYN, which the kernel retransmits after 1 s (RFC 6298
/// section 2.1).
const TARGET_TIMEOUT: Duration = Duration::from_secs(3);

/// Period over which a relay's rate is measured.
const RATE_PERIOD: Duration = Duration::from_secs(1);
/// Minimum time between checks whether a relay waits for its destination: at most 50 checks in [`RATE_PERIOD`]. A
/// guess between many checks in a period and a low cost for each turn of a relay.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Minimum number of bytes in a period for which a rate is recorded. A guess: below 0.5 Mbit/s the destination
/// most likely has little to send, so the rate shows nothing about the bandwidth.
const MIN_PERIOD_BYTES: u64 = 64 << 10;

/// The measurements of all destinations.
#[derive(Debug)]
pub(super) struct EgressMeter {
    all: PrefixTable,
    /// The measurements of each user's connections, by the user's index.
    pub(super) users: Vec<PrefixTable>,
    /// The targets as a ring: the next target to be measured is first, and the last measured target is at the end.
    targets: Vec<Target>,
    /// The current connection attempt to a target.
    attempt: Option<TargetAttempt>,
    /// The time of the last attempt to connect to a target.
    attempted_at: Option<Instant>,
}

/// Measurements by the prefix of the destination.
#[derive(Debug, Clone, Default)]
pub(super) struct PrefixTable(BTreeMap<Prefix, PrefixMetrics>);

/// The measurements of destinations with one prefix.
#[derive(Debug, Clone, Copy)]
struct PrefixMetrics {
    /// The time of the last measurement.
    measured_at: Instant,
    /// Smoothed time to connect.
    delay: Duration,
    /// Highest rate of a relay that waited for its destination, bit/s.
    limited_rate: Option<f64>,
    /// Highest rate of any relay, bit/s.
    max_rate: f64,
}

#[derive(Debug)]
struct Target {
    addr: SocketAddr,
    /// True after the first attempt.
    attempted: bool,
    /// Smoothed time to connect; `None` before the first answer, and after an attempt without an answer.
    delay: Option<Duration>,
}

#[derive(Debug)]
struct TargetAttempt {
    downstream: DownstreamId,
    since: Instant,
}

/// Averages delays exponentially, with a weight of 1/4 for the new delay. The weight is a guess: connections are
/// rarer than the samples of RFC 6298, which have a weight of 1/8.
fn smoothed(old: Option<Duration>, new: Duration) -> Duration {
    old.map_or(new, |old| (old * 3 + new) / 4)
}

impl PrefixTable {
    /// Records the time that connecting to a destination `took`. If a new prefix would exceed `max`, forgets the
    /// prefix with the oldest measurement.
    fn on_connected(&mut self, now: Instant, prefix: Prefix, took: Duration, max: usize) {
        if let Some(metrics) = self.0.get_mut(&prefix) {
            metrics.delay = smoothed(Some(metrics.delay), took);
            metrics.measured_at = now;
            return;
        }
        if self.0.len() >= max {
            let oldest = self.0.iter().min_by_key(|(_, metrics)| metrics.measured_at);
            let oldest = oldest.map(|(prefix, _)| *prefix);
            oldest.map(|prefix| self.0.remove(&prefix));
        }
        let metrics = PrefixMetrics {
            measured_at: now,
            delay: took,
            limited_rate: None,
            max_rate: 0.0,
        };
        self.0.insert(prefix, metrics);
    }

    /// Records the rate of a relay; see [`EgressMeter::on_rate`].
    fn on_rate(&mut self, now: Instant, prefix: Prefix, (rate, limited): (f64, bool)) {
        let Some(metrics) = self.0.get_mut(&prefix) else {
            return;
        };
        metrics.measured_at = now;
        metrics.max_rate = metrics.max_rate.max(rate);
        if limited {
            let highest = metrics.limited_rate.map_or(rate, |before| before.max(rate));
            metrics.limited_rate = Some(highest);
        }
    }
}

impl PrefixMetrics {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_since(self.measured_at) < MEASUREMENT_LIFETIME
    }

    /// Returns the bandwidth, bit/s; `None` if it is unknown for the reasons in [`EgressMeter::quality`].
    fn bandwidth(&self) -> Option<f64> {
        self.limited_rate.filter(|rate| *rate >= self.max_rate)
    }
}

impl EgressMeter {
    pub(super) fn new(targets: &[SocketAddr], users: usize) -> Self {
        let targets = targets.iter().map(|addr| Target {
            addr: *addr,
            attempted: false,
            delay: None,
        });
        EgressMeter {
            all: PrefixTable::default(),
            users: vec![PrefixTable::default(); users],
            targets: targets.collect(),
            attempt: None,
            attempted_at: None,
        }
    }

    /// Records the time that connecting to a destination of `user` took.
    pub(super) fn on_connected(
        &mut self,
        now: Instant,
        user: Option<usize>,
        addr: IpAddr,
        took: Duration,
    ) {
        let prefix = addr.into();
        self.all.on_connected(now, prefix, took, MAX_PREFIXES);
        if let Some(table) = user.and_then(|user| self.users.get_mut(user)) {
            table.on_connected(now, prefix, took, MAX_USER_PREFIXES);
        }
    }

    /// Records that a relay of `user` received `rate` bit/s from the destination `addr`. `limited` is true if the
    /// relay waited for the destination, so that the rate shows the bandwidth of that path.
    pub(super) fn on_rate(
        &mut self,
        now: Instant,
        user: Option<usize>,
        addr: IpAddr,
        rate: (f64, bool),
    ) {
        let table = user.and_then(|user| self.users.get_mut(user));
        for table in core::iter::once(&mut self.all).chain(table) {
            table.on_rate(now, addr.into(), rate);
        }
    }

    /// Returns the egress metrics of `prefix` from connections of `user`; `None` without recent
    /// measurements.
    pub(super) fn quality_of(&self, now: Instant, user: usize, prefix: Prefix) -> Option<Quality> {
        let metrics = self.users.get(user)?.0.get(&prefix)?;
        metrics.is_recent(now).then(|| Quality {
            bandwidth: metrics.bandwidth(),
            delay_ms: milliseconds(metrics.delay),
        })
    }

    /// Returns the egress metrics over all destinations, for a box.
    ///
    /// The bandwidth is the highest rate of a relay that waited for its destination and not for the path to the
    /// box. The bandwidth is unknown if any other relay was faster, because then single destinations were slow,
    /// and not the egress.
    ///
    /// The delay is the mean over the targets that answer. If no target answers, the delay is the median over the
    /// prefixes, because a few distant destinations do not shift a median.
    pub(super) fn quality(&self, now: Instant) -> Quality {
        let prefixes = || self.all.0.values().filter(|p| p.is_recent(now));
        let limited_rate = prefixes().filter_map(|p| p.limited_rate).reduce(f64::max);
        let max_rate = prefixes().map(|p| p.max_rate).fold(0.0, f64::max);
        let mut delays: Vec<Duration> = prefixes().map(|p| p.delay).collect();
        delays.sort();
        let median = delays.get(delays.len() / 2).copied();
        let of_targets: Vec<Duration> = self.targets.iter().filter_map(|t| t.delay).collect();
        let mean = |all: &[Duration]| all.iter().sum::<Duration>() / all.len() as u32;
        let delay = (!of_targets.is_empty())
            .then(|| mean(&of_targets))
            .or(median);
        Quality {
            bandwidth: limited_rate.filter(|rate| *rate >= max_rate),
            delay_ms: delay.and_then(milliseconds),
        }
    }

    /// Connects to the next target after a box's probe, if one is due.
    pub(super) fn connect_to_target(&mut self, ctx: &mut Ctx<'_>) {
        let Some(addr) = self.next_target(ctx.now) else {
            return;
        };
        if let Ok(downstream) = ctx.downstream.connect(addr) {
            let since = ctx.now;
            self.attempt = Some(TargetAttempt { downstream, since });
        }
    }

    /// Returns the next target and moves it to the end of the ring; `None` while an attempt is under way or if the
    /// last attempt began within [`MIN_TARGET_INTERVAL`]. The first attempt to each target does not wait for the
    /// interval.
    fn next_target(&mut self, now: Instant) -> Option<SocketAddr> {
        let is_recent = |at: Instant| now.saturating_since(at) < MIN_TARGET_INTERVAL;
        let target = self.targets.first_mut()?;
        let must_wait = target.attempted && self.attempted_at.is_some_and(is_recent);
        if self.attempt.is_some() || must_wait {
            return None;
        }
        target.attempted = true;
        let addr = target.addr;
        self.attempted_at = Some(now);
        self.targets.rotate_left(1);
        Some(addr)
    }

    /// Returns the target of the last attempt. `next_target` moved this target to the end of the ring.
    fn last_attempted(&mut self) -> Option<&mut Target> {
        self.targets.last_mut()
    }

    /// Handles `event` if it concerns the attempt to a target; returns whether it does.
    pub(super) fn on_event(&mut self, ctx: &mut Ctx<'_>, event: &DownstreamEvent) -> bool {
        let Some(attempt) = self.attempt.take_if(|a| a.downstream == event.id()) else {
            return false;
        };
        let answered = match event {
            DownstreamEvent::Connected { .. } => {
                ctx.downstream.reset(attempt.downstream);
                true
            }
            // A refusal takes a round trip to the target as well, so it shows the delay.
            DownstreamEvent::ConnectFailed { failure, .. } => *failure == ConnectFailure::Refused,
            _ => false,
        };
        let took = ctx.now.saturating_since(attempt.since);
        if let Some(target) = self.last_attempted() {
            target.delay = answered.then(|| smoothed(target.delay, took));
        }
        true
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.attempt.as_ref().map(|a| a.since + TARGET_TIMEOUT)
    }

    /// Gives up an attempt that was not answered within [`TARGET_TIMEOUT`].
    pub(super) fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        let is_late = |a: &mut TargetAttempt| a.since + TARGET_TIMEOUT <= ctx.now;
        if let Some(attempt) = self.attempt.take_if(is_late) {
            ctx.downstream.reset(attempt.downstream);
            if let Some(target) = self.last_attempted() {
                target.delay = None;
            }
        }
    }
}

/// The rate at which a relay receives bytes from its destination, measured in periods of [`RATE_PERIOD`].
#[derive(Debug)]
pub(super) struct RelayRate {
    /// The destination.
    pub(super) addr: IpAddr,
    /// The start of the current period. All counts are of this period.
    since: Instant,
    bytes: u64,
    checked_at: Instant,
    checks: u32,
    /// Number of checks at which the relay waited for its destination.
    waits: u32,
}

impl RelayRate {
    /// Starts measuring a new relay.
    pub(super) fn new(now: Instant, addr: IpAddr) -> Self {
        RelayRate {
            addr,
            since: now,
            bytes: 0,
            checked_at: now,
            checks: 0,
            waits: 0,
        }
    }

    /// Returns whether the next check is due.
    pub(super) fn is_check_due(&self, now: Instant) -> bool {
        now.saturating_since(self.checked_at) >= MIN_CHECK_INTERVAL
    }

    /// Records a check. If the connection to the box has no unsent bytes (`nothing_unsent`), the relay waits for
    /// its destination.
    pub(super) fn check(&mut self, now: Instant, nothing_unsent: bool) {
        self.checked_at = now;
        self.checks += 1;
        self.waits += u32::from(nothing_unsent);
    }

    /// Records `bytes` from the destination. At the end of a period, returns the rate in bit/s, and true if the
    /// relay waited for the destination at more than three quarters of the checks.
    pub(super) fn on_moved(&mut self, now: Instant, bytes: u64) -> Option<(f64, bool)> {
        self.bytes += bytes;
        let time = now.saturating_since(self.since);
        if time < RATE_PERIOD {
            return None;
        }
        let ended = std::mem::replace(self, RelayRate::new(now, self.addr));
        let rate = ended.bytes as f64 * 8.0 / time.as_secs_f64();
        // The destination pauses now and then even if the path to the box limits the rate. Three quarters is a
        // guess.
        let limited = ended.waits * 4 > ended.checks * 3;
        (ended.bytes >= MIN_PERIOD_BYTES && ended.checks > 0).then_some((rate, limited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Option<usize> = Some(0);
    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn addr(a: u8, b: u8) -> IpAddr {
        [198, 51, a, b].into()
    }

    fn at(s: u64) -> Instant {
        Instant::from_millis(s * 1000)
    }

    #[test]
    fn delays_are_by_prefix_and_expire() {
        let mut egress = EgressMeter::new(&[], 2);
        assert_eq!(egress.quality(at(0)), Quality::default());
        egress.on_connected(at(0), USER, addr(1, 1), MS(40));
        egress.on_connected(at(1), USER, addr(1, 2), MS(80));
        // Both addresses have the prefix 198.51.1.0/24: 3/4 * 40 ms + 1/4 * 80 ms = 50 ms.
        assert_eq!(egress.quality(at(2)).delay_ms, Some(50.0), "one prefix");
        egress.on_connected(at(3), USER, addr(2, 1), MS(90));
        egress.on_connected(at(3), USER, addr(3, 1), MS(91));
        assert_eq!(egress.quality(at(4)).delay_ms, Some(90.0), "the middle one");
        // All measurements are older than 600 s.
        assert_eq!(egress.quality(at(700)), Quality::default());
        for n in 0..1000u32 {
            let [_, _, a, b] = n.to_be_bytes();
            egress.on_connected(at(5), USER, [10, a, b, 1].into(), MS(1));
        }
        assert_eq!(egress.all.0.len(), MAX_PREFIXES);
        assert_eq!(egress.users[0].0.len(), MAX_USER_PREFIXES);
    }

    #[test]
    fn only_relays_that_wait_for_the_destination_show_a_bandwidth() {
        let mut egress = EgressMeter::new(&[], 2);
        egress.on_connected(at(0), USER, addr(1, 1), MS(40));
        egress.on_connected(at(0), USER, addr(2, 1), MS(40));
        egress.on_rate(at(1), USER, addr(1, 1), (30e6, false));
        assert_eq!(egress.quality(at(1)).bandwidth, None);
        egress.on_rate(at(1), USER, addr(2, 1), (10e6, true));
        assert_eq!(
            egress.quality(at(1)).bandwidth,
            None,
            "another one was faster"
        );
        egress.on_rate(at(1), USER, addr(2, 1), (40e6, true));
        egress.on_rate(at(1), USER, addr(2, 1), (35e6, true));
        assert_eq!(egress.quality(at(1)).bandwidth, Some(40e6));
    }

    /// A user is told of the prefixes of its own connections, and of no other user's.
    #[test]
    fn prefixes_are_told_to_the_user_who_went_there() {
        let mut egress = EgressMeter::new(&[], 2);
        let [near, far] = [addr(1, 1), addr(2, 1)];
        egress.on_connected(at(0), Some(0), near, MS(10));
        egress.on_connected(at(0), Some(1), near, MS(50));
        egress.on_connected(at(0), Some(1), far, MS(90));
        egress.on_connected(at(0), None, far, MS(70));
        egress.on_rate(at(1), Some(1), far, (40e6, true));
        egress.on_rate(at(1), Some(0), far, (50e6, true));
        let told = |egress: &EgressMeter, user, prefix: IpAddr, s| {
            let quality = egress.quality_of(at(s), user, prefix.into());
            quality.map(|q| (q.delay_ms.unwrap(), q.bandwidth))
        };
        assert_eq!(told(&egress, 0, near, 1), Some((10.0, None)));
        assert_eq!(told(&egress, 1, near, 1), Some((50.0, None)));
        assert_eq!(told(&egress, 0, far, 1), None);
        assert_eq!(told(&egress, 1, far, 1), Some((90.0, Some(40e6))));
        assert_eq!(told(&egress, 1, addr(1, 99), 1), Some((50.0, None)));
        assert_eq!(told(&egress, 2, near, 1), None);
        assert_eq!(told(&egress, 1, near, 600), None, "600 s later");
    }

    #[test]
    fn a_relay_is_judged_once_a_period() {
        let judge = |waits: u32| {
            let mut relay_rate = RelayRate::new(at(0), addr(1, 1));
            for n in 0..10 {
                relay_rate.check(at(0) + MS(20 * n), n < waits.into());
            }
            assert_eq!(relay_rate.on_moved(at(0) + MS(999), 125_000), None);
            relay_rate.on_moved(at(1), 125_000)
        };
        // Twice 125,000 bytes in 1 s are 2 Mbit/s. 8 of 10 checks are more than three quarters, 7 are not.
        assert_eq!(judge(8), Some((2e6, true)));
        assert_eq!(judge(7), Some((2e6, false)));
        let mut slow = RelayRate::new(at(0), addr(1, 1));
        slow.check(at(0), true);
        assert_eq!(slow.on_moved(at(1), 1000), None, "too little to tell");
    }

    /// A box may probe several times a second; a silent target must not get a SYN for each probe.
    #[test]
    fn only_the_first_attempt_to_a_target_does_not_wait() {
        let targets: [SocketAddr; 2] = [1, 2].map(|n| (addr(1, n), 443).into());
        let mut egress = EgressMeter::new(&targets, 0);
        assert_eq!(egress.next_target(at(1)), Some(targets[0]));
        assert_eq!(egress.next_target(at(1)), Some(targets[1]));
        // Neither has answered.
        assert_eq!(egress.next_target(at(1)), None);
        assert_eq!(egress.next_target(at(5)), None);
        assert_eq!(egress.next_target(at(6)), Some(targets[0]));
        assert_eq!(egress.next_target(at(7)), None);
    }
}
