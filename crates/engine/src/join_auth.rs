//! The choice between the keys of MPTCP and a secret of the application, for the authentication of a peer.

use core::fmt;

/// The authentication of a connection's joins (MP_JOIN), and of the addresses that its peer announces (ADD_ADDR).
///
/// The keys of MPTCP cross the first link in plaintext (RFC 8684 section 3.1). So anyone who saw the handshake
/// can add a subflow, receive data there, and acknowledge it in the peer's place. An application with a
/// protected channel to its peer can therefore give both ends a secret in addition.
///
/// As long as the keys alone do not suffice ([`Pending`](Self::Pending) or [`Secret`](Self::Secret)), they do not
/// prove an MP_FASTCLOSE either. So an MP_FASTCLOSE ends the connection only on an established subflow, and only with
/// the exact sequence number that RFC 5961 demands of a RST. Subflows that joined by the keys alone are reset at the
/// change from [`Keys`](Self::Keys) to another value.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub enum JoinAuth {
    /// The keys of MPTCP alone authenticate the peer (RFC 8684 section 3.2). This is the default.
    #[default]
    Keys,
    /// The application does not know yet whether there is a secret. Until it does, SYN and SYN/ACK of joins are sent,
    /// but no third ACK is sent or accepted. This saves a round trip later, and is safe: a join carries no data before
    /// its third ACK. Addresses are not announced, and the peer's announcements wait.
    Pending,
    /// The keys together with this secret, which nobody but the two ends may know, authenticate the peer. An HMAC
    /// without the secret is rejected, with one exception: if this end sent the SYN of a join while the
    /// authentication was [`Pending`](Self::Pending), the HMAC of the SYN/ACK may lack the secret, because the peer
    /// may not have known it yet. This is safe enough: the SYN/ACK comes from the address to which the SYN was sent,
    /// and this is an address of the peer, because announced addresses are authenticated. The HMAC of our third ACK
    /// needs the secret in any case, so the peer is sure of this end.
    ///
    /// The secret has 32 bytes, the length of a SHA-256 hash: a longer key would make HMAC-SHA256 no stronger (RFC
    /// 2104 section 3).
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
