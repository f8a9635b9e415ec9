//! The subflows that may carry data, and the checks for paths with long queues.

use std::time::Duration;

use braid_engine::strategy::{SendView, SubflowView};

/// Returns the subflows that may carry data, including those that have no room now.
///
/// A usable subflow is not potentially failed. Backup subflows are usable only if there is no regular one (RFC
/// 8684 sections 3.2 and 3.3.8). A regular subflow counts even if its window is full: it will have room again, and
/// a backup link may cost money.
pub fn usable<'a>(view: &SendView<'a>) -> impl Iterator<Item = &'a SubflowView> + Clone {
    let subflows = view.subflows;
    let regular = subflows.iter().any(|s| !s.stale && !s.backup);
    subflows
        .iter()
        .filter(move |s| !s.stale && s.backup != regular)
}

/// Returns the [`usable`] subflows that have room or will get it. A subflow without room and with nothing in
/// flight is left out: no acknowledgement will make room, so a wait for it would never end.
pub fn progressing<'a>(view: &SendView<'a>) -> impl Iterator<Item = &'a SubflowView> + Clone {
    usable(view).filter(|s| s.ready || s.in_flight > 0)
}

/// Returns a sort key: lowest round-trip time first. A subflow without a sample comes last. Its handshake took
/// retransmissions and therefore gave no sample (Karn's algorithm).
pub fn by_rtt(subflow: &SubflowView) -> (bool, Duration) {
    (subflow.srtt.is_zero(), subflow.srtt)
}

/// The grace period of a path without delay. 150 ms is a guess: it allows for deep queues on short paths.
pub const MIN_GRACE_PERIOD: Duration = Duration::from_millis(150);

/// Returns the grace period of a path: the queueing delay above which the path counts as slow. The period is a
/// round trip, because congestion control may fill a queue by that much, and [`MIN_GRACE_PERIOD`].
pub fn grace_period(subflow: &SubflowView) -> Duration {
    MIN_GRACE_PERIOD.saturating_add(subflow.base_rtt)
}

/// Returns whether new data should go on another path, because data on this one would wait in long queues: the
/// path [is slow](is_slow) or [overfull](is_overfull).
pub fn keeps_waiting(subflow: &SubflowView) -> bool {
    // Queues are usually short. The first comparison then makes the more expensive checks unnecessary.
    subflow.queueing_delay() * 2 > grace_period(subflow)
        && (is_slow(subflow) || is_overfull(subflow))
}

/// Returns whether a path has become so slow that it needs more than half the grace period for a single packet.
/// The peer could not read past new data there, and the path would carry next to nothing.
pub fn is_slow(subflow: &SubflowView) -> bool {
    let max_delay = grace_period(subflow) / 2;
    subflow.queueing_delay() > max_delay
        && f64::from(subflow.mss) > max_delay.as_secs_f64() * subflow.delivery_rate as f64
}

/// Returns whether more data is in flight on a path than the path delivers within a round trip and the
/// [`grace_period`].
///
/// Either the path's rate has fallen, or congestion control has filled a long queue. New data should go on other
/// paths until the queue is shorter. The path stays busy in the meantime, because its queue is long.
pub fn is_overfull(subflow: &SubflowView) -> bool {
    let grace_period = grace_period(subflow);
    if subflow.queueing_delay() <= grace_period || subflow.delivery_rate == 0 {
        return false;
    }
    let max_in_flight =
        (subflow.base_rtt + grace_period).as_secs_f64() * subflow.delivery_rate as f64;
    subflow.in_flight as f64 > max_in_flight.max(f64::from(subflow.mss))
}
