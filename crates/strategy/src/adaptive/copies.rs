//! Copies of data in flight: their gain, their time and their budget.

use std::time::Duration;

use braid_engine::strategy::{
    Decision, FlowSize, InFlight, Payload, SendView, SubflowView, Writer,
};
use braid_wire::Instant;

use super::input::{Candidate, DecisionInput};
use crate::parts::estimate::{Estimate, LOWEST_RATE};
use crate::parts::flow::size;
use crate::parts::usable::grace_period;

// Copies cost capacity of the links, and money on metered ones. The goal for flows of 256 kB or more is that at
// most 10 % of the bytes are copies. The goal for flows of 1 MB or more over links without loss is no copies.
/// Flows of this size (in bytes) or larger have a budget for copies: the share `MAX_COPIED_SHARE` of their bytes.
/// Smaller flows have no budget, because a single loss costs them most.
const SHORT_FLOW_BYTES: u64 = 256 << 10;
/// The budget stays below the goal of 10 %, because it does not limit copies of lost and late data.
const MAX_COPIED_SHARE: f64 = 0.09;
/// The part of the budget that is kept while data waits that was never sent, because copies help most at the end.
const TAIL_SHARE: f64 = 0.75;
/// Flows of this size (in bytes) or larger get no copies if the share of lost bytes is `CLEAN_LOSS_SHARE` or less.
pub(super) const LONG_FLOW_BYTES: u64 = 1 << 20;
const CLEAN_LOSS_SHARE: f64 = 0.001;

/// The probability that a packet with an overdue acknowledgement was lost instead of delayed. 0.9 is a guess.
const OVERDUE_LOSS: f64 = 0.9;
/// The round trips after which RACK marks a packet as lost: a quarter of a round trip after later data was
/// acknowledged (RFC 8985 section 6.2).
pub(super) const RACK_DETECTION: f64 = 1.25;

/// A copy waits for a round trip divided by this number if the application may write more, so that new data goes
/// first. 8 is a guess.
const COPY_WAIT_RTT_DIVISOR: u32 = 8;

/// Copies of data that is only late have to need less time than the original by this factor, because both times
/// are estimates. 1.5 is a guess.
const MIN_LEAD: f64 = 1.5;

/// A time above the rounding errors of estimates, by which a question comes after the time that it waited for.
const ROUNDING: Duration = Duration::from_micros(1);

/// The smallest expected gain for which a copy is sent, as a share of the time that the copy takes. 0.02 % is a
/// guess.
const MIN_GAIN_SHARE: f64 = 0.0002;

