//! FSA: few paths for tiny flows, copies for short ones, the rate of all paths for large ones.

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
/// The subflow of lowest round-trip time always gets new data, with room or without. On the other
/// subflows a mouse's packet is a copy with the probability alpha, an elephant's is always new, and a
/// mosquito uses none of the others.
#[derive(Debug, Clone, Default)]
pub struct Fsa {
    limits: Limits,
    runs: PerSubflow<Run>,
}

/// Packets of the same kind that follow each other on a subflow, drawn at once.
///
/// Their number has the distribution that single draws with `alpha` would give.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    alpha: f64,
    /// The packets of this run are copies.
    copies: bool,
    /// The end of the run, by bytes sent on the subflow.
    end: u64,
}

impl Strategy for Fsa {
    fn name(&self) -> &'static str {
        "fsa"
    }

    /// Opens on the path of the lowest recorded round-trip time, or as stock MPTCP where there is no
    /// record. A mosquito whose size the application declared uses regular TCP.
    fn open(&mut self, view: &OpenView<'_>) -> Option<Opening> {
        let stock = first_in_order(view)?;
        let path = match view.unanswered {
            None => fastest_on_record(view.paths).unwrap_or(stock.path),
            Some(_) => stock.path,
        };
        let tiny = self.limits.class(size(view.flow_size, 0)) == FlowClass::Mosquito;
        let protocol = match view.flow_size {
            FlowSize::Declared(_) if tiny => Protocol::Tcp,
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

/// Returns the path of the lowest recorded round-trip time; a backup path only where no other has a
/// record.
///
/// The round-trip time without queues counts, because the queues went with the connections that made
/// them.
fn fastest_on_record(paths: &[PathView]) -> Option<PathId> {
    let known = paths.iter().filter_map(|path| Some((path, path.record?)));
    let fastest = known.min_by_key(|(path, record)| (path.backup, record.base_rtt))?;
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
                    .filter_map(|s| Some((s, self.on_second_best(view, s, alpha, rng)?)))
                    .min_by_key(|(s, _)| by_base_rtt(s))
                    .map(|(_, decision)| decision)
            }
        }
    }

    /// Returns what a mouse sends on a subflow that is not the best: the drawn kind, or the other kind
    /// where the drawn one has nothing to send. Returns `None` once all has been sent and nothing can be
    /// copied.
    fn on_second_best(
        &mut self,
        view: &SendView<'_>,
        subflow: &SubflowView,
        alpha: f64,
        rng: &mut Rng,
    ) -> Option<Decision> {
        let run = self.runs.of(subflow.id);
        if run.alpha != alpha {
            let copies = rng.chance(alpha);
            *run = Run::draw(alpha, copies, subflow, rng);
        } else if run.end <= subflow.sent {
            *run = Run::draw(alpha, !run.copies, subflow, rng);
        }
        // A decision for less than a segment would wait for more data.
        let mss = u64::from(subflow.mss);
        let left = (run.end - subflow.sent).max(mss);
        let copy = subflow.copies.any.map(|data| Payload::Copy {
            data,
            penalise: false,
        });
        let new = view.may_send_new.then_some(Payload::New);
        let (data, max_bytes) = match (run.copies, copy) {
            (true, Some(copy)) => (copy, left),
            // New data fills in one segment at a time: a copy may be possible for the next.
            (true, None) => (new?, mss),
            (false, _) if view.unsent > 0 => (new?, left),
            (false, copy) => (copy?, left),
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
    /// Its length has the geometric distribution: each further packet is of the same kind with the
    /// probability of that kind.
    fn draw(alpha: f64, copies: bool, subflow: &SubflowView, rng: &mut Rng) -> Run {
        let same = if copies { alpha } else { 1.0 - alpha };
        // `1 - unit` is never 0; a float too large or infinite becomes the largest integer.
        let further = ((1.0 - rng.unit()).ln() / same.ln()) as u32;
        let bytes = (u64::from(further) + 1) * u64::from(subflow.mss);
        Run {
            alpha,
            copies,
            end: subflow.sent + bytes,
        }
    }
}
