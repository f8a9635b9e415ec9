//! The authentication of the subflows that are added to a connection.

use core::fmt;

/// The authentication of a connection's joins, and of the addresses that its peer announces.
///
/// The keys of MPTCP cross the first link in plaintext (RFC 8684 section 3.1). So anyone who saw the handshake
/// can add a subflow, receive data there, and acknowledge it in the peer's place. An application with a
/// protected channel to its peer can therefore give both ends a secret in addition.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum JoinAuth {
    /// The keys of MPTCP alone authenticate (RFC 8684 section 3.2). This is the default.
    #[default]
    Keys,
    /// The application does not know yet whether there is a secret. Joins start but are not completed, and
    /// announced addresses are not used.
    Pending,
    /// The keys together with this secret authenticate; nobody but the two ends knows the secret. An HMAC
    /// without the secret is rejected.
    Secret([u8; 32]),
}

/// Prints no secret, because many people can read logs.
impl fmt::Debug for JoinAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            JoinAuth::Keys => "Keys",
            JoinAuth::Pending => "Pending",
            JoinAuth::Secret(_) => "Secret(..)",
        })
    }
}
