//! Which subflows count at all, and which are better.

use std::time::Duration;

use braid_engine::strategy::{SendView, SubflowView};

/// The subflows that data may be sent on, with room now or not: those that have not potentially
/// failed, and backup ones only if there is no other (RFC 8684 sections 3.2 and 3.3.8).
///
/// A regular subflow whose window is full still keeps the backup ones quiet: it will have room
/// again, and a backup link may cost money.
pub fn usable<'a>(view: &SendView<'a>) -> impl Iterator<Item = &'a SubflowView> + Clone {
    let subflows = view.subflows;
    let regular = subflows.iter().any(|s| !s.stale && !s.backup);
    subflows
        .iter()
        .filter(move |s| !s.stale && s.backup != regular)
}

/// The [`usable`] subflows that have room or will have it: who waits for one that the peer keeps shut,
/// with nothing under way there, waits for ever.
pub fn moving<'a>(view: &SendView<'a>) -> impl Iterator<Item = &'a SubflowView> + Clone {
    usable(view).filter(|s| s.ready || s.in_flight > 0)
}

/// Order by round-trip time. A subflow without a sample yet had trouble in its handshake: last.
pub fn by_rtt(subflow: &SubflowView) -> (bool, Duration) {
    (subflow.srtt.is_zero(), subflow.srtt)
}

/// How long data may stand in a path's queues before the path is taken for slow: as long as twice
/// its own round trip on a fast one, less on one that is long in any case.
pub fn patience(subflow: &SubflowView) -> Duration {
    Duration::from_millis(150).saturating_add(subflow.base_rtt)
}

/// Whether new data is better off elsewhere: the queues of the path are long, and that is because it
/// [is slow](is_slow) or [overfull](is_overfull).
pub fn keeps_waiting(subflow: &SubflowView) -> bool {
    // Most often the queues are short, and nothing else need be looked at.
    subflow.queueing_delay() * 2 > patience(subflow) && (is_slow(subflow) || is_overfull(subflow))
}

/// Whether a path has become so slow that a single packet waits for long: new data there would make
/// all that is behind it wait, for next to no gain.
pub fn is_slow(subflow: &SubflowView) -> bool {
    let bearable = patience(subflow) / 2;
    subflow.queueing_delay() > bearable
        && f64::from(subflow.mss) > bearable.as_secs_f64() * subflow.delivery_rate as f64
}

/// Whether more is under way on a path than it delivers within its round trip and [`patience`]: its
/// rate has fallen, or it has a long queue and congestion control fills it. New data is better off
/// elsewhere until that has drained; as the queue still holds so much, the path loses nothing.
pub fn is_overfull(subflow: &SubflowView) -> bool {
    let patience = patience(subflow);
    if subflow.queueing_delay() <= patience || subflow.delivery_rate == 0 {
        return false;
    }
    let takes = (subflow.base_rtt + patience).as_secs_f64() * subflow.delivery_rate as f64;
    subflow.in_flight as f64 > takes.max(f64::from(subflow.mss))
}
