//! The default strategy, which combines the others: one estimate of when data arrives decides where new
//! data goes and what is worth sending twice.

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
use crate::parts::estimate::Estimate;
use crate::parts::flow::size;
use crate::parts::table::PerSubflow;
use crate::parts::urgency;
use crate::parts::usable::{keeps_waiting, usable};

/// Most subflows that are compared; a bound, so that a decision does not allocate.
const MAX_SUBFLOWS: usize = 16;

/// The smallest flow that pays for copies, bytes: at most the share `MAX_COPIED_SHARE` of its bytes is sent twice.
const SHORT_FLOW_BYTES: u64 = 256 << 10;
const MAX_COPIED_SHARE: f64 = 0.08;
/// The smallest flow, bytes, that is not copied in advance where less than the share `CLEAN_LOSS_SHARE` is lost.
const LONG_FLOW_BYTES: u64 = 1 << 20;
const CLEAN_LOSS_SHARE: f64 = 0.001;

/// The probability of loss before anything is known, and the number of packets that this prior weighs.
const PRIOR_LOSS: f64 = 0.005;
const PRIOR_PACKETS: f64 = 20.0;
/// Most packets that a path's record weighs, so that new losses soon outweigh old ones.
const RECORDED_PACKETS: f64 = 200.0;
/// The probability that a packet was lost if its acknowledgement is overdue.
const OVERDUE_LOSS: f64 = 0.9;
/// The time by which a retransmission timeout exceeds a round trip, roughly, seconds: the engine's lower
/// bound, as in Linux.
const TIMEOUT_MARGIN_SECONDS: f64 = 0.2;

/// A copy waits for this fraction of a round trip where the application may write more.
const COPY_WAIT_RTT_DIVISOR: u32 = 8;

/// Packets that may stand in a path's queue without harm.
const SMALL_QUEUE_PACKETS: f64 = 20.0;
/// The expected number of packets lost by chance in the rest of a flow from which on slow start is not
/// held: a window that has grown is then worth more than the losses that its overshoot takes.
const MIN_CHANCE_LOSSES: f64 = 0.3;

/// Sends new data where it arrives first, or waits for faster subflows where these bring all of it
/// sooner.
///
/// A copy is sent where it is likely to bring the end of the flow nearer than new data in its place. A
/// flow of one initial window stays on one subflow, and opens where, by the paths' records, it ends
/// first.
#[derive(Debug, Clone, Default)]
pub struct Adaptive {
    records: PerSubflow<Option<PathRecord>>,
    /// The offset in the stream of the important data that was sent last.
    important: Option<u64>,
}

impl Strategy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn open(&mut self, view: &OpenView<'_>) -> Option<Opening> {
        let fresh = |p: &&PathView| Some(p.id) != view.unanswered && !p.backup;
        let known = view.paths.iter().filter(fresh);
        let costs = known.filter_map(|p| Some((opening_cost(p.record.as_ref()?), p.id)));
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
        if size(view.flow_size, view.seen) > view.initial_window {
            return Some(view.now);
        }
        // A flow of one initial window should be over by then; one that is not has lost something.
        let first = view.first?;
        Some(first.since + first.rtt * 3 / 2 + attempt::RTT_MARGIN)
    }

    fn next(&mut self, view: &SendView<'_>, _rng: &mut Rng) -> Decision {
        let input = || DecisionInput::new(view, &self.records, self.important);
        let decision = again::lost(view).unwrap_or_else(|| input().decide());
        let is_new = matches!(
            decision,
            Decision::Send {
                data: Payload::New,
                ..
            }
        );
        if is_new && urgency::next_urgency(view).is_some_and(urgency::is_important) {
            self.important = Some(view.sent);
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

/// Returns the expected time from the SYN until the first data arrives on a path, seconds.
///
/// That is two round trips, and the time to repeat any of the four packets on the way.
fn opening_cost(record: &PathRecord) -> f64 {
    /// Bytes of a packet, roughly.
    const PACKET_BYTES: f64 = 1_500.0;
    let rtt = record.base_rtt.as_secs_f64();
    let prior = PRIOR_PACKETS * PACKET_BYTES;
    let loss = (record.bytes_lost as f64 + PRIOR_LOSS * prior) / (record.bytes_sent as f64 + prior);
    2.0 * rtt + 4.0 * loss * (rtt + TIMEOUT_MARGIN_SECONDS)
}

/// Returns the number of bytes still to be sent for the first time.
///
/// The size of the flow counts only where the application has more than there was room for: the size may
/// be about the other direction. A flow of unknown size is taken to be half finished.
fn remaining(view: &SendView<'_>) -> u64 {
    let known = view.flow_size.bytes().filter(|size| *size > view.sent);
    let size = match view.writer {
        Writer::Waiting => known.unwrap_or(2 * view.sent),
        Writer::Open | Writer::Done => 0,
    };
    size.saturating_sub(view.sent).max(view.unsent)
}

/// A subflow that is compared with others.
#[derive(Debug)]
struct Candidate<'a> {
    subflow: &'a SubflowView,
    estimate: Estimate,
    /// The subflow takes data now, and need not stand back for others.
    ready: bool,
}

/// The input of one decision.
#[derive(Debug)]
struct DecisionInput<'a> {
    view: &'a SendView<'a>,
    records: &'a PerSubflow<Option<PathRecord>>,
    subflows: ArrayVec<Candidate<'a>, MAX_SUBFLOWS>,
    /// The urgency of the data that is sent next.
    next: Option<Urgency>,
    /// Important data is in flight.
    important: bool,
    /// Bytes to be sent for the first time.
    remaining: f64,
}