impl DecisionInput<'_> {
    /// Returns the copy that is expected to end the flow earliest, or `None` if no copy ends it earlier.
    ///
    /// Called only if there is room that new data does not need.
    pub fn copy(&self) -> Option<Decision> {
        if self.keeps_room() {
            return None;
        }
        let view = self.view;
        let is_old_enough = |data: InFlight| self.copied_from(&data) <= view.now;
        // A copy takes capacity from other connections whose data waits, so it is only worth it if the original is
        // overdue.
        let is_overdue = |data: InFlight| {
            let age = view.now.saturating_since(data.sent_at);
            view.subflow(data.last_sender)
                .is_none_or(|sender| age >= overdue_after(sender))
        };
        let can_copy = |c: &&Candidate<'_>| {
            let data = c.subflow.copies.single.filter(|data| is_old_enough(*data));
            c.ready && data.is_some_and(|data| !c.estimate.others_wait() || is_overdue(data))
        };
        let eligible = self.subflows.iter().filter(can_copy);
        // The early return avoids the expensive estimates below in most decisions.
        eligible.clone().next()?;
        let (target, data, gain) = eligible
            .filter_map(|c| {
                let data = c.subflow.copies.single?;
                Some((c, data, self.gain(c, &data)?))
            })
            .max_by(|a, b| a.2.total_cmp(&b.2))?;
        let min_gain = MIN_GAIN_SHARE * target.estimate.arrival((data.end - data.start) as f64);
        let pays = gain > min_gain && is_affordable(view, &data);
        pays.then(|| Decision::copy_on(target.subflow.id, data))
    }

    /// Returns whether the copy that `decision` sends needs less than half the time that the original still needs.
    /// If so, the path of the original has fallen so far behind that the budget for copies does not matter. "Half"
    /// leaves a margin for the errors of both estimates.
    pub fn overtakes(&self, decision: &Decision) -> bool {
        let Decision::Send {
            subflow,
            data: Payload::Copy { data, .. },
            ..
        } = decision
        else {
            return false;
        };
        let Some(target) = self.candidate(*subflow) else {
            return false;
        };
        let arrival = target.estimate.arrival((data.end - data.start) as f64);
        2.0 * arrival < self.original_arrival(data)
    }

    /// Returns whether the queue of the path explains that late `data` has not been acknowledged yet. A path that has
    /// become far slower is no excuse, so the time in the queue counts for two grace periods at most.
    pub fn is_excused(&self, data: &InFlight) -> bool {
        self.excused_until(data)
            .is_some_and(|at| self.view.now < at)
    }

    /// Returns the time until which `data` [is excused](Self::is_excused); `None` if its subflow is gone.
    pub fn excused_until(&self, data: &InFlight) -> Option<Instant> {
        let sender = self.view.subflow(data.last_sender)?;
        let grace = grace_period(sender);
        let queueing = self.queueing(sender).unwrap_or(0.0);
        let queueing = Duration::from_secs_f64(queueing.min(2.0 * grace.as_secs_f64()));
        Some(data.sent_at + sender.base_rtt + queueing + grace)
    }

    /// Returns when `data` on its way is expected to have arrived, seconds from now. Any copy counts as faster than a
    /// subflow that is gone, or of which no rate is known.
    fn original_arrival(&self, data: &InFlight) -> f64 {
        let Some(sender) = self.view.subflow(data.last_sender) else {
            return f64::INFINITY;
        };
        match self
            .candidate(sender.id)
            .filter(|c| c.subflow.peak_rate > 0)
        {
            Some(c) => c.estimate.drained(),
            None => self.queueing(sender).unwrap_or(f64::INFINITY),
        }
    }

    /// Returns how long the data in flight on a path occupies its bottleneck, seconds; `None` if no rate is known. A
    /// subflow that is no candidate, or whose measured rate has expired, has only the rates of other connections.
    fn queueing(&self, sender: &SubflowView) -> Option<f64> {
        if let Some(c) = self
            .candidate(sender.id)
            .filter(|c| c.subflow.peak_rate > 0)
        {
            return Some(c.estimate.queue / c.estimate.rate);
        }
        let rate = sender.delivery_rate.saturating_add(sender.others_rate);
        let bytes = sender.in_flight + sender.others_in_flight;
        (sender.others_rate > 0).then(|| bytes as f64 / rate as f64)
    }

    /// Returns the next time at which a copy of data in flight may begin to pay.
    pub fn next_copy_at(&self) -> Option<Instant> {
        if self.keeps_room() {
            return None;
        }
        let ready = self.subflows.iter().filter(|c| c.ready);
        let data = ready.filter_map(|c| c.subflow.copies.single);
        let at = data.flat_map(|data| {
            // The gain grows when the acknowledgement is overdue, and again when the acknowledgement of the
            // retransmission is overdue.
            let sender = self.view.subflow(data.last_sender);
            let overdue = sender.map(|s| data.sent_at + overdue_after(s));
            let repeated = sender.map(|s| data.sent_at + 3 * s.srtt + ROUNDING);
            [Some(self.copied_from(&data)), overdue, repeated]
        });
        at.flatten().filter(|at| *at > self.view.now).min()
    }

    /// Returns by how many seconds a copy of `data` on `target` is expected to end the flow earlier. The flow does
    /// not end before the data of the other subflows has arrived, so a copy that arrives earlier gains no more.
    fn gain(&self, target: &Candidate<'_>, data: &InFlight) -> Option<f64> {
        let sender = self.last_sender(data)?;
        let others = self
            .subflows
            .iter()
            .filter(|c| c.subflow.id != data.last_sender);
        let drained = others.map(|c| c.estimate.drained());
        let end = drained.fold(self.sent_by(), f64::max);
        let earlier = |original: f64, copy: f64| (original.max(end) - copy.max(end)).max(0.0);

        let age = self.view.now.saturating_since(data.sent_at).as_secs_f64();
        let path_loss = sender.loss;
        let is_overdue = age >= overdue_after(sender.subflow).as_secs_f64();
        let loss = if is_overdue { OVERDUE_LOSS } else { path_loss };
        let arrival = target.estimate.arrival((data.end - data.start) as f64);
        let [repaired, timed_out] = self.recovery_arrivals(&sender, age);
        let if_lost = (1.0 - path_loss) * earlier(repaired, arrival)
            + path_loss * earlier(timed_out, arrival);

        // If nothing is lost, a copy helps if the path of the original is slow. Then all data there needs copies.
        let in_flight = sender.subflow.in_flight as f64;
        let original = if sender.estimate.untried {
            sender.estimate.one_way + in_flight / LOWEST_RATE - age
        } else {
            sender.estimate.drained()
        };
        let copies = target.estimate.arrival(in_flight);
        let if_slow = if original > MIN_LEAD * copies {
            earlier(original, copies)
        } else {
            0.0
        };
        Some(loss * if_lost + (1.0 - loss) * if_slow)
    }

    /// Returns when data that `c` sent `age` seconds ago will arrive if it was lost, in seconds from now: by its
    /// retransmission, and by a retransmission timeout if the retransmission is lost too.
    ///
    /// Acknowledgements of later packets reveal the loss or, without later packets, a tail loss probe does.
    fn recovery_arrivals(&self, c: &Candidate<'_>, age: f64) -> [f64; 2] {
        let Estimate { rtt, one_way, .. } = c.estimate;
        // Without later data, a tail loss probe leaves after two round trips (RFC 8985 section 7.2).
        let detected_at = if self.remaining > 0.0 {
            RACK_DETECTION * rtt
        } else {
            2.0 * rtt
        };
        let timeout = (c.subflow.rto.as_secs_f64() - age).max(0.0) + one_way;
        // Older data has probably lost its retransmission too, so only the timeout can recover it.
        if age < detected_at + rtt {
            [(detected_at - age).max(0.0) + one_way, timeout]
        } else {
            [timeout; 2]
        }
    }

    /// Returns the earliest time at which a copy of `data` may be sent.
    ///
    /// While the application may write more, the copy waits a little: new data makes better use of the room, and
    /// usually follows at once.
    fn copied_from(&self, data: &InFlight) -> Instant {
        let wait = match self.view.writer {
            Writer::Done => Duration::ZERO,
            Writer::Open | Writer::Waiting => {
                let sender = self.view.subflow(data.last_sender);
                sender.map_or(Duration::ZERO, |s| s.base_rtt / COPY_WAIT_RTT_DIVISOR)
            }
        };
        data.sent_at + wait
    }

    /// Returns whether the room is kept for the next message instead of copies: the flow is a long one of
    /// important messages (for example a video). Such a flow does not end with a message, so a copy would end
    /// nothing earlier.
    fn keeps_room(&self) -> bool {
        let view = self.view;
        self.important_in_flight
            && view.writer != Writer::Done
            && size(view.flow_size, view.sent) >= SHORT_FLOW_BYTES
    }
}

