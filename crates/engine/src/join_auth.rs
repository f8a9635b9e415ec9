//! The authentication of a connection's subflows.

use core::fmt;

/// The authentication of a connection's joins, and of the addresses that its peer announces.
///
/// The keys of MPTCP cross the first link in plaintext (RFC 8684 section 3.1), so anyone who saw the
/// handshake can join, and acknowledge data in the peer's place. An application that has a protected
/// channel to its peer gives both ends a secret of that channel in addition.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum JoinAuth {
    /// The keys of MPTCP alone (RFC 8684 section 3.2). The default.
    #[default]
    Keys,
    /// The application has not decided yet. Joins begin, but none is completed; announced addresses wait.
    Pending,
    /// The keys and this secret, which only the peer knows. An HMAC without the secret is rejected.
    Secret([u8; 32]),
}

/// Prints no secret, because logs are read by people.
impl fmt::Debug for JoinAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JoinAuth::Keys => "Keys",
            JoinAuth::Pending => "Pending",
            JoinAuth::Secret(_) => "Secret(..)",
        })
    }
}
