//! Congestion control: a small trait, one controller per file and one row in [`TABLE`].
//!
//! Loss recovery decides what is lost and informs the controller; the controller owns the window.

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

/// The most subflows shown to a coupled controller; further ones are left out.
pub(crate) const MAX_SIBLINGS: usize = 16;

/// A row of [`TABLE`]: the controller that a subflow runs.
#[derive(Clone, Copy)]
pub struct Algorithm {
    name: &'static str,
    /// Builds the controller from segment size and initial window in segments.
    make: fn(u32, u32) -> Box<dyn CongestionControl>,
}

impl Algorithm {
    /// Returns the name, as in Linux: `cubic`, `reno`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Builds a controller with an initial window of `initial_window` segments of `mss` bytes.
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

/// Parses a name; the error lists the known ones.
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

/// A sample of the delivery rate (draft-cheng-iccrg-delivery-rate-estimation).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSample {
    /// The bytes delivered.
    pub delivered: u64,
    /// The time this took; not zero, and at least the lowest round trip.
    pub interval: Duration,
    /// The state when the newest delivered record was sent. If it is application-limited, the path may be faster
    /// than the sample.
    pub tx: TxState,
}

/// The state of the connection when a record was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxState {
    /// The bytes in flight before it.
    pub in_flight: u64,
    /// The bytes lost since.
    pub lost: u64,
    /// Set if the sender could have sent more than it was given.
    pub app_limited: bool,
}

impl RateSample {
    /// Returns the rate in bytes/s.
    pub fn rate(&self) -> u64 {
        let bytes = u128::from(self.delivered) * 1_000_000_000;
        bytes
            .checked_div(self.interval.as_nanos())
            .map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

/// A subflow as coupled congestion control sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sibling {
    /// Its controller's window in bytes.
    pub cwnd: u64,
    /// The smoothed round trip; zero if none was measured.
    pub srtt: Duration,
    /// The bytes delivered between its last two losses, or since the last one if that is more.
    pub loss_interval: u64,
}

/// The content of one acknowledgement.
#[derive(Debug, Clone, Copy, Default)]
pub struct AckSample<'a> {
    /// The current time.
    pub now: Instant,
    /// The bytes newly delivered (cumulative or selective).
    pub delivered: u64,
    /// The round trip measured by this acknowledgement, if any (never by a retransmission).
    pub rtt: Option<Duration>,
    /// The delivery rate measured by this acknowledgement, if any.
    pub rate: Option<RateSample>,
    /// The lowest round trip of the subflow.
    pub min_rtt: Duration,
    /// The smoothed round trip.
    pub srtt: Duration,
    /// The bytes in flight before this acknowledgement.
    pub prior_in_flight: u64,
    /// The bytes in flight after it.
    pub in_flight: u64,
    /// Set if the window has limited the sender since the last acknowledgement (RFC 7661).
    pub cwnd_limited: bool,
    /// Set for the first acknowledgement of a new round trip.
    pub round_start: bool,
    /// Set while loss recovery (fast or timeout) is under way.
    pub in_recovery: bool,
    /// The established subflows of the connection as they were before this acknowledgement, the own one
    /// first; empty unless the controller [is coupled](CongestionControl::is_coupled).
    pub siblings: &'a [Sibling],
}

/// Data deemed lost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loss {
    /// The current time.
    pub now: Instant,
    /// The bytes lost.
    pub bytes: u64,
    /// The bytes in flight before, lost ones included.
    pub in_flight: u64,
    /// Set for the first loss of a recovery episode: the window is reduced once for each episode (RFC 5681
    /// section 3.2, RFC 9438 section 4.6).
    pub first: bool,
    /// The state when the newest lost record was sent, with these bytes counted as lost.
    pub tx: TxState,
}

/// A congestion controller. All windows are in bytes.
///
/// The `in_flight` of a reduction is the data in flight before the loss was marked. It matters only if the
/// window was not filled lately: otherwise the reduction starts from the window. After the [first
/// loss](Loss::first) of an episode the window stays as it is until an acknowledgement comes with
/// `in_recovery` unset; after [`on_rto`](Self::on_rto) it grows by slow start during recovery.
pub trait CongestionControl: fmt::Debug + Send {
    /// Returns the congestion window; at least one segment.
    fn cwnd(&self) -> u64;
    /// Returns the slow-start threshold; `u64::MAX` before the first loss.
    fn ssthresh(&self) -> u64;
    /// Returns whether the controller needs to see the other subflows ([`AckSample::siblings`]).
    fn is_coupled(&self) -> bool {
        false
    }
    /// Notes that `bytes` were sent, new or again; `in_flight` bytes are in flight now.
    fn on_sent(&mut self, _now: Instant, _bytes: u64, _in_flight: u64) {}
    /// Processes an acknowledgement.
    fn on_ack(&mut self, ack: &AckSample<'_>);
    /// Handles a loss, which an acknowledgement or its absence showed.
    fn on_lost(&mut self, loss: &Loss);
    /// Handles the first retransmission timeout of a series (RFC 5681 section 3.1); everything in flight
    /// counts as lost.
    fn on_rto(&mut self, now: Instant, in_flight: u64);
    /// Returns whether the controller responds to ECN marks, so that payload may be sent as ECT (RFC 3168
    /// section 5).
    fn responds_to_ecn(&self) -> bool {
        true
    }
    /// Handles the first ECN mark reported in a round trip (RFC 3168 section 6.1.2): like a loss, but
    /// nothing is missing.
    fn on_ecn(&mut self, now: Instant, in_flight: u64) {
        self.on_lost(&Loss {
            now,
            bytes: 0,
            in_flight,
            first: true,
            ..Loss::default()
        });
    }
    /// Restores the former window, because the last reduction was spurious.
    fn on_spurious(&mut self, now: Instant);
    /// Handles a pause of more than one timeout (RFC 5681 section 4.1), or the start: the window becomes at
    /// most `first` bytes and, unless slow start has ended before, at least. A controller that paces by its
    /// model of the path may keep its window instead.
    fn on_idle(&mut self, first: u64);
    /// Halves the window: the strategy's penalty for a subflow that keeps others waiting.
    fn penalise(&mut self);
    /// Changes the segment size. An initial window that nothing has changed yet keeps its number of
    /// segments; any other window keeps its bytes, and is at least one segment.
    fn set_mss(&mut self, mss: u32);
    /// Returns the pacing rate in bytes/s of a controller that sets one; otherwise the engine derives it.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }
}
