//! The one that joins the others: by one estimate of when data would arrive on each subflow.

use std::time::Duration;

use arrayvec::ArrayVec;
use braid_engine::strategy::{
    Decision, InFlight, OpenView, Opening, PathView, Payload, SendView, Strategy, StrategyEvent,
    SubflowView, first_in_order,
};
use braid_engine::{PathRecord, Protocol};
use braid_wire::{Instant, Rng};

use crate::parts::again;
use crate::parts::estimate::Estimate;
use crate::parts::table::PerSubflow;
use crate::parts::usable::{keeps_waiting, usable};

/// Most subflows that are weighed against each other.
const MOST: usize = 16;
/// Flows from this size on pay for copies.
const SHORT: u64 = 256 << 10;
/// Flows from this size on are not copied at all on paths that lose less than [`CLEAN`].
const LONG: u64 = 1 << 20;
/// Share of the bytes of a flow that is not short that may be sent twice.
const COPIES: f64 = 0.08;
const CLEAN: f64 = 0.003;
/// Packets that a path's queue takes in any case.
const SMALL_QUEUE: f64 = 20.0;
/// What is taken for the probability of loss before anything is known, and the packets it is worth.
const PRIOR_LOSS: f64 = 0.005;
const PRIOR_PACKETS: f64 = 20.0;
/// Probability with which a packet is lost whose acknowledgement is overdue.
const OVERDUE_LOSS: f64 = 0.9;

/// A SYN that is not answered within this is tried on another path too (RFC 8305 section 8:
/// Connection Attempt Delay), or within twice the round trip and a little where that is known.
const ATTEMPT: Duration = Duration::from_millis(250);
const ROUGHLY: Duration = Duration::from_millis(20);

/// New data goes where it arrives first, or waits for a faster subflow where that brings all of it
/// sooner. A copy is sent where it is likely to bring the end of the flow nearer than new data in
/// its place.
#[derive(Debug, Clone, Default)]
pub struct Adaptive {
    records: PerSubflow<Option<PathRecord>>,
}

struct Weighed<'a> {
    subflow: &'a SubflowView,
    estimate: Estimate,
    /// Probability that a packet is lost.
    loss: f64,
}

impl Strategy for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn open(&mut self, view: &OpenView<'_>) -> Option<Opening> {
        let fresh = |p: &&PathView| Some(p.id) != view.unanswered && !p.backup;
        let known = view.paths.iter().filter(fresh);
        let best = known
            .filter_map(|p| Some((opening_cost(p.record.as_ref()?), p.id)))
            .min_by(|a, b| a.0.total_cmp(&b.0));
        match best {
            Some((_, path)) => Some(Opening {
                path,
                protocol: Protocol::Mptcp,
            }),
            None => first_in_order(view),
        }
    }

    fn patience(&self, view: &OpenView<'_>, path: &PathView) -> Option<Duration> {
        let others = view.paths.iter().any(|p| p.id != path.id && !p.backup);
        let known = path.record.map(|r| r.base_rtt * 2 + ROUGHLY);
        others.then_some(known.unwrap_or(ATTEMPT).min(ATTEMPT))
    }

    fn next(&mut self, view: &SendView<'_>, _rng: &mut Rng) -> Decision {
        again::lost(view)
            .or_else(|| again::late(view))
            .unwrap_or_else(|| self.weigh(view))
    }

    fn on_event(&mut self, event: &StrategyEvent) {
        if let StrategyEvent::SubflowUp { subflow, record } = event {
            *self.records.of(*subflow) = *record;
        }
        self.records.on_event(event);
    }
}

impl Adaptive {
    fn weigh(&mut self, view: &SendView<'_>) -> Decision {
        let all = usable(view).all(keeps_waiting);
        let usable = usable(view).filter(|s| all || !keeps_waiting(s));
        let weighed: ArrayVec<Weighed<'_>, MOST> =
            usable.take(MOST).map(|s| self.weighed(view.now, s)).collect();
        let remaining = remaining(view);
        new_data(view, &weighed, remaining)
            .or_else(|| again::blocking(view))
            .or_else(|| again::trial(view))
            .or_else(|| copy(view, &weighed, remaining))
            .unwrap_or(Decision::Wait {
                until: again::late_at(view),
            })
    }

    fn weighed<'a>(&self, now: Instant, subflow: &'a SubflowView) -> Weighed<'a> {
        let record = self.records.get(subflow.id).and_then(Option::as_ref);
        Weighed {
            subflow,
            estimate: Estimate::new(now, subflow),
            loss: loss(subflow, record),
        }
    }
}

/// What a connection that opens on a path is expected to need until its first data arrives, seconds:
/// two round trips, and the time to repeat any of the four packets on the way.
fn opening_cost(record: &PathRecord) -> f64 {
    let rtt = record.base_rtt.as_secs_f64();
    let loss = (record.bytes_lost as f64 + PRIOR_LOSS * 30_000.0) / (record.bytes_sent as f64 + 30_000.0);
    2.0 * rtt + 4.0 * loss * (rtt + 0.2)
}

/// Bytes that are still to be sent for the first time.
fn remaining(view: &SendView<'_>) -> f64 {
    let declared = view.flow_size.bytes().unwrap_or(0);
    view.unsent.max(declared.saturating_sub(view.sent)) as f64
}

