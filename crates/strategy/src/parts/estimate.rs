//! Estimates of the time at which data that is sent on a subflow arrives.

use braid_engine::PathRecord;
use braid_engine::strategy::SubflowView;
use braid_wire::Instant;

/// The lowest rate that is expected of a path without measurements, bytes/s. 0.5 Mbit/s is a guess: slower access
/// links are rare.
pub const LOWEST_RATE: f64 = 62_500.0;

/// The queueing delay, as a share of the round trip, from which the bottleneck limits the rate of slow start. One
/// eighth is a guess.
const QUEUE_SHARE: f64 = 0.125;

/// The factor by which the rate of a path may exceed the rate of slow start as long as there is no queue. 2, one
/// more round trip of slow start, is a guess.
const SLOW_START_HEADROOM: f64 = 2.0;

/// The factor by which a path may be faster than presumed as long as no connection on it has measured a delivery
/// rate. 4, two more round trips of slow start, is a guess.
const PRESUMED_HEADROOM: f64 = 4.0;

/// An estimate of the times at which a subflow delivers data. Times are in seconds from now, amounts in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The time from sender to receiver without queues.
    pub one_way: f64,
    /// The round-trip time, queues included.
    pub rtt: f64,
    /// The highest rate at which the path delivers, bytes/s.
    pub rate: f64,
    /// The part of `rate` that is left to this connection: its part of the data of all connections on the path.
    pub share: f64,
    /// The rate that later round trips may reach, bytes/s.
    max_rate: f64,
    /// True if `rate` is the rate of the path's bottleneck, and not the rate of a sender in slow start.
    pub rate_is_evident: bool,
    /// True if the path has delivered nothing yet and has no record, so that `rate` is only an assumption.
    pub untried: bool,
    /// Bytes in the queue of the path's bottleneck, those of other connections included.
    pub queue: f64,
    /// Bytes of this connection in the queue.
    pub own_queue: f64,
    /// The time from which the bottleneck is idle; negative if it is idle already.
    idle_from: f64,
    in_flight: f64,
    /// The time since the oldest byte in flight was sent.
    age: f64,
    /// Unused bytes of the congestion window.
    room: f64,
    /// Bytes that may be sent for each acknowledged byte: 2 in slow start, otherwise 1.
    growth: f64,
    ssthresh: f64,
    /// True if the subflow takes no data, and has no data in flight whose acknowledgement could make room.
    is_shut: bool,
}

impl Estimate {
    /// Estimates `subflow`, with the record of its path, if there is one. A path of unknown rate is assumed to carry
    /// a congestion window each round trip, as slow start assumes.
    ///
    /// In slow start without a queue, the sender limits the measured rate, so the path may be faster.
    pub fn new(now: Instant, subflow: &SubflowView, record: Option<&PathRecord>) -> Estimate {
        let in_flight = subflow.in_flight as f64;
        let [base, rtt] = round_trips(subflow);
        let in_slow_start = subflow.cwnd < subflow.ssthresh;
        let is_limited_by_sender =
            in_slow_start && subflow.queueing_delay().as_secs_f64() < QUEUE_SHARE * base;
        let recorded = record.map_or(0, |r| r.delivery_rate);
        let is_recorded = recorded > 0 && subflow.delivery_rate == 0;
        let is_recorded_bottleneck = is_recorded && record.is_some_and(|r| !r.is_lower_bound);
        let is_measured = subflow.peak_rate > 0 && !is_limited_by_sender;
        let rate = if is_measured {
            subflow.peak_rate
        } else {
            let presumed = if is_recorded {
                recorded
            } else {
                (subflow.cwnd as f64 / base) as u64
            };
            presumed.max(subflow.peak_rate).max(subflow.delivery_rate)
        };
        let others = subflow.others_in_flight as f64;
        let together = rate_together(subflow);
        let rate = rate.max(together).max(1) as f64;
        let room = subflow.window_room() as f64;
        let share = (in_flight + room).max(1.0) / (in_flight + room + others).max(1.0);
        let sent = subflow.oldest_sent.unwrap_or(now);
        let age = now.saturating_since(sent).as_secs_f64();
        // The time from which the bottleneck is idle, seconds from now; negative if it is idle already. Without a
        // measured rate, the data in flight is assumed to have left all at once.
        let idle_from = if is_measured {
            if subflow.drained_at > now {
                subflow.drained_at.saturating_since(now).as_secs_f64()
            } else {
                0.0 - now.saturating_since(subflow.drained_at).as_secs_f64()
            }
        } else {
            in_flight / rate - age
        };
        // Bytes in flight beyond the path's capacity must be in its queue.
        let min_queue = (in_flight - rate * base).max(0.0);
        let rate_is_evident = is_measured || is_recorded_bottleneck;
        // A presumed rate is usually too low, so only much data of others shows a queue.
        let headroom = if rate_is_evident {
            1.0
        } else if together > 0 {
            SLOW_START_HEADROOM
        } else {
            PRESUMED_HEADROOM
        };
        let others_queue = (in_flight + others - headroom * rate * base).max(0.0);
        let own_queue = (rate * share * idle_from).min(in_flight).max(min_queue);
        Estimate {
            one_way: base / 2.0,
            rtt,
            rate,
            rate_is_evident,
            untried: subflow.peak_rate == 0 && subflow.delivery_rate == 0,
            share,
            queue: own_queue.max(others_queue),
            own_queue,
            idle_from,
            in_flight,
            age,
            room,
            growth: if in_slow_start { 2.0 } else { 1.0 },
            max_rate: if is_limited_by_sender && !is_recorded_bottleneck {
                SLOW_START_HEADROOM * rate
            } else {
                rate
            },
            ssthresh: subflow.ssthresh as f64,
            is_shut: !subflow.ready && subflow.in_flight == 0,
        }
    }

