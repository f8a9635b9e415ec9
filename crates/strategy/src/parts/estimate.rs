//! Estimates of the time at which data that is sent on a subflow arrives.

use braid_engine::strategy::SubflowView;
use braid_wire::Instant;

/// The assumed rate of a path that has not delivered anything yet, as a share of the fastest path's rate. The
/// share is below 1, because an overestimate costs more than an underestimate. Data stuck on an overestimated path
/// delays the whole flow; an underestimated path only carries less for a while. One half is a guess.
const UNTRIED_RATE_SHARE: f64 = 0.5;

/// An estimate of the times at which a subflow delivers data. Times are in seconds from now, amounts in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The time from sender to receiver without queues.
    pub one_way: f64,
    /// The round-trip time, queues included.
    pub rtt: f64,
    /// The highest rate at which the path delivers, bytes/s; infinite if no path's rate is known.
    pub rate: f64,
    /// Bytes in the queue of the path's bottleneck.
    queue: f64,
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
    /// Estimates `subflow`. If the subflow's rate is unknown, the estimate assumes `assumed_rate`, or a share of
    /// it until the subflow has delivered its first bytes.
    pub fn new(now: Instant, subflow: &SubflowView, assumed_rate: f64) -> Estimate {
        let in_flight = subflow.in_flight as f64;
        // A subflow without a sample had to repeat packets of its handshake. Its timeout is the best known value
        // for its round-trip time.
        let [base, rtt] = match subflow.srtt.is_zero() {
            true => [subflow.rto; 2],
            false => [subflow.base_rtt, subflow.srtt],
        }
        .map(|time| time.as_secs_f64());
        let rate = match subflow.peak_rate {
            0 if subflow.delivery_rate == 0 => UNTRIED_RATE_SHARE * assumed_rate,
            0 => assumed_rate,
            rate => rate as f64,
        };
        let sent = subflow.oldest_sent.unwrap_or(now);
        let age = now.saturating_since(sent).as_secs_f64();
        // Bytes in flight beyond the path's capacity must be in its queue (`min_queue`). Data that was sent in
        // bursts may make the queue longer: `backlog` is the data that cannot have passed the bottleneck yet at
        // the path's rate.
        let queue = match rate.is_finite() {
            true => {
                let backlog = match subflow.peak_rate {
                    0 => in_flight - rate * age,
                    _ => rate * subflow.drained_at.saturating_since(now).as_secs_f64(),
                };
                let min_queue = (in_flight - rate * base).max(0.0);
                backlog.min(in_flight).max(min_queue)
            }
            false => 0.0,
        };
        Estimate {
            one_way: base / 2.0,
            // `speed` and `released` divide by the round-trip time, so it must not be zero.
            rtt: rtt.max(1e-6),
            rate,
            queue,
            in_flight,
            age,
            room: subflow.window_room() as f64,
            growth: if subflow.cwnd < subflow.ssthresh {
                2.0
            } else {
                1.0
            },
            ssthresh: subflow.ssthresh as f64,
            is_shut: !subflow.ready && subflow.in_flight == 0,
        }
    }

    /// Returns when `bytes` that are sent now will have arrived. They arrive after the bytes that are already in
    /// the queue.
    pub fn arrival(&self, bytes: f64) -> f64 {
        self.one_way + (self.queue + bytes) / self.rate
    }

    /// Returns the bytes in flight beyond [`pipe`](Self::pipe); 0 if the rate is unknown.
    pub fn surplus(&self) -> f64 {
        (self.in_flight - self.rate * 2.0 * self.one_way).max(0.0)
    }

    /// Returns the bandwidth-delay product: the bytes in flight that the path carries without a queue.
    pub fn pipe(&self) -> f64 {
        self.rate * 2.0 * self.one_way
    }

    /// Returns the bytes in flight that have not arrived yet; 0 if the rate is unknown. The other bytes in flight
    /// have arrived, and their acknowledgements are on the way back. They are as many as the path delivers in half
    /// a round trip.
    pub fn under_way(&self) -> f64 {
        (self.in_flight - self.rate * self.one_way).max(0.0)
    }

    /// Returns when everything in flight will have arrived.
    pub fn drained(&self) -> f64 {
        match self.rate.is_finite() {
            true => self.under_way() / self.rate,
            // Without a rate, data in flight is assumed to be half-way to the receiver.
            false if self.in_flight > 0.0 => self.one_way / 2.0,
            false => 0.0,
        }
    }

    /// Returns the rate at which the subflow can send over the next round trip, bytes/s. Either the path limits
    /// this rate, or the window as it grows within the round trip.
    pub fn speed(&self) -> f64 {
        let window = self.room + self.in_flight;
        self.rate.min(self.growth * window / self.rtt)
    }

    /// Returns the number of unsent bytes that this subflow could deliver within `time`.
    pub fn delivered_within(&self, time: f64) -> f64 {
        let sending = time - self.one_way;
        if sending <= 0.0 || self.is_shut {
            return 0.0;
        }
        // The upper bound is the number of bytes that the bottleneck can pass after those in its queue.
        let max_passed = (self.rate * sending - self.queue).max(0.0);
        // The window has room for some bytes now. Acknowledgements make room for further bytes; the first one
        // comes after `first_ack`.
        let at_once = self.room.min(max_passed);
        let first_ack = (self.rtt - self.age).max(0.0);
        let later = self
            .released(sending)
            .min(self.rate * (sending - first_ack).max(0.0));
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
