//! Controllers that differ from NewReno only in the growth and the reduction of the window.

use core::fmt;

use braid_wire::Instant;

use super::newreno::NewReno;
use super::{AckSample, CongestionControl, Loss};

/// The rules by which a variant of NewReno changes its window.
pub(super) trait Growth: fmt::Debug + Default + Send {
    /// The value of [`CongestionControl::is_coupled`].
    const COUPLED: bool = false;

    /// True if the window may start from more than an initial window when earlier subflows have measured a higher
    /// capacity of the path.
    const RESTARTS_AT_CAPACITY: bool = true;

    /// Processes an acknowledgement.
    fn on_ack(&mut self, reno: &mut NewReno, ack: &AckSample<'_>);

    /// Adjusts the window after a loss has halved it.
    fn on_halved(&mut self, _reno: &mut NewReno) {}
}

/// NewReno with the rules of `G`.
#[derive(Debug)]
pub(super) struct Variant<G> {
    reno: NewReno,
    growth: G,
}

impl<G: Growth> Variant<G> {
    pub fn new(mss: u32, initial_window: u32) -> Self {
        Variant {
            reno: NewReno::new(mss, initial_window),
            growth: G::default(),
        }
    }
}

impl<G: Growth> CongestionControl for Variant<G> {
    fn cwnd(&self) -> u64 {
        self.reno.cwnd()
    }

    fn ssthresh(&self) -> u64 {
        self.reno.ssthresh()
    }

    fn is_coupled(&self) -> bool {
        G::COUPLED
    }

    fn on_ack(&mut self, ack: &AckSample<'_>) {
        self.growth.on_ack(&mut self.reno, ack);
    }

    fn on_lost(&mut self, loss: &Loss) {
        self.reno.on_lost(loss);
        if loss.first {
            self.growth.on_halved(&mut self.reno);
        }
    }

    fn on_rto(&mut self, now: Instant, in_flight: u64) {
        self.reno.on_rto(now, in_flight);
    }

    fn on_spurious(&mut self, now: Instant) {
        self.reno.on_spurious(now);
    }

    fn on_idle(&mut self, restart_window: u64) {
        let restart_window = match G::RESTARTS_AT_CAPACITY {
            true => restart_window,
            false => restart_window.min(self.reno.cwnd()),
        };
        self.reno.on_idle(restart_window);
    }

    fn penalise(&mut self) {
        self.reno.penalise();
    }

    fn set_mss(&mut self, mss: u32) {
        self.reno.set_mss(mss);
    }
}
