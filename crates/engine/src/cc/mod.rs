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

/// The maximum number of subflows whose state a coupled controller sees; further subflows are left out. The value
/// is a guess: hosts have far fewer links, and an array of this size fits on the stack.
pub(crate) const MAX_SIBLINGS: usize = 16;

/// A row of [`TABLE`]: the controller that a subflow runs.
#[derive(Clone, Copy)]
pub struct Algorithm {
    name: &'static str,
    /// Builds the controller from the segment size in bytes and the initial window in segments.
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

/// Parses a name; the error lists the known names.
impl FromStr for Algorithm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = TABLE.iter().find(|row| row.name == name);
        found.copied().ok_or_else(|| {
            let known: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
            let known = known.join(", ");
            format!("unknown congestion control {name:?}; expected one of {known}")
        })
    }
}

/// A sample of the delivery rate (draft-cheng-iccrg-delivery-rate-estimation).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateSample {
    /// The bytes delivered between the sending and the acknowledgement of a record.
    pub delivered: u64,
    /// The time in which these bytes were delivered. It is not zero, and at least the lowest round trip.
    pub interval: Duration,
    /// The state when the newest delivered record was sent. If the state is application-limited, the path may be
    /// faster than the sample.
    pub tx: TxState,
}

/// The state of the connection when a record was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxState {
    /// The bytes in flight before the record was sent.
    pub in_flight: u64,
    /// The bytes lost since the record was sent.
    pub lost: u64,
    /// True if the sender was allowed to send more than the application had given it.
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

/// The values of one subflow for the coupled controllers of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sibling {
    /// The window of the subflow's controller in bytes.
    pub cwnd: u64,
    /// The smoothed round trip; zero if none was measured.
    pub srtt: Duration,
    /// The number of bytes delivered between the subflow's last two losses or since its last loss, whichever
    /// number is higher.
    pub loss_interval: u64,
}

/// The content of one acknowledgement.
#[derive(Debug, Clone, Copy, Default)]
pub struct AckSample<'a> {
    /// The current time.
    pub now: Instant,
    /// The bytes newly delivered (cumulative or selective).
    pub delivered: u64,
    /// The round trip measured by this acknowledgement, if any. Retransmissions give none.
    pub rtt: Option<Duration>,
    /// The delivery rate measured by this acknowledgement, if any.
    pub rate: Option<RateSample>,
    /// The lowest round trip of the subflow.
    pub min_rtt: Duration,
    /// The smoothed round trip.
    pub srtt: Duration,
    /// The bytes in flight before this acknowledgement.
    pub prior_in_flight: u64,
    /// The bytes in flight after this acknowledgement.
    pub in_flight: u64,
    /// Set if the window has limited the sender in the present round trip, or slow start has used more than half
    /// of the window in it (RFC 7661).
    pub cwnd_limited: bool,
    /// Set for the first acknowledgement of a new round trip.
    pub round_start: bool,
    /// Set while loss recovery (fast or timeout) is under way.
    pub in_recovery: bool,
    /// The established subflows of the connection as they were before this acknowledgement. The controller's
    /// own subflow comes first. Empty unless the controller [is coupled](CongestionControl::is_coupled).
    pub siblings: &'a [Sibling],
}

/// Data deemed lost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loss {
    /// The current time.
    pub now: Instant,
    /// The bytes lost.
    pub bytes: u64,
    /// The bytes in flight before the loss was marked; the lost bytes are included.
    pub in_flight: u64,
    /// Set for the first loss of a recovery episode: the window is reduced once for each episode (RFC 5681
    /// section 3.2, RFC 9438 section 4.6).
    pub first: bool,
    /// The state when the newest lost record was sent; its `lost` includes the bytes of this loss.
    pub tx: TxState,
}

/// A congestion controller. All windows are in bytes.
///
/// A reduction starts from the window if the sender has recently filled it or used at least half of it (RFC 7661
/// section 4.4.1). Otherwise it starts from the most bytes that were recently in flight. One of these values is
/// `in_flight`: the bytes in flight before the loss was marked.
///
/// After the [first loss](Loss::first) of an episode the window does not grow until an acknowledgement arrives
/// whose `in_recovery` is unset; after [`on_rto`](Self::on_rto) the window grows by slow start during recovery.
pub trait CongestionControl: fmt::Debug + Send {
    /// Returns the congestion window; at least one segment.
    fn cwnd(&self) -> u64;
    /// Returns the slow-start threshold; `u64::MAX` until the initial slow start ends.
    fn ssthresh(&self) -> u64;
    /// Returns whether the controller needs to see the other subflows ([`AckSample::siblings`]).
    fn is_coupled(&self) -> bool {
        false
    }
    /// Notes that `bytes` were sent, new or retransmitted; `in_flight` bytes are in flight now.
    fn on_sent(&mut self, _now: Instant, _bytes: u64, _in_flight: u64) {}
    /// Processes an acknowledgement.
    fn on_ack(&mut self, ack: &AckSample<'_>);
    /// Handles a loss that an acknowledgement or the reordering timer has revealed.
    fn on_lost(&mut self, loss: &Loss);
    /// Handles the first retransmission timeout of a series (RFC 5681 section 3.1); everything in flight
    /// counts as lost.
    fn on_rto(&mut self, now: Instant, in_flight: u64);
    /// Returns whether the controller responds to ECN marks, so that payload may be sent as ECT (RFC 3168
    /// section 5).
    fn responds_to_ecn(&self) -> bool {
        true
    }
    /// Handles the first ECN mark reported in a round trip like a loss, although no data is missing (RFC 3168
    /// section 6.1.2).
    fn on_ecn(&mut self, now: Instant, in_flight: u64) {
        self.on_lost(&Loss {
            now,
            bytes: 0,
            in_flight,
            first: true,
            ..Loss::default()
        });
    }
    /// Restores the window that was in place before the last reduction, because that reduction was spurious.
    fn on_spurious(&mut self, now: Instant);
    /// Handles the start, or a pause that was longer than a retransmission timeout (RFC 5681 section 4.1).
    /// `restart_window` is the initial window in bytes, or half of the path's known capacity if that is more. A
    /// larger window shrinks to it. A smaller window grows to it as in Careful Resume
    /// (draft-ietf-tsvwg-careful-resume), unless slow start has ended already. A controller that paces by its model
    /// of the path may keep its window instead.
    fn on_idle(&mut self, restart_window: u64);
    /// Halves the window of a subflow whose missing data keeps the data of other subflows waiting at the
    /// receiver; the strategy decides when.
    fn penalise(&mut self);
    /// Changes the segment size. An initial window that nothing has changed yet keeps its number of
    /// segments; any other window keeps its bytes, and is at least one segment.
    fn set_mss(&mut self, mss: u32);
    /// Returns the pacing rate in bytes/s; `None` if the engine is to derive the rate from the window.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }
}
