//! Estimates of when data sent on a subflow arrives.

use braid_engine::strategy::SubflowView;
use braid_wire::Instant;

/// The share of the fastest path's rate that a path is assumed to have before it delivers anything. Data
/// that waits on a path that turns out to be slow costs more than a fast path could have carried in
/// addition.
const UNTRIED_RATE_SHARE: f64 = 0.5;

/// The expected deliveries of a subflow. Times are seconds, counted from now; amounts are bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The time from sender to receiver without queues.
    pub one_way: f64,
    /// The round-trip time, queues included.
    pub rtt: f64,
    /// The highest rate that the path takes, bytes/s; infinite where it is unknown.
    pub rate: f64,
    /// Bytes queued before the path's bottleneck.
    queue: f64,
    in_flight: f64,
    /// The time since the oldest byte in flight was sent.
    age: f64,
    /// Bytes of window left.
    room: f64,
    /// Bytes that the window releases for each acknowledged byte: 2 in slow start, else 1.
    growth: f64,
    ssthresh: f64,
    /// The subflow takes nothing now, and has nothing in flight whose acknowledgement could change that.
    is_shut: bool,
}

impl Estimate {
    /// Estimates `subflow`. An unknown rate is taken to be `usual`, or less before the first bytes have
    /// arrived.
    pub fn new(now: Instant, subflow: &SubflowView, usual: f64) -> Estimate {
        let in_flight = subflow.in_flight as f64;
        // A subflow without a sample had trouble in its handshake; its timeout is the best guess of its
        // round trip.
        let [base, rtt] = match subflow.srtt.is_zero() {
            true => [subflow.rto; 2],
            false => [subflow.base_rtt, subflow.srtt],
        }
        .map(|time| time.as_secs_f64());
        let rate = match subflow.peak_rate {
            0 if subflow.delivery_rate == 0 => UNTRIED_RATE_SHARE * usual,
            0 => usual,
            rate => rate as f64,
        };
        let sent = subflow.oldest_sent.unwrap_or(now);
        let age = now.saturating_since(sent).as_secs_f64();
        // Bytes beyond the path's capacity stand in its queue for sure. Data sent in bursts may make the
        // queue longer.
        let queue = match rate.is_finite() {
            true => {
                let backlog = match subflow.peak_rate {
                    0 => in_flight - rate * age,
                    _ => rate * subflow.drained_at.saturating_since(now).as_secs_f64(),
                };
                let certain = (in_flight - rate * base).max(0.0);
                backlog.min(in_flight).max(certain)
            }
            false => 0.0,
        };
        Estimate {
            one_way: base / 2.0,
            // Not zero, since `speed` and `released` divide by it.
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

    /// Returns when `bytes` that are sent now have arrived.
    pub fn arrival(&self, bytes: f64) -> f64 {
        self.one_way + (self.queue + bytes) / self.rate
    }

    /// Returns the bytes in flight beyond the path's capacity without a queue; 0 where that is unknown.
    pub fn surplus(&self) -> f64 {
        (self.in_flight - self.rate * 2.0 * self.one_way).max(0.0)
    }

    /// Returns the bytes that the path holds without a queue.
    pub fn pipe(&self) -> f64 {
        self.rate * 2.0 * self.one_way
    }

    /// Returns the bytes that have not arrived yet; 0 where that is unknown.
    pub fn under_way(&self) -> f64 {
        (self.in_flight - self.rate * self.one_way).max(0.0)
    }

    /// Returns when everything in flight will have arrived.
    pub fn drained(&self) -> f64 {
        match self.rate.is_finite() {
            true => self.under_way() / self.rate,
            // Data in flight is taken to be half-way.
            false if self.in_flight > 0.0 => self.one_way / 2.0,
            false => 0.0,
        }
    }

    /// Returns the rate at which bytes go out over the next round trip, bytes/s.
    pub fn speed(&self) -> f64 {
        let window = self.room + self.in_flight;
        self.rate.min(self.growth * window / self.rtt)
    }

    /// Returns how many bytes not sent yet could be delivered here within `time`.
    pub fn delivered_within(&self, time: f64) -> f64 {
        let sending = time - self.one_way;
        if sending <= 0.0 || self.is_shut {
            return 0.0;
        }
        // The upper bound: bytes that the bottleneck can pass behind its queue.
        let taken = (self.rate * sending - self.queue).max(0.0);
        let at_once = self.room.min(taken);
        let first = (self.rtt - self.age).max(0.0);
        let later = self
            .released(sending)
            .min(self.rate * (sending - first).max(0.0));
        (at_once + later).min(taken)
    }

    /// Returns by how many bytes the window opens within `time`: the acknowledged bytes, and as many
    /// again in slow start.
    fn released(&self, time: f64) -> f64 {
        let rounds = time / self.rtt;
        let acknowledged = self.growth * self.in_flight;
        if rounds <= 1.0 {
            // Data sent within the last round trip is acknowledged within the next, not before.
            // Below 1, since the next line divides by `1 - first`.
            let first = (1.0 - self.age / self.rtt).clamp(0.0, 0.999);
            return acknowledged * ((rounds - first) / (1.0 - first)).max(0.0);
        }
        let window = self.room + self.in_flight;
        if self.growth > 1.0 {
            let first = self.room + acknowledged;
            // Slow start doubles in each round trip until ssthresh; 16 doublings bound the float.
            let doubled = 2.0 * first * ((rounds - 1.0).min(16.0).exp2() - 1.0);
            let steady = window.max(self.ssthresh) * (rounds - 1.0);
            acknowledged + doubled.min(steady)
        } else {
            acknowledged + window * (rounds - 1.0)
        }
    }
}
