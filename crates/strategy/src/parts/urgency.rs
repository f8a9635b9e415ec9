//! Precedence by urgency, within one connection and between the connections over a path. Important data takes the
//! best path. Less urgent data gives way on a path that carries more urgent data. Background data (urgency 7) fills
//! the other paths first, and keeps the queue of the best path short.

use std::cmp::Reverse;
use std::time::Duration;

use braid_engine::Urgency;
use braid_engine::strategy::{Decision, InFlight, SendView, SubflowView};

use super::rank::{by_base_rtt, first_with_room};
use super::usable::{keeps_waiting, usable};

/// The queueing delay above which less urgent data yields to more urgent data. Less urgent data may delay more
/// urgent data by this much. 7 ms is a guess.
const YIELD_QUEUE_DELAY: Duration = Duration::from_millis(7);

/// The time for which the bottleneck of a path that more urgent data uses has work beyond a round trip. The newest
/// round-trip time is a round trip old, and what a window allows meanwhile would become a queue. The value is a guess:
/// some packets of a slow link, so that delayed acknowledgements leave no gap.
const MAX_AHEAD: Duration = Duration::from_millis(5);

/// The time for which the best of several paths is left to data that is more urgent than background data, after the
/// last such data. The value is a guess: it bridges the pauses of a user who types or follows links.
const RESERVED_TIME: Duration = Duration::from_secs(3);

/// The time for which background data leaves a path to more urgent data after the last such data, as long as the engine
/// counts it as present. More urgent data that may only come finds a short queue, but does not stop background data.
const PRESENT_TIME: Duration = Duration::from_millis(300);

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

/// Returns whether new data of the urgency `next` yields on `subflow` to more urgent data of any connection over
/// the same path.
///
/// Data yields if more urgent data uses the path and the path has a queue and its full capacity is in flight, or more
/// is in flight than its bottleneck passes in a round trip and 5 ms. So yielding shortens the queue without leaving the
/// path idle.
///
/// Background data yields more. Where more urgent data passes, only two background packets are in flight, which
/// keep the path's measurements current. The best of several paths is left to more urgent data in this way for 3 s
/// after the last such data. Later, background data uses its capacity too, but keeps the queue short, so that other
/// data finds next to no queue.
pub fn yields_path(view: &SendView<'_>, next: Option<Urgency>, subflow: &SubflowView) -> bool {
    let Some(next) = next else {
        return false;
    };
    let is_urgent_path = subflow.most_urgent.is_some_and(|m| m < next);
    let is_background = next == Urgency::LEAST_URGENT;
    let min_in_flight = 2 * u64::from(subflow.mss);
    let is_best = is_background && is_best_of_several(view, subflow);
    let had_foreground_within = |time| {
        let at = subflow.foreground_at;
        at.is_some_and(|at| view.now.saturating_since(at) < time)
    };
    let is_reserved = is_best && had_foreground_within(RESERVED_TIME);
    let is_present = is_urgent_path && had_foreground_within(PRESENT_TIME);
    if is_reserved || is_present && is_background {
        return subflow.in_flight >= min_in_flight;
    }
    if !is_urgent_path && !is_best {
        return false;
    }
    let base = subflow.base_rtt;
    let bytes_in = |rate: u64, time: Duration| (rate as f64 * time.as_secs_f64()) as u64;
    let exceeds = |bytes: u64| subflow.in_flight >= bytes.max(min_in_flight);
    // In slow start the sender limits the rate that is measured, and the path may be faster.
    let rate_is_evident = subflow.cwnd >= subflow.ssthresh && subflow.peak_rate > 0;
    // Others have a part of the bottleneck, and their bytes a part of its work.
    let rate = subflow.delivery_rate.saturating_add(subflow.others_rate);
    let rate = rate.max(subflow.peak_rate);
    let ahead = bytes_in(rate, base + MAX_AHEAD).saturating_sub(subflow.others_in_flight);
    let is_full = is_urgent_path && rate_is_evident && exceeds(ahead);
    let has_queue = subflow.queueing_delay() > YIELD_QUEUE_DELAY;
    is_full || has_queue && exceeds(bytes_in(subflow.delivery_rate, base))
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

/// Returns whether `subflow` has the lowest round-trip time of several usable paths.
fn is_best_of_several(view: &SendView<'_>, subflow: &SubflowView) -> bool {
    let best = usable(view).min_by_key(|s| by_base_rtt(s));
    best.is_some_and(|best| best.id == subflow.id) && usable(view).count() > 1
}

/// Returns new background data for the path of highest round-trip time or, if that path is full, for the next one.
/// The best path thus comes last, with the part of its capacity that other data leaves. Skips paths with long
/// queues, unless all paths have long queues.
///
/// Metered links need no rule here: the box opens subflows on them only if the other links do not suffice.
pub fn on_spare_paths(view: &SendView<'_>) -> Option<Decision> {
    let waiting = view.unsent_by_urgency[Urgency::COUNT - 1];
    let all_slow = usable(view).all(keeps_waiting);
    first_with_room(
        view,
        waiting,
        |s| Reverse(by_base_rtt(s)),
        |s| (all_slow || !keeps_waiting(s)) && !yields_path(view, Some(Urgency::LEAST_URGENT), s),
    )
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
