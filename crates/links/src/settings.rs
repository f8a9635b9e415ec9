//! The settings of a link.

use core::num::NonZeroU64;
use core::time::Duration;

use crate::codel::CoDel;
use crate::queue::QueueLimit;
use crate::trace::Trace;

/// Settings of one direction of a link. The default is a perfect link: up, unlimited rate, no delay, no
/// loss, a queue of 1000 packets. A clone is cheap: a trace is shared.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The rate at which the line serialises.
    pub rate: Rate,
    /// Bytes that pass at once after a pause, where the rate is constant: the depth of a token bucket, by
    /// which providers shape. Tokens come back at the rate.
    pub burst: u32,
    /// One-way propagation delay.
    pub delay: Duration,
    /// The largest additional delay of a packet, drawn uniformly. Packets do not overtake each other, so
    /// a late one holds up those behind it.
    pub jitter: Duration,
    /// The bound of the queue; packets beyond it are dropped (droptail).
    pub queue: QueueLimit,
    /// CoDel on the queue, besides the bound; `None` leaves a plain droptail queue.
    pub codel: Option<CoDel>,
    /// Random loss.
    pub loss: Loss,
    /// Reordering.
    pub reorder: Reorder,
    /// The probability (0 to 1) with which a copy follows a packet that is not lost.
    pub duplicate: f64,
    /// The probability (0 to 1) with which one bit of a packet is flipped on the way.
    pub corrupt: f64,
    /// The link carries packets. A link that goes down loses the packets that it holds.
    pub up: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            rate: Rate::Unlimited,
            burst: 0,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            queue: QueueLimit::Packets(1000),
            codel: None,
            loss: Loss::None,
            reorder: Reorder::default(),
            duplicate: 0.0,
            corrupt: 0.0,
            up: true,
        }
    }
}

/// The rate at which a line serialises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rate {
    /// Packets leave at once.
    Unlimited,
    /// Constant, bit/s.
    Fixed(NonZeroU64),
    /// A recorded rate. The trace starts when it comes into force: by [`crate::Link::starting_at`], or by
    /// [`crate::Link::set`] with settings that did not have it before.
    Trace(Trace),
}

impl Rate {
    /// Returns a constant rate in bit/s; 0 is taken as 1, since a link that carries nothing is down.
    pub const fn bits_per_second(rate: u64) -> Rate {
        match NonZeroU64::new(rate) {
            Some(rate) => Rate::Fixed(rate),
            None => Rate::Fixed(NonZeroU64::MIN),
        }
    }

    /// Returns the mean rate in the long run, bit/s; `None` if the rate is unlimited.
    pub fn mean(&self) -> Option<f64> {
        match self {
            Rate::Unlimited => None,
            Rate::Fixed(rate) => Some(rate.get() as f64),
            Rate::Trace(trace) => Some(trace.mean_rate()),
        }
    }
}

/// Random loss, drawn for each packet before the queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    /// No loss.
    None,
    /// The probability (0 to 1) with which each packet is lost, independently of all others.
    Uniform(f64),
    /// Losses in bursts: a link that is good or bad (Gilbert 1960, Elliott 1963). The link starts good;
    /// before each packet it may change, and then it may lose the packet. All four fields are
    /// probabilities (0 to 1).
    GilbertElliott {
        /// The change from good to bad.
        to_bad: f64,
        /// The change from bad to good.
        to_good: f64,
        /// Loss while good; 0 in Gilbert's model.
        loss_good: f64,
        /// Loss while bad.
        loss_bad: f64,
    },
}

impl Loss {
    /// Returns the loss of a share `p` of packets (0 to 1), independently of each other.
    pub fn uniform(p: f64) -> Loss {
        match p > 0.0 {
            true => Loss::Uniform(p),
            false => Loss::None,
        }
    }

    /// Returns the share of packets lost in the long run.
    pub fn mean(self) -> f64 {
        match self {
            Loss::None => 0.0,
            Loss::Uniform(p) => p,
            Loss::GilbertElliott {
                to_bad,
                to_good,
                loss_good,
                loss_bad,
            } => {
                let changes = to_bad + to_good;
                let bad = if changes > 0.0 { to_bad / changes } else { 0.0 };
                bad * loss_bad + (1.0 - bad) * loss_good
            }
        }
    }

    /// Returns the loss of a share `mean` of packets (0 to 1) in bursts of `burst` packets in the mean
    /// (at least 1).
    ///
    /// That is [`Loss::GilbertElliott`] that loses all packets while bad and none while good. Values out
    /// of range are replaced by the nearest in range. A mean above `burst / (burst + 1)` is impossible,
    /// since at least one packet between two bursts arrives.
    pub fn bursts(mean: f64, burst: f64) -> Loss {
        let mean = mean.clamp(0.0, 1.0);
        let to_good = 1.0 / burst.max(1.0);
        // In equilibrium, mean = to_bad / (to_bad + to_good).
        let to_bad = to_good * mean / (1.0 - mean);
        Loss::GilbertElliott {
            to_bad: to_bad.min(1.0),
            to_good,
            loss_good: 0.0,
            loss_bad: 1.0,
        }
    }
}

/// Reordering: some packets take a detour and are overtaken by packets that leave the line in the
/// meantime. The others stay in order among themselves.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reorder {
    /// The probability (0 to 1) with which a packet takes the detour.
    pub share: f64,
    /// The additional delay of a packet on the detour.
    pub detour: Duration,
}
