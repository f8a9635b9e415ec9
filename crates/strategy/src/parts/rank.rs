//! Sort keys of subflows, and the choice of the first subflow with room in such an order.

use std::cmp::Reverse;
use std::time::Duration;

use braid_engine::strategy::{Decision, Payload, SendView, SubflowView};

use super::usable::{by_rtt, usable};

/// Returns a sort key: lowest round-trip time first and, among equal ones, the larger window first (path sorting
/// of Lu et al., "PO-MPTCP", Int. J. Digital Multimedia Broadcasting, 2018).
pub fn by_rtt_and_window(subflow: &SubflowView) -> ((bool, Duration), Reverse<u64>) {
    (by_rtt(subflow), Reverse(subflow.cwnd))
}

/// Returns a sort key: lowest round-trip time without queues first. If queues counted, a flow that fills the queue
/// of its best path would thereby make another path the best. A subflow without a sample comes last.
pub fn by_base_rtt(subflow: &SubflowView) -> (bool, Duration) {
    (subflow.base_rtt.is_zero(), subflow.base_rtt)
}

/// Returns new data for the first usable subflow with room for which `works` returns true. The key `order` defines
/// which subflow is first. `waiting` is the number of bytes to be sent.
///
/// A subflow earlier in the order may have window room, but be held back by its pacer. Such a subflow is not full:
/// a kernel would already have put data into its queue. As many bytes as its window takes are therefore reserved
/// for it. Without the reservation, short flows would go over a slow path in the gaps between its bursts.
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
    let reserved = usable(view)
        .filter(|s| is_paced(s) && order(s) < rank && works(s))
        .map(SubflowView::window_room)
        .fold(0, u64::saturating_add);
    let sendable = waiting.min(view.peer_window);
    if sendable <= reserved {
        return None;
    }
    let mss = u64::from(best.mss);
    // At least a segment, because a decision for less would wait for more data.
    let max_bytes = best.window_room().min(sendable - reserved).max(mss);
    Some(Decision::Send {
        subflow: best.id,
        data: Payload::New,
        max_bytes: u32::try_from(max_bytes).unwrap_or(u32::MAX),
    })
}

/// Returns whether only the pacer keeps a subflow from sending. If nothing is in flight, the peer's window is the
/// more likely cause, and a reservation would hold data back for ever.
fn is_paced(subflow: &SubflowView) -> bool {
    let has_room = subflow.window_room() >= u64::from(subflow.mss);
    !subflow.ready && has_room && subflow.in_flight > 0
}