fn loss(subflow: &SubflowView, record: Option<&PathRecord>) -> f64 {
    let mss = f64::from(subflow.mss);
    let recorded = record.filter(|r| r.bytes_sent > 0).map_or(0.0, |r| {
        // As much as a few dozen packets.
        r.bytes_lost as f64 / r.bytes_sent as f64
    });
    let weight = record.map_or(0.0, |r| (r.bytes_sent as f64).min(200.0 * mss));
    let prior = PRIOR_PACKETS * mss;
    (subflow.strayed as f64 + recorded * weight + PRIOR_LOSS * prior)
        / (subflow.sent as f64 + weight + prior)
}

fn new_data(view: &SendView<'_>, weighed: &[Weighed<'_>], remaining: f64) -> Option<Decision> {
    if !view.may_send_new {
        return None;
    }
    let arrival = |w: &Weighed<'_>| {
        let segment = f64::from(w.subflow.mss).min(remaining);
        w.estimate.arrival(segment)
    };
    let ready = weighed.iter().filter(|w| w.subflow.ready);
    let (best, arrival) = ready
        .map(|w| (w, arrival(w)))
        .min_by(|a, b| a.1.total_cmp(&b.1))?;
    let others = weighed.iter().filter(|w| w.subflow.id != best.subflow.id);
    let elsewhere: f64 = others.map(|w| w.estimate.delivered_within(arrival)).sum();
    if std::env::var("DBG").is_ok() { eprintln!("{:?} best {:?} arr {arrival:.4} elsewhere {elsewhere:.0} remaining {remaining} {:#?}", view.now, best.subflow.id, weighed.iter().map(|w|format!("{:?}",w.estimate)).collect::<Vec<_>>()); }
    // A tie of two that are ready must not make both wait.
    let rate: f64 = weighed.iter().map(|w| w.estimate.rate).sum();
    if is_overshooting(best, remaining / rate) {
        return Some(Decision::WAIT);
    }
    if elsewhere > remaining + 1.0 {
        return None;
    }
    Some(Decision::Send {
        subflow: best.subflow.id,
        data: Payload::New,
        max_bytes: ((remaining - elsewhere) as u64)
            .max(u64::from(best.subflow.mss))
            .min(u64::from(u32::MAX)) as u32,
    })
}

/// Whether more would only stand in the path's queue, or be lost there, with `left` seconds' worth of
/// data left: so late in a flow what is held back goes where there is room first, and the path stays
/// busy meanwhile. Earlier a path's queue is left to congestion control.
fn is_overshooting(w: &Weighed<'_>, left: f64) -> bool {
    let bdp = w.estimate.rate * 2.0 * w.estimate.one_way;
    let enough = (bdp / 4.0).max(SMALL_QUEUE * f64::from(w.subflow.mss));
    left < 2.0 * w.estimate.rtt && w.estimate.surplus() > enough
}

fn copy(view: &SendView<'_>, weighed: &[Weighed<'_>], remaining: f64) -> Option<Decision> {
    let (on, data, gain) = weighed
        .iter()
        .filter(|w| w.subflow.ready)
        .filter_map(|w| {
            let data = w.subflow.copies.single?;
            let gain = gain(view, weighed, w, &data, remaining)?;
            Some((w, data, gain))
        })
        .max_by(|a, b| a.2.total_cmp(&b.2))?;
    (gain > 0.0 && is_affordable(view, &data)).then(|| Decision::copy_on(on.subflow.id, data))
}

fn gain(
    view: &SendView<'_>,
    weighed: &[Weighed<'_>],
    on: &Weighed<'_>,
    data: &InFlight,
    remaining: f64,
) -> Option<f64> {
    let holder = weighed.iter().find(|w| w.subflow.id == data.carrier)?;
    let (subflow, estimate) = (holder.subflow, &holder.estimate);
    let age = view.now.saturating_since(data.sent_at).as_secs_f64();
    let rtt = estimate.rtt;
    let overdue = age > rtt + 2.0 * subflow.rttvar.as_secs_f64();
    let loss = if overdue { OVERDUE_LOSS } else { holder.loss };
    // A loss is noticed when later packets are acknowledged, or by a probe where there are none.
    let noticed = if remaining > 0.0 { 1.25 * rtt } else { 2.0 * rtt };
    let recovered = (noticed - age).max(0.0) + estimate.one_way + loss.min(0.5) * subflow.rto.as_secs_f64();
    let rate: f64 = weighed.iter().map(|w| w.estimate.rate).sum();
    let under_way: f64 = weighed.iter().map(|w| w.estimate.under_way()).sum();
    let end = weighed
        .iter()
        .map(|w| w.estimate.drained())
        .fold((remaining + under_way) / rate, f64::max);
    let arrival = on.estimate.arrival((data.end - data.start) as f64);
    Some(loss * (recovered - arrival.max(end)))
}

fn is_affordable(view: &SendView<'_>, data: &InFlight) -> bool {
    let size = view.flow_size.bytes().unwrap_or(0).max(view.sent + view.unsent);
    if size < SHORT {
        return true;
    }
    let copied = view.copied + (data.end - data.start);
    let lossy = || {
        let [strayed, sent] = view
            .subflows
            .iter()
            .fold([0, 0], |[a, b], s| [a + s.strayed, b + s.sent]);
        strayed as f64 >= CLEAN * sent as f64
    };
    copied as f64 <= COPIES * size as f64 && (size < LONG || lossy())
}
