//! The default strategy. The strategy estimates when data that is sent on each subflow arrives. By these estimates
//! it decides where new data goes, and which data is worth sending twice.

use std::time::Duration;

use arrayvec::ArrayVec;
use braid_engine::strategy::{
    Decision, FlowSize, InFlight, OpenView, Opening, PathView, Payload, SendView, Strategy,
    StrategyEvent, SubflowView, Writer, first_in_order,
};
use braid_engine::{PathRecord, Protocol, Urgency};
use braid_wire::{Instant, Rng};

use crate::parts::again;
use crate::parts::attempt;
use crate::parts::estimate::{Estimate, LOWEST_RATE};
use crate::parts::flow::size;
use crate::parts::table::PerSubflow;
use crate::parts::urgency;
use crate::parts::usable::{keeps_waiting, usable};

/// Maximum number of subflows that a decision compares, so that it does not allocate. A connection seldom has more
/// than 8 subflows. Those beyond the maximum get no data.
const MAX_SUBFLOWS: usize = 16;

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
const LONG_FLOW_BYTES: u64 = 1 << 20;
const CLEAN_LOSS_SHARE: f64 = 0.001;

/// The assumed probability of loss on a path without measurements, and the number of measured packets that the
/// assumption counts for. Both are guesses.
const PRIOR_LOSS: f64 = 0.005;
const PRIOR_PACKETS: f64 = 20.0;
/// Maximum number of packets for which a path's record counts, so that new losses soon outweigh old ones. 200 is a
/// guess.
const RECORDED_PACKETS: f64 = 200.0;
/// The probability that a packet with an overdue acknowledgement was lost instead of delayed. 0.9 is a guess.
const OVERDUE_LOSS: f64 = 0.9;
/// The round trips after which RACK marks a packet as lost: a quarter of a round trip after later data was
/// acknowledged (RFC 8985 section 6.2).
const RACK_DETECTION: f64 = 1.25;
/// The approximate time by which a retransmission timeout exceeds a round trip, seconds: the minimum of the
/// engine's timeout margin, as in Linux.
const TIMEOUT_MARGIN_SECONDS: f64 = 0.2;

/// The share of the sum of the rates below which a path is negligible. A flow loses at most so much speed without
/// the path. 2 % is a guess.
const MIN_RATE_SHARE: f64 = 0.02;
/// The number of packets in flight that keep the measurements of a negligible path current. A guess.
const MEASURING_PACKETS: f64 = 4.0;

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

/// The number of packets that may wait in the queue of any path. 20 is a guess: shorter queues come from bursts,
/// and delay little.
const SMALL_QUEUE_PACKETS: f64 = 20.0;
/// Slow start is not held back if the rest of a flow is expected to lose this number of packets or more by chance.
/// Such losses end slow start soon and shrink the window. A large window is then worth more than the packets that
/// its overshoot loses. 0.3 is a guess.
const MIN_CHANCE_LOSSES: f64 = 0.3;

/// Sends new data on the subflow on which it arrives first. Waits if faster subflows without room will deliver all
/// new data sooner.
///
/// Sends a copy if the copy is likely to end the flow earlier and new data does not need the room. A flow that
/// fits one initial window stays on one subflow if its size is known. A connection opens on the path on which, by
/// the paths' records, its first data will arrive earliest.
#[derive(Debug, Clone, Default)]
pub struct Adaptive {
    records: PerSubflow<Option<PathRecord>>,
    /// The offset in the stream at which the important data that was sent last begins.
    last_important: Option<u64>,
}

