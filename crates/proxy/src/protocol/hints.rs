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
