//! The lowest round-trip time first: the default of Linux MPTCP v0.9x.

use braid_engine::strategy::{Decision, Payload, SendView, Strategy, SubflowView};
use braid_wire::Rng;

use crate::parts::again;
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

/// New data by round-trip time alone.
pub(crate) fn new_data(view: &SendView<'_>) -> Option<Decision> {
    if !view.may_send_new {
        return None;
    }
    // One that delivers ever later counts as failed, as long as there is another.
    let all = usable(view).all(keeps_waiting);
    let works = |s: &&SubflowView| all || !keeps_waiting(s);
    let ready = usable(view).filter(|s| s.ready);
    let best = ready.filter(works).min_by_key(|s| by_rtt(s))?;
    // A faster subflow with window room that only the pacer holds would, in a kernel, already have
    // taken data into its queue. So much is left to it: without this, the gaps between its bursts
    // would send short flows over the slow path.
    let paced = usable(view).filter(|s| is_paced(s) && by_rtt(s) < by_rtt(best));
    let spoken_for = paced
        .filter(works)
        .map(SubflowView::window_room)
        .fold(0, u64::saturating_add);
    let sendable = view.unsent.min(view.peer_window);
    if sendable <= spoken_for {
        return None;
    }
    let mss = u64::from(best.mss);
    let max_bytes = best.window_room().min(sendable - spoken_for).max(mss);
    Some(Decision::Send {
        subflow: best.id,
        data: Payload::New,
        max_bytes: u32::try_from(max_bytes).unwrap_or(u32::MAX),
    })
}

/// Whether only the pacer keeps a subflow from sending.
fn is_paced(subflow: &SubflowView) -> bool {
    !subflow.ready && subflow.window_room() >= u64::from(subflow.mss)
}
