//! A server's egress metrics, (B_s, D_s): measured on connections made for users, and on connections to the
//! configured targets. Nobody can make the server connect elsewhere to measure.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::BTreeMap;

use braid_wire::Instant;
use ipnet::IpNet;

use crate::admin::status::milliseconds;
use crate::app::{ConnectFailure, Ctx, DownstreamEvent, DownstreamId};
use crate::select::selection::Quality;

/// Most destination prefixes that are remembered.
const MAX_PREFIXES: usize = 256;
/// Time for which the measurements of a prefix count.
const MEASUREMENT_LIFETIME: Duration = Duration::from_secs(600);
/// Shortest time between connections to targets, regardless of the number of boxes that ask.
const MIN_TARGET_INTERVAL: Duration = Duration::from_secs(5);
/// Longest time for a target to answer.
const TARGET_TIMEOUT: Duration = Duration::from_secs(3);

/// Period over which a relay's rate is measured.
const RATE_PERIOD: Duration = Duration::from_secs(1);
/// Shortest time between checks whether a relay waits for its destination.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Fewest bytes in a period that yield a rate.
const MIN_PERIOD_BYTES: u64 = 64 << 10;

/// The measurements of all destinations.
#[derive(Debug)]
pub(super) struct EgressMeter {
    prefixes: BTreeMap<IpNet, PrefixMetrics>,
    targets: Vec<Target>,
    /// The connection attempt to a target under way.
    attempt: Option<TargetAttempt>,
    asked_at: Option<Instant>,
}

/// The measurements of destinations with one prefix (/24 or /48).
#[derive(Debug, Clone, Copy)]
struct PrefixMetrics {
    at: Instant,
    /// Smoothed time to connect.
    delay: Duration,
    /// Highest rate of a relay that waited for its destination, bit/s.
    limit: Option<f64>,
    /// Highest rate of any relay, bit/s.
    most: f64,
}

#[derive(Debug)]
struct Target {
    addr: SocketAddr,
    delay: Option<Duration>,
}

#[derive(Debug)]
struct TargetAttempt {
    downstream: DownstreamId,
    since: Instant,
}

fn smoothed(old: Option<Duration>, new: Duration) -> Duration {
    old.map_or(new, |old| (old * 3 + new) / 4)
}

fn prefix(addr: IpAddr) -> IpNet {
    // The longest prefixes that networks usually announce by BGP, so addresses within one share a path.
    let length = if addr.is_ipv4() { 24 } else { 48 };
    IpNet::new(addr, length).map_or(addr.into(), |net| net.trunc())
}

impl EgressMeter {
    pub(super) fn new(targets: &[SocketAddr]) -> Self {
        let targets = targets.iter().map(|addr| Target {
            addr: *addr,
            delay: None,
        });
        EgressMeter {
            prefixes: BTreeMap::new(),
            targets: targets.collect(),
            attempt: None,
            asked_at: None,
        }
    }

    /// Records that connecting to a destination `took` so long.
    pub(super) fn on_connected(&mut self, now: Instant, addr: IpAddr, took: Duration) {
        let key = prefix(addr);
        if let Some(metrics) = self.prefixes.get_mut(&key) {
            metrics.delay = smoothed(Some(metrics.delay), took);
            metrics.at = now;
            return;
        }
        if self.prefixes.len() >= MAX_PREFIXES {
            let oldest = self.prefixes.iter().min_by_key(|(_, metrics)| metrics.at);
            let oldest = oldest.map(|(key, _)| *key);
            oldest.map(|key| self.prefixes.remove(&key));
        }
        let metrics = PrefixMetrics {
            at: now,
            delay: took,
            limit: None,
            most: 0.0,
        };
        self.prefixes.insert(key, metrics);
    }

    /// Records that a relay from there carried `rate` bit/s; `limited` where it waited for the destination.
    pub(super) fn on_rate(&mut self, now: Instant, addr: IpAddr, (rate, limited): (f64, bool)) {
        let Some(metrics) = self.prefixes.get_mut(&prefix(addr)) else {
            return;
        };
        metrics.at = now;
        metrics.most = metrics.most.max(rate);
        if limited {
            metrics.limit = Some(metrics.limit.map_or(rate, |limit| limit.max(rate)));
        }
    }

    /// Returns the egress metrics for a box. The bandwidth is the highest rate at which a relay waited for its
    /// destination rather than for the path to the box, unless another relay was faster.
    pub(super) fn quality(&self, now: Instant) -> Quality {
        let lately =
            |metrics: &&PrefixMetrics| now.saturating_since(metrics.at) < MEASUREMENT_LIFETIME;
        let prefixes = || self.prefixes.values().filter(lately);
        let limit = prefixes().filter_map(|p| p.limit).reduce(f64::max);
        let most = prefixes().map(|p| p.most).fold(0.0, f64::max);
        let mut delays: Vec<Duration> = prefixes().map(|p| p.delay).collect();
        delays.sort();
        let middle = delays.get(delays.len() / 2).copied();
        let asked: Vec<Duration> = self.targets.iter().filter_map(|t| t.delay).collect();
        let mean = |all: &[Duration]| all.iter().sum::<Duration>() / all.len() as u32;
        let delay = (!asked.is_empty()).then(|| mean(&asked)).or(middle);
        Quality {
            bandwidth: limit.filter(|limit| *limit >= most),
            delay_ms: delay.and_then(milliseconds),
        }
    }

