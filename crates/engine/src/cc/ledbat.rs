//! LEDBAT (RFC 6817), for traffic that yields to all other traffic: it uses the capacity that other flows leave,
//! and reduces its window as soon as a queue builds up.

use core::time::Duration;

use braid_wire::Instant;

use super::newreno::NewReno;
use super::variant::{Growth, Variant};
use super::{AckSample, Algorithm, CongestionControl};

/// LEDBAT (RFC 6817) with the decrease of LEDBAT++ (draft-irtf-iccrg-ledbat-plus-plus). Like LEDBAT++ it measures
/// queues by round-trip times, because TCP has no one-way delays.
pub const LEDBAT: Algorithm = Algorithm {
    name: "ledbat",
    make: |mss, initial_window| Box::new(Variant::<Ledbat>::new(mss, initial_window)),
};

/// The queueing delay at which LEDBAT aims. RFC 6817 allows at most 100 ms, but interactive traffic on the link
/// would notice such a delay. A quarter of 100 ms is a guess.
const TARGET_DELAY: Duration = Duration::from_millis(25);

/// The number of minutes over which the lowest round trip counts as the round trip without a queue (RFC 6817
/// section 3.4.2). Older round trips are forgotten because the route may have changed. A shorter history would
/// contain only round trips that include the flow's own queue. The flow would then take its queue for a part of
/// the path.
const BASE_HISTORY_MINUTES: usize = 10;
const MINUTE: Duration = Duration::from_secs(60);

/// The number of latest samples in the filter of the current round trip (`CURRENT_FILTER` of RFC 6817). The lowest
/// of these samples counts, so that a single late acknowledgement does not look like a queue.
const CURRENT_FILTER_SAMPLES: usize = 4;

/// The maximum number of round trips that growth by one segment takes: `GAIN` of LEDBAT++ is at least 1/16.
const MAX_GROWTH_RTTS: u64 = 16;

/// NewReno below the target delay, with slower growth on paths with short round trips. Above the target the
/// window shrinks in each round trip.
#[derive(Debug, Default)]
struct Ledbat {
    /// The lowest round trip of each minute; zero if there was none.
    base: [Duration; BASE_HISTORY_MINUTES],
    /// The index of the current minute.
    minute: usize,
    minute_start: Option<Instant>,
    /// The latest round trips; zero if there was none.
    recent: [Duration; CURRENT_FILTER_SAMPLES],
    /// The index of the latest round trip.
    newest: usize,
    /// True once a queue was seen, which ended slow start.
    slow_start_ended: bool,
}

impl Ledbat {
    fn on_rtt(&mut self, now: Instant, rtt: Duration) {
        let start = *self.minute_start.get_or_insert(now);
        if now.saturating_since(start) >= MINUTE {
            self.minute_start = Some(now);
            self.minute = (self.minute + 1) % BASE_HISTORY_MINUTES;
            self.base[self.minute] = Duration::ZERO;
        }
        let base = &mut self.base[self.minute];
        if base.is_zero() || rtt < *base {
            *base = rtt;
        }
        self.newest = (self.newest + 1) % CURRENT_FILTER_SAMPLES;
        self.recent[self.newest] = rtt;
    }

    /// Returns the round trip without a queue.
    fn base(&self) -> Duration {
        lowest(&self.base)
    }

    /// Returns the time that packets spend in the path's queue.
    fn queueing(&self) -> Duration {
        lowest(&self.recent).saturating_sub(self.base())
    }
}

/// Returns the lowest sample; zero if there is none.
fn lowest(samples: &[Duration]) -> Duration {
    let measured = samples.iter().filter(|s| !s.is_zero());
    measured.min().copied().unwrap_or_default()
}

impl Growth for Ledbat {
    /// After a pause the capacity may belong to other flows, to which LEDBAT yields.
    const RESTARTS_AT_CAPACITY: bool = false;

    fn on_ack(&mut self, reno: &mut NewReno, ack: &AckSample<'_>) {
        if let Some(rtt) = ack.rtt {
            self.on_rtt(ack.now, rtt);
        }
        let queueing = self.queueing();
        // As in LEDBAT++, slow start ends at three quarters of the target delay, before it exceeds the target.
        if !self.slow_start_ended && queueing * 4 > TARGET_DELAY * 3 {
            self.slow_start_ended = true;
            reno.shrink_to(reno.cwnd());
        }
        if queueing <= TARGET_DELAY {
            // LEDBAT++ grows by a segment in `2 * TARGET / base` round trips, rounded up. 1 more than the quotient
            // of the integers comes close to that.
            let quotient = (2 * TARGET_DELAY).as_nanos() / self.base().as_nanos().max(1);
            let growth_rtts = (quotient as u64).saturating_add(1).min(MAX_GROWTH_RTTS);
            return reno.grow(ack, growth_rtts.saturating_mul(reno.cwnd()));
        }
        if ack.round_start && !ack.in_recovery {
            // The multiplicative decrease of LEDBAT++: the window shrinks by the fraction by which the delay
            // exceeds the target, at most by half.
            let excess = queueing.as_secs_f64() / TARGET_DELAY.as_secs_f64() - 1.0;
            reno.shrink_to((reno.cwnd() as f64 * (1.0 - excess.min(0.5))) as u64);
        }
    }
}
