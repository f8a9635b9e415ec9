//! What is known of a user's connection beforehand.

mod message;
mod text;

use core::time::Duration;

use braid_engine::Urgency;
use braid_engine::strategy::FlowSize;

/// What is known of a user's connection before its bytes have moved, wherever it is known from.
/// All of it is advice: a wrong hint costs time, never a byte.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowHints {
    /// How many bytes the connection carries, in the direction that carries more.
    pub size: FlowSize,
    /// How urgent the connection is; `None` where nobody said so, which is
    /// [`Urgency::default`] in the end.
    pub urgency: Option<Urgency>,
    /// Within what time the user wants the bytes, counted from when each is there to be sent.
    /// Nothing of a relayed stream is dropped for being late.
    pub deadline: Option<Duration>,
    /// The name of a strategy in place of the configured one; it exists.
    pub strategy: Option<String>,
}
