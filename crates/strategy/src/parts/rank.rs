//! The order in which subflows are taken, and the share of the first one with room.

use std::cmp::Reverse;
use std::time::Duration;

use braid_engine::strategy::{Decision, Payload, SendView, SubflowView};

use super::usable::{by_rtt, usable};

/// Orders by round-trip time, equal ones by the larger window (path sorting of Lu et al., "PO-MPTCP",
/// Int. J. Digital Multimedia Broadcasting, 2018).
pub fn by_rtt_and_window(subflow: &SubflowView) -> ((bool, Duration), Reverse<u64>) {
    (by_rtt(subflow), Reverse(subflow.cwnd))
}

/// Orders by the round-trip time without queues. The queue that a flow makes on its best path must not
/// make another path the best. A subflow without a sample comes last.
pub fn by_base_rtt(subflow: &SubflowView) -> (bool, Duration) {
    (subflow.base_rtt.is_zero(), subflow.base_rtt)
}

/// Returns new data, out of `waiting` bytes, for the first usable subflow by `order` that has room and
/// for which `works` holds.
///
/// A better subflow with window room that only the pacer holds is not full: in a kernel it would already
/// have taken data into its queue. As much data as its window takes is left to it. Otherwise the gaps
/// between its bursts would send short flows over the slow path.
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

/// Returns whether only the pacer keeps a subflow from sending. With nothing in flight the peer's window
/// is the more likely cause, and waiting for the subflow would be in vain.
fn is_paced(subflow: &SubflowView) -> bool {
    let room = subflow.window_room() >= u64::from(subflow.mss);
    !subflow.ready && room && subflow.in_flight > 0
}
