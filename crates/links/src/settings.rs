//! What a link is like.

use core::num::NonZeroU64;
use core::time::Duration;

use crate::codel::CoDel;
use crate::queue::QueueLimit;
use crate::trace::Trace;

/// Settings of one direction of a link. By default a perfect one: up, unlimited rate, no delay,
/// no loss, a queue of 1000 packets. A clone is cheap: a trace is shared.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// How fast the line serialises.
    pub rate: Rate,
    /// Bytes that pass at once after a pause, where the rate is constant: the depth of a token bucket, as
    /// providers shape with. Tokens come back at the rate.
    pub burst: u32,
    /// One-way propagation delay.
    pub delay: Duration,
    /// Each packet takes up to this much longer, uniformly drawn; packets do not overtake each
    /// other, so that a late one holds up those behind it.
    pub jitter: Duration,
    /// Bound of the queue; what comes beyond it is dropped (droptail).
    pub queue: QueueLimit,
    /// CoDel on that queue, besides the bound; `None` leaves it a plain droptail queue.
    pub codel: Option<CoDel>,
    /// Random loss.
    pub loss: Loss,
    /// Reordering.
    pub reorder: Reorder,
    /// Probability (0 to 1) with which a packet that is not lost is followed by a copy of itself.
    pub duplicate: f64,
    /// Probability (0 to 1) with which one bit of a packet is flipped on the way.
    pub corrupt: f64,
    /// Whether the link carries anything. What is in it when it goes down is lost.
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

/// How fast a line serialises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rate {
    /// Packets leave at once.
    Unlimited,
    /// Constant, bit/s.
    Fixed(NonZeroU64),
    /// As recorded. The trace starts when it comes into force: by [`crate::Link::starting_at`],
    /// or by [`crate::Link::set`] with settings that did not have it before.
    Trace(Trace),
}

impl Rate {
    /// A constant rate in bit/s; 0 is taken as 1, since a link that carries nothing is down.
    pub const fn bits_per_second(rate: u64) -> Rate {
        match NonZeroU64::new(rate) {
            Some(rate) => Rate::Fixed(rate),
            None => Rate::Fixed(NonZeroU64::MIN),
        }
    }

    /// In the long run, bit/s; `None` if it is unlimited.
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
    /// None.
    None,
    /// Each packet is lost with this probability (0 to 1), independently of all others.
    Uniform(f64),
    /// Losses in bursts: a link that is good or bad (Gilbert 1960, Elliott 1963). It starts good,
    /// changes or not before each packet, and then loses the packet or not. All four are
    /// probabilities (0 to 1).
    GilbertElliott {
        /// From good to bad.
        to_bad: f64,
        /// From bad to good.
        to_good: f64,
        /// Of loss while good; 0 in Gilbert's model.
        loss_good: f64,
        /// Of loss while bad.
        loss_bad: f64,
    },
}

impl Loss {
    /// Loss of a share `p` of packets (0 to 1), each by itself.
    pub fn uniform(p: f64) -> Loss {
        match p > 0.0 {
            true => Loss::Uniform(p),
            false => Loss::None,
        }
    }

    /// Share of packets lost in the long run.
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

    /// Loss of a share `mean` of packets (0 to 1) in bursts of `burst` packets in the mean
    /// (at least 1): [`Loss::GilbertElliott`] that loses all while bad and none while good.
    /// Values out of range are taken as the nearest within; a mean above `burst / (burst + 1)`
    /// cannot be had, since at least one packet between two bursts arrives.
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

/// Reordering: some packets take a detour and are overtaken by those that leave the line within
/// it. The others stay in order among themselves.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reorder {
    /// Probability (0 to 1) with which a packet takes the detour.
    pub share: f64,
    /// How much later a packet on it arrives.
    pub detour: Duration,
}
