//! Rules for copies. A copy sends data that is in flight on one subflow once more, on another subflow.

use std::time::Duration;

use braid_engine::strategy::{Decision, InFlight, Payload, SendView, SubflowView};

use super::usable::{MIN_GRACE_PERIOD, by_rtt, grace_period, is_slow, usable};

/// Returns a copy of data that is in flight on no working subflow, because its path has failed. The copy goes on
/// the fastest subflow with room.
pub fn lost(view: &SendView<'_>) -> Option<Decision> {
    let (target, data) = fastest(view, |s| s.copies.lost)?;
    Some(Decision::copy_on(target.id, data))
}

/// Returns a copy of data that is overdue on a path that still delivers.
///
/// The rate of such a path has fallen, so its data arrives far later than data did before. Acknowledgements still
/// come, so no timer expires, but the peer cannot read past the late data.
pub fn late(view: &SendView<'_>) -> Option<Decision> {
    let (target, data) = fastest_worthwhile(view, |s, last_sender, data| {
        // No data is late before two of the shortest grace periods, which is quick to see.
        s.id != last_sender.id
            && data.sent_at + 2 * MIN_GRACE_PERIOD <= view.now
            && overdue_at(last_sender, data).is_some_and(|at| at <= view.now)
    })?;
    Some(Decision::copy_on(target.id, data))
}

/// Returns the time at which the oldest data in flight becomes [`late`], or `None` if it is late already.
pub fn late_at(view: &SendView<'_>) -> Option<braid_wire::Instant> {
    let oldest = view.oldest?;
    overdue_at(view.subflow(oldest.last_sender)?, &oldest).filter(|at| *at > view.now)
}

/// Returns the time at which `data` becomes late: when a round trip without queues and two grace periods have
/// passed since `data` was sent. Queues should take at most one grace period; the second one is a margin. Returns
/// `None` before the first sample of the round-trip time.
fn overdue_at(last_sender: &SubflowView, data: &InFlight) -> Option<braid_wire::Instant> {
    let has_sample = !last_sender.base_rtt.is_zero();
    has_sample.then(|| data.sent_at + last_sender.base_rtt + 2 * grace_period(last_sender))
}

/// Returns a copy of data in flight for a faster subflow, if the peer's window is used up and more data waits to
/// be sent. The copied data is on the subflow of the oldest data, because the window stays shut until this data
/// arrives. The subflow is penalised (its congestion window is halved), because it filled the peer's window with
/// data that it delivers late.
///
/// This is opportunistic retransmission and penalising (Raiciu et al., "How Hard Can It Be? Designing and
/// Implementing a Deployable Multipath TCP", NSDI 2012, section 4.2).
pub fn blocking(view: &SendView<'_>) -> Option<Decision> {
    if view.unsent == 0 || view.may_send_new {
        return None;
    }
    let oldest = view.oldest?;
    let (target, data) = fastest_worthwhile(view, |s, last_sender, data| {
        data.last_sender == oldest.last_sender && s.srtt < last_sender.srtt
    })?;
    Some(Decision::Send {
        subflow: target.id,
        data: Payload::Copy {
            data,
            penalise: true,
        },
        max_bytes: u32::MAX,
    })
}

/// Returns a copy of one packet to measure an idle path. The path is slow, or its record is implausibly slow.
///
/// Such a path gets no new data, so only a copy can show that it has become usable again.
pub fn trial(view: &SendView<'_>) -> Option<Decision> {
    let needs_trial =
        |s: &SubflowView| s.in_flight == 0 && (is_slow(s) || is_record_implausible(s));
    let (target, data) = fastest(view, |s| s.copies.single.filter(|_| needs_trial(s)))?;
    Some(Decision::Send {
        subflow: target.id,
        data: Payload::Copy {
            data,
            penalise: false,
        },
        max_bytes: target.mss,
    })
}

/// Returns whether a path's recorded rate is between 0 and one packet a second. No link is that slow, so the
/// record is wrong. The record keeps the path unused, so no measurement would ever correct it.
fn is_record_implausible(subflow: &SubflowView) -> bool {
    (1..u64::from(subflow.mss)).contains(&subflow.peak_rate)
}

/// Returns a copy of the oldest data in flight for a faster subflow, once all data has been sent.
///
/// A flow ends when its last byte arrives. Once there is no new data, a subflow with room can only help by
/// overtaking a slower one.
pub fn tail(view: &SendView<'_>) -> Option<Decision> {
    if view.unsent > 0 {
        return None;
    }
    let (target, data) = fastest_worthwhile(view, |s, last_sender, _| overtakes(s, last_sender))?;
    Some(Decision::copy_on(target.id, data))
}

/// Returns the fastest subflow with room for a worthwhile copy, and the data to copy: the oldest that was sent
/// only once. `worthwhile` gets the subflow for the copy, the subflow that sent the data, and the data.
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

/// Returns the fastest subflow with room for which `choose` returns data, and the data.
fn fastest<'a>(
    view: &SendView<'a>,
    choose: impl Fn(&SubflowView) -> Option<InFlight>,
) -> Option<(&'a SubflowView, InFlight)> {
    usable(view)
        .filter(|s| s.ready)
        .filter_map(|s| Some((s, choose(s)?)))
        .min_by_key(|(s, _)| by_rtt(s))
}

/// Returns whether a copy sent now on `fast` should arrive clearly before the data on `last_sender`.
///
/// Data in flight is assumed to be half-way to the receiver, so it arrives in a quarter of the round trip of
/// `last_sender`. The copy needs half of the round trip of `fast`; the deviation is a margin.
fn overtakes(fast: &SubflowView, last_sender: &SubflowView) -> bool {
    let copy_arrival = fast.srtt.saturating_add(fast.rttvar) / 2;
    let original_arrival: Duration = last_sender.srtt / 4;
    copy_arrival < original_arrival
}
