//! The end of one user's bytes in each direction, on a connection that outlives them.

/// The state of the direction that this end writes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outgoing {
    /// Messages of box and server.
    #[default]
    Messages,
    /// A user's bytes.
    Flow,
    /// The end of the user's bytes is written; the engine may not have taken it yet.
    Ending,
    /// The engine has taken the end of the user's bytes.
    Ended,
    /// The peer has acknowledged the end of the user's bytes.
    Delivered,
}

impl Outgoing {
    /// Returns whether the user's bytes have ended, so that nothing more may be written.
    pub(super) fn is_over(self) -> bool {
        !matches!(self, Outgoing::Messages | Outgoing::Flow)
    }
}

/// The state of the direction that this end reads.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Incoming {
    /// Messages of box and server.
    #[default]
    Messages,
    /// A user's bytes, which have not ended.
    Flow,
    /// A reader has taken the last of the user's bytes.
    Ended,
}
