//! The handshake of a subflow: what was sent of it, and when it is repeated.

use braid_wire::Instant;
use braid_wire::tcp::FastOpenCookie;

use crate::Urgency;

/// Bytes that SYNs carried: of a subflow, and of the connection, whose first subflow alone has any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SynData {
    /// Of our stream, as far as the peer took them.
    pub sent: u64,
    /// Of the peer's, as far as we took them.
    pub received: u64,
}

/// What a SYN of ours offered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    /// Bytes of payload.
    pub len: u64,
    /// Theirs, in case they have to be sent again.
    pub urgency: Urgency,
}

/// The part that the secret which authenticates joins has in the SYN of a join.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum JoinProof {
    /// None: the keys of Multipath TCP alone count.
    #[default]
    Keys,
    /// Of a join opened here: its SYN may leave before the secret is known.
    AskedEarly,
    /// Of a join of the peer: the nonce of its SYN shows the secret.
    Secret,
}

/// The handshake of a subflow.
#[derive(Debug, Default)]
pub(crate) struct Handshake {
    pub opened_at: Instant,
    /// When data might first flow.
    pub established_at: Instant,
    /// When the handshake segment is repeated, and how often it was.
    pub at: Option<Instant>,
    pub tries: u32,
    /// How many of these SYNs left over a link that has not been down since.
    pub unanswered: u32,
    /// When a second SYN is to leave beside this one, on another path.
    pub second_at: Option<Instant>,
    /// Its SYN goes without MP_CAPABLE: the network seems to drop those that have it (RFC 8684
    /// section 3.7).
    pub asks_plainly: bool,
    /// Its path was left while the connection hung on it.
    pub left: bool,
    /// What our SYN offered of its payload, until that is answered.
    pub offer: Option<Offer>,
    /// For the SYN/ACK.
    pub cookie: Option<FastOpenCookie>,
    /// Of a join: the HMAC of its SYN/ACK, as long as it cannot be judged.
    pub unjudged: Option<u64>,
    pub proof: JoinProof,
}

impl Handshake {
    /// Returns whether a segment of it is to be sent now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| at <= now)
    }

    /// Nothing of it is repeated any more.
    pub fn stop(&mut self) {
        self.at = None;
        self.second_at = None;
    }
}
