//! The subflows that count at all, and the better ones among them.

use std::time::Duration;

use braid_engine::strategy::{SendView, SubflowView};

/// Returns the subflows that data may be sent on, with room now or not.
///
/// These have not potentially failed, and backup subflows count only if there is no other (RFC 8684
/// sections 3.2 and 3.3.8). A regular subflow whose window is full still keeps the backup ones quiet: it
/// will have room again, and a backup link may cost money.
pub fn usable<'a>(view: &SendView<'a>) -> impl Iterator<Item = &'a SubflowView> + Clone {
    let subflows = view.subflows;
    let regular = subflows.iter().any(|s| !s.stale && !s.backup);
    subflows
        .iter()
        .filter(move |s| !s.stale && s.backup != regular)
}

/// Returns the [`usable`] subflows that have room or will have it. A subflow that the peer keeps shut and
/// that has nothing in flight is left out: a wait for it would never end.
pub fn progressing<'a>(view: &SendView<'a>) -> impl Iterator<Item = &'a SubflowView> + Clone {
    usable(view).filter(|s| s.ready || s.in_flight > 0)
}

/// Orders by round-trip time. A subflow without a sample comes last: its handshake had trouble.
pub fn by_rtt(subflow: &SubflowView) -> (bool, Duration) {
    (subflow.srtt.is_zero(), subflow.srtt)
}

/// Returns the grace period of a path: how long data may stand in its queues before the path counts as
/// slow. The fixed part bounds the delay on fast paths; a long path may queue for a round trip more.
pub fn grace_period(subflow: &SubflowView) -> Duration {
    Duration::from_millis(150).saturating_add(subflow.base_rtt)
}

/// Returns whether new data is better off elsewhere: the path has long queues because it [is
/// slow](is_slow) or [overfull](is_overfull).
pub fn keeps_waiting(subflow: &SubflowView) -> bool {
    // Most often the queues are short, and the more expensive checks are not needed.
    subflow.queueing_delay() * 2 > grace_period(subflow)
        && (is_slow(subflow) || is_overfull(subflow))
}

/// Returns whether a path has become so slow that a single packet takes longer than half the grace
/// period. New data there would hold up all data behind it, for next to no gain.
pub fn is_slow(subflow: &SubflowView) -> bool {
    let bearable = grace_period(subflow) / 2;
    subflow.queueing_delay() > bearable
        && f64::from(subflow.mss) > bearable.as_secs_f64() * subflow.delivery_rate as f64
}

/// Returns whether more data is in flight on a path than it delivers within its round trip and
/// [`grace_period`].
///
/// Its rate has fallen, or congestion control fills a long queue. New data is better off elsewhere until
/// the queue has drained; the queue still holds so much that the path loses nothing.
pub fn is_overfull(subflow: &SubflowView) -> bool {
    let grace_period = grace_period(subflow);
    if subflow.queueing_delay() <= grace_period || subflow.delivery_rate == 0 {
        return false;
    }
    let takes = (subflow.base_rtt + grace_period).as_secs_f64() * subflow.delivery_rate as f64;
    subflow.in_flight as f64 > takes.max(f64::from(subflow.mss))
}
