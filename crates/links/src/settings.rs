//! What a link is like.

use core::num::NonZeroU64;
use core::time::Duration;

use braid_wire::Rng;

/// Settings of one direction of a link. By default a perfect one: up, unlimited rate, no delay,
/// no loss, a queue of 1000 packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// How fast the line serialises.
    pub rate: Rate,
    /// One-way propagation delay.
    pub delay: Duration,
    /// Each packet takes up to this much longer, uniformly drawn; packets do not overtake each
    /// other, so that a late one holds up those behind it.
    pub jitter: Duration,
    /// Bound of the droptail queue.
    pub queue: QueueLimit,
    /// Random loss.
    pub loss: Loss,
    /// Whether the link carries anything. What is in it when it goes down is lost.
    pub up: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            rate: Rate::Unlimited,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            queue: QueueLimit::Packets(1000),
            loss: Loss::None,
            up: true,
        }
    }
}

/// How fast a line serialises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    /// Packets leave at once.
    Unlimited,
    /// Constant, bit/s.
    Fixed(NonZeroU64),
}

impl Rate {
    /// A constant rate in bit/s; 0 is taken as 1, since a link that carries nothing is down.
    pub const fn bits_per_second(rate: u64) -> Rate {
        match NonZeroU64::new(rate) {
            Some(rate) => Rate::Fixed(rate),
            None => Rate::Fixed(NonZeroU64::MIN),
        }
    }
}

/// Bound of a droptail queue. The packet being serialised is not in the queue, so that even a
/// bound of 0 lets single packets pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueLimit {
    /// At most this many packets.
    Packets(u32),
    /// At most this many bytes; a packet that would exceed it is dropped.
    Bytes(u64),
}

impl QueueLimit {
    /// Whether a queue of `packets` packets and `bytes` bytes takes one more of `len` bytes.
    pub(crate) fn admits(self, packets: usize, bytes: u64, len: u32) -> bool {
        match self {
            QueueLimit::Packets(limit) => packets < limit as usize,
            QueueLimit::Bytes(limit) => bytes.saturating_add(u64::from(len)) <= limit,
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
}

impl Loss {
    /// Decides over one packet.
    pub(crate) fn strikes(self, rng: &mut Rng) -> bool {
        match self {
            Loss::None => false,
            Loss::Uniform(p) => rng.chance(p),
        }
    }
}
