//! ECF: waits for the fast subflow if waiting completes the data earlier.

use braid_engine::strategy::{Decision, SendView, Strategy, SubflowView};
use braid_wire::Rng;

use crate::minrtt;
use crate::parts::again;
use crate::parts::usable::{by_rtt, progressing};

/// The ECF scheduler, earliest completion first (Lim et al., "ECF: An MPTCP Path Scheduler to Manage
/// Heterogeneous Paths", CoNEXT 2017).
///
/// If the fastest subflow is full, `minrtt` sends on a slower one. ECF waits instead if the fastest subflow alone
/// would send all unsent data earlier. It copies only data that was lost with a failed path.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ecf {
    /// True if the last choice was to wait. If so, the condition for waiting is less strict (hysteresis).
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
        // If the fastest subflow has room, but `minrtt` avoids its long queue, a wait would be in vain.
        let slow = view.subflow(subflow).filter(|_| !fast.ready);
        let should_wait = slow.is_some_and(|slow| self.should_wait(view.unsent, fast, slow));
        (!should_wait).then_some(decision)
    }

    /// Returns whether to wait for `fast` instead of sending on `slow`.
    fn should_wait(&mut self, unsent: u64, fast: &SubflowView, slow: &SubflowView) -> bool {
        /// The paper's hysteresis beta, with the value of the authors' kernel module (mptcp_ecf.c).
        const BETA: f64 = 0.25;
        // The number of round trips in which `subflow` sends all unsent data, at least one.
        let rounds = |subflow: &SubflowView| {
            let cwnd = subflow.cwnd.max(1);
            unsent.max(cwnd) as f64 / cwnd as f64
        };
        let [fast_rtt, slow_rtt] = [fast, slow].map(|s| s.srtt.as_secs_f64());
        let delta = fast.rttvar.max(slow.rttvar).as_secs_f64();
        let hysteresis = if self.waiting { 1.0 + BETA } else { 1.0 };
        // The paper has two conditions for waiting. First: `fast` alone, after a round trip of waiting, finishes
        // within one round trip of `slow`.
        if (1.0 + rounds(fast)) * fast_rtt >= hysteresis * (slow_rtt + delta) {
            self.waiting = false;
            return false;
        }
        // Second: `slow` alone needs longer than waiting for `fast` and its first round trip.
        let slow_is_late = rounds(slow) * slow_rtt >= 2.0 * fast_rtt + delta;
        self.waiting |= slow_is_late;
        slow_is_late
    }
}
