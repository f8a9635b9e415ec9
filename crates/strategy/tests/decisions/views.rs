//! Builders of views and of expected decisions.

use std::time::Duration;

use braid_engine::strategy::{
    Copies, Decision, FlowSize, InFlight, Payload, SendView, SubflowView, Writer,
};
use braid_engine::{PathId, SubflowId};
use braid_strategy::by_name;
use braid_wire::{Instant, Rng};

pub const NOW: Instant = Instant::from_millis(10_000);

/// Returns a regular subflow with a window of 20 segments of 1000 bytes, half of it in flight. Its rate is one
/// window in each round trip.
pub fn subflow(id: u32, srtt_ms: u64) -> SubflowView {
    let srtt = Duration::from_millis(srtt_ms);
    SubflowView {
        id: SubflowId(id),
        path: PathId(id as u8),
        srtt,
        rttvar: srtt / 20,
        latest_rtt: srtt,
        base_rtt: srtt,
        rto: srtt + Duration::from_millis(200),
        timeouts: 0,
        cwnd: 20_000,
        ssthresh: u64::MAX,
        in_flight: 10_000,
        queued: 10_000,
        sent: 10_000,
        oldest_sent: Some(NOW),
        mss: 1000,
        pacing_rate: 1_000_000,
        delivery_rate: 20_000_000u64.checked_div(srtt_ms).unwrap_or(0),
        peak_rate: 20_000_000u64.checked_div(srtt_ms).unwrap_or(0),
        drained_at: NOW,
        loss: 0.0,
        non_congestive_loss: 0,
        backup: false,
        stale: false,
        ready: true,
        most_urgent: None,
        copies: Copies::default(),
        ..SubflowView::new(SubflowId(id), srtt)
    }
}

/// Returns `s` with a full window.
pub fn full(s: SubflowView) -> SubflowView {
    SubflowView {
        in_flight: s.cwnd,
        ready: false,
        ..s
    }
}

/// Returns `s` held back by its pacer, although its window has room.
pub fn paced(s: SubflowView) -> SubflowView {
    SubflowView { ready: false, ..s }
}

pub fn stale(s: SubflowView) -> SubflowView {
    SubflowView { stale: true, ..s }
}

pub fn backup(s: SubflowView) -> SubflowView {
    SubflowView { backup: true, ..s }
}

/// Returns the range of 1000 bytes from `start` on, which `last_sender` sent `age` ms ago.
pub fn sent_range(last_sender: u32, start: u64, age: u64) -> InFlight {
    InFlight {
        start,
        end: start + 1000,
        last_sender: SubflowId(last_sender),
        sent_at: Instant::from_millis(10_000 - age),
    }
}

/// Returns `s` with `data` as the data that it may copy and that was sent once only.
pub fn single(s: SubflowView, data: InFlight) -> SubflowView {
    let copies = Copies {
        single: Some(data),
        any: Some(data),
        ..s.copies
    };
    SubflowView { copies, ..s }
}

/// Returns `s` with `data` as lost data that it may carry.
pub fn lost(s: SubflowView, data: InFlight) -> SubflowView {
    let copies = Copies {
        lost: Some(data),
        any: Some(data),
        ..s.copies
    };
    SubflowView { copies, ..s }
}

/// Returns the view of a flow that has sent 20,000 bytes, all unacknowledged, and has 100,000 unsent, all that
/// will come.
pub fn view(subflows: &[SubflowView]) -> SendView<'_> {
    SendView {
        now: NOW,
        subflows,
        sent: 20_000,
        copied: 0,
        unsent: 100_000,
        unsent_by_urgency: [0, 0, 0, 100_000, 0, 0, 0, 0],
        peer_window: 1_000_000,
        outstanding: 20_000,
        may_send_new: true,
        writer: Writer::Done,
        flow_size: FlowSize::Unknown,
        oldest: None,
        ..SendView::new(NOW, subflows, 100_000)
    }
}

/// Returns a view in which all data has been sent.
pub fn at_the_end(subflows: &[SubflowView]) -> SendView<'_> {
    SendView {
        unsent: 0,
        may_send_new: false,
        ..view(subflows)
    }
}

/// Returns a view in which `oldest` keeps the peer's window shut.
pub fn blocked(subflows: &[SubflowView], oldest: InFlight) -> SendView<'_> {
    SendView {
        peer_window: 0,
        may_send_new: false,
        oldest: Some(oldest),
        ..view(subflows)
    }
}

pub fn decide(name: &str, view: &SendView<'_>) -> Decision {
    let mut strategy = by_name(name).unwrap();
    strategy.next(view, &mut Rng::for_component(0, 0))
}

pub fn minrtt(view: &SendView<'_>) -> Decision {
    decide("minrtt", view)
}

pub fn send(id: u32, max_bytes: u32) -> Decision {
    Decision::Send {
        subflow: SubflowId(id),
        data: Payload::New,
        max_bytes,
    }
}

pub fn copy(id: u32, data: InFlight) -> Decision {
    Decision::copy_on(SubflowId(id), data)
}

/// Returns a copy that penalises the last sender of `data`.
pub fn penalty(id: u32, data: InFlight) -> Decision {
    Decision::Send {
        subflow: SubflowId(id),
        data: Payload::Copy {
            data,
            penalise: true,
        },
        max_bytes: u32::MAX,
    }
}
