//! NewReno (RFC 5681 and RFC 6582). The growth of the window counts acknowledged bytes, not acknowledgements
//! (RFC 3465).

use braid_wire::Instant;

use super::hystart::{HyStart, SlowStart};
use super::usage::{Recovery, Usage};
use super::{AckSample, Algorithm, CongestionControl, Loss};

/// NewReno (RFC 5681 with RFC 6582).
pub const NEWRENO: Algorithm = Algorithm {
    name: "reno",
    make: |mss, initial_window| Box::new(NewReno::new(mss, initial_window)),
};

/// The NewReno controller.
#[derive(Debug)]
pub(super) struct NewReno {
    mss: u64,
    cwnd: u64,
    ssthresh: u64,
    /// The bytes delivered in congestion avoidance that have not led to growth yet.
    acked: u64,
    /// The fraction of a segment left over from the last change of the window.
    segment_fraction: f64,
    hystart: HyStart,
    usage: Usage,
    recovery: Recovery,
    /// The values of `cwnd` and `ssthresh` before the last reduction.
    undo: Option<(u64, u64)>,
    /// The initial window in segments; `None` once anything has changed the window.
    initial_segments: Option<u32>,
}

impl NewReno {
    pub(super) fn new(mss: u32, initial_window: u32) -> Self {
        let mss = u64::from(mss.max(1));
        NewReno {
            mss,
            cwnd: mss * u64::from(initial_window.max(1)),
            ssthresh: u64::MAX,
            acked: 0,
            segment_fraction: 0.0,
            hystart: HyStart::default(),
            usage: Usage::default(),
            recovery: Recovery::None,
            undo: None,
            initial_segments: Some(initial_window.max(1)),
        }
    }

    /// Sets `ssthresh` by RFC 5681 equation (4), with the base of RFC 7661 instead of the data in flight.
    fn reduce_ssthresh(&mut self, in_flight: u64) {
        self.initial_segments = None;
        self.undo = Some((self.cwnd, self.ssthresh));
        let base = self.usage.reduction_base(self.cwnd, in_flight);
        self.ssthresh = (base / 2).max(2 * self.mss);
        self.acked = 0;
    }

    /// Grows in slow start and returns the bytes left for congestion avoidance.
    fn slow_start(&mut self, ack: &AckSample<'_>) -> u64 {
        // HyStart++ applies only to the initial slow start, before any loss (RFC 9406 section 4.3).
        if self.ssthresh == u64::MAX {
            match self.hystart.on_ack(ack, self.mss as u32) {
                SlowStart::Grow(bytes) => self.cwnd = self.cwnd.saturating_add(bytes),
                SlowStart::Exit => self.ssthresh = self.cwnd,
            }
            return 0;
        }
        let growth = ack.delivered.min(self.ssthresh - self.cwnd);
        self.cwnd += growth;
        ack.delivered - growth
    }

    /// Continues in congestion avoidance from a window of `cwnd` bytes, but at least two segments.
    pub(super) fn shrink_to(&mut self, cwnd: u64) {
        self.initial_segments = None;
        self.cwnd = cwnd.max(2 * self.mss);
        self.ssthresh = self.cwnd;
        self.acked = 0;
    }

    /// Grows the window on an acknowledgement. In congestion avoidance the window grows by a segment whenever a
    /// number of bytes was delivered: the size of the window or `min_bytes`, whichever is higher.
    pub(super) fn grow(&mut self, ack: &AckSample<'_>, min_bytes: u64) {
        self.on_delivery(ack, |reno, delivered| {
            reno.acked = reno.acked.saturating_add(delivered);
            while reno.cwnd >= reno.ssthresh && reno.acked >= reno.cwnd.max(min_bytes) {
                reno.acked -= reno.cwnd.max(min_bytes);
                reno.cwnd += reno.mss;
            }
        });
    }