impl<'a> DecisionInput<'a> {
    fn new(
        view: &'a SendView<'a>,
        records: &'a PerSubflow<Option<PathRecord>>,
        important: Option<u64>,
    ) -> Self {
        let all = usable(view).all(keeps_waiting);
        let usable = usable(view).filter(|s| all || !keeps_waiting(s));
        let known = usable.clone().map(|s| s.peak_rate).max().unwrap_or(0);
        let usual = match known {
            0 => f64::INFINITY,
            rate => rate as f64,
        };
        let next = urgency::next_urgency(view);
        let candidates = usable.take(MAX_SUBFLOWS).map(|subflow| Candidate {
            subflow,
            estimate: Estimate::new(view.now, subflow, usual),
            ready: subflow.ready && !urgency::yields_path(next, subflow),
        });
        let mut input = DecisionInput {
            view,
            records,
            subflows: candidates.collect(),
            next,
            important: important.is_some_and(|start| start + view.outstanding >= view.sent),
            remaining: remaining(view) as f64,
        };
        for n in 0..input.subflows.len() {
            input.subflows[n].ready &= !input.is_overshooting(&input.subflows[n]);
        }
        input
    }

    fn sum(&self, of: fn(&Estimate) -> f64) -> f64 {
        self.subflows.iter().map(|w| of(&w.estimate)).sum()
    }

    /// Returns the rate of all subflows together, bytes/s.
    fn speed(&self) -> f64 {
        self.sum(Estimate::speed).max(1.0)
    }

    /// Returns the time until everything has arrived if nothing is lost, seconds from now.
    fn end(&self) -> f64 {
        let evenly = (self.remaining + self.sum(Estimate::under_way)) / self.speed();
        let drained = self.subflows.iter().map(|w| w.estimate.drained());
        drained.fold(evenly, f64::max)
    }

    fn decide(&self) -> Decision {
        let view = self.view;
        let wait = || Decision::Wait {
            until: earlier(again::late_at(view), self.next_copy_at()),
        };
        // Late data holds up everything behind it, so a copy that overtakes it goes before new data.
        if let Some(late) = again::late(view).filter(|late| self.overtakes(late)) {
            return late;
        }
        let affordable = |data: &InFlight| is_affordable(view, data);
        if self.important
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

    /// Returns new data for the subflow with room on which it arrives first; none where subflows without
    /// room deliver it sooner.
    fn new_data(&self) -> Option<Decision> {
        let arrival = |w: &Candidate<'_>| {
            let segment = f64::from(w.subflow.mss).min(self.remaining);
            w.estimate.arrival(segment)
        };
        if self.next.is_some_and(urgency::is_important) {
            return urgency::on_best_path(self.view);
        }
        let ready = self.subflows.iter().filter(|w| w.ready);
        let best = ready
            .map(|w| (w, arrival(w)))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        let (best, arrival) = best?;
        let others = self.subflows.iter();
        let others = others.filter(|w| w.subflow.id != best.subflow.id);
        let within = |w: &Candidate<'_>| w.estimate.delivered_within(arrival);
        let elsewhere: f64 = others.clone().map(within).sum();
        // Data that arrives late keeps the peer's window shut for all data behind it, so only that window
        // can be divided until then.
        let left = self.remaining.min(self.view.peer_window as f64);
        // Only subflows without room count: ready ones are no sooner, and must not wait for each other.
        // With nothing in flight no event would end a wait.
        let later: f64 = others.filter(|w| !w.ready).map(within).sum();
        // One byte absorbs the rounding of the estimates.
        if later > left + 1.0 && self.view.outstanding > 0 {
            return None;
        }
        let most = (left - elsewhere).max(f64::from(best.subflow.mss));
        Some(Decision::Send {
            subflow: best.subflow.id,
            data: Payload::New,
            max_bytes: most as u32,
        })
    }

