//! Whose data goes first: what is important takes the best path, and what is less urgent stands back
//! where it passes, within one connection and between several.

use std::time::Duration;

use braid_engine::Urgency;
use braid_engine::strategy::{Decision, InFlight, SendView, SubflowView};

use super::rank::{by_base_rtt, first_with_room};
use super::usable::{keeps_waiting, usable};

/// Queueing delay from which on less urgent data stands back where more urgent data passes.
const QUEUE: Duration = Duration::from_millis(7);

/// Urgencies from 0 on that are important.
pub const IMPORTANT: usize = 3;

/// Whether data of this urgency is important.
pub fn is_important(urgency: Urgency) -> bool {
    usize::from(urgency.level()) < IMPORTANT
}

/// How urgent the data is that is next.
pub fn next_urgency(view: &SendView<'_>) -> Option<Urgency> {
    let next = view.unsent_by_urgency.iter().position(|bytes| *bytes > 0)?;
    Urgency::new(u8::try_from(next).ok()?)
}

/// Whether new data of the urgency `next` keeps off `subflow` for now, because something more urgent
/// goes over the same path. The background leaves it, but for a packet or two. Other data stands back
/// where there is a queue and as much is under way as the path carries without one, so that the path
/// loses nothing but the queue.
pub fn stands_back(next: Option<Urgency>, subflow: &SubflowView) -> bool {
    let Some(next) = next.filter(|next| subflow.most_urgent.is_some_and(|m| m < *next)) else {
        return false;
    };
    let least = 2 * u64::from(subflow.mss);
    if next == Urgency::LEAST {
        return subflow.in_flight >= least;
    }
    let carried = subflow.delivery_rate as f64 * subflow.base_rtt.as_secs_f64();
    subflow.in_flight >= least.max(carried as u64) && subflow.queueing_delay() > QUEUE
}

/// New data on the path of lowest round-trip time, and while that is full on the next; not on one that
/// has become slow.
pub fn on_the_best(view: &SendView<'_>) -> Option<Decision> {
    let waiting = view.unsent_by_urgency[..IMPORTANT].iter().sum();
    let all = usable(view).all(keeps_waiting);
    first_with_room(view, waiting, by_base_rtt, |s| all || !keeps_waiting(s))
}

/// Where important data passes, everything behind what is missing waits for it. So what only a
/// slower path carries is sent once more on a faster one: as soon as its acknowledgement is overdue;
/// and where there is nothing else to send, as long as the copy would arrive first and is affordable.
pub fn unblock(view: &SendView<'_>, affordable: impl Fn(&InFlight) -> bool) -> Option<Decision> {
    let passes = |s: &SubflowView| s.most_urgent.is_some_and(is_important);
    if !view.subflows.iter().any(passes) {
        return None;
    }
    let ready = usable(view).filter(|s| s.ready);
    let copies = ready.filter_map(|s| {
        let data = s.copies.single?;
        let holder = view.subflow(data.carrier)?;
        let age = view.now.saturating_since(data.sent_at);
        let overdue = age > holder.srtt + 2 * holder.rttvar;
        let overtakes = view.unsent == 0 && age + (s.base_rtt + s.rttvar) / 2 < holder.base_rtt / 2;
        let wanted = overdue || (overtakes && affordable(&data));
        (s.base_rtt < holder.base_rtt && wanted).then_some((s, data))
    });
    copies
        .min_by_key(|(s, _)| by_base_rtt(s))
        .map(|(s, data)| Decision::copy_on(s.id, data))
}
