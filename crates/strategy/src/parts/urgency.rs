//! Precedence by urgency, within one connection and between the connections over a path. Important data takes the
//! best path. Less urgent data gives way on a path that carries more urgent data.

use std::time::Duration;

use braid_engine::Urgency;
use braid_engine::strategy::{Decision, InFlight, SendView, SubflowView};

use super::rank::{by_base_rtt, first_with_room};
use super::usable::{keeps_waiting, usable};

/// The queueing delay above which less urgent data yields to more urgent data. Less urgent data may delay more
/// urgent data by this much. 7 ms is a guess.
const YIELD_QUEUE_DELAY: Duration = Duration::from_millis(7);

/// The number of important urgency levels: 0, 1 and 2. Lower levels are more urgent; 3 is the default (RFC 9218).
pub const IMPORTANT_LEVELS: usize = 3;

/// Returns whether data of this urgency is important.
pub fn is_important(urgency: Urgency) -> bool {
    usize::from(urgency.level()) < IMPORTANT_LEVELS
}

/// Returns the urgency of the data that is sent next: the most urgent data in the send queue.
pub fn next_urgency(view: &SendView<'_>) -> Option<Urgency> {
    let level = view.unsent_by_urgency.iter().position(|bytes| *bytes > 0)?;
    Urgency::new(u8::try_from(level).ok()?)
}

/// Returns whether new data of the urgency `next` yields on `subflow`, because more urgent data of any connection
/// uses the same path.
///
/// Background data yields except for two packets, which keep the path's measurements current. Other data yields
/// only if the path has a queue and its full capacity is in flight, so that yielding shortens the queue without
/// leaving the path idle.
pub fn yields_path(next: Option<Urgency>, subflow: &SubflowView) -> bool {
    let Some(next) = next.filter(|next| subflow.most_urgent.is_some_and(|m| m < *next)) else {
        return false;
    };
    let min_in_flight = 2 * u64::from(subflow.mss);
    if next == Urgency::LEAST_URGENT {
        return subflow.in_flight >= min_in_flight;
    }
    let capacity = subflow.delivery_rate as f64 * subflow.base_rtt.as_secs_f64();
    subflow.in_flight >= min_in_flight.max(capacity as u64)
        && subflow.queueing_delay() > YIELD_QUEUE_DELAY
}

/// Returns new data for the path of lowest round-trip time or, if that path is full, for the next one. Skips paths
/// with long queues, unless all paths have long queues.
pub fn on_best_path(view: &SendView<'_>) -> Option<Decision> {
    let waiting = view.unsent_by_urgency[..IMPORTANT_LEVELS].iter().sum();
    let all_slow = usable(view).all(keeps_waiting);
    first_with_room(view, waiting, by_base_rtt, |s| {
        all_slow || !keeps_waiting(s)
    })
}

/// Returns a copy of data that keeps the peer from reading important data after it.
///
/// The data is in flight on a slower path, and the copy goes on a faster one. The copy is sent as soon as the
/// acknowledgement of the data is overdue. If there is nothing else to send, the copy is sent at once, provided
/// that it would arrive before the original and is `affordable`.
pub fn unblock(view: &SendView<'_>, affordable: impl Fn(&InFlight) -> bool) -> Option<Decision> {
    let carries_important = |s: &SubflowView| s.most_urgent.is_some_and(is_important);
    if !view.subflows.iter().any(carries_important) {
        return None;
    }
    let ready = usable(view).filter(|s| s.ready);
    let copies = ready.filter_map(|s| {
        let data = s.copies.single?;
        let last_sender = view.subflow(data.last_sender)?;
        let age = view.now.saturating_since(data.sent_at);
        // The original arrives half a round trip after it was sent. A copy sent now arrives after half a round
        // trip of the faster path.
        let overdue = age > last_sender.srtt + 2 * last_sender.rttvar;
        let overtakes =
            view.unsent == 0 && age + (s.base_rtt + s.rttvar) / 2 < last_sender.base_rtt / 2;
        let wanted = overdue || (overtakes && affordable(&data));
        (s.base_rtt < last_sender.base_rtt && wanted).then_some((s, data))
    });
    copies
        .min_by_key(|(s, _)| by_base_rtt(s))
        .map(|(s, data)| Decision::copy_on(s.id, data))
}
