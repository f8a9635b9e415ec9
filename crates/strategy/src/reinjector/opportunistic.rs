//! Opportunistic retransmission with penalising, and tail reinjection.

use std::time::Duration;

use braid_engine::SubflowId;
use braid_engine::sched::{Reinject, Reinjector, SendView, SubflowView};

use crate::usable::usable;

/// Copies the oldest data in flight to a faster subflow where its holder keeps all others waiting.
///
/// - The peer's window is used up and there is more to send: Raiciu et al., "How Hard Can It Be?
///   Designing and Implementing a Deployable Multipath TCP" (NSDI 2012), section 4.2. The holder
///   filled the window with data it delivers late, so it is penalised.
/// - Everything has been sent: a flow ends when its last byte arrives, and a subflow with room
///   has nothing better to do. Nobody is penalised, as nobody was kept from sending.
#[derive(Debug, Clone, Copy, Default)]
pub struct Opportunistic;

impl Reinjector for Opportunistic {
    fn name(&self) -> &'static str {
        "opportunistic"
    }

    fn next(&mut self, view: &SendView<'_>, holder: SubflowId) -> Option<Reinject> {
        let holder = view.subflows.iter().find(|s| s.id == holder)?;
        let fastest = usable(view)
            .filter(|s| s.ready && s.id != holder.id)
            .min_by_key(|s| s.srtt)?;
        let window_blocked = view.unsent > 0;
        let worthwhile = if window_blocked {
            fastest.srtt < holder.srtt
        } else {
            overtakes(fastest, holder)
        };
        worthwhile.then_some(Reinject {
            subflow: fastest.id,
            penalise_holder: window_blocked,
        })
    }
}

/// Whether a copy sent now on `fast` should arrive clearly before the data on `holder`.
///
/// When the data was sent is not known: taken to be half-way, it arrives in a quarter of the
/// holder's round trip, a copy in half of the other's.
fn overtakes(fast: &SubflowView, holder: &SubflowView) -> bool {
    let copy = fast.srtt.saturating_add(fast.rttvar) / 2;
    let remaining: Duration = holder.srtt / 4;
    copy < remaining
}
