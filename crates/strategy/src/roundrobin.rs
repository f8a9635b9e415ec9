//! One segment on each subflow in turn.

use arrayvec::ArrayVec;
use braid_engine::SubflowId;
use braid_engine::strategy::{Decision, Payload, SendView, Strategy};
use braid_wire::Rng;

use crate::parts::again;
use crate::parts::usable::usable;

/// Maximum number of subflows in a round: the engine's maximum for a connection.
const MAX_SUBFLOWS: usize = 32;

/// Gives each usable subflow with window room one segment in each round. A new round starts when every subflow
/// with room has had its segment. Only data that was lost with a failed path is copied, and such copies go first.
#[derive(Debug, Clone, Default)]
pub struct RoundRobin {
    /// The subflows that had their turn in this round.
    served: ArrayVec<SubflowId, MAX_SUBFLOWS>,
}

impl Strategy for RoundRobin {
    fn name(&self) -> &'static str {
        "roundrobin"
    }

    fn next(&mut self, view: &SendView<'_>, _rng: &mut Rng) -> Decision {
        if let Some(lost) = again::lost(view) {
            return lost;
        }
        if !view.may_send_new {
            return Decision::WAIT;
        }
        let ready = usable(view).filter(|s| s.ready);
        let next = ready.clone().find(|s| !self.served.contains(&s.id));
        let next = next.or_else(|| {
            self.served.clear();
            ready.clone().next()
        });
        match next {
            Some(s) if self.served.try_push(s.id).is_ok() => Decision::Send {
                subflow: s.id,
                data: Payload::New,
                max_bytes: s.mss,
            },
            _ => Decision::WAIT,
        }
    }
}
