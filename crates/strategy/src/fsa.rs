//! FSA: one path for tiny flows, copies on the other paths for short flows, and the rate of all paths for large
//! flows.

use braid_engine::strategy::{
    Decision, FlowSize, OpenView, Opening, PathView, Payload, SendView, Strategy, StrategyEvent,
    SubflowView, first_in_order,
};
use braid_engine::{PathId, Protocol};
use braid_wire::{Instant, Rng};

use crate::parts::again;
use crate::parts::flow::{FlowClass, Limits, size};
use crate::parts::rank::by_base_rtt;
use crate::parts::table::PerSubflow;
use crate::parts::usable::{progressing, usable};

/// The FSA scheduler (Xing et al., "MPTCP Meets Big Data", IEEE Network 34(4), 2020).
///
/// The subflow of lowest round-trip time gets new data whenever it has room. What the other subflows carry depends
/// on the flow's [class](FlowClass):
///
/// - A mosquito (tiny) does not use the other subflows.
/// - A packet of a mouse (short) is a copy with the probability alpha. Alpha falls as the size of the flow grows.
/// - A packet of an elephant (large) is never a copy.
#[derive(Debug, Clone, Default)]
pub struct Fsa {
    limits: Limits,
    runs: PerSubflow<Run>,
}

/// A run of packets of the same kind (copies or new data) on one subflow.
///
/// One draw of the length of a run replaces a draw for each packet, and gives the same distribution. With runs,
/// one decision can cover several packets.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    alpha: f64,
    /// True if the packets of this run are copies, false if they are new data.
    copies: bool,
    /// The end of the run, by bytes sent on the subflow.
    end: u64,
}

impl Strategy for Fsa {
    fn name(&self) -> &'static str {
        "fsa"
    }

    /// Opens on the path of the lowest recorded round-trip time. Without any record, opens as stock MPTCP does. A
    /// mosquito uses regular TCP if the application declared its size: a predicted size may be wrong, and a TCP
    /// connection can add no subflows.
    fn open(&mut self, view: &OpenView<'_>) -> Option<Opening> {
        let stock = first_in_order(view)?;
        // If a SYN is unanswered, the next path is the one that the engine's order names.
        let path = match view.unanswered {
            None => fastest_on_record(view.paths).unwrap_or(stock.path),
            Some(_) => stock.path,
        };
        let is_mosquito = self.limits.class(size(view.flow_size, 0)) == FlowClass::Mosquito;
        let protocol = match view.flow_size {
            FlowSize::Declared(_) if is_mosquito => Protocol::Tcp,
            _ => Protocol::Mptcp,
        };
        Some(Opening { path, protocol })
    }

    fn join(&mut self, view: &OpenView<'_>, _path: &PathView) -> Option<Instant> {
        let size = size(view.flow_size, view.seen);
        (self.limits.class(size) != FlowClass::Mosquito).then_some(view.now)
    }

    fn next(&mut self, view: &SendView<'_>, rng: &mut Rng) -> Decision {
        let decision = again::lost(view).or_else(|| self.decide(view, rng));
        decision.unwrap_or(Decision::WAIT)
    }

    fn on_event(&mut self, event: &StrategyEvent) {
        self.runs.on_event(event);
    }
}

/// Returns the path of the lowest recorded round-trip time, or `None` if no path has a record. Returns a backup
/// path only if no other path has a record.
///
/// The recorded round-trip time is the one without queues, because the queues of past connections have drained.
fn fastest_on_record(paths: &[PathView]) -> Option<PathId> {
    let recorded = paths.iter().filter_map(|path| Some((path, path.record?)));
    let fastest = recorded.min_by_key(|(path, record)| (path.backup, record.base_rtt))?;
    Some(fastest.0.id)
}

impl Fsa {
    fn decide(&mut self, view: &SendView<'_>, rng: &mut Rng) -> Option<Decision> {
        let best = progressing(view).min_by_key(|s| by_base_rtt(s))?;
        if best.ready && view.may_send_new {
            return Some(Decision::new_on(best.id));
        }
        let others = usable(view).filter(|s| s.ready && s.id != best.id);
        let size = size(view.flow_size, view.sent + view.unsent);
        match self.limits.class(size) {
            FlowClass::Mosquito => None,
            FlowClass::Elephant => others
                .filter(|_| view.may_send_new)
                .min_by_key(|s| by_base_rtt(s))
                .map(|s| Decision::new_on(s.id)),
            FlowClass::Mouse => {
                let alpha = self.limits.redundancy(size);
                others
                    .filter_map(|s| Some((s, self.on_other_subflow(view, s, alpha, rng)?)))
                    .min_by_key(|(s, _)| by_base_rtt(s))
                    .map(|(_, decision)| decision)
            }
        }
    }

    /// Returns the decision for a mouse on a subflow that is not the best: to send data of the run's kind or, if
    /// there is none, data of the other kind. Returns `None` once all data has been sent and none can be copied.
    fn on_other_subflow(
        &mut self,
        view: &SendView<'_>,
        subflow: &SubflowView,
        alpha: f64,
        rng: &mut Rng,
    ) -> Option<Decision> {
        // The flow has grown, so alpha has changed: draw anew. At the end of a run, the other kind follows.
        let run = self.runs.of(subflow.id);
        if run.alpha != alpha {
            let copies = rng.chance(alpha);
            *run = Run::draw(alpha, copies, subflow, rng);
        } else if run.end <= subflow.sent {
            *run = Run::draw(alpha, !run.copies, subflow, rng);
        }
        // At least a segment, because a decision for less would wait for more data.
        let mss = u64::from(subflow.mss);
        let run_left = (run.end - subflow.sent).max(mss);
        let copy = subflow.copies.any.map(|data| Payload::Copy {
            data,
            penalise: false,
        });
        let new = view.may_send_new.then_some(Payload::New);
        let (data, max_bytes) = match (run.copies, copy) {
            (true, Some(copy)) => (copy, run_left),
            // New data stands in for a copy one segment at a time, as a copy may be possible for the next segment.
            (true, None) => (new?, mss),
            (false, _) if view.unsent > 0 => (new?, run_left),
            (false, copy) => (copy?, run_left),
        };
        Some(Decision::Send {
            subflow: subflow.id,
            data,
            max_bytes: u32::try_from(max_bytes).unwrap_or(u32::MAX),
        })
    }
}

impl Run {
    /// Draws a run that begins with the next packet of `subflow`.
    ///
    /// The length of the run has a geometric distribution: each further packet is of the run's kind with the
    /// probability of this kind.
    fn draw(alpha: f64, copies: bool, subflow: &SubflowView, rng: &mut Rng) -> Run {
        let same_kind = if copies { alpha } else { 1.0 - alpha };
        // The inverse of the geometric distribution. `unit` is below 1, and a mouse's alpha lies between 0 and 1,
        // so both logarithms are finite and the second is not 0. The cast turns a quotient that is too large into
        // `u32::MAX`.
        let further = ((1.0 - rng.unit()).ln() / same_kind.ln()) as u32;
        let bytes = (u64::from(further) + 1) * u64::from(subflow.mss);
        Run {
            alpha,
            copies,
            end: subflow.sent + bytes,
        }
    }
}
