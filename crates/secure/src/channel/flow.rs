//! How a direction of a user's connection ends while the connection that carries it goes on.

/// What is said one way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outgoing {
    /// Messages of box and server.
    #[default]
    Messages,
    /// A user's bytes.
    Flow,
    /// Their end was written, and may wait here.
    Ending,
    /// The stack has it.
    Ended,
    /// The other end has it.
    Delivered,
}

impl Outgoing {
    /// Returns whether nothing more is said.
    pub(super) fn is_over(self) -> bool {
        !matches!(self, Outgoing::Messages | Outgoing::Flow)
    }
}

/// How far the other way was read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Incoming {
    /// Messages of box and server.
    #[default]
    Messages,
    /// A user's bytes, which have not ended.
    Flow,
    /// They have.
    Ended,
}