impl Strategy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn open(&mut self, view: &OpenView<'_>) -> Option<Opening> {
        // A path whose SYN is unanswered is no candidate while there are other paths.
        let may_open = |p: &&PathView| Some(p.id) != view.unanswered && !p.backup;
        let candidates = view.paths.iter().filter(may_open);
        // The other paths join when the flow exceeds the initial window, so only so much depends on the first one.
        let known = view.flow_size.bytes().unwrap_or(view.initial_window);
        let bytes = known.max(view.unsent).min(view.initial_window) as f64;
        let costs =
            candidates.filter_map(|p| Some((opening_cost(p.record.as_ref()?, bytes), p.id)));
        match costs.min_by(|a, b| a.0.total_cmp(&b.0)) {
            Some((_, path)) => Some(Opening {
                path,
                protocol: Protocol::Mptcp,
            }),
            None => first_in_order(view),
        }
    }

    fn attempt_delay(&self, view: &OpenView<'_>, path: &PathView) -> Option<Duration> {
        attempt::attempt_delay(view, path)
    }

    fn join(&mut self, view: &OpenView<'_>, _path: &PathView) -> Option<Instant> {
        // A flow of unknown size that has filled an initial window probably goes on.
        let is_full =
            view.flow_size == FlowSize::Unknown && 10 * view.seen >= 9 * view.initial_window;
        if is_full || size(view.flow_size, view.seen) > view.initial_window {
            return Some(view.now);
        }
        // A flow of one initial window needs one round trip after the handshake. A flow that is not over half a
        // round trip later has probably lost a packet, and a second subflow helps.
        let first = view.first?;
        Some(first.since + first.rtt * 3 / 2 + attempt::RTT_MARGIN)
    }

    fn next(&mut self, view: &SendView<'_>, _rng: &mut Rng) -> Decision {
        let input = || DecisionInput::new(view, &self.records, self.last_important);
        let decision = again::lost(view).unwrap_or_else(|| input().decide());
        let is_new = matches!(
            decision,
            Decision::Send {
                data: Payload::New,
                ..
            }
        );
        if is_new && urgency::next_urgency(view).is_some_and(urgency::is_important) {
            self.last_important = Some(view.sent);
        }
        decision
    }

    fn on_event(&mut self, event: &StrategyEvent) {
        if let StrategyEvent::SubflowUp { subflow, record } = event {
            *self.records.of(*subflow) = *record;
        }
        self.records.on_event(event);
    }
}

/// Returns the expected time from the SYN until the first `bytes` of data have arrived on a path, seconds.
///
/// The cost is two round trips (handshake; request and first data), the time in which the data passes the path, and
/// the expected time to repeat lost packets. This last time is, for each of four packets, the probability of its
/// loss times the time to repeat it.
fn opening_cost(record: &PathRecord, bytes: f64) -> f64 {
    /// Approximate bytes of a packet: records count bytes, the prior counts packets.
    const PACKET_BYTES: f64 = 1_500.0;
    let rtt = record.base_rtt.as_secs_f64();
    let prior = PRIOR_PACKETS * PACKET_BYTES;
    let loss = (record.bytes_lost as f64 + PRIOR_LOSS * prior) / (record.bytes_sent as f64 + prior);
    let transfer = match record.delivery_rate {
        0 => 0.0,
        rate => bytes / rate as f64,
    };
    2.0 * rtt + transfer + 4.0 * loss * (rtt + TIMEOUT_MARGIN_SECONDS)
}

/// Returns the number of bytes still to be sent for the first time.
///
/// The announced size of the flow counts only while the application waits for room to write. Otherwise the
/// announced size may be that of the other direction, and only the bytes in the send buffer are certain. A flow of
/// unknown size whose application waits is assumed to be half finished.
fn remaining(view: &SendView<'_>) -> u64 {
    let announced = view.flow_size.bytes().filter(|size| *size > view.sent);
    let size = match view.writer {
        Writer::Waiting => announced.unwrap_or(2 * view.sent),
        Writer::Open | Writer::Done => 0,
    };
    size.saturating_sub(view.sent).max(view.unsent)
}

/// A subflow that a decision compares with others.
#[derive(Debug)]
struct Candidate<'a> {
    subflow: &'a SubflowView,
    estimate: Estimate,
    /// The probability that a packet is lost on the path; see [`loss`].
    loss: f64,
    /// True if the subflow has room for data, does not yield to more urgent data, and is not overshooting.
    ready: bool,
}

/// The input of one decision.
#[derive(Debug)]
struct DecisionInput<'a> {
    view: &'a SendView<'a>,
    subflows: ArrayVec<Candidate<'a>, MAX_SUBFLOWS>,
    /// The urgency of the data that is sent next; `None` if there is none.
    next_urgency: Option<Urgency>,
    /// True while important data may be in flight.
    important_in_flight: bool,
    /// Bytes still to be sent for the first time; see [`remaining`].
    remaining: f64,
}

