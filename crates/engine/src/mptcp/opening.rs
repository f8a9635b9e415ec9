//! The handshake of a subflow: the segments sent, and the time of their repeats.

use braid_wire::Instant;
use braid_wire::tcp::FastOpenCookie;

use crate::Urgency;

/// Bytes that SYNs carried, on a subflow or for a connection. Only a connection's first subflow has any.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SynData {
    /// Bytes of our stream that the peer took.
    pub sent: u64,
    /// Bytes of the peer's stream that we took.
    pub received: u64,
}

/// The payload that our SYN offered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    /// The number of bytes.
    pub len: u64,
    /// The urgency of the bytes, in case they have to be sent again.
    pub urgency: Urgency,
}

/// The role of the application's secret in the SYN of a join.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum JoinProof {
    /// The keys of MPTCP alone authenticate the join.
    #[default]
    Keys,
    /// A join opened here, whose SYN may leave before the secret is known.
    OpenedEarly,
    /// A join of the peer whose nonce proves the secret.
    Secret,
}

/// The handshake of a subflow.
#[derive(Debug, Default)]
pub(crate) struct Handshake {
    pub opened_at: Instant,
    /// The time at which data could first flow.
    pub established_at: Instant,
    /// The time at which the handshake segment is repeated; `tries` counts how often it was sent.
    pub at: Option<Instant>,
    pub tries: u32,
    /// The number of SYNs among them that left over a link that has not been down since.
    pub unanswered: u32,
    /// The time at which a second SYN is to leave on another path, beside this one.
    pub second_syn_at: Option<Instant>,
    /// Set if the SYN goes without MP_CAPABLE, because the network seems to drop SYNs that have it (RFC
    /// 8684 section 3.7).
    pub omits_capable: bool,
    /// Set if the path was left while the connection depended on this subflow.
    pub left: bool,
    /// The payload that our SYN offered, until it is answered.
    pub offer: Option<Offer>,
    /// The cookie to grant on the SYN/ACK.
    pub cookie: Option<FastOpenCookie>,
    /// The HMAC of a join's SYN/ACK, as long as it cannot be verified.
    pub unverified_hmac: Option<u64>,
    pub proof: JoinProof,
}

impl Handshake {
    /// Returns whether a handshake segment is to be sent now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| at <= now)
    }

    /// Stops all repeats.
    pub fn stop(&mut self) {
        self.at = None;
        self.second_syn_at = None;
    }
}
