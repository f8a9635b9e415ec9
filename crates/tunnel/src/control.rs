//! The rate at which a path is sent on.
//!
//! The queue should stand in the tunnel, where it is short, fair and ordered, and not in the link. So a path is
//! paced at the rate at which it delivers, as BBR does (draft-cardwell-iccrg-bbr-congestion-control): the greatest
//! delivery rate of the last rounds, probed upwards every few rounds. In contrast to BBR, reports tell the delay of
//! one direction, so probing ends as soon as a queue builds. Loss alone says nothing about a radio link's rate.

use core::time::Duration;

use braid_wire::Instant;

use crate::estimate::{Estimate, Update};
use crate::pacer::Pacer;

/// Rounds for which a delivery rate counts. A guess: a path that has become slower keeps its old rate for as long.
const RATE_ROUNDS: usize = 10;
/// Datagrams that leave at once while nothing is known of the path. Their spacing at the peer tells its rate, in one
/// round trip. Content networks start connections with about as many.
const INITIAL_DATAGRAMS: u64 = 32;
/// Rounds without growth after which the start is over.
const FULL_ROUNDS: u32 = 3;
/// The growth of a round below which the start may be over, as a part of the rate: an eighth for a path that starts at
/// a known rate. Its pace grows by a quarter each round, and a path that is faster than known should not look full.
const SEEDED_GROWTH: u64 = 8;
const FULL_GROWTH: u64 = 4;
/// Rounds between probes for more. A guess: with more rounds, a path that has become faster is noticed later.
const CRUISE_ROUNDS: u32 = 4;

/// The phase of rate control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The window grows by what arrives, so that it doubles each round (slow start, RFC 9002 section 7.3.1). The flows
    /// inside start in the same way, so the path does not hold them back.
    Startup,
    /// The spacing of the first datagrams, or an earlier measurement, gave this rate. Datagrams leave at 5/4 of it, or
    /// of the delivery rate if that is higher, until a queue builds or the delivery rate stops growing.
    Confirm(u64),
    /// The queue that the start or a probe made drains, until this time at the latest.
    Drain(Instant),
    /// The rate is that of the path, for so many more rounds.
    Cruise(u32),
    /// The rate exceeds that of the path to find out if it has grown. The rate before the probe.
    Probe(u64),
}

/// The greatest delivery rate of the last rounds.
#[derive(Debug, Clone, Copy, Default)]
struct MaxRate {
    rounds: [u64; RATE_ROUNDS],
    current: usize,
}

impl MaxRate {
    fn get(&self) -> u64 {
        self.rounds.iter().copied().max().unwrap_or(0)
    }

    fn push(&mut self, rate: u64) {
        let current = &mut self.rounds[self.current];
        *current = rate.max(*current);
    }

    /// Starts a round and forgets the oldest one.
    fn turn(&mut self) {
        self.current = (self.current + 1) % RATE_ROUNDS;
        self.rounds[self.current] = 0;
    }
}

/// The rate control of one path.
#[derive(Debug)]
pub(crate) struct Control {
    phase: Phase,
    max_rate: MaxRate,
    /// The round ends when this number is reported.
    round_end: u64,
    /// True if a rate sample of this round was limited by the path, not by a lack of data.
    round_loaded: bool,
    /// The time of the last sample that was not limited.
    loaded_at: Option<Instant>,
    /// The newest sample of the delivery rate, bytes/s, and its time.
    newest: Option<(u64, Instant)>,
    /// The greatest rate that clearly exceeded the one before, and the rounds since.
    full_rate: u64,
    full_rounds: u32,
    /// The part of a rate by which a rate that grows exceeds it.
    full_growth: u64,
    pacer: Pacer,
    /// The most bytes in flight during the start.
    start_window: u64,
    mtu: u64,
}

impl Control {
    pub fn new(mtu: usize) -> Self {
        Control {
            phase: Phase::Startup,
            max_rate: MaxRate::default(),
            round_end: 0,
            round_loaded: false,
            loaded_at: None,
            newest: None,
            full_rate: 0,
            full_rounds: 0,
            full_growth: FULL_GROWTH,
            pacer: Pacer::new(),
            start_window: INITIAL_DATAGRAMS * mtu as u64,
            mtu: mtu as u64,
        }
    }

    /// Returns the estimate of the path's rate in bytes per second, or `None` if nothing is known.
    pub fn rate(&self, estimate: &Estimate) -> Option<u64> {
        // Bounds the rate where a round trip is too short to be measured well. A guess.
        let rtt = estimate.rtt()?.smoothed.as_micros().max(100) as u64;
        let rate = self.max_rate.get();
        Some(match self.phase {
            // The path has carried no more because no more was sent.
            Phase::Startup => rate.max(self.start_window * 1_000_000 / rtt),
            Phase::Confirm(hint) => rate.max(hint),
            _ => rate,
        })
    }

