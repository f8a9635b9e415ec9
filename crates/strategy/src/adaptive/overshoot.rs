//! Subflows that are held back although they have room.

use super::input::{Candidate, DecisionInput};
use crate::parts::flow::size;

/// The number of packets that may wait in the queue of any path. 20 is a guess: shorter queues come from bursts,
/// and delay little.
const SMALL_QUEUE_PACKETS: f64 = 20.0;
/// Slow start is not held back if the rest of a flow is expected to lose this number of packets or more by chance.
/// Such losses end slow start soon and shrink the window. A large window is then worth more than the packets that
/// its overshoot loses. 0.3 is a guess.
const MIN_CHANCE_LOSSES: f64 = 0.3;

impl DecisionInput<'_> {
    /// Marks the subflows as not ready on which more data would only wait or be lost.
    pub fn hold_back(&mut self) {
        // Each subflow is compared with the rates of all of them, so this needs the whole list.
        for n in 0..self.subflows.len() {
            self.subflows[n].ready &= !self.is_overshooting(&self.subflows[n]);
        }
    }

    /// Returns whether more data on this subflow would only wait in the path's queue, or be lost there. If so, the
    /// data waits until any subflow has room; the queue keeps this path busy in the meantime.
    ///
    /// Late in a flow (less than two round trips to go), any long queue counts, because a loss would delay the end
    /// of the flow. Earlier in a flow, only slow start is held back. Slow start doubles the window until the first
    /// loss. Twice the path's capacity is in flight at this loss, and the many further losses leave the path idle
    /// for a while.
    ///
    /// No subflow is held back while the measured delay does not show the queue. Slow start is not held back in two
    /// further cases:
    ///
    /// - Losses by chance are expected, see [`MIN_CHANCE_LOSSES`].
    /// - The queue is longer than this subflow's own bytes explain, so other traffic shares it. If this flow
    ///   stayed small, the other traffic would take the path.
    fn is_overshooting(&self, c: &Candidate<'_>) -> bool {
        let rtt = c.estimate.rtt;
        // Here the measured rate counts, even if the sender limits it.
        let rate = match c.subflow.peak_rate {
            0 => c.estimate.rate,
            rate => rate as f64,
        };
        let pipe = rate * 2.0 * c.estimate.one_way;
        let surplus = (c.subflow.in_flight as f64 - pipe).max(0.0);
        // A queue of a quarter of the path's capacity keeps the path busy while acknowledgements come in bursts.
        // The quarter is a guess.
        let allowed_queue = (pipe / 4.0).max(SMALL_QUEUE_PACKETS * f64::from(c.subflow.mss));
        // On a single path congestion control alone decides, because data that is held back could go nowhere else.
        if surplus <= allowed_queue || self.subflows.len() < 2 {
            return false;
        }
        // In a paced slow start the measured rate is below the bottleneck's, so that there is a surplus without a
        // queue. The quarter is a guess: the sample of the round trip is older than the newest packets.
        let delay = c.subflow.latest_rtt.saturating_sub(c.subflow.base_rtt);
        if delay.as_secs_f64() * rate < surplus / 4.0 {
            return false;
        }
        let speed = self.speed();
        let announced = size(self.view.flow_size, 0).saturating_sub(self.view.sent) as f64;
        let remaining = self.remaining.max(announced);
        if remaining < 2.0 * rtt * speed {
            return true;
        }
        let slow_start = c.subflow.cwnd < c.subflow.ssthresh;
        // The number of packets that this subflow will carry, by its share of the sum of the rates.
        let packets = remaining * rate / speed / f64::from(c.subflow.mss);
        let lost_by_chance = c.loss * packets;
        let queued = c.subflow.queueing_delay().as_secs_f64() * rate;
        // The factor 2 is a guess: the measured queueing delay is not exact.
        slow_start && lost_by_chance < MIN_CHANCE_LOSSES && queued < 2.0 * surplus
    }
}
