//! LEDBAT (RFC 6817), for traffic that yields to everything else: it fills the capacity that others leave,
//! and gives way as soon as a queue builds up.

use core::time::Duration;

use braid_wire::Instant;

use super::newreno::NewReno;
use super::variant::{Growth, Variant};
use super::{AckSample, Algorithm, CongestionControl};

/// LEDBAT (RFC 6817), by round-trip times, with the decrease of LEDBAT++
/// (draft-irtf-iccrg-ledbat-plus-plus).
pub const LEDBAT: Algorithm = Algorithm {
    name: "ledbat",
    make: |mss, initial_window| Box::new(Variant::<Ledbat>::new(mss, initial_window)),
};

/// The most queueing delay that LEDBAT causes. RFC 6817 allows 100 ms; a quarter of that goes unnoticed by
/// others on the link.
const TARGET_DELAY: Duration = Duration::from_millis(25);

/// The minutes whose lowest round trip counts as the one without queues (RFC 6817 section 3.4.2): for this
/// long a lone flow does not mistake its own queue for the path.
const BASE_HISTORY_MINUTES: usize = 10;
const MINUTE: Duration = Duration::from_secs(60);

/// The number of newest samples of which the lowest counts: a single late acknowledgement is no queue.
const CURRENT_FILTER_SAMPLES: usize = 4;

/// The slowest growth on short paths, as in LEDBAT++: a segment in 16 round trips.
const MAX_GROWTH_RTTS: u64 = 16;

/// NewReno below the target, slower on short paths; above the target the window shrinks each round trip.
#[derive(Debug, Default)]
struct Ledbat {
    /// The lowest round trip of each minute; zero if there was none.
    base: [Duration; BASE_HISTORY_MINUTES],
    minute: usize,
    minute_began: Option<Instant>,
    recent: [Duration; CURRENT_FILTER_SAMPLES],
    newest: usize,
    /// Set once a queue was seen, which ends slow start.
    steady: bool,
}

impl Ledbat {
    fn on_rtt(&mut self, now: Instant, rtt: Duration) {
        let began = *self.minute_began.get_or_insert(now);
        if now.saturating_since(began) >= MINUTE {
            self.minute_began = Some(now);
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
    /// No jump after a pause: others may be there by now, to which LEDBAT yields.
    const RESTARTS_AT_CAPACITY: bool = false;

    fn on_ack(&mut self, reno: &mut NewReno, ack: &AckSample<'_>) {
        if let Some(rtt) = ack.rtt {
            self.on_rtt(ack.now, rtt);
        }
        let queueing = self.queueing();
        if !self.steady && queueing * 4 > TARGET_DELAY * 3 {
            self.steady = true;
            reno.shrink_to(reno.cwnd());
        }
        if queueing <= TARGET_DELAY {
            let twice = (2 * TARGET_DELAY).as_nanos() / self.base().as_nanos().max(1);
            let slowness = (twice as u64).saturating_add(1).min(MAX_GROWTH_RTTS);
            return reno.grow(ack, slowness.saturating_mul(reno.cwnd()));
        }
        if ack.round_start && !ack.in_recovery {
            let over = queueing.as_secs_f64() / TARGET_DELAY.as_secs_f64() - 1.0;
            reno.shrink_to((reno.cwnd() as f64 * (1.0 - over.min(0.5))) as u64);
        }
    }
}
