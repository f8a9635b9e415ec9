//! BLEST: waits for the fast subflow if data on the slow subflow would block the peer's receive window.

use std::time::Duration;

use braid_engine::strategy::{Decision, SendView, Strategy, StrategyEvent, SubflowView};
use braid_wire::{Instant, Rng};

use crate::minrtt;
use crate::parts::again;
use crate::parts::table::PerSubflow;
use crate::parts::usable::{by_rtt, progressing};

/// The BLEST scheduler (Ferlin et al., "BLEST: Blocking Estimation-based MPTCP Scheduler for
/// Heterogeneous Networks", IFIP Networking 2016).
///
/// If the fastest subflow is full, `minrtt` sends on a slower one. BLEST estimates how much data the fastest
/// subflow could send while one segment is in flight on the slower one. If the peer's window has no room for this
/// data and the segment, BLEST waits. It copies only data that was lost with a failed path.
#[derive(Debug, Clone)]
pub struct Blest {
    /// The factor that corrects the estimate: larger values make BLEST wait more often.
    lambda: f64,
    /// The time of the last correction; before any correction, the time of the first decision.
    corrected_at: Option<Instant>,
    /// True if the peer's window has been used up at some time since `corrected_at`.
    blocked: bool,
    rtts: PerSubflow<RttRange>,
}

/// The lowest and the highest smoothed round-trip time of a subflow; both are zero before the first sample.
#[derive(Debug, Clone, Copy, Default)]
struct RttRange {
    lowest: Duration,
    highest: Duration,
}

impl Default for Blest {
    fn default() -> Self {
        Blest {
            // The default of the authors' kernel module (mptcp_blest.c). The steps and bounds in `correct` are
            // from there too.
            lambda: 1.2,
            corrected_at: None,
            blocked: false,
            rtts: PerSubflow::default(),
        }
    }
}

impl Strategy for Blest {
    fn name(&self) -> &'static str {
        "blest"
    }

    fn next(&mut self, view: &SendView<'_>, _rng: &mut Rng) -> Decision {
        let decision = again::lost(view).or_else(|| self.new_data(view));
        decision.unwrap_or(Decision::WAIT)
    }

    fn on_event(&mut self, event: &StrategyEvent) {
        self.blocked |= *event == StrategyEvent::WindowBlocked;
        self.rtts.on_event(event);
    }
}

impl Blest {
    fn new_data(&mut self, view: &SendView<'_>) -> Option<Decision> {
        for subflow in view.subflows.iter().filter(|s| !s.srtt.is_zero()) {
            self.rtts.of(subflow.id).add(subflow.srtt);
        }
        let decision = minrtt::new_data(view)?;
        let fast = progressing(view).min_by_key(|s| by_rtt(s))?;
        let Decision::Send { subflow, .. } = decision else {
            return None;
        };
        // If the fastest subflow has room, but `minrtt` avoids its long queue, a wait would be in vain.
        let slow = view.subflow(subflow).filter(|_| !fast.ready);
        let blocks = slow.is_some_and(|slow| {
            self.correct(view.now, slow);
            self.would_block(view, fast, slow)
        });
        (!blocks).then_some(decision)
    }

    /// Corrects lambda: upwards if the window was used up since the last correction, otherwise downwards. At least
    /// the lowest round-trip time of `slow` passes between two corrections.
    fn correct(&mut self, now: Instant, slow: &SubflowView) {
        let last = *self.corrected_at.get_or_insert(now);
        // Without a sample the lowest round-trip time is zero, so the first condition never holds. The second one
        // then prevents two corrections at the same time.
        if now < last + self.rtts.of(slow.id).lowest || now == last {
            return;
        }
        self.corrected_at = Some(now);
        let change = match std::mem::take(&mut self.blocked) {
            true => 0.04,
            false => -0.01,
        };
        self.lambda = (self.lambda + change).clamp(1.0, 1.3);
    }

    /// Returns whether the peer's window has no room for a segment on `slow` and the data that `fast` could send
    /// while that segment is in flight.
    fn would_block(&mut self, view: &SendView<'_>, fast: &SubflowView, slow: &SubflowView) -> bool {
        let rtts = *self.rtts.of(fast.id);
        let mean_rtt = (rtts.lowest + rtts.highest).as_secs_f64() / 2.0;
        let rounds = (time_in_flight(slow, *self.rtts.of(slow.id)) / mean_rtt).floor() + 1.0;
        // Without a sample the mean is zero, and the division gives infinity or NaN.
        let rounds = if rounds.is_finite() { rounds } else { 1.0 };
        let cwnd = fast.cwnd as f64 / f64::from(fast.mss);
        // Slow start doubles the window in each round: a geometric series. Congestion avoidance adds a segment in
        // each round: an arithmetic series.
        let segments = match fast.cwnd < fast.ssthresh {
            true => cwnd * (rounds.exp2() - 1.0),
            false => (cwnd + (rounds - 1.0) / 2.0) * rounds,
        };
        let fast_bytes = self.lambda * f64::from(fast.mss) * segments;
        let len = view.unsent.min(u64::from(slow.mss));
        let window_left = view.peer_window.saturating_sub(slow.in_flight + len);
        fast_bytes > window_left as f64
    }
}

/// Estimates how long a segment sent now on `slow` is in flight, seconds.
///
/// The estimate lies between the lowest and the highest round-trip time, in proportion to the used part of the
/// window: a full window means a full queue. It is not below the smoothed round-trip time.
fn time_in_flight(slow: &SubflowView, rtts: RttRange) -> f64 {
    let filled = (slow.in_flight + u64::from(slow.mss)) as f64 / slow.cwnd.max(1) as f64;
    let [lowest, highest] = [rtts.lowest, rtts.highest].map(|rtt| rtt.as_secs_f64());
    let estimate = lowest + (highest - lowest) * filled.min(1.0);
    slow.srtt.as_secs_f64().max(estimate)
}

impl RttRange {
    fn add(&mut self, srtt: Duration) {
        self.lowest = match self.lowest.is_zero() {
            true => srtt,
            false => self.lowest.min(srtt),
        };
        self.highest = self.highest.max(srtt);
    }
}
