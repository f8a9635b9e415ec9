//! Hints: properties of a user's connection that are known in advance.

mod message;
mod text;

use core::time::Duration;

use braid_engine::Urgency;
use braid_engine::strategy::FlowSize;

/// Properties of a user's connection that are known before its bytes have moved: from rules, programs or the first
/// bytes. Hints influence only scheduling. A wrong hint makes transfers slower but never loses data.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowHints {
    /// The number of bytes that the connection carries in the direction that carries more.
    pub size: FlowSize,
    /// The urgency of the connection. `None` if no source sets one, so that [`Urgency::default`] applies.
    pub urgency: Option<Urgency>,
    /// The time in which each byte should arrive, from the moment when it can be sent. Relayed bytes are never
    /// dropped because they are late.
    pub deadline: Option<Duration>,
    /// The name of an existing strategy that replaces the configured one.
    pub strategy: Option<String>,
}

/// Returns the urgency of a differentiated services code point; `None` for the default urgency. The classes are
/// those of RFC 8325 section 4.3: voice and network control, video, background.
pub(crate) fn urgency_of_dscp(dscp: u8) -> Option<Urgency> {
    match dscp {
        // CS5, VOICE-ADMIT, EF, CS6, CS7.
        40 | 44 | 46 | 48 | 56 => Urgency::new(1),
        // AF41, AF42, AF43.
        34 | 36 | 38 => Urgency::new(2),
        // LE (RFC 8622), CS1.
        1 | 8 => Some(Urgency::LEAST_URGENT),
        _ => None,
    }
}
