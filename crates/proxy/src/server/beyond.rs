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
const MAX_PLACES: usize = 256;
/// Time for which the measurements of a prefix count.
const MEMORY: Duration = Duration::from_secs(600);
/// Shortest time between connections to targets, regardless of the number of boxes that ask.
const ASK_INTERVAL: Duration = Duration::from_secs(5);
/// Longest time for a target to answer.
const ASK_PATIENCE: Duration = Duration::from_secs(3);

/// Period over which a relay's rate is measured.
const PERIOD: Duration = Duration::from_secs(1);
/// Shortest time between checks whether a relay waits for its destination.
const LOOK: Duration = Duration::from_millis(20);
/// Fewest bytes in a period that yield a rate.
const LEAST: u64 = 64 << 10;

/// The measurements of all destinations.
#[derive(Debug)]
pub(super) struct Beyond {
    places: BTreeMap<IpNet, Place>,
    targets: Vec<Target>,
    /// The connection attempt to a target under way.
    asking: Option<Asking>,
    asked_at: Option<Instant>,
}

/// The measurements of destinations with one prefix (/24 or /48).
#[derive(Debug, Clone, Copy)]
struct Place {
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
struct Asking {
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

impl Beyond {
    pub(super) fn new(targets: &[SocketAddr]) -> Self {
        let targets = targets.iter().map(|addr| Target {
            addr: *addr,
            delay: None,
        });
        Beyond {
            places: BTreeMap::new(),
            targets: targets.collect(),
            asking: None,
            asked_at: None,
        }
    }

    /// Records that connecting to a destination `took` so long.
    pub(super) fn on_connected(&mut self, now: Instant, addr: IpAddr, took: Duration) {
        let key = prefix(addr);
        if let Some(place) = self.places.get_mut(&key) {
            place.delay = smoothed(Some(place.delay), took);
            place.at = now;
            return;
        }
        if self.places.len() >= MAX_PLACES {
            let oldest = self.places.iter().min_by_key(|(_, place)| place.at);
            let oldest = oldest.map(|(key, _)| *key);
            oldest.map(|key| self.places.remove(&key));
        }
        let place = Place {
            at: now,
            delay: took,
            limit: None,
            most: 0.0,
        };
        self.places.insert(key, place);
    }

    /// Records that a relay from there carried `rate` bit/s; `limited` where it waited for the destination.
    pub(super) fn on_rate(&mut self, now: Instant, addr: IpAddr, (rate, limited): (f64, bool)) {
        let Some(place) = self.places.get_mut(&prefix(addr)) else {
            return;
        };
        place.at = now;
        place.most = place.most.max(rate);
        if limited {
            place.limit = Some(place.limit.map_or(rate, |limit| limit.max(rate)));
        }
    }

    /// Returns the egress metrics for a box. The bandwidth is the highest rate at which a relay waited for its
    /// destination rather than for the path to the box, unless another relay was faster.
    pub(super) fn quality(&self, now: Instant) -> Quality {
        let lately = |place: &&Place| now.saturating_since(place.at) < MEMORY;
        let places = || self.places.values().filter(lately);
        let limit = places().filter_map(|p| p.limit).reduce(f64::max);
        let most = places().map(|p| p.most).fold(0.0, f64::max);
        let mut delays: Vec<Duration> = places().map(|p| p.delay).collect();
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
        let lately = |at: Instant| ctx.now.saturating_since(at) < ASK_INTERVAL;
        let known = self.targets.first().is_none_or(|t| t.delay.is_some());
        if self.asking.is_some() || known && self.asked_at.is_some_and(lately) {
            return;
        }
        // The list is a ring: each target moves to the end when it is its turn.
        let Some(target) = self.targets.first() else {
            return;
        };
        self.asked_at = Some(ctx.now);
        if let Ok(downstream) = ctx.downstream.connect(target.addr) {
            let since = ctx.now;
            self.asking = Some(Asking { downstream, since });
        }
        self.targets.rotate_left(1);
    }

    /// Returns the target of the last attempt.
    fn asked(&mut self) -> Option<&mut Target> {
        self.targets.last_mut()
    }

    /// Handles an event of an attempt to a target; returns whether it was one.
    pub(super) fn on_event(&mut self, ctx: &mut Ctx<'_>, event: &DownstreamEvent) -> bool {
        let Some(asking) = self.asking.take_if(|a| a.downstream == event.id()) else {
            return false;
        };
        let answered = match event {
            DownstreamEvent::Connected { .. } => {
                ctx.downstream.reset(asking.downstream);
                true
            }
            // A refusal is an answer too.
            DownstreamEvent::ConnectFailed { failure, .. } => *failure == ConnectFailure::Refused,
            _ => false,
        };
        let took = ctx.now.saturating_since(asking.since);
        if let Some(target) = self.asked() {
            target.delay = answered.then(|| smoothed(target.delay, took));
        }
        true
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.asking.as_ref().map(|a| a.since + ASK_PATIENCE)
    }

