//! The lowest round-trip time first: the default of Linux MPTCP v0.9x.

use braid_engine::strategy::{Decision, SendView, Strategy};
use braid_wire::Rng;

use crate::parts::again;
use crate::parts::rank::first_with_room;
use crate::parts::usable::{by_rtt, keeps_waiting, usable};

/// Sends on the subflow of lowest smoothed round-trip time among those that are established, not
/// potentially failed and have window room; on a backup one only if no regular one is usable.
/// Copies what is lost or late, what keeps the peer's window shut, and the tail.
#[derive(Debug, Clone, Copy, Default)]
pub struct MinRtt;

impl Strategy for MinRtt {
    fn name(&self) -> &'static str {
        "minrtt"
    }

    fn next(&mut self, view: &SendView<'_>, _rng: &mut Rng) -> Decision {
        // The peer waits for lost and late data, so that goes first. The other copies only save time, so
        // new data has a better use for the room.
        again::lost(view)
            .or_else(|| again::late(view))
            .or_else(|| new_data(view))
            .or_else(|| again::blocking(view))
            .or_else(|| again::trial(view))
            .or_else(|| again::tail(view))
            .unwrap_or(Decision::Wait {
                until: again::late_at(view),
            })
    }
}

/// Returns new data for the subflow of lowest round-trip time.
pub(crate) fn new_data(view: &SendView<'_>) -> Option<Decision> {
    if !view.may_send_new {
        return None;
    }
    // A subflow whose delay keeps growing counts as failed, as long as there is another.
    let all = usable(view).all(keeps_waiting);
    first_with_room(view, view.unsent, by_rtt, |s| all || !keeps_waiting(s))
}
