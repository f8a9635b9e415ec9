//! The settings of a link.

use core::num::NonZeroU64;
use core::time::Duration;

use crate::codel::CoDel;
use crate::queue::QueueLimit;
use crate::trace::Trace;

/// Settings of one direction of a link. The default is a perfect link: up, with unlimited rate, without delay or
/// loss, and with a queue of 1000 packets. Cloning is cheap, because clones share a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The rate at which the line serialises.
    pub rate: Rate,
    /// Bytes that pass at once after a pause. This is the depth of a token bucket, such as providers use to shape
    /// traffic. The bucket refills at the rate. Used only with a constant rate.
    pub burst: u32,
    /// One-way propagation delay.
    pub delay: Duration,
    /// Maximum additional delay of a packet. Each packet draws an additional delay between 0 and this maximum,
    /// uniformly.
    pub jitter: Duration,
    /// True if jitter reorders: packets overtake those that drew a longer delay. If false, packets stay in order, so
    /// a late packet delays those after it.
    pub jitter_reorders: bool,
    /// The bound of the queue. Packets that would exceed it are dropped (droptail).
    pub queue: QueueLimit,
    /// CoDel for the queue, in addition to the bound; `None` for a droptail queue alone.
    pub codel: Option<CoDel>,
    /// Random loss.
    pub loss: Loss,
    /// Reordering.
    pub reorder: Reorder,
    /// The probability (0 to 1) that a packet which is not lost is duplicated.
    pub duplicate: f64,
    /// The probability (0 to 1) that one bit of a packet is flipped.
    pub corrupt: f64,
    /// True while the link carries packets. A link that goes down loses the packets in it.
    pub up: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            rate: Rate::Unlimited,
            burst: 0,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            jitter_reorders: false,
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
    /// A recorded rate. The trace starts when the link begins to use it. This is the time of
    /// [`crate::Link::starting_at`], or of [`crate::Link::set`] if the link did not use this trace until then.
    Trace(Trace),
}

impl Rate {
    /// Returns a constant rate in bit/s. A rate of 0 becomes 1, because [`Settings::up`] is the way to stop a
    /// link.
    pub const fn bits_per_second(rate: u64) -> Rate {
        match NonZeroU64::new(rate) {
            Some(rate) => Rate::Fixed(rate),
            None => Rate::Fixed(NonZeroU64::MIN),
        }
    }

    /// Returns the long-term mean of the rate in bit/s, or `None` if the rate is unlimited.
    pub fn mean(&self) -> Option<f64> {
        match self {
            Rate::Unlimited => None,
            Rate::Fixed(rate) => Some(rate.get() as f64),
            Rate::Trace(trace) => Some(trace.mean_rate()),
        }
    }
}

/// Random loss, drawn for each packet before it enters the queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loss {
    /// No loss.
    None,
    /// Each packet is lost with this probability (0 to 1), independently of all others.
    Uniform(f64),
    /// Losses in bursts.
    GilbertElliott(GilbertElliott),
}

/// Losses in bursts: the link has a good and a bad state (Gilbert 1960, Elliott 1963). It starts in the good
/// state. Before each packet the state may change; the new state then determines the loss probability of the
/// packet. All fields are probabilities (0 to 1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GilbertElliott {
    /// Probability of the change from good to bad.
    pub to_bad: f64,
    /// Probability of the change from bad to good.
    pub to_good: f64,
    /// Loss in the good state; 0 in Gilbert's model.
    pub loss_good: f64,
    /// Loss in the bad state.
    pub loss_bad: f64,
}

impl Loss {
    /// Returns the loss model in which each packet is lost with the probability `p` (0 to 1).
    pub fn uniform(p: f64) -> Loss {
        if p > 0.0 {
            Loss::Uniform(p)
        } else {
            Loss::None
        }
    }

    /// Returns the long-term share of lost packets.
    pub fn mean(self) -> f64 {
        match self {
            Loss::None => 0.0,
            Loss::Uniform(p) => p,
            Loss::GilbertElliott(p) => {
                // In equilibrium the state is bad for this share of the packets. If the state never changes, it
                // stays good.
                let changes = p.to_bad + p.to_good;
                let bad_share = if changes > 0.0 {
                    p.to_bad / changes
                } else {
                    0.0
                };
                bad_share * p.loss_bad + (1.0 - bad_share) * p.loss_good
            }
        }
    }

    /// Returns the loss model that loses a share `mean` of packets (0 to 1), in bursts whose mean length is
    /// `burst` packets (at least 1).
    ///
    /// The model is [`Loss::GilbertElliott`]: the bad state loses all packets, and the good state none. The
    /// nearest value in range replaces a value out of range. A mean above `burst / (burst + 1)` is impossible,
    /// because at least one packet arrives between two bursts.
    pub fn bursts(mean: f64, burst: f64) -> Loss {
        let mean = mean.clamp(0.0, 1.0);
        let to_good = 1.0 / burst.max(1.0);
        // This solves mean = to_bad / (to_bad + to_good), which holds in equilibrium, for `to_bad`. With a mean of
        // 1 the quotient is infinite, and the minimum below makes it 1.
        let to_bad = to_good * mean / (1.0 - mean);
        Loss::GilbertElliott(GilbertElliott {
            to_bad: to_bad.min(1.0),
            to_good,
            loss_good: 0.0,
            loss_bad: 1.0,
        })
    }
}

/// Reordering: some packets take a detour, and packets that leave the line after them may overtake them. Packets
/// that take no detour stay in order.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reorder {
    /// The probability (0 to 1) that a packet takes the detour.
    pub share: f64,
    /// The additional delay of a packet on the detour.
    pub detour: Duration,
}
