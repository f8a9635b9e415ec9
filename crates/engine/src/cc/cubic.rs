//! CUBIC (RFC 9438).

use core::time::Duration;

use braid_wire::Instant;

use super::hystart::{HyStart, SlowStart};
use super::usage::{Recovery, Usage};
use super::{AckSample, Algorithm, CongestionControl, Loss};

/// CUBIC (RFC 9438).
pub const CUBIC: Algorithm = Algorithm {
    name: "cubic",
    make: |mss, initial_window| Box::new(Cubic::new(mss, initial_window)),
};

/// The multiplicative decrease factor (section 4.6).
const BETA: f64 = 0.7;
/// The aggressiveness, in segments per s^3 (section 5).
const C: f64 = 0.4;
/// The additive increase in segments for each window (section 4.3). A flow with this increase and a decrease to
/// [`BETA`] gets the same rate as Reno, which has an increase of 1 and a decrease to 1/2.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// A stage of congestion avoidance. Windows are in bytes.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    start: Instant,
    /// The time in seconds until the curve reaches `w_max` (`K`).
    k: f64,
    /// The window at which the curve levels off.
    w_max: f64,
    /// The window that Reno would have (`W_est`).
    w_est: f64,
}

/// The state that is restored after a spurious reduction (section 4.9).
#[derive(Debug, Clone, Copy)]
struct Undo {
    cwnd: f64,
    ssthresh: u64,
    cwnd_prior: f64,
    w_max: Option<f64>,
    epoch: Option<Epoch>,
}

/// The CUBIC controller. The window is a floating-point number, because an acknowledgement can grow it by less
/// than a byte.
#[derive(Debug)]
struct Cubic {
    mss: u32,
    cwnd: f64,
    ssthresh: u64,
    /// The window at the last congestion event.
    cwnd_prior: f64,
    /// The window at which the curve levels off; `None` before the first loss and after a timeout.
    w_max: Option<f64>,
    /// The current stage of congestion avoidance; `None` if the next acknowledgement starts a new one.
    epoch: Option<Epoch>,
    last_ack: Instant,
    hystart: HyStart,
    usage: Usage,
    recovery: Recovery,
    undo: Option<Undo>,
    /// The initial window in segments; `None` once anything has changed the window.
    initial_segments: Option<u32>,
}

impl Cubic {
    fn new(mss: u32, initial_window: u32) -> Self {
        let mss = mss.max(1);
        Cubic {
            mss,
            cwnd: f64::from(mss) * f64::from(initial_window.max(1)),
            ssthresh: u64::MAX,
            cwnd_prior: 0.0,
            w_max: None,
            epoch: None,
            last_ack: Instant::ZERO,
            hystart: HyStart::default(),
            usage: Usage::default(),
            recovery: Recovery::None,
            undo: None,
            initial_segments: Some(initial_window.max(1)),
        }
    }

    fn mss(&self) -> f64 {
        f64::from(self.mss)
    }

    /// Sets `ssthresh` (section 4.6) and returns the window from which the reduction starts.
    fn reduce_ssthresh(&mut self, in_flight: u64) -> f64 {
        self.initial_segments = None;
        self.undo = Some(Undo {
            cwnd: self.cwnd,
            ssthresh: self.ssthresh,
            cwnd_prior: self.cwnd_prior,
            w_max: self.w_max,
            epoch: self.epoch,
        });
        let base = self.usage.reduction_base(self.cwnd(), in_flight) as f64;
        self.ssthresh = (base * BETA).max(2.0 * self.mss()) as u64;
        self.cwnd_prior = base;
        self.epoch = None;
        base
    }

    /// Grows in slow start and returns the bytes left for congestion avoidance.
    fn slow_start(&mut self, ack: &AckSample<'_>) -> f64 {
        let delivered = ack.delivered as f64;
        // HyStart++ applies only to the initial slow start, before any loss (RFC 9406 section 4.3).
        if self.ssthresh == u64::MAX {
            match self.hystart.on_ack(ack, self.mss) {
                SlowStart::Grow(bytes) => self.cwnd += bytes as f64,
                SlowStart::Exit => {
                    self.ssthresh = self.cwnd();
                    self.cwnd_prior = self.cwnd;
                }
            }
            return 0.0;
        }
        let growth = delivered.min(self.ssthresh as f64 - self.cwnd);
        self.cwnd += growth;
        delivered - growth
    }

    /// Returns the state of a new stage of congestion avoidance (section 4.2).
    fn start_epoch(&self, now: Instant) -> Epoch {
        // Without a previous congestion event, the curve starts at its plateau (sections 4.8 and 4.10).
        let w_max = self.w_max.unwrap_or(self.cwnd).max(self.cwnd);
        let k = cube_root((w_max - self.cwnd) / self.mss() / C);
        Epoch {
            start: now,
            k,
            w_max,
            w_est: self.cwnd,
        }
    }

