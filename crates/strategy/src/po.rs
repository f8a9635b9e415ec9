//! PO: sends important data first, on the best path.

use braid_engine::strategy::{
    Decision, OpenView, Opening, PathView, SendView, Strategy, StrategyEvent,
};
use braid_engine::{StrategyFactory, Urgency};
use braid_wire::{Instant, Rng};

use crate::parts::again;
use crate::parts::rank::{by_rtt_and_window, first_with_room};
use crate::parts::urgency::{IMPORTANT_LEVELS, is_important, next_urgency, on_spare_paths};

/// The PO scheduler (Lu et al., "PO-MPTCP: Priorities-Oriented Data Scheduler", Int. J. Digital
/// Multimedia Broadcasting, 2018).
///
/// The engine's send queue puts important data before other data. This strategy sends important data on the
/// subflow of lowest round-trip time (among equals, on the one with the larger window) or, if that subflow is
/// full, on the next one. Background data (urgency 7), which the paper does not have, fills the other subflows
/// first. A base strategy decides everything else.
#[derive(Debug)]
pub struct Po {
    base: Box<dyn Strategy>,
}

impl Po {
    /// Returns a factory that builds on the strategies of `base`.
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
        let Some(next) = next_urgency(view).filter(|_| view.may_send_new) else {
            return self.base.next(view, rng);
        };
        let new_data = if is_important(next) {
            let important = view.unsent_by_urgency[..IMPORTANT_LEVELS].iter().sum();
            first_with_room(view, important, by_rtt_and_window, |_| true)
        } else if next == Urgency::LEAST_URGENT {
            on_spare_paths(view)
        } else {
            return self.base.next(view, rng);
        };
        // The base strategy was not asked, so lost and late data is copied here, and slow paths are tried.
        let lost = again::lost(view).or_else(|| again::late(view));
        let decision = lost.or(new_data).or_else(|| again::trial(view));
        decision.unwrap_or_else(|| Decision::Wait {
            until: again::late_at(view),
        })
    }

    fn on_event(&mut self, event: &StrategyEvent) {
        self.base.on_event(event);
    }
}