    /// Returns whether data of other connections waits in the path's queue.
    pub fn others_wait(&self) -> bool {
        self.queue > self.own_queue
    }

    /// Returns when `bytes` that are sent now will have arrived. They arrive after the bytes that are already in
    /// the queue.
    pub fn arrival(&self, bytes: f64) -> f64 {
        self.one_way + (self.queue + bytes) / self.rate
    }

    /// Returns when `bytes` that are sent now will have arrived at the earliest: at the rate that later round trips
    /// may reach.
    pub fn earliest(&self, bytes: f64) -> f64 {
        self.one_way + (self.queue + bytes) / self.max_rate
    }

    /// Returns when everything in flight will have arrived.
    pub fn drained(&self) -> f64 {
        if self.in_flight == 0.0 {
            return 0.0;
        }
        let wait = if self.queue > 0.0 {
            self.idle_from.max(self.queue / self.rate)
        } else {
            self.idle_from
        };
        (self.one_way + wait).max(0.0)
    }

    /// Returns the rate at which the subflow can send over the next round trip, bytes/s. Either the path limits
    /// this rate, or the window as it grows within the round trip.
    pub fn speed(&self) -> f64 {
        let window = self.room + self.in_flight;
        (self.rate * self.share).min(self.growth * window / self.rtt)
    }

    /// Returns the number of unsent bytes that this subflow could deliver within `time`.
    pub fn delivered_within(&self, time: f64) -> f64 {
        self.sent_within(time - self.one_way)
    }

    /// Returns the number of unsent bytes that could pass the path's bottleneck within `sending` seconds.
    pub fn sent_within(&self, sending: f64) -> f64 {
        if sending <= 0.0 || self.is_shut {
            return 0.0;
        }
        // The upper bound is the number of bytes that the bottleneck can pass after those in its queue.
        let rate = self.max_rate * self.share;
        let max_passed = (rate * sending - self.own_queue).max(0.0);
        // The window has room for some bytes now. Acknowledgements make room for further bytes; the first one
        // comes after `first_ack`.
        let at_once = self.room.min(max_passed);
        let first_ack = (self.rtt - self.age).max(0.0);
        let later = self
            .released(sending)
            .min(rate * (sending - first_ack).max(0.0));
        (at_once + later).min(max_passed)
    }

    /// Returns the number of bytes for which acknowledgements make room within `time`: the acknowledged bytes, and
    /// as many again in slow start.
    fn released(&self, time: f64) -> f64 {
        let rounds = time / self.rtt;
        let acknowledged = self.growth * self.in_flight;
        if rounds <= 1.0 {
            // The acknowledgements of the bytes in flight are assumed to be spread evenly. The first one comes a
            // round trip after the oldest byte was sent (`age` ago), and the last one a round trip from now.
            // `first` is the share of the round trip until the first acknowledgement; it stays below 1, because
            // the next line divides by `1 - first`.
            let first = (1.0 - self.age / self.rtt).clamp(0.0, 0.999);
            return acknowledged * ((rounds - first) / (1.0 - first)).max(0.0);
        }
        let window = self.room + self.in_flight;
        if self.growth > 1.0 {
            // `first_round` is the number of bytes sent in the first round trip. Slow start doubles the number in
            // each later round trip (a geometric series), until the window reaches ssthresh. 16 doublings reach
            // any limit; this bound keeps the number finite.
            let first_round = self.room + acknowledged;
            let doubled = 2.0 * first_round * ((rounds - 1.0).min(16.0).exp2() - 1.0);
            let steady = window.max(self.ssthresh) * (rounds - 1.0);
            acknowledged + doubled.min(steady)
        } else {
            acknowledged + window * (rounds - 1.0)
        }
    }
}

/// Returns the sum of the newest delivery rates of all connections on the path, bytes/s; 0 if no other connection has
/// data in flight. If they load the path, this is the rate of its bottleneck.
fn rate_together(subflow: &SubflowView) -> u64 {
    match subflow.others_in_flight {
        0 => 0,
        _ => subflow.delivery_rate.saturating_add(subflow.others_rate),
    }
}

/// Returns the round trip without queues and the smoothed one, seconds. They are above 0, because they are divisors.
fn round_trips(subflow: &SubflowView) -> [f64; 2] {
    // A subflow without a sample had to repeat packets of its handshake. Its timeout is the best known value for its
    // round-trip time.
    let times = if subflow.srtt.is_zero() {
        [subflow.rto; 2]
    } else {
        [subflow.base_rtt, subflow.srtt]
    };
    times.map(|time| time.as_secs_f64().max(1e-6))
}
