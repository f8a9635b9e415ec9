//! The choice of the subflow for new data.

use braid_engine::Urgency;
use braid_engine::strategy::{Decision, Payload};

use super::copies::{LONG_FLOW_BYTES, RACK_DETECTION, loses_much};
use super::input::{Candidate, DecisionInput};
use crate::parts::estimate::LOWEST_RATE;
use crate::parts::flow::size;
use crate::parts::urgency;

/// The share of the sum of the rates below which a path is negligible. A flow loses at most so much speed without
/// the path. 2 % is a guess.
const MIN_RATE_SHARE: f64 = 0.02;
/// The number of packets in flight that keep the measurements of a negligible path current. A guess.
const MEASURING_PACKETS: f64 = 4.0;

impl DecisionInput<'_> {
    /// Returns new data for the subflow with room on which the data arrives first. Returns `None` if subflows
    /// without room will deliver all remaining data sooner, so that waiting for them is better.
    pub fn new_data(&self) -> Option<Decision> {
        if self.next_urgency.is_some_and(urgency::is_important) {
            return urgency::on_best_path(self.view);
        }
        if self.next_urgency == Some(Urgency::LEAST_URGENT) {
            return urgency::on_spare_paths(self.view);
        }
        let tried_speed = self.tried_speed();
        let ready = self.subflows.iter();
        let ready = ready.filter(|c| c.ready && self.may_try(c, tried_speed));
        let (best, repair, arrival) = ready
            .map(|c| {
                let segment = f64::from(c.subflow.mss).min(self.remaining);
                let repair = self.expected_repair(c);
                (c, repair, c.estimate.arrival(segment) + repair)
            })
            .min_by(|a, b| a.2.total_cmp(&b.2))?;
        // The others are credited with what they deliver in the best case, so this subflow is too.
        let segment = f64::from(best.subflow.mss).min(self.remaining);
        let earliest = best.estimate.earliest(segment) + repair;
        let others = self.subflows.iter();
        let others = others.filter(|c| c.subflow.id != best.subflow.id);
        let [mut elsewhere, mut by_full_subflows] = [0.0; 2];
        for c in others.clone() {
            let time = earliest - self.expected_repair(c);
            let within = c.estimate.delivered_within(time);
            elsewhere += within;
            by_full_subflows += if c.ready { 0.0 } else { within };
        }
        // The peer's window does not move past data that is sent now on the best subflow until this data arrives.
        // Until then the subflows share at most the present window.
        let to_share = self.remaining.min(self.view.peer_window as f64);
        // Only subflows without room are worth waiting for: a subflow with room delivers no sooner than the best
        // one, and two subflows must not wait for each other. If nothing is in flight, no event would end the
        // wait, so there is none.
        // One byte of tolerance absorbs rounding errors of the estimates.
        if by_full_subflows > to_share + 1.0 && self.view.outstanding > 0 {
            return None;
        }
        let full = others.clone().filter(|c| !c.ready);
        if self.blocks_window(full, earliest, segment) {
            return None;
        }
        let mss = f64::from(best.subflow.mss);
        let share = (to_share - elsewhere).max(mss);
        // The end of a large chunk may arrive so late that the others could have sent it. Then the subflow gets a
        // segment at a time.
        let chunk = share.min(best.subflow.window_room() as f64);
        let chunk_arrival = arrival + best.estimate.arrival(chunk) - best.estimate.arrival(mss);
        let by_then: f64 = others
            .map(|c| c.estimate.delivered_within(chunk_arrival))
            .sum();
        let max_bytes = if by_then + chunk > to_share + mss {
            mss
        } else {
            share
        };
        Some(Decision::Send {
            subflow: best.subflow.id,
            data: Payload::New,
            max_bytes: max_bytes as u32,
        })
    }

    /// Returns whether `segment` bytes of new data that arrive at `arrival` would leave the `full` subflows idle for
    /// lack of room in the peer's window.
    ///
    /// The sender hears that the window has moved past this data one way later, on the fastest subflow. Before, the
    /// window moves past what is outstanding now. In slow start the full subflows may use up all of this.
    fn blocks_window<'b>(
        &self,
        full: impl Iterator<Item = &'b Candidate<'b>>,
        arrival: f64,
        segment: f64,
    ) -> bool {
        let window = self.view.peer_window as f64;
        if self.remaining <= window || self.view.outstanding == 0 {
            return false;
        }
        let one_ways = self.subflows.iter().map(|c| c.estimate.one_way);
        let heard = arrival + one_ways.fold(f64::INFINITY, f64::min);
        let sent: f64 = full.map(|c| c.estimate.sent_within(heard)).sum();
        sent + segment > window + self.view.outstanding as f64
    }

    /// Returns the expected time by which losses delay new data on `c`: the probability that a packet of the data
    /// for which there is room is lost, times the time to find and repeat it.
    fn expected_repair(&self, c: &Candidate<'_>) -> f64 {
        let mss = f64::from(c.subflow.mss);
        let packets = (self.remaining.min(c.subflow.window_room() as f64) / mss).max(1.0);
        let loss = (c.loss * packets).min(1.0);
        let round_trip = c.estimate.arrival(mss) + c.estimate.one_way;
        loss * RACK_DETECTION * round_trip.max(c.estimate.rtt)
    }

    /// Returns the sum of the rates of the paths with measurements, bytes/s; 0 if there are none. The window of a
    /// new subflow doubles each round trip, so its path counts for more than its present speed.
    fn tried_speed(&self) -> f64 {
        let tried = self.subflows.iter().filter(|c| !c.estimate.untried);
        let speeds = tried.map(|c| c.estimate.rate.min(2.0 * c.estimate.speed()));
        speeds.sum()
    }

    /// Returns whether new data may go on `c`; `speed` is [`Self::tried_speed`].
    ///
    /// A path without measurements may be very slow. If no copy may overtake the data there, the path gets only
    /// what arrives before the others have sent the rest, even at [`LOWEST_RATE`]. A path whose rate is a
    /// negligible part of the sum gets only a few packets at a time, early in the flow: they keep its measurements
    /// current, but more of them could delay the end by more than they bring.
    fn may_try(&self, c: &Candidate<'_>, speed: f64) -> bool {
        if speed == 0.0 || self.view.outstanding == 0 {
            return true;
        }
        let size = size(self.view.flow_size, self.view.sent + self.view.unsent);
        let may_rescue = || size < LONG_FLOW_BYTES || loses_much(self.view);
        let end = self.remaining / speed;
        let bytes = (c.subflow.in_flight + u64::from(c.subflow.mss)) as f64;
        if c.estimate.untried {
            may_rescue() || c.estimate.one_way + bytes / LOWEST_RATE < end
        } else if c.estimate.rate_is_evident && c.estimate.rate < MIN_RATE_SHARE * speed {
            let few = MEASURING_PACKETS * f64::from(c.subflow.mss);
            bytes <= few && 2.0 * c.estimate.arrival(bytes) < end
        } else {
            true
        }
    }
}
