//! Congestion control: a small trait, one controller a file and one row in [`TABLE`].
//!
//! Loss recovery owns what is lost and tells the controller; the controller owns the window.

mod balia;
mod bbr;
mod bbr_model;
mod cubic;
mod hystart;
mod ledbat;
mod lia;
mod newreno;
mod olia;
mod usage;
mod variant;

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use braid_wire::Instant;

pub use balia::BALIA;
pub use bbr::BBR;
pub use cubic::CUBIC;
pub use ledbat::LEDBAT;
pub use lia::LIA;
pub use newreno::NEWRENO;
pub use olia::OLIA;

/// All controllers; the first is the default.
pub const TABLE: &[Algorithm] = &[CUBIC, NEWRENO, BBR, LIA, OLIA, BALIA, LEDBAT];

/// Subflows of which a coupled controller is told; those beyond are left out.
pub(crate) const MAX_SIBLINGS: usize = 16;

/// A row of [`TABLE`]: which controller a subflow runs.
#[derive(Clone, Copy)]
pub struct Algorithm {
    name: &'static str,
    /// Of segment size and initial window in segments.
    make: fn(u32, u32) -> Box<dyn CongestionControl>,
}

impl Algorithm {
    /// Its name, as in Linux: `cubic`, `reno`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// A controller with an initial window of `initial_window` segments of `mss` bytes.
    pub fn build(&self, mss: u32, initial_window: u32) -> Box<dyn CongestionControl> {
        (self.make)(mss, initial_window)
    }
}

impl Default for Algorithm {
    fn default() -> Self {
        TABLE[0]
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Reads a name; the error lists those there are.
impl FromStr for Algorithm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = TABLE.iter().find(|row| row.name == name);
        found.copied().ok_or_else(|| {
            let known: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
            let known = known.join(", ");
            format!("unknown congestion control {name:?}; known are: {known}")
        })
    }
}

/// How fast data was delivered (draft-cheng-iccrg-delivery-rate-estimation).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSample {
    /// Bytes delivered.
    pub delivered: u64,
    /// In this time; not zero, and at least the lowest round trip.
    pub interval: Duration,
    /// Of the record that was sent last of what was delivered. Where it is limited by the
    /// application, the path may be faster than the sample.
    pub flight: Flight,
}

/// Among what a record was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flight {
    /// Bytes in flight before it.
    pub in_flight: u64,
    /// Bytes lost since.
    pub lost: u64,
    /// The sender could have sent more than it was given.
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

/// What coupled control sees of a subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sibling {
    /// Its controller's window, bytes.
    pub cwnd: u64,
    /// Smoothed round trip; zero where none was measured.
    pub srtt: Duration,
    /// Bytes delivered between its last two losses, or since the last one if that is more.
    pub loss_interval: u64,
}

/// What one acknowledgement told.
#[derive(Debug, Clone, Copy, Default)]
pub struct AckSample<'a> {
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
    /// Bytes in flight after it.
    pub in_flight: u64,
    /// The window was what held the sender back since the last acknowledgement (RFC 7661).
    pub cwnd_limited: bool,
    /// The first acknowledgement of a new round trip.
    pub round_start: bool,
    /// Loss recovery (fast or timeout) is under way.
    pub in_recovery: bool,
    /// The established subflows of the connection as they were before this acknowledgement, its
    /// own first; none unless the controller [is coupled](CongestionControl::is_coupled).
    pub siblings: &'a [Sibling],
}

/// Data deemed lost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loss {
    /// Now.
    pub now: Instant,
    /// Bytes lost.
    pub bytes: u64,
    /// Bytes in flight before, those lost included.
    pub in_flight: u64,
    /// The first of an episode of recovery: the window is reduced once for all of one (RFC 5681
    /// section 3.2, RFC 9438 section 4.6).
    pub first: bool,
    /// Of the record that was sent last of what was lost; these bytes are counted as lost.
    pub flight: Flight,
}

/// A congestion controller. All windows are in bytes.
///
/// The `in_flight` of a reduction is what was in flight before the loss was marked. It matters
/// only where the window was not filled lately: otherwise the reduction starts from the window.
/// After the [first loss](Loss::first) of an episode the window stays as it is until an
/// acknowledgement comes with `in_recovery` unset; after [`on_rto`](Self::on_rto) it grows by slow
/// start during recovery.
pub trait CongestionControl: fmt::Debug + Send {
    /// Congestion window; at least one segment.
    fn cwnd(&self) -> u64;
    /// Slow-start threshold; `u64::MAX` before the first loss.
    fn ssthresh(&self) -> u64;
    /// Whether it wants to be told of the other subflows ([`AckSample::siblings`]).
    fn is_coupled(&self) -> bool {
        false
    }
    /// `bytes` were sent, new or again; `in_flight` bytes are now.
    fn on_sent(&mut self, _now: Instant, _bytes: u64, _in_flight: u64) {}
    /// An acknowledgement arrived.
    fn on_ack(&mut self, ack: &AckSample<'_>);
    /// An acknowledgement or its absence told of a loss.
    fn on_lost(&mut self, loss: &Loss);
    /// The retransmission timer expired, first of a series (RFC 5681 section 3.1); all that was in
    /// flight counts as lost.
    fn on_rto(&mut self, now: Instant, in_flight: u64);
    /// Whether it answers congestion marks: payload says that it may be marked (ECT, RFC 3168 section 5).
    fn bears_marks(&self) -> bool {
        true
    }
    /// The peer told of a congestion mark, the first in a round trip (RFC 3168 section 6.1.2): as of a
    /// loss, but nothing is missing.
    fn on_ecn(&mut self, now: Instant, in_flight: u64) {
        self.on_lost(&Loss {
            now,
            bytes: 0,
            in_flight,
            first: true,
            ..Loss::default()
        });
    }
    /// The last reduction turned out spurious: restore the window of before.
    fn on_spurious(&mut self, now: Instant);
    /// Nothing was sent for longer than one timeout (RFC 5681 section 4.1), or nothing at all yet:
    /// the window is `first` bytes at most and, unless slow start has ended before, at least. A
    /// controller that paces by what it knows of the path may keep its window instead.
    fn on_idle(&mut self, first: u64);
    /// The strategy's penalty for who keeps others waiting: halve the window.
    fn penalise(&mut self);
    /// The segment size changed. An initial window that nothing has changed yet stays as many
    /// segments; any other window stays as many bytes, and at least one segment.
    fn set_mss(&mut self, mss: u32);
    /// Pacing rate in bytes/s, for controllers that set one; else the engine derives it.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }
}
