//! Important data first, on the best path.

use std::cmp::Reverse;
use std::time::Duration;

use braid_engine::StrategyFactory;
use braid_engine::strategy::{
    Decision, OpenView, Opening, PathView, SendView, Strategy, StrategyEvent, SubflowView,
};
use braid_wire::{Instant, Rng};

use crate::parts::again;
use crate::parts::manners::IMPORTANT;
use crate::parts::rank::{by_rtt_and_window, first_with_room};
use crate::parts::usable::usable;

/// Lu et al., "PO-MPTCP: Priorities-Oriented Data Scheduler" (Int. J. Digital Multimedia
/// Broadcasting, 2018). The engine's send queue lets important data overtake; it goes on the subflow
/// of lowest round-trip time, equal ones by larger window, and while that one is full on the next.
/// Everything else is the base strategy's.
#[derive(Debug)]
pub struct Po {
    base: Box<dyn Strategy>,
}

impl Po {
    /// What makes it, on `base`.
    pub(crate) fn factory(mut base: StrategyFactory) -> StrategyFactory {
        Box::new(move || Box::new(Po { base: base() }))
    }
}

impl Strategy for Po {
    fn name(&self) -> &'static str {
        "po"
    }

    fn open(&mut self, view: &OpenView<'_>) -> Option<Opening> {
        self.base.open(view)
    }

    fn join(&mut self, view: &OpenView<'_>, path: &PathView) -> Option<Instant> {
        self.base.join(view, path)
    }

    fn next(&mut self, view: &SendView<'_>, rng: &mut Rng) -> Decision {
        let urgencies = &view.unsent_by_urgency;
        let important: u64 = urgencies[..IMPORTANT].iter().sum();
        if important == 0 || !view.may_send_new {
            return self.base.next(view, rng);
        }
        again::lost(view)
            .or_else(|| {
                let works = |s: &SubflowView| s.ready || keeps_up(view, s, important);
                first_with_room(view, important, |s| order(view.now, s), works)
            })
            .unwrap_or(Decision::WAIT)
    }

    fn on_event(&mut self, event: &StrategyEvent) {
        self.base.on_event(event);
    }
}

/// The paths in order, by the round trip that the next packet takes: what is sent at once, such as a
/// large frame, stands in a queue that no measurement has seen yet.
fn order(now: Instant, subflow: &SubflowView) -> ((bool, Duration), Reverse<u64>) {
    let ((unknown, rtt), window) = by_rtt_and_window(subflow);
    let queue = subflow.passed_at.saturating_since(now);
    ((unknown, rtt.max(subflow.base_rtt + queue)), window)
}

/// Whether `subflow`, if only the pacer holds it, would have taken `important` bytes before they are
/// through on one that is ready. Otherwise it counts as full: a sender that does not pace fills the
/// best window at once and goes on to the next path, which must not idle either while important data
/// lets nothing else go before it.
fn keeps_up(view: &SendView<'_>, subflow: &SubflowView, important: u64) -> bool {
    let takes = important as f64 / subflow.pacing_rate.max(1) as f64;
    let rtt = |s: &SubflowView| order(view.now, s).0.1;
    let through = rtt(subflow) + Duration::from_secs_f64(takes);
    let ready = usable(view).filter(|s| s.ready);
    ready.map(rtt).min().is_none_or(|rtt| through <= rtt)
}