    /// Returns whether more data would only stand in the path's queue, or be lost there.
    ///
    /// Data held back goes where there is room first, and the path stays busy meanwhile.
    ///
    /// Late in a flow a loss would delay its end. Before that, slow start is held: it puts twice the
    /// path's capacity on the path before the first loss tells, and the path runs dry after so many
    /// losses. There are two exceptions. Where losses by chance are expected, a window that has grown is
    /// worth more. And a queue that is longer than this subflow's own share belongs to other traffic,
    /// against which only congestion control can hold its own.
    fn is_overshooting(&self, w: &Candidate<'_>) -> bool {
        let Estimate { rtt, rate, .. } = w.estimate;
        let surplus = w.estimate.surplus();
        let enough = (w.estimate.pipe() / 4.0).max(SMALL_QUEUE_PACKETS * f64::from(w.subflow.mss));
        // A single path is left to congestion control.
        if surplus <= enough || self.subflows.len() < 2 {
            return false;
        }
        let speed = self.speed();
        let said = size(self.view.flow_size, 0).saturating_sub(self.view.sent) as f64;
        let left = self.remaining.max(said);
        if left < 2.0 * rtt * speed {
            return true;
        }
        let slow_start = w.subflow.cwnd < w.subflow.ssthresh;
        let packets = left * rate / speed / f64::from(w.subflow.mss);
        let lost_by_chance = loss(w.subflow, self.records) * packets;
        let queued = w.subflow.queueing_delay().as_secs_f64() * rate;
        slow_start && lost_by_chance < MIN_CHANCE_LOSSES && queued < 2.0 * surplus
    }

    /// Returns when data that `w` sent `age` seconds ago arrives if it was lost, seconds from now.
    ///
    /// The loss is noticed by the acknowledgements of later packets, or by a probe where there are none;
    /// then the data is sent again. The repetition may be lost as well, and then a timeout follows.
    fn recovered(&self, w: &Candidate<'_>, age: f64, loss: f64) -> f64 {
        let Estimate { rtt, one_way, .. } = w.estimate;
        let timeout = w.subflow.rto.as_secs_f64();
        // RACK marks a loss a quarter of a round trip after later data arrived; a tail loss probe leaves
        // after two round trips (RFC 8985 sections 6.2 and 7.2).
        let noticed = if self.remaining > 0.0 {
            1.25 * rtt
        } else {
            2.0 * rtt
        };
        let wait = match age < noticed + rtt {
            true => (noticed - age).max(0.0) + loss * timeout,
            false => timeout - age,
        };
        wait.max(0.0) + one_way
    }

    /// Returns the time from which on a copy of `data` may be sent.
    ///
    /// Where the application may write more, its data has a better use for the room, and most often
    /// follows at once.
    fn copied_from(&self, data: &InFlight) -> Instant {
        let wait = match self.view.writer {
            Writer::Done => Duration::ZERO,
            Writer::Open | Writer::Waiting => self.last_sender(data).map_or(Duration::ZERO, |w| {
                w.subflow.base_rtt / COPY_WAIT_RTT_DIVISOR
            }),
        };
        data.sent_at + wait
    }

    /// Returns whether a long flow of important messages keeps its room for the next message. That flow
    /// has no end that a copy could bring nearer.
    fn keeps_room(&self) -> bool {
        let view = self.view;
        self.important
            && view.writer != Writer::Done
            && size(view.flow_size, view.sent) >= SHORT_FLOW_BYTES
    }

    /// Returns when the next data in flight becomes old enough for a copy.
    fn next_copy_at(&self) -> Option<Instant> {
        if self.keeps_room() {
            return None;
        }
        let ready = self.subflows.iter().filter(|w| w.ready);
        let data = ready.filter_map(|w| w.subflow.copies.single);
        let at = data.map(|data| self.copied_from(&data));
        at.filter(|at| *at > self.view.now).min()
    }

