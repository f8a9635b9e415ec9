//! The lowest round-trip time first: the default of Linux MPTCP v0.9x.

use std::time::Duration;

use braid_engine::sched::{Decision, Payload, Scheduler, SendView, SubflowView};
use braid_wire::Rng;

use crate::usable::usable;

/// Sends on the subflow of lowest smoothed round-trip time among those that are established, not
/// potentially failed and have window room; on a backup one only if no regular one is usable.
#[derive(Debug, Clone, Copy, Default)]
pub struct MinRtt;

impl Scheduler for MinRtt {
    fn name(&self) -> &'static str {
        "minrtt"
    }

    fn next(&mut self, view: &SendView<'_>, _rng: &mut Rng) -> Decision {
        let Some(best) = usable(view).filter(|s| s.ready).min_by_key(|s| rank(s)) else {
            return Decision::Wait;
        };
        // A faster subflow with window room that only the pacer holds would, in a kernel, already
        // have taken data into its queue. So much is left to it: without this, the gaps between
        // its bursts would send short flows over the slow path.
        let spoken_for: u64 = usable(view)
            .filter(|s| rank(s) < rank(best) && is_paced(s))
            .map(SubflowView::window_room)
            .fold(0, u64::saturating_add);
        let sendable = view.unsent.min(view.peer_window);
        if sendable <= spoken_for {
            return Decision::Wait;
        }
        let mss = u64::from(best.mss);
        let max_bytes = best.window_room().min(sendable - spoken_for).max(mss);
        Decision::Send {
            subflow: best.id,
            data: Payload::New,
            max_bytes: u32::try_from(max_bytes).unwrap_or(u32::MAX),
        }
    }
}

/// Order of preference. A subflow without a sample yet had trouble in its handshake: last.
fn rank(subflow: &SubflowView) -> (bool, Duration) {
    (subflow.srtt.is_zero(), subflow.srtt)
}

/// Whether only the pacer keeps a subflow from sending.
fn is_paced(subflow: &SubflowView) -> bool {
    !subflow.ready && subflow.window_room() >= u64::from(subflow.mss)
}