impl<'a> DecisionInput<'a> {
    fn new(
        view: &'a SendView<'a>,
        records: &PerSubflow<Option<PathRecord>>,
        last_important: Option<u64>,
    ) -> Self {
        // If every path has a long queue, all of them stay candidates.
        let all_slow = usable(view).all(keeps_waiting);
        let usable = usable(view).filter(|s| all_slow || !keeps_waiting(s));
        let next_urgency = urgency::next_urgency(view);
        let candidates = usable.take(MAX_SUBFLOWS).map(|subflow| {
            let record = records.get(subflow.id).and_then(Option::as_ref);
            let recorded_rate = record.map_or(0, |r| r.delivery_rate);
            Candidate {
                subflow,
                estimate: Estimate::new(view.now, subflow, recorded_rate),
                loss: loss(subflow, record),
                ready: subflow.ready && !urgency::yields_path(view, next_urgency, subflow),
            }
        });
        let mut input = DecisionInput {
            view,
            subflows: candidates.collect(),
            next_urgency,
            // The last important data lies within the unacknowledged bytes before `sent`.
            important_in_flight: last_important
                .is_some_and(|start| start + view.outstanding >= view.sent),
            remaining: remaining(view) as f64,
        };
        // `is_overshooting` compares a subflow with the rates of all of them, so it needs the whole list.
        for n in 0..input.subflows.len() {
            input.subflows[n].ready &= !input.is_overshooting(&input.subflows[n]);
        }
        input
    }

    fn sum(&self, property: fn(&Estimate) -> f64) -> f64 {
        self.subflows.iter().map(|c| property(&c.estimate)).sum()
    }

    /// Returns the sum of the subflows' rates, bytes/s; at least 1, because callers divide by it.
    fn speed(&self) -> f64 {
        self.sum(Estimate::speed).max(1.0)
    }

    /// Returns when the data that was never sent has arrived if nothing is lost; 0 if there is none.
    fn sent_by(&self) -> f64 {
        if self.remaining == 0.0 {
            return 0.0;
        }
        let one_way = self.subflows.iter().map(|c| c.estimate.one_way);
        (self.remaining + self.sum(|e| e.queue)) / self.speed()
            + one_way.fold(f64::INFINITY, f64::min)
    }

    fn decide(&self) -> Decision {
        let view = self.view;
        let wait = || Decision::Wait {
            until: Instant::earliest([again::late_at(view), self.next_copy_at()]),
        };
        // The peer cannot read past late data, so a copy that overtakes the late data precedes new data.
        if let Some(late) = again::late(view).filter(|late| self.overtakes(late)) {
            return late;
        }
        let affordable = |data: &InFlight| is_affordable(view, data);
        if self.important_in_flight
            && let Some(copy) = urgency::unblock(view, affordable)
        {
            return copy;
        }
        if !view.may_send_new {
            let blocking = again::blocking(view).filter(|copy| self.overtakes(copy));
            let again = blocking.or_else(|| again::trial(view));
            return again.or_else(|| self.copy()).unwrap_or_else(wait);
        }
        let again = || again::trial(view).or_else(|| self.copy());
        self.new_data().or_else(again).unwrap_or_else(wait)
    }