    /// Connects to the next target on a box's request, if enough time has passed.
    pub(super) fn ask(&mut self, ctx: &mut Ctx<'_>) {
        let lately = |at: Instant| ctx.now.saturating_since(at) < MIN_TARGET_INTERVAL;
        let known = self.targets.first().is_none_or(|t| t.delay.is_some());
        if self.attempt.is_some() || known && self.asked_at.is_some_and(lately) {
            return;
        }
        // The list is a ring: each target moves to the end when it is its turn.
        let Some(target) = self.targets.first() else {
            return;
        };
        self.asked_at = Some(ctx.now);
        if let Ok(downstream) = ctx.downstream.connect(target.addr) {
            let since = ctx.now;
            self.attempt = Some(TargetAttempt { downstream, since });
        }
        self.targets.rotate_left(1);
    }

    /// Returns the target of the last attempt.
    fn asked(&mut self) -> Option<&mut Target> {
        self.targets.last_mut()
    }

    /// Handles an event of an attempt to a target; returns whether it was one.
    pub(super) fn on_event(&mut self, ctx: &mut Ctx<'_>, event: &DownstreamEvent) -> bool {
        let Some(attempt) = self.attempt.take_if(|a| a.downstream == event.id()) else {
            return false;
        };
        let answered = match event {
            DownstreamEvent::Connected { .. } => {
                ctx.downstream.reset(attempt.downstream);
                true
            }
            // A refusal is an answer too.
            DownstreamEvent::ConnectFailed { failure, .. } => *failure == ConnectFailure::Refused,
            _ => false,
        };
        let took = ctx.now.saturating_since(attempt.since);
        if let Some(target) = self.asked() {
            target.delay = answered.then(|| smoothed(target.delay, took));
        }
        true
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.attempt.as_ref().map(|a| a.since + TARGET_TIMEOUT)
    }

    /// Gives up an attempt that was not answered.
    pub(super) fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        let late = |a: &mut TargetAttempt| a.since + TARGET_TIMEOUT <= ctx.now;
        if let Some(attempt) = self.attempt.take_if(late) {
            ctx.downstream.reset(attempt.downstream);
            if let Some(target) = self.asked() {
                target.delay = None;
            }
        }
    }
}

/// The rate at which a relay takes what its destination sends.
#[derive(Debug)]
pub(super) struct RelayRate {
    /// The destination.
    pub(super) addr: IpAddr,
    since: Instant,
    bytes: u64,
    checked_at: Instant,
    checks: u32,
    /// Number of checks that found no unsent bytes.
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

    /// Records a check: whether no bytes were unsent, so that the relay waits for its destination.
    pub(super) fn check(&mut self, now: Instant, nothing_unsent: bool) {
        self.checked_at = now;
        self.checks += 1;
        self.waits += u32::from(nothing_unsent);
    }

    /// Records `bytes` from the destination. At the end of a period returns the rate, bit/s, and whether the relay
    /// waited for the destination most of the time.
    pub(super) fn on_moved(&mut self, now: Instant, bytes: u64) -> Option<(f64, bool)> {
        self.bytes += bytes;
        let time = now.saturating_since(self.since);
        if time < RATE_PERIOD {
            return None;
        }
        let ended = std::mem::replace(self, RelayRate::new(now, self.addr));
        let rate = ended.bytes as f64 * 8.0 / time.as_secs_f64();
        // Three quarters of the checks, so that single pauses of the destination do not count.
        let limited = ended.waits * 4 > ended.checks * 3;
        (ended.bytes >= MIN_PERIOD_BYTES && ended.checks > 0).then_some((rate, limited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn addr(a: u8, b: u8) -> IpAddr {
        [198, 51, a, b].into()
    }

    fn at(s: u64) -> Instant {
        Instant::from_millis(s * 1000)
    }

    #[test]
    fn delays_are_by_prefix_and_what_is_old_counts_nothing() {
        let mut egress = EgressMeter::new(&[]);
        assert_eq!(egress.quality(at(0)), Quality::default());
        egress.on_connected(at(0), addr(1, 1), MS(40));
        egress.on_connected(at(1), addr(1, 2), MS(80));
        assert_eq!(egress.quality(at(2)).delay_ms, Some(50.0), "one prefix");
        egress.on_connected(at(3), addr(2, 1), MS(90));
        egress.on_connected(at(3), addr(3, 1), MS(91));
        assert_eq!(egress.quality(at(4)).delay_ms, Some(90.0), "the middle one");
        assert_eq!(egress.quality(at(700)), Quality::default());
        for n in 0..1000u32 {
            let [_, _, a, b] = n.to_be_bytes();
            egress.on_connected(at(5), [10, a, b, 1].into(), MS(1));
        }
        assert_eq!(egress.prefixes.len(), MAX_PREFIXES);
    }

    #[test]
    fn only_what_waited_for_its_destination_is_a_limit() {
        let mut egress = EgressMeter::new(&[]);
        egress.on_connected(at(0), addr(1, 1), MS(40));
        egress.on_connected(at(0), addr(2, 1), MS(40));
        egress.on_rate(at(1), addr(1, 1), (30e6, false));
        assert_eq!(egress.quality(at(1)).bandwidth, None);
        egress.on_rate(at(1), addr(2, 1), (10e6, true));
        assert_eq!(
            egress.quality(at(1)).bandwidth,
            None,
            "another one was faster"
        );
        egress.on_rate(at(1), addr(2, 1), (40e6, true));
        egress.on_rate(at(1), addr(2, 1), (35e6, true));
        assert_eq!(egress.quality(at(1)).bandwidth, Some(40e6));
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
        assert_eq!(judge(8), Some((2e6, true)));
        assert_eq!(judge(7), Some((2e6, false)));
        let mut slow = RelayRate::new(at(0), addr(1, 1));
        slow.check(at(0), true);
        assert_eq!(slow.on_moved(at(1), 1000), None, "too little to tell");
    }
}