/// Returns the age from which the acknowledgement of data on `subflow` is overdue: the smoothed round-trip time and two
/// deviations. A retransmission timeout waits for four deviations (RFC 6298).
fn overdue_after(subflow: &SubflowView) -> Duration {
    subflow.srtt + 2 * subflow.rttvar
}

/// Returns whether a copy of `data` stays within the flow's budget for copies.
pub(super) fn is_affordable(view: &SendView<'_>, data: &InFlight) -> bool {
    let size = size(view.flow_size, view.sent + view.unsent);
    if size < SHORT_FLOW_BYTES {
        return true;
    }
    // A predicted size is uncertain. If the flow ends early, a budget for the predicted bytes would be too large.
    let bytes = match view.flow_size {
        FlowSize::Declared(_) | FlowSize::Read(_) => size,
        _ => view.sent + view.unsent,
    };
    let copied = view.copied + (data.end - data.start);
    let share = match view.unsent {
        0 => MAX_COPIED_SHARE,
        _ => MAX_COPIED_SHARE * (1.0 - TAIL_SHARE),
    };
    if copied as f64 > share * bytes as f64 {
        return false;
    }
    size < LONG_FLOW_BYTES || loses_much(view)
}

/// Returns whether non-congestive losses are so frequent that copies pay off in long flows.
pub(super) fn loses_much(view: &SendView<'_>) -> bool {
    let all = || view.subflows.iter();
    let non_congestive_loss: u64 = all().map(|s| s.non_congestive_loss).sum();
    let sent: u64 = all().map(|s| s.sent).sum();
    non_congestive_loss as f64 > CLEAN_LOSS_SHARE * sent as f64
}
