//! ECF: waits for the fast subflow where that completes earlier.

use braid_engine::strategy::{Decision, SendView, Strategy, SubflowView};
use braid_wire::Rng;

use crate::minrtt;
use crate::parts::again;
use crate::parts::usable::{by_rtt, progressing};

/// The ECF scheduler, earliest completion first (Lim et al., "ECF: An MPTCP Path Scheduler to Manage
/// Heterogeneous Paths", CoNEXT 2017).
///
/// Where `minrtt` would take a slower subflow than the fastest, ECF waits if the fastest alone would send
/// all unsent data earlier. Of the data in flight only what is lost with its path is copied.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ecf {
    /// The last choice was to wait, which makes it easier to go on waiting.
    waiting: bool,
}

impl Strategy for Ecf {
    fn name(&self) -> &'static str {
        "ecf"
    }

    fn next(&mut self, view: &SendView<'_>, _rng: &mut Rng) -> Decision {
        let decision = again::lost(view).or_else(|| self.new_data(view));
        decision.unwrap_or(Decision::WAIT)
    }
}

impl Ecf {
    fn new_data(&mut self, view: &SendView<'_>) -> Option<Decision> {
        let decision = minrtt::new_data(view)?;
        let fast = progressing(view).min_by_key(|s| by_rtt(s))?;
        let Decision::Send { subflow, .. } = decision else {
            return None;
        };
        // A subflow that has room and was passed over is not waited for.
        let slow = view.subflow(subflow).filter(|_| !fast.ready);
        let waits = slow.is_some_and(|slow| self.waits(view.unsent, fast, slow));
        (!waits).then_some(decision)
    }

    fn waits(&mut self, unsent: u64, fast: &SubflowView, slow: &SubflowView) -> bool {
        /// The hysteresis called beta; its value is the one of the authors' kernel module (mptcp_ecf.c).
        const BETA: f64 = 0.25;
        // Round trips that `subflow` needs for all unsent data, at least one.
        let rounds = |subflow: &SubflowView| {
            let cwnd = subflow.cwnd.max(1);
            unsent.max(cwnd) as f64 / cwnd as f64
        };
        let [fast_rtt, slow_rtt] = [fast, slow].map(|s| s.srtt.as_secs_f64());
        let delta = fast.rttvar.max(slow.rttvar).as_secs_f64();
        let bonus = if self.waiting { 1.0 + BETA } else { 1.0 };
        // The two inequalities of the paper: the fast subflow alone finishes within a round trip of the
        // slow one, and the slow one needs longer than the wait for the fast one.
        if (1.0 + rounds(fast)) * fast_rtt >= bonus * (slow_rtt + delta) {
            self.waiting = false;
            return false;
        }
        let slow_is_late = rounds(slow) * slow_rtt >= 2.0 * fast_rtt + delta;
        self.waiting |= slow_is_late;
        slow_is_late
    }
}
