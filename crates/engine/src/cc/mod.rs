//! Congestion control: a small trait, one controller a file.

mod cubic;
mod hystart;
mod newreno;
mod usage;

use core::fmt;
use core::time::Duration;

use braid_wire::Instant;

/// Which controller a subflow runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 5681 with RFC 6582.
    NewReno,
    /// RFC 9438.
    Cubic,
}

/// How fast data was delivered (draft-cheng-iccrg-delivery-rate-estimation).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSample {
    /// Bytes delivered.
    pub delivered: u64,
    /// In this time; not zero, and at least the lowest round trip.
    pub interval: Duration,
    /// The sender could have sent more than it was given in that time: the path may be faster.
    pub app_limited: bool,
}

impl RateSample {
    /// Bytes/s.
    pub fn rate(&self) -> u64 {
        let bytes = u128::from(self.delivered) * 1_000_000_000;
        bytes
            .checked_div(self.interval.as_nanos())
            .map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

/// What one acknowledgement told.
#[derive(Debug, Clone, Copy)]
pub struct AckSample {
    /// Now.
    pub now: Instant,
    /// Bytes newly delivered (cumulative or selective).
    pub delivered: u64,
    /// Round trip measured by this acknowledgement, if any (never from a retransmission).
    pub rtt: Option<Duration>,
    /// Delivery rate measured by this acknowledgement, if any.
    pub rate: Option<RateSample>,
    /// Lowest round trip of the subflow.
    pub min_rtt: Duration,
    /// Smoothed round trip.
    pub srtt: Duration,
    /// Bytes in flight before this acknowledgement.
    pub prior_in_flight: u64,
    /// The window was what held the sender back since the last acknowledgement (RFC 7661).
    pub cwnd_limited: bool,
    /// The first acknowledgement of a new round trip.
    pub round_start: bool,
    /// Loss recovery (fast or timeout) is under way.
    pub in_recovery: bool,
}

/// A congestion controller. All windows are in bytes.
///
/// The `in_flight` of a reduction is what was in flight before the loss was marked. It matters
/// only where the window was not filled lately: otherwise the reduction starts from the window.
/// After [`on_congestion`](Self::on_congestion) the window stays as it is until an
/// acknowledgement comes with `in_recovery` unset; after [`on_rto`](Self::on_rto) it grows by slow
/// start during recovery.
pub trait CongestionControl: fmt::Debug + Send {
    /// Name as in Linux: `cubic`, `reno`.
    fn name(&self) -> &'static str;
    /// Congestion window; at least one segment.
    fn cwnd(&self) -> u64;
    /// Slow-start threshold; `u64::MAX` before the first loss.
    fn ssthresh(&self) -> u64;
    /// An acknowledgement arrived.
    fn on_ack(&mut self, ack: &AckSample);
    /// Loss detected; called once per recovery episode (RFC 5681 section 3.2, RFC 9438 4.6).
    fn on_congestion(&mut self, now: Instant, in_flight: u64);
    /// The retransmission timer expired, first of a series (RFC 5681 section 3.1).
    fn on_rto(&mut self, now: Instant, in_flight: u64);
    /// The last reduction turned out spurious: restore the window of before.
    fn on_spurious(&mut self, now: Instant);
    /// Nothing was sent for longer than one timeout (RFC 5681 section 4.1); `initial` is the
    /// initial window in bytes.
    fn on_idle(&mut self, initial: u64);
    /// Sender-side penalty of a scheduler: halve the window.
    fn penalise(&mut self);
    /// The segment size changed. An initial window that nothing has changed yet stays as many
    /// segments; any other window stays as many bytes, and at least one segment.
    fn set_mss(&mut self, mss: u32);
    /// Pacing rate in bytes/s, for controllers that set one; else the engine derives it.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }
}

impl Algorithm {
    /// A controller with an initial window of `initial_window` segments of `mss` bytes.
    pub fn build(self, mss: u32, initial_window: u32) -> Box<dyn CongestionControl> {
        match self {
            Algorithm::NewReno => Box::new(newreno::NewReno::new(mss, initial_window)),
            Algorithm::Cubic => Box::new(cubic::Cubic::new(mss, initial_window)),
        }
    }
}

impl core::str::FromStr for Algorithm {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "cubic" => Ok(Algorithm::Cubic),
            "reno" | "newreno" => Ok(Algorithm::NewReno),
            _ => Err(format!(
                "unknown congestion control {s:?}; expected cubic or reno"
            )),
        }
    }
}