    /// Returns the greatest rate of the last rounds at which the path has delivered, bytes/s; 0 if nothing is known.
    pub fn delivery_rate(&self) -> u64 {
        self.max_rate.get()
    }

    /// Returns the newest sample of the delivery rate, bytes/s, and its time.
    pub fn newest(&self) -> Option<(u64, Instant)> {
        self.newest
    }

    /// Returns the last time at which what arrived showed the path's rate, and not what there was to send.
    pub fn loaded_at(&self) -> Option<Instant> {
        self.loaded_at
    }

    /// Returns true while nothing is known of the path's rate but its round trip.
    pub fn wants_seed(&self, estimate: &Estimate) -> bool {
        self.phase == Phase::Startup && estimate.rtt().is_some()
    }

    /// Starts with a rate that was measured before, in bytes per second, in place of a search for it. The path is paced
    /// at that rate from the first round trip on, and its rate grows from there (compare
    /// draft-ietf-tsvwg-careful-resume, whose half of the window is for senders without pace).
    pub fn seed(&mut self, rate: u64, estimate: &Estimate) {
        // A path of unknown rate is taken to carry the first window in a round trip, and doubles that each time.
        let presumed = self.rate(estimate);
        if self.wants_seed(estimate) && presumed.is_some_and(|presumed| rate > presumed) {
            // `Confirm` sends at 5/4 of its rate.
            self.phase = Phase::Confirm(rate / 5 * 4);
            self.full_growth = SEEDED_GROWTH;
        }
    }

