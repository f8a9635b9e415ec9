//! When data in flight is sent once more on another subflow.

use std::time::Duration;

use braid_engine::strategy::{Decision, InFlight, Payload, SendView, SubflowView};

use super::usable::{by_rtt, is_slow, patience, usable};

/// What no subflow carries any more, on the fastest that works and has room: the data of a path
/// that failed goes on as soon as possible.
pub fn lost(view: &SendView<'_>) -> Option<Decision> {
    let (on, data) = fastest(view, |s| s.copies.lost)?;
    Some(Decision::copy_on(on.id, data))
}

/// What is overdue on a path that still delivers, but far later than it used to, so that no timer
/// tells: its rate has fallen, and everything behind waits for it.
pub fn late(view: &SendView<'_>) -> Option<Decision> {
    let (on, data) = fastest_beside(view, |s, holder, data| {
        s.id != holder.id && overdue_at(holder, data).is_some_and(|at| at <= view.now)
    })?;
    Some(Decision::copy_on(on.id, data))
}

/// When [`late`] will want data that is in flight now, at the earliest.
pub fn late_at(view: &SendView<'_>) -> Option<braid_wire::Instant> {
    let oldest = view.oldest?;
    overdue_at(view.subflow(oldest.carrier)?, &oldest).filter(|at| *at > view.now)
}

/// From when on `data` is late: it ought to have stood in queues for half that time at most. Nobody
/// knows before the first round trip.
fn overdue_at(holder: &SubflowView, data: &InFlight) -> Option<braid_wire::Instant> {
    let measured = !holder.base_rtt.is_zero();
    measured.then(|| data.sent_at + holder.base_rtt + 2 * patience(holder))
}

/// Opportunistic retransmission and penalising: the peer's window is used up and there is more to
/// send, so the oldest data, which keeps it shut, is copied to a faster subflow, and who holds it
/// is penalised, for it filled the window with what it delivers late. Raiciu et al., "How Hard Can
/// It Be? Designing and Implementing a Deployable Multipath TCP" (NSDI 2012), section 4.2.
pub fn blocking(view: &SendView<'_>) -> Option<Decision> {
    if view.unsent == 0 || view.may_send_new {
        return None;
    }
    let oldest = view.oldest?;
    let (on, data) = fastest_beside(view, |s, holder, data| {
        data.start == oldest.start && s.srtt < holder.srtt
    })?;
    Some(Decision::Send {
        subflow: on.id,
        data: Payload::Copy {
            data,
            penalise: true,
        },
        max_bytes: u32::MAX,
    })
}

/// A path that has become slow and is idle, or is that by what is on record alone, is tried with data
/// that goes another way too, one packet at a time: how that fares tells when it can be used again.
pub fn trial(view: &SendView<'_>) -> Option<Decision> {
    let idle = |s: &SubflowView| s.in_flight == 0 && (is_slow(s) || is_doubted(s));
    let (on, data) = fastest(view, |s| s.copies.single.filter(|_| idle(s)))?;
    Some(Decision::Send {
        subflow: on.id,
        data: Payload::Copy {
            data,
            penalise: false,
        },
        max_bytes: on.mss,
    })
}

/// Whether a path is known for a rate that no link has: a packet would take longer than a second. It is
/// not used by that, so nothing else would put it right.
fn is_doubted(subflow: &SubflowView) -> bool {
    (1..u64::from(subflow.mss)).contains(&subflow.peak_rate)
}

/// Everything has been sent: a flow ends when its last byte arrives, and a subflow with room has
/// nothing better to do than to overtake a slower one.
pub fn tail(view: &SendView<'_>) -> Option<Decision> {
    if view.unsent > 0 {
        return None;
    }
    let (on, data) = fastest_beside(view, |s, holder, _| overtakes(s, holder))?;
    Some(Decision::copy_on(on.id, data))
}

/// The fastest subflow with room that may carry what was sent once, where the copy is `worthwhile`
/// given who holds it; and the oldest such data.
fn fastest_beside<'a>(
    view: &SendView<'a>,
    worthwhile: impl Fn(&SubflowView, &SubflowView, &InFlight) -> bool,
) -> Option<(&'a SubflowView, InFlight)> {
    fastest(view, |s| {
        s.copies.single.filter(|data| {
            let holder = view.subflow(data.carrier);
            holder.is_some_and(|holder| worthwhile(s, holder, data))
        })
    })
}

/// The fastest subflow with room that has something to carry, and that.
fn fastest<'a>(
    view: &SendView<'a>,
    to_carry: impl Fn(&SubflowView) -> Option<InFlight>,
) -> Option<(&'a SubflowView, InFlight)> {
    usable(view)
        .filter(|s| s.ready)
        .filter_map(|s| Some((s, to_carry(s)?)))
        .min_by_key(|(s, _)| by_rtt(s))
}

/// Whether a copy sent now on `fast` should arrive clearly before the data on `holder`.
///
/// Data that is in flight is taken to be half-way: it arrives in a quarter of the holder's round
/// trip, a copy in half of the other's.
fn overtakes(fast: &SubflowView, holder: &SubflowView) -> bool {
    let copy = fast.srtt.saturating_add(fast.rttvar) / 2;
    let remaining: Duration = holder.srtt / 4;
    copy < remaining
}
