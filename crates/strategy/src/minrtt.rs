//! The subflow of lowest round-trip time first: the default scheduler of Linux MPTCP v0.9x (multipath-tcp.org).

use braid_engine::strategy::{Decision, SendView, Strategy};
use braid_wire::Rng;

use crate::parts::again;
use crate::parts::rank::first_with_room;
use crate::parts::usable::{by_rtt, keeps_waiting, usable};

/// Sends new data on the subflow of lowest smoothed round-trip time that is established, has not potentially
/// failed and has window room. Uses a backup subflow only if no regular one is usable.
///
/// Copies data that is lost or late, data that keeps the peer's window shut, and the tail of a flow.
#[derive(Debug, Clone, Copy, Default)]
pub struct MinRtt;

impl Strategy for MinRtt {
    fn name(&self) -> &'static str {
        "minrtt"
    }

    fn next(&mut self, view: &SendView<'_>, _rng: &mut Rng) -> Decision {
        // The peer cannot read past lost and late data, so copies of such data come first. The other copies may
        // only save time, so they come after new data.
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
    // A subflow with a long queue gets no new data, unless all subflows have long queues.
    let all_slow = usable(view).all(keeps_waiting);
    first_with_room(view, view.unsent, by_rtt, |s| all_slow || !keeps_waiting(s))
}
