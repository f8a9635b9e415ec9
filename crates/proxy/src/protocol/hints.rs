//! Hints: properties of a user's connection that are known in advance.

mod message;
mod text;

use core::time::Duration;

use braid_engine::Urgency;
use braid_engine::strategy::FlowSize;

/// Properties of a user's connection that are known before its bytes have moved, from any source. They are advice:
/// a wrong hint costs time, never a byte.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowHints {
    /// The number of bytes that the connection carries, in the direction that carries more.
    pub size: FlowSize,
    /// The urgency of the connection; `None` where nobody set one, so that [`Urgency::default`] applies.
    pub urgency: Option<Urgency>,
    /// The time within which the user wants each byte, counted from when it can be sent. Relayed bytes are never
    /// dropped for being late.
    pub deadline: Option<Duration>,
    /// The name of an existing strategy that replaces the configured one.
    pub strategy: Option<String>,
}