    fn last_sender(&self, data: &InFlight) -> Option<&Candidate<'a>> {
        let mut subflows = self.subflows.iter();
        subflows.find(|w| w.subflow.id == data.last_sender)
    }

    /// Returns the copy that is expected to bring the end of the flow nearest, if any does.
    ///
    /// Called only where there is room that new data has no use for.
    fn copy(&self) -> Option<Decision> {
        if self.keeps_room() {
            return None;
        }
        let view = self.view;
        let ripe = |data: InFlight| self.copied_from(&data) <= view.now;
        let able = |w: &&Candidate<'_>| w.ready && w.subflow.copies.single.is_some_and(ripe);
        let able = self.subflows.iter().filter(able);
        able.clone().next()?;
        let end = self.end();
        let (on, data, gain) = able
            .filter_map(|w| {
                let data = w.subflow.copies.single?;
                Some((w, data, self.gain(w, &data, end)?))
            })
            .max_by(|a, b| a.2.total_cmp(&b.2))?;
        let pays = gain > 0.0 && is_affordable(view, &data);
        pays.then(|| Decision::copy_on(on.subflow.id, data))
    }

    /// Returns whether the copy that `late` sends arrives in less than half the time that the original
    /// needs. The path has then fallen behind, and the cost of the copy does not matter.
    fn overtakes(&self, late: &Decision) -> bool {
        let Decision::Send {
            subflow,
            data: Payload::Copy { data, .. },
            ..
        } = late
        else {
            return false;
        };
        let of = |id| self.subflows.iter().find(|w| w.subflow.id == id);
        let arrival = of(*subflow).map_or(f64::INFINITY, |on| {
            on.estimate.arrival((data.end - data.start) as f64)
        });
        // A subflow that is left out, or has lost its rate, is beyond all estimates.
        let last_sender =
            of(data.last_sender).filter(|last_sender| last_sender.subflow.peak_rate > 0);
        let original =
            last_sender.map_or(f64::INFINITY, |last_sender| last_sender.estimate.drained());
        2.0 * arrival < original
    }

    /// Returns by how many seconds a copy of `data` on `on` is expected to bring the end of the flow
    /// nearer. `end` is the end without losses, seconds from now.
    fn gain(&self, on: &Candidate<'_>, data: &InFlight, end: f64) -> Option<f64> {
        let last_sender = self.last_sender(data)?;
        let age = self.view.now.saturating_since(data.sent_at).as_secs_f64();
        let due = last_sender.estimate.rtt + 2.0 * last_sender.subflow.rttvar.as_secs_f64();
        let usual = loss(last_sender.subflow, self.records);
        let loss = if age > due { OVERDUE_LOSS } else { usual };
        let arrival = on.estimate.arrival((data.end - data.start) as f64);
        Some(loss * (self.recovered(last_sender, age, usual) - arrival.max(end)))
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    a.into_iter().chain(b).min()
}

/// Returns whether a copy of `data` keeps within the flow's budget for copies.
fn is_affordable(view: &SendView<'_>, data: &InFlight) -> bool {
    let size = size(view.flow_size, view.sent + view.unsent);
    if size < SHORT_FLOW_BYTES {
        return true;
    }
    // A predicted size is uncertain: most of the bytes may never come.
    let bytes = match view.flow_size {
        FlowSize::Declared(_) | FlowSize::Read(_) => size,
        _ => view.sent + view.unsent,
    };
    let copied = view.copied + (data.end - data.start);
    if copied as f64 > MAX_COPIED_SHARE * bytes as f64 {
        return false;
    }
    size < LONG_FLOW_BYTES || loses_much(view)
}

/// Returns whether non-congestive losses are so frequent that copies are worth their price to long flows.
fn loses_much(view: &SendView<'_>) -> bool {
    let all = || view.subflows.iter();
    let non_congestive_loss: u64 = all().map(|s| s.non_congestive_loss).sum();
    let sent: u64 = all().map(|s| s.sent).sum();
    non_congestive_loss as f64 > CLEAN_LOSS_SHARE * sent as f64
}

/// Returns the probability that a packet is lost on `subflow`, by its non-congestive losses.
fn loss(subflow: &SubflowView, records: &PerSubflow<Option<PathRecord>>) -> f64 {
    let record = records.get(subflow.id).and_then(Option::as_ref);
    let packet = f64::from(subflow.mss);
    let prior = PRIOR_PACKETS * packet;
    let (mut lost, mut sent) = (PRIOR_LOSS * prior, prior);
    if let Some(record) = record.filter(|r| r.bytes_sent > 0) {
        let all = record.bytes_sent as f64;
        let counted = all.min(RECORDED_PACKETS * packet);
        lost += record.bytes_lost as f64 * counted / all;
        sent += counted;
    }
    // Bytes that were repeated and lost again count as lost, but only once as sent.
    ((lost + subflow.non_congestive_loss as f64) / (sent + subflow.sent as f64)).min(1.0)
}
