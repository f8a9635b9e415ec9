//! The state of each direction of a connection: it carries messages of box and server, or one user's bytes. The
//! user's bytes can end without the connection, so that the connection can serve another user afterwards.

/// The state of the outgoing direction.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outgoing {
    /// Messages of box and server.
    #[default]
    Messages,
    /// A user's bytes.
    Flow,
    /// The record that ends the user's bytes is queued or still due; the engine has not taken it yet.
    Ending,
    /// The engine has taken the record that ends the user's bytes.
    Ended,
    /// The peer has acknowledged that record, and so all of the user's bytes.
    Delivered,
}

impl Outgoing {
    /// Returns whether the user's bytes have ended or are ending. If so, nothing may be written until
    /// [`release`](super::Channel::release).
    pub(super) fn is_over(self) -> bool {
        !matches!(self, Outgoing::Messages | Outgoing::Flow)
    }
}

/// The state of the incoming direction.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Incoming {
    /// Messages of box and server.
    #[default]
    Messages,
    /// A user's bytes that have not ended.
    Flow,
    /// A reader has taken the last of the user's bytes.
    Ended,
}