    /// Returns true until the path has shown its full rate.
    pub fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Startup | Phase::Confirm(_))
    }

    /// Returns the rate at which datagrams leave, in bytes per second, or `None` if only the window holds them back.
    fn pacing_rate(&self, estimate: &Estimate) -> Option<u64> {
        let rate = self.rate(estimate)?;
        Some(match self.phase {
            Phase::Startup => return None,
            Phase::Confirm(_) => rate * 5 / 4,
            Phase::Drain(_) => rate / 2,
            Phase::Cruise(_) => rate,
            Phase::Probe(_) => rate * 5 / 4,
        })
    }

    /// Returns the most bytes that may be in flight.
    fn window(&self, estimate: &Estimate) -> u64 {
        let (false, Some(rtt)) = (self.phase == Phase::Startup, estimate.rtt()) else {
            return self.start_window;
        };
        let least = INITIAL_DATAGRAMS * self.mtu;
        let rate = self.rate(estimate).unwrap_or(0);
        // A report comes up to a quarter of a round trip late, and links with jitter deliver late. Until the path has
        // shown its full rate, twice as much may be in flight, so that the rate can grow. The factors are guesses.
        let round = rtt.least() * 3 / 2 + rtt.jitter * 4;
        let factor = if self.is_starting() { 2 } else { 1 };
        least + factor * bytes_in(rate, round)
    }

    /// Returns true if the window has room for a datagram.
    pub fn has_window(&self, estimate: &Estimate) -> bool {
        estimate.in_flight() + self.mtu <= self.window(estimate)
    }

    /// Returns the time at which the pace lets the next datagram leave.
    pub fn next_send(&self) -> Instant {
        self.pacer.next_send()
    }

    /// Notes that a datagram left.
    pub fn on_sent(&mut self, now: Instant, bytes: usize, estimate: &Estimate) {
        let Some(rate) = self.pacing_rate(estimate) else {
            return;
        };
        let gap = Duration::from_nanos(bytes as u64 * 1_000_000_000 / rate.max(1));
        self.pacer.on_sent(now, gap);
    }

    /// Takes what a report told at `now`. Returns true if the delay that looked like a queue belongs to the path.
    pub fn on_update(&mut self, now: Instant, update: &Update, estimate: &Estimate) -> bool {
        if let Some(sample) = update.sample {
            // A sample of a few datagrams is noisy.
            let before = self.newest.map_or(sample.rate, |(rate, _)| rate);
            self.newest = Some(((3 * before + sample.rate) / 4, now));
            if !sample.limited || sample.rate > self.max_rate.get() {
                self.max_rate.push(sample.rate);
            }
            if !sample.limited {
                self.round_loaded = true;
                self.loaded_at = Some(now);
            }
        }
        if let (Phase::Startup, Some(rate)) = (self.phase, update.spread_rate) {
            self.phase = Phase::Confirm(rate);
        }
        // The window grows only while at least half of it is in flight (RFC 7661 section 4.3).
        let flight = estimate.in_flight() + update.delivered;
        if flight.saturating_mul(2) >= self.start_window {
            self.start_window += update.delivered;
        }
        let ends = update.highest >= self.round_end;
        if ends {
            self.round_end = estimate.next_number();
        }
        let loaded = self.round_loaded;
        if ends && loaded {
            self.round_loaded = false;
        }
        let is_used = flight.saturating_mul(2) >= INITIAL_DATAGRAMS * self.mtu;
        let overdue = matches!(self.phase, Phase::Drain(until) if now >= until);
        self.advance(now, ends && loaded, is_used, estimate);
        let stands = overdue && matches!(self.phase, Phase::Drain(_));
        if stands {
            self.phase = Phase::Cruise(CRUISE_ROUNDS);
        }
        if ends && loaded {
            self.max_rate.turn();
        }
        stands
    }

    /// Returns the phase in which the queue drains. At half the rate, a queue of this end is gone after twice its
    /// delay, and the next report shows it. A delay that stays longer is no queue of this end: the path has become
    /// longer, jitter without reordering delays all datagrams of a burst by the longest jitter, or others fill the
    /// queue.
    fn drain(now: Instant, estimate: &Estimate) -> Phase {
        let rtt = estimate.rtt().map_or(Duration::ZERO, |rtt| rtt.smoothed);
        Phase::Drain(now + estimate.queue_delay() * 2 + rtt * 3 / 2)
    }

    /// Returns true if a queue stands in the link.
    fn has_queue(&self, estimate: &Estimate) -> bool {
        let Some(rtt) = estimate.rtt() else {
            return false;
        };
        // Jitter moves even the least of a few delays. The values are guesses.
        let noise = Duration::from_millis(2) + estimate.jitter() * 3 / 2;
        estimate.queue_delay() > rtt.least() / 8 + noise
    }

    /// Returns true if a queue stands in the link and more bytes are in flight than an empty path holds. The delay
    /// alone is not enough: it falls a report too late, and stays high on a path that has become longer.
    fn is_congested(&self, estimate: &Estimate) -> bool {
        // Reports come a quarter of a round trip late.
        let round = estimate
            .rtt()
            .map_or(Duration::ZERO, |rtt| rtt.least() * 5 / 4);
        let flight = bytes_in(self.rate(estimate).unwrap_or(0), round);
        estimate.in_flight() > flight && self.has_queue(estimate)
    }

    /// Changes the phase. `is_used` says that this end has lately had more than a few datagrams under way.
    fn advance(&mut self, now: Instant, round_ends: bool, is_used: bool, estimate: &Estimate) {
        let rate = self.max_rate.get();
        match self.phase {
            Phase::Startup | Phase::Confirm(_) => {
                if round_ends {
                    if rate >= self.full_rate + self.full_rate / self.full_growth {
                        (self.full_rate, self.full_rounds) = (rate, 0);
                    } else {
                        self.full_rounds += 1;
                    }
                }
                // If this end sends little, the queue comes from others, and says nothing of what the path can carry.
                let is_full = is_used && self.has_queue(estimate);
                if rate > 0 && (self.full_rounds >= FULL_ROUNDS || is_full) {
                    self.phase = Self::drain(now, estimate);
                }
            }
            Phase::Drain(_) => {
                if !self.is_congested(estimate) {
                    self.phase = Phase::Cruise(CRUISE_ROUNDS);
                }
            }
            Phase::Cruise(left) => {
                if self.is_congested(estimate) {
                    self.phase = Self::drain(now, estimate);
                } else if round_ends {
                    self.phase = match left {
                        0 => Phase::Probe(rate),
                        _ => Phase::Cruise(left - 1),
                    };
                }
            }
            Phase::Probe(before) => {
                if self.has_queue(estimate) {
                    self.phase = Self::drain(now, estimate);
                } else if round_ends {
                    // If the rate grew and no queue built, the path may carry still more.
                    self.phase = if rate > before + before / 10 {
                        Phase::Probe(rate)
                    } else {
                        Phase::Cruise(CRUISE_ROUNDS)
                    };
                }
            }
        }
    }
}

/// Returns the bytes that a rate delivers in a time.
pub(crate) fn bytes_in(rate: u64, time: Duration) -> u64 {
    let bytes = u128::from(rate) * time.as_micros() / 1_000_000;
    bytes.min(u128::from(u64::MAX / 4)) as u64
}
