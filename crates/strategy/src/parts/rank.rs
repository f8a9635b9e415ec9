//! In which order subflows are taken, and what the first with room gets.

use std::cmp::Reverse;
use std::time::Duration;

use braid_engine::strategy::{Decision, Payload, SendView, SubflowView};

use super::usable::{by_rtt, usable};

/// Order by round-trip time, and of equal ones by the larger window. Lu et al., "PO-MPTCP"
/// (Int. J. Digital Multimedia Broadcasting, 2018): path sorting.
pub fn by_rtt_and_window(subflow: &SubflowView) -> ((bool, Duration), Reverse<u64>) {
    (by_rtt(subflow), Reverse(subflow.cwnd))
}

/// Order by the round-trip time without queues: the queue that a flow itself makes on its best path
/// does not make another path the best. A subflow without a sample yet comes last.
pub fn by_base_rtt(subflow: &SubflowView) -> (bool, Duration) {
    (subflow.base_rtt.is_zero(), subflow.base_rtt)
}

/// New data, of which `waiting` bytes are concerned, on the first subflow by `order` whose window is
/// not full, among the usable ones that also `work` otherwise.
///
/// A better one with window room that only the pacer holds is not full: in a kernel it would already
/// have taken data into its queue. So much is left to it: without this, the gaps between its bursts
/// would send short flows over the slow path.
pub fn first_with_room<K: Ord>(
    view: &SendView<'_>,
    waiting: u64,
    order: impl Fn(&SubflowView) -> K,
    works: impl Fn(&SubflowView) -> bool,
) -> Option<Decision> {
    if !view.may_send_new {
        return None;
    }
    let ready = usable(view).filter(|s| s.ready && works(s));
    let best = ready.min_by_key(|s| order(s))?;
    let rank = order(best);
    let spoken_for = usable(view)
        .filter(|s| is_paced(s) && order(s) < rank && works(s))
        .map(SubflowView::window_room)
        .fold(0, u64::saturating_add);
    let sendable = waiting.min(view.peer_window);
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

/// Whether only the pacer keeps a subflow from sending. With nothing under way it is rather the peer
/// that does, and it would be waited for in vain.
fn is_paced(subflow: &SubflowView) -> bool {
    let room = subflow.window_room() >= u64::from(subflow.mss);
    !subflow.ready && room && subflow.in_flight > 0
}