    /// Returns new data for the subflow with room on which the data arrives first. Returns `None` if subflows
    /// without room will deliver all remaining data sooner, so that waiting for them is better.
    fn new_data(&self) -> Option<Decision> {
        let arrival = |c: &Candidate<'_>| {
            let segment = f64::from(c.subflow.mss).min(self.remaining);
            c.estimate.arrival(segment) + self.expected_repair(c)
        };
        if self.next_urgency.is_some_and(urgency::is_important) {
            return urgency::on_best_path(self.view);
        }
        if self.next_urgency == Some(Urgency::LEAST_URGENT) {
            return urgency::on_spare_paths(self.view);
        }
        let tried_speed = self.tried_speed();
        let ready = self.subflows.iter();
        let ready = ready.filter(|c| c.ready && self.may_try(c, tried_speed));
        let best = ready
            .map(|c| (c, arrival(c)))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        let (best, arrival) = best?;
        // The others are credited with what they deliver in the best case, so this subflow is too.
        let segment = f64::from(best.subflow.mss).min(self.remaining);
        let earliest = best.estimate.earliest(segment) + self.expected_repair(best);
        let others = self.subflows.iter();
        let others = others.filter(|c| c.subflow.id != best.subflow.id);
        let within = |c: &Candidate<'_>| {
            let time = earliest - self.expected_repair(c);
            c.estimate.delivered_within(time)
        };
        let elsewhere: f64 = others.clone().map(within).sum();
        // The peer's window does not move past data that is sent now on the best subflow until this data arrives.
        // Until then the subflows share at most the present window.
        let to_share = self.remaining.min(self.view.peer_window as f64);
        // Only subflows without room are worth waiting for: a subflow with room delivers no sooner than the best
        // one, and two subflows must not wait for each other. If nothing is in flight, no event would end the
        // wait, so there is none.
        let by_full_subflows: f64 = others.clone().filter(|c| !c.ready).map(within).sum();
        // One byte of tolerance absorbs rounding errors of the estimates.
        if by_full_subflows > to_share + 1.0 && self.view.outstanding > 0 {
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
            Writer::Open | Writer::Waiting => self.last_sender(data).map_or(Duration::ZERO, |c| {
                c.subflow.base_rtt / COPY_WAIT_RTT_DIVISOR
            }),
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

    /// Returns the next time at which a copy of data in flight may begin to pay.
    fn next_copy_at(&self) -> Option<Instant> {
        if self.keeps_room() {
            return None;
        }
        let ready = self.subflows.iter().filter(|c| c.ready);
        let data = ready.filter_map(|c| c.subflow.copies.single);
        let at = data.flat_map(|data| {
            // The gain grows when the acknowledgement is overdue, and again when the acknowledgement of the
            // retransmission is overdue.
            let sender = self.last_sender(&data);
            let overdue = sender.map(|c| data.sent_at + overdue_after(c));
            let repeated = sender.map(|c| data.sent_at + 3 * c.subflow.srtt + ROUNDING);
            [Some(self.copied_from(&data)), overdue, repeated]
        });
        at.flatten().filter(|at| *at > self.view.now).min()
    }

    fn last_sender(&self, data: &InFlight) -> Option<&Candidate<'a>> {
        let mut subflows = self.subflows.iter();
        subflows.find(|c| c.subflow.id == data.last_sender)
    }

    /// Returns the copy that is expected to end the flow earliest, or `None` if no copy ends it earlier.
    ///
    /// Called only if there is room that new data does not need.
    fn copy(&self) -> Option<Decision> {
        if self.keeps_room() {
            return None;
        }
        let view = self.view;
        let is_old_enough = |data: InFlight| self.copied_from(&data) <= view.now;
        let can_copy =
            |c: &&Candidate<'_>| c.ready && c.subflow.copies.single.is_some_and(is_old_enough);
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
    fn overtakes(&self, decision: &Decision) -> bool {
        let Decision::Send {
            subflow,
            data: Payload::Copy { data, .. },
            ..
        } = decision
        else {
            return false;
        };
        let find = |id| self.subflows.iter().find(|c| c.subflow.id == id);
        let arrival = find(*subflow).map_or(f64::INFINITY, |target| {
            target.estimate.arrival((data.end - data.start) as f64)
        });
        // There is no estimate for a subflow that is no candidate, or whose measured rate has expired. Any copy
        // counts as faster than such a subflow.
        let last_sender =
            find(data.last_sender).filter(|last_sender| last_sender.subflow.peak_rate > 0);
        let original =
            last_sender.map_or(f64::INFINITY, |last_sender| last_sender.estimate.drained());
        2.0 * arrival < original
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
        let is_overdue = age >= overdue_after(sender).as_secs_f64();
        let loss = if is_overdue { OVERDUE_LOSS } else { path_loss };
        let arrival = target.estimate.arrival((data.end - data.start) as f64);
        let [repaired, timed_out] = self.recovery_arrivals(sender, age);
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
}

/// Returns the age from which the acknowledgement of data on `c` is overdue: the smoothed round-trip time and two
/// deviations. A retransmission timeout waits for four deviations (RFC 6298).
fn overdue_after(c: &Candidate<'_>) -> Duration {
    c.subflow.srtt + 2 * c.subflow.rttvar
}

/// Returns whether a copy of `data` stays within the flow's budget for copies.
fn is_affordable(view: &SendView<'_>, data: &InFlight) -> bool {
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
fn loses_much(view: &SendView<'_>) -> bool {
    let all = || view.subflows.iter();
    let non_congestive_loss: u64 = all().map(|s| s.non_congestive_loss).sum();
    let sent: u64 = all().map(|s| s.sent).sum();
    non_congestive_loss as f64 > CLEAN_LOSS_SHARE * sent as f64
}

/// Returns the probability that a packet is lost on `subflow`: the subflow's share of non-congestive losses,
/// combined with the path's record and the prior.
fn loss(subflow: &SubflowView, record: Option<&PathRecord>) -> f64 {
    let packet = f64::from(subflow.mss);
    let prior = PRIOR_PACKETS * packet;
    let (mut lost, mut sent) = (PRIOR_LOSS * prior, prior);
    if let Some(record) = record.filter(|r| r.bytes_sent > 0) {
        let recorded = record.bytes_sent as f64;
        let weight = recorded.min(RECORDED_PACKETS * packet);
        lost += record.bytes_lost as f64 * weight / recorded;
        sent += weight;
    }
    // The quotient may exceed 1: bytes that are lost, retransmitted and lost again count twice as lost, but once
    // as sent.
    ((lost + subflow.non_congestive_loss as f64) / (sent + subflow.sent as f64)).min(1.0)
}