    /// Grows the window on an acknowledgement. In congestion avoidance the window changes by `segments_per_byte`
    /// for each byte delivered. A negative value shrinks the window to no less than two segments.
    pub(super) fn grow_by(&mut self, ack: &AckSample<'_>, segments_per_byte: f64) {
        self.on_delivery(ack, |reno, delivered| {
            if reno.cwnd < reno.ssthresh {
                return;
            }
            reno.segment_fraction += delivered as f64 * segments_per_byte;
            let segments = reno.segment_fraction.trunc();
            reno.segment_fraction -= segments;
            let bytes = segments as i64 * reno.mss as i64;
            reno.cwnd = reno.cwnd.saturating_add_signed(bytes).max(2 * reno.mss);
            // If cwnd falls, ssthresh must fall too. Otherwise slow start would begin again.
            reno.ssthresh = reno.ssthresh.min(reno.cwnd);
        });
    }

    /// Runs slow start, then calls `avoid_congestion` with the bytes that slow start has not used.
    fn on_delivery(&mut self, ack: &AckSample<'_>, avoid_congestion: impl FnOnce(&mut Self, u64)) {
        self.initial_segments = None;
        self.usage.on_ack(ack);
        let slow_start = self.cwnd < self.ssthresh;
        let limit = self.usage.limit(ack, slow_start);
        if !self.recovery.may_grow(ack) || self.cwnd >= limit {
            return;
        }
        let delivered = if slow_start {
            self.slow_start(ack)
        } else {
            ack.delivered
        };
        avoid_congestion(self, delivered);
        self.cwnd = self.cwnd.min(limit);
    }
}

impl CongestionControl for NewReno {
    fn cwnd(&self) -> u64 {
        self.cwnd
    }

    fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    fn on_ack(&mut self, ack: &AckSample<'_>) {
        self.grow(ack, 0);
    }

    fn on_lost(&mut self, loss: &Loss) {
        if !loss.first {
            return;
        }
        self.reduce_ssthresh(loss.in_flight);
        self.cwnd = self.ssthresh;
        self.recovery = Recovery::Fast;
    }

    fn on_rto(&mut self, _now: Instant, in_flight: u64) {
        self.reduce_ssthresh(in_flight);
        self.cwnd = self.mss;
        self.recovery = Recovery::Timeout;
    }

    fn on_spurious(&mut self, _now: Instant) {
        if let Some((cwnd, ssthresh)) = self.undo.take() {
            // The window may have grown beyond the former window since the reduction, so the larger one counts.
            self.cwnd = self.cwnd.max(cwnd);
            self.ssthresh = ssthresh;
        }
    }

    fn on_idle(&mut self, restart_window: u64) {
        let restart_window = restart_window.max(self.mss);
        if self.cwnd > restart_window {
            // Slow start leads back to three quarters of the window (RFC 7661 section 4.4.3).
            self.ssthresh = self.ssthresh.max(self.cwnd / 4 * 3);
            self.cwnd = restart_window;
        } else if self.cwnd < restart_window && self.ssthresh == u64::MAX {
            // A measured capacity is a number of bytes, which a new segment size does not change.
            self.initial_segments = None;
            self.cwnd = restart_window;
        }
        self.acked = 0;
        self.hystart = HyStart::default();
    }

    fn penalise(&mut self) {
        // In congestion avoidance the threshold is halved too. Otherwise slow start would restore the window at
        // once.
        if self.cwnd >= self.ssthresh {
            self.ssthresh = (self.ssthresh / 2).max(2 * self.mss);
        }
        self.cwnd = (self.cwnd / 2).max(self.mss);
        self.initial_segments = None;
        self.acked = 0;
    }

    fn set_mss(&mut self, mss: u32) {
        self.mss = u64::from(mss.max(1));
        self.cwnd = match self.initial_segments {
            Some(segments) => self.mss * u64::from(segments),
            None => self.cwnd.max(self.mss),
        };
    }
}
