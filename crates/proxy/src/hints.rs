//! What is known of a user's connection beforehand.

use core::time::Duration;

use braid_engine::Urgency;
use braid_engine::strategy::FlowSize;

/// What is known of a user's connection before its bytes have moved, wherever it is known from.
/// All of it is advice: a wrong hint costs time, never a byte.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowHints {
    /// How much the destination is going to send to the user.
    pub size: FlowSize,
    /// How much the user is going to send.
    pub upload: FlowSize,
    /// How urgent the connection is; `None` where nobody said so, which is
    /// [`Urgency::default`] in the end.
    pub urgency: Option<Urgency>,
    /// What waits for longer than this before it is first sent is of no use any more.
    pub deadline: Option<Duration>,
    /// The name of a strategy in place of the configured one; it exists.
    pub strategy: Option<String>,
}
