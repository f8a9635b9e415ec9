//! Rules for sending data in flight once more, on another subflow.

use std::time::Duration;

use braid_engine::strategy::{Decision, InFlight, Payload, SendView, SubflowView};

use super::usable::{by_rtt, grace_period, is_slow, usable};

/// Returns data that no subflow carries any more, for the fastest subflow that works and has room. The
/// data of a failed path goes on as soon as possible.
pub fn lost(view: &SendView<'_>) -> Option<Decision> {
    let (on, data) = fastest(view, |s| s.copies.lost)?;
    Some(Decision::copy_on(on.id, data))
}

/// Returns data that is overdue on a path that still delivers.
///
/// The path's rate has fallen, so data arrives far later than before, no timer tells, and everything
/// behind it waits.
pub fn late(view: &SendView<'_>) -> Option<Decision> {
    let (on, data) = fastest_worthwhile(view, |s, last_sender, data| {
        s.id != last_sender.id && overdue_at(last_sender, data).is_some_and(|at| at <= view.now)
    })?;
    Some(Decision::copy_on(on.id, data))
}

/// Returns when [`late`] will want data that is in flight now, at the earliest.
pub fn late_at(view: &SendView<'_>) -> Option<braid_wire::Instant> {
    let oldest = view.oldest?;
    overdue_at(view.subflow(oldest.last_sender)?, &oldest).filter(|at| *at > view.now)
}

/// Returns the time from which on `data` is late: after a round trip without queues and twice the grace
/// period, of which queues should take at most half. There is none before the first round trip.
fn overdue_at(last_sender: &SubflowView, data: &InFlight) -> Option<braid_wire::Instant> {
    let measured = !last_sender.base_rtt.is_zero();
    measured.then(|| data.sent_at + last_sender.base_rtt + 2 * grace_period(last_sender))
}

/// Returns the oldest data for a faster subflow while the peer's window is used up and there is more to
/// send, since that data keeps the window shut. The subflow that holds it is penalised, because it filled
/// the window with data that it delivers late.
///
/// This is opportunistic retransmission and penalising (Raiciu et al., "How Hard Can It Be? Designing and
/// Implementing a Deployable Multipath TCP", NSDI 2012, section 4.2).
pub fn blocking(view: &SendView<'_>) -> Option<Decision> {
    if view.unsent == 0 || view.may_send_new {
        return None;
    }
    let oldest = view.oldest?;
    let (on, data) = fastest_worthwhile(view, |s, last_sender, data| {
        data.start == oldest.start && s.srtt < last_sender.srtt
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

/// Returns one packet to try a path with that is idle and slow, or slow by its record alone.
///
/// The packet is a copy of data on another path; how it fares tells when the path can be used again.
pub fn trial(view: &SendView<'_>) -> Option<Decision> {
    let idle = |s: &SubflowView| s.in_flight == 0 && (is_slow(s) || is_record_implausible(s));
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

/// Returns whether a path's recorded rate is below one packet a second, which no link has. The record
/// keeps the path from being used, so nothing else would correct it.
fn is_record_implausible(subflow: &SubflowView) -> bool {
    (1..u64::from(subflow.mss)).contains(&subflow.peak_rate)
}

/// Returns the oldest data in flight for a faster subflow once everything has been sent.
///
/// A flow ends when its last byte arrives, and a subflow with room has nothing better to do than to
/// overtake a slower one.
pub fn tail(view: &SendView<'_>) -> Option<Decision> {
    if view.unsent > 0 {
        return None;
    }
    let (on, data) = fastest_worthwhile(view, |s, last_sender, _| overtakes(s, last_sender))?;
    Some(Decision::copy_on(on.id, data))
}

/// Returns the fastest subflow with room that may carry data sent once, and the oldest such data, where
/// the copy is `worthwhile` given the subflow that holds the data.
fn fastest_worthwhile<'a>(
    view: &SendView<'a>,
    worthwhile: impl Fn(&SubflowView, &SubflowView, &InFlight) -> bool,
) -> Option<(&'a SubflowView, InFlight)> {
    fastest(view, |s| {
        s.copies.single.filter(|data| {
            let last_sender = view.subflow(data.last_sender);
            last_sender.is_some_and(|last_sender| worthwhile(s, last_sender, data))
        })
    })
}

/// Returns the fastest subflow with room that has something to carry, and the data.
fn fastest<'a>(
    view: &SendView<'a>,
    to_carry: impl Fn(&SubflowView) -> Option<InFlight>,
) -> Option<(&'a SubflowView, InFlight)> {
    usable(view)
        .filter(|s| s.ready)
        .filter_map(|s| Some((s, to_carry(s)?)))
        .min_by_key(|(s, _)| by_rtt(s))
}

/// Returns whether a copy sent now on `fast` should arrive clearly before the data on `last_sender`.
///
/// Data in flight is taken to be half-way: it arrives in a quarter of the holder's round trip, a copy in
/// half of the faster subflow's.
fn overtakes(fast: &SubflowView, last_sender: &SubflowView) -> bool {
    let copy = fast.srtt.saturating_add(fast.rttvar) / 2;
    let remaining: Duration = last_sender.srtt / 4;
    copy < remaining
}