    /// Gives up an attempt that was not answered.
    pub(super) fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        let late = |a: &mut Asking| a.since + ASK_PATIENCE <= ctx.now;
        if let Some(asking) = self.asking.take_if(late) {
            ctx.downstream.reset(asking.downstream);
            if let Some(target) = self.asked() {
                target.delay = None;
            }
        }
    }
}

/// The rate at which a relay takes what its destination sends.
#[derive(Debug)]
pub(super) struct Pace {
    /// The destination.
    pub(super) addr: IpAddr,
    since: Instant,
    bytes: u64,
    looked_at: Instant,
    looks: u32,
    /// Number of checks that found no unsent bytes.
    waits: u32,
}

impl Pace {
    /// Starts measuring a new relay.
    pub(super) fn new(now: Instant, addr: IpAddr) -> Self {
        Pace {
            addr,
            since: now,
            bytes: 0,
            looked_at: now,
            looks: 0,
            waits: 0,
        }
    }

    /// Returns whether the next check is due.
    pub(super) fn wants_look(&self, now: Instant) -> bool {
        now.saturating_since(self.looked_at) >= LOOK
    }

    /// Records a check: whether no bytes were unsent, so that the relay waits for its destination.
    pub(super) fn look(&mut self, now: Instant, nothing_unsent: bool) {
        self.looked_at = now;
        self.looks += 1;
        self.waits += u32::from(nothing_unsent);
    }

    /// Records `bytes` from the destination. At the end of a period returns the rate, bit/s, and whether the relay
    /// waited for the destination most of the time.
    pub(super) fn on_moved(&mut self, now: Instant, bytes: u64) -> Option<(f64, bool)> {
        self.bytes += bytes;
        let time = now.saturating_since(self.since);
        if time < PERIOD {
            return None;
        }
        let ended = std::mem::replace(self, Pace::new(now, self.addr));
        let rate = ended.bytes as f64 * 8.0 / time.as_secs_f64();
        // Three quarters of the checks, so that single pauses of the destination do not count.
        let limited = ended.waits * 4 > ended.looks * 3;
        (ended.bytes >= LEAST && ended.looks > 0).then_some((rate, limited))
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
        let mut beyond = Beyond::new(&[]);
        assert_eq!(beyond.quality(at(0)), Quality::default());
        beyond.on_connected(at(0), addr(1, 1), MS(40));
        beyond.on_connected(at(1), addr(1, 2), MS(80));
        assert_eq!(beyond.quality(at(2)).delay_ms, Some(50.0), "one prefix");
        beyond.on_connected(at(3), addr(2, 1), MS(90));
        beyond.on_connected(at(3), addr(3, 1), MS(91));
        assert_eq!(beyond.quality(at(4)).delay_ms, Some(90.0), "the middle one");
        assert_eq!(beyond.quality(at(700)), Quality::default());
        for n in 0..1000u32 {
            let [_, _, a, b] = n.to_be_bytes();
            beyond.on_connected(at(5), [10, a, b, 1].into(), MS(1));
        }
        assert_eq!(beyond.places.len(), MAX_PLACES);
    }

    #[test]
    fn only_what_waited_for_its_destination_is_a_limit() {
        let mut beyond = Beyond::new(&[]);
        beyond.on_connected(at(0), addr(1, 1), MS(40));
        beyond.on_connected(at(0), addr(2, 1), MS(40));
        beyond.on_rate(at(1), addr(1, 1), (30e6, false));
        assert_eq!(beyond.quality(at(1)).bandwidth, None);
        beyond.on_rate(at(1), addr(2, 1), (10e6, true));
        assert_eq!(
            beyond.quality(at(1)).bandwidth,
            None,
            "another one was faster"
        );
        beyond.on_rate(at(1), addr(2, 1), (40e6, true));
        beyond.on_rate(at(1), addr(2, 1), (35e6, true));
        assert_eq!(beyond.quality(at(1)).bandwidth, Some(40e6));
    }

    #[test]
    fn a_relay_is_judged_once_a_period() {
        let judge = |waits: u32| {
            let mut pace = Pace::new(at(0), addr(1, 1));
            for n in 0..10 {
                pace.look(at(0) + MS(20 * n), n < waits.into());
            }
            assert_eq!(pace.on_moved(at(0) + MS(999), 125_000), None);
            pace.on_moved(at(1), 125_000)
        };
        assert_eq!(judge(8), Some((2e6, true)));
        assert_eq!(judge(7), Some((2e6, false)));
        let mut slow = Pace::new(at(0), addr(1, 1));
        slow.look(at(0), true);
        assert_eq!(slow.on_moved(at(1), 1000), None, "too little to tell");
    }
}
