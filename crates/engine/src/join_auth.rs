//! How subflows of a connection prove that they are the peer's.

use core::fmt;

/// What authenticates the joins of a connection, and the addresses that its peer announces.
///
/// The keys of Multipath TCP cross the first link in plaintext (RFC 8684 section 3.1), so whoever saw the
/// handshake can join, and acknowledge data in the peer's place. An application that has a protected channel
/// to its peer gives both ends a secret of that channel in addition.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum JoinAuth {
    /// The keys of Multipath TCP alone (RFC 8684 section 3.2). The default.
    #[default]
    Keys,
    /// The application does not know yet. Joins begin, and none is completed; announced addresses wait.
    Pending,
    /// The keys and this secret, which nobody but the peer knows. An HMAC that was made without it is wrong.
    Secret([u8; 32]),
}

/// Shows no secret: logs are read by people.
impl fmt::Debug for JoinAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JoinAuth::Keys => "Keys",
            JoinAuth::Pending => "Pending",
            JoinAuth::Secret(_) => "Secret(..)",
        })
    }
}
