//! Precedence by urgency, within one connection and between several: important data takes the best path,
//! and less urgent data stands back on a path that carries more urgent data.

use std::time::Duration;

use braid_engine::Urgency;
use braid_engine::strategy::{Decision, InFlight, SendView, SubflowView};

use super::rank::{by_base_rtt, first_with_room};
use super::usable::{keeps_waiting, usable};

/// The queueing delay from which on less urgent data stands back for more urgent data.
const YIELD_QUEUE_DELAY: Duration = Duration::from_millis(7);

/// The number of important urgencies, which are the lowest ones: 0, 1 and 2.
pub const IMPORTANT_LEVELS: usize = 3;

/// Returns whether data of this urgency is important.
pub fn is_important(urgency: Urgency) -> bool {
    usize::from(urgency.level()) < IMPORTANT_LEVELS
}

/// Returns the urgency of the data that is sent next.
pub fn next_urgency(view: &SendView<'_>) -> Option<Urgency> {
    let next = view.unsent_by_urgency.iter().position(|bytes| *bytes > 0)?;
    Urgency::new(u8::try_from(next).ok()?)
}

/// Returns whether new data of the urgency `next` keeps off `subflow` for now, because more urgent data
/// goes over the same path.
///
/// Background data leaves the path, but for two packets. Other data stands back only where there is a
/// queue and the path's capacity is in flight, so that the path loses nothing but the queue.
pub fn yields_path(next: Option<Urgency>, subflow: &SubflowView) -> bool {
    let Some(next) = next.filter(|next| subflow.most_urgent.is_some_and(|m| m < *next)) else {
        return false;
    };
    let least = 2 * u64::from(subflow.mss);
    if next == Urgency::LEAST_URGENT {
        return subflow.in_flight >= least;
    }
    let carried = subflow.delivery_rate as f64 * subflow.base_rtt.as_secs_f64();
    subflow.in_flight >= least.max(carried as u64) && subflow.queueing_delay() > YIELD_QUEUE_DELAY
}

/// Returns new data for the path of lowest round-trip time, and for the next while that is full; paths
/// that have become slow are left out.
pub fn on_best_path(view: &SendView<'_>) -> Option<Decision> {
    let waiting = view.unsent_by_urgency[..IMPORTANT_LEVELS].iter().sum();
    let all = usable(view).all(keeps_waiting);
    first_with_room(view, waiting, by_base_rtt, |s| all || !keeps_waiting(s))
}

/// Returns a copy of data that important data waits for.
///
/// Everything behind missing data waits for it. So data that only a slower path carries is sent once more
/// on a faster one as soon as its acknowledgement is overdue. Where there is nothing else to send, the
/// copy need not wait, as long as it would arrive first and is affordable.
pub fn unblock(view: &SendView<'_>, affordable: impl Fn(&InFlight) -> bool) -> Option<Decision> {
    let passes = |s: &SubflowView| s.most_urgent.is_some_and(is_important);
    if !view.subflows.iter().any(passes) {
        return None;
    }
    let ready = usable(view).filter(|s| s.ready);
    let copies = ready.filter_map(|s| {
        let data = s.copies.single?;
        let last_sender = view.subflow(data.last_sender)?;
        let age = view.now.saturating_since(data.sent_at);
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