    /// Grows in congestion avoidance (sections 4.2 to 4.5).
    fn avoid_congestion(&mut self, ack: &AckSample, delivered: f64) {
        let mss = self.mss();
        let mut epoch = self.epoch.unwrap_or_else(|| self.start_epoch(ack.now));
        let t = ack.now.saturating_since(epoch.start);
        let w_cubic = |t: Duration| {
            let t = t.as_secs_f64() - epoch.k;
            C * t * t * t * mss + epoch.w_max
        };
        let share = delivered / self.cwnd;
        // Once the estimate reaches the window before the last reduction, the estimate grows as fast as Reno's
        // window (section 4.3).
        let alpha = if epoch.w_est >= self.cwnd_prior {
            1.0
        } else {
            ALPHA
        };
        let w_est = epoch.w_est + alpha * share * mss;
        if w_cubic(t) < w_est {
            self.cwnd = self.cwnd.max(w_est);
        } else {
            // The limits of the target are those of section 4.2.
            let target = w_cubic(t + ack.srtt).clamp(self.cwnd, 1.5 * self.cwnd);
            // An acknowledgement of more than a window must not move the window beyond the target.
            self.cwnd += (target - self.cwnd) * share.min(1.0);
        }
        epoch.w_est = w_est;
        self.epoch = Some(epoch);
    }
}

/// Returns the cube root of a non-negative number, by Newton's method. `f64::cbrt` depends on the platform, so
/// windows would differ in their last bits between machines and a simulation could not be repeated exactly.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    // A float's bits begin with its exponent plus a bias of 1023. A third of the exponent, with the bias
    // restored, gives a first value within a factor of two.
    let bias = 1023_u64 << 52;
    let mut root = f64::from_bits(x.to_bits() / 3 + bias / 3 * 2);
    // Each step about doubles the number of correct bits; six reach the 53 bits of the type.
    for _ in 0..6 {
        root = (2.0 * root + x / (root * root)) / 3.0;
    }
    root
}

impl CongestionControl for Cubic {
    fn cwnd(&self) -> u64 {
        self.cwnd as u64
    }

    fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    fn on_ack(&mut self, ack: &AckSample<'_>) {
        self.initial_segments = None;
        self.usage.on_ack(ack);
        let since_last = ack.now.saturating_since(self.last_ack);
        self.last_ack = ack.now;
        let slow_start = self.cwnd() < self.ssthresh;
        let limit = self.usage.limit(ack, slow_start);
        if !self.recovery.may_grow(ack) {
            return;
        }
        if self.cwnd() >= limit {
            // Time in which the window was not used does not count as time on the curve (section 5.8).
            if let Some(epoch) = &mut self.epoch {
                epoch.start += since_last;
            }
            return;
        }
        let delivered = if slow_start {
            self.slow_start(ack)
        } else {
            ack.delivered as f64
        };
        if self.cwnd() >= self.ssthresh && delivered > 0.0 {
            self.avoid_congestion(ack, delivered);
        }
        self.cwnd = self.cwnd.min(limit as f64);
    }

    fn on_lost(&mut self, loss: &Loss) {
        if !loss.first {
            return;
        }
        let base = self.reduce_ssthresh(loss.in_flight);
        // Fast convergence (section 4.7): if the window was reduced again before it reached the former maximum,
        // the flow probably competes with a new flow, and makes room for the new one.
        self.w_max = Some(match self.w_max {
            Some(w_max) if base < w_max => base * (1.0 + BETA) / 2.0,
            _ => base,
        });
        self.cwnd = self.ssthresh as f64;
        self.recovery = Recovery::Fast;
    }

    fn on_rto(&mut self, _now: Instant, in_flight: u64) {
        self.reduce_ssthresh(in_flight);
        self.w_max = None;
        self.cwnd = self.mss();
        self.recovery = Recovery::Timeout;
    }

    fn on_spurious(&mut self, _now: Instant) {
        if let Some(undo) = self.undo.take() {
            // The window may have grown beyond the former window since the reduction, so the larger one counts.
            self.cwnd = self.cwnd.max(undo.cwnd);
            self.ssthresh = undo.ssthresh;
            self.cwnd_prior = undo.cwnd_prior;
            self.w_max = undo.w_max;
            self.epoch = undo.epoch;
        }
    }

    fn on_idle(&mut self, restart_window: u64) {
        let restart_window = (restart_window as f64).max(self.mss());
        if self.cwnd > restart_window {
            // Slow start leads back to three quarters of the window (RFC 7661 section 4.4.3).
            self.ssthresh = self.ssthresh.max((self.cwnd * 0.75) as u64);
            self.cwnd = restart_window;
        } else if self.cwnd < restart_window && self.ssthresh == u64::MAX {
            // A measured capacity is a number of bytes, which a new segment size does not change.
            self.initial_segments = None;
            self.cwnd = restart_window;
        }
        self.epoch = None;
        self.hystart = HyStart::default();
    }

    fn penalise(&mut self) {
        // In congestion avoidance the threshold is halved too. Otherwise slow start would restore the window at
        // once.
        if self.cwnd() >= self.ssthresh {
            self.ssthresh = (self.ssthresh / 2).max(2 * u64::from(self.mss));
        }
        self.cwnd = (self.cwnd / 2.0).max(self.mss());
        self.initial_segments = None;
        self.epoch = None;
    }

    fn set_mss(&mut self, mss: u32) {
        self.mss = mss.max(1);
        self.cwnd = match self.initial_segments {
            Some(segments) => self.mss() * f64::from(segments),
            None => self.cwnd.max(self.mss()),
        };
        // The curve is in segments, whose size has changed.
        self.epoch = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots_are_exact_to_the_last_digits() {
        for x in [1e-9, 0.001, 0.5, 1.0, 7.9, 8.0, 750.0, 1e6, 3.3e12] {
            let root = cube_root(x);
            assert!((root * root * root / x - 1.0).abs() < 1e-14, "{x}: {root}");
        }
        assert_eq!((cube_root(0.0), cube_root(-1.0)), (0.0, 0.0));
        assert_eq!((cube_root(27.0), cube_root(1e9)), (3.0, 1000.0));
    }
}
