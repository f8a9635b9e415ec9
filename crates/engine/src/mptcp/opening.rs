//! The state of a subflow's handshake: the segments sent, the time of their repeats, and the payload and proof
//! that they carry.

use braid_wire::Instant;
use braid_wire::tcp::FastOpenCookie;

use crate::Urgency;

/// The numbers of payload bytes that SYNs carried (TCP Fast Open), for a subflow or its connection. Only the
/// initial subflow's SYN can carry payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SynData {
    /// The bytes of our stream that the peer accepted.
    pub sent: u64,
    /// The bytes of the peer's stream that this side accepted.
    pub received: u64,
}

/// The payload of our SYN, which the peer may accept or not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    /// The number of bytes.
    pub len: u64,
    /// The urgency of the bytes, with which they are queued again if the peer does not accept them.
    pub urgency: Urgency,
}

/// The proof in the SYN of a join that its sender has the application's secret.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum JoinProof {
    /// The SYN proves no secret.
    #[default]
    Keys,
    /// This side opened the join before it knew the secret.
    OpenedEarly,
    /// The peer opened the join, and its nonce proves the secret.
    Secret,
}

/// The handshake of a subflow.
#[derive(Debug, Default)]
pub(crate) struct Handshake {
    pub opened_at: Instant,
    /// The time at which data could first flow.
    pub established_at: Instant,
    /// The time at which the handshake segment is sent or repeated; `tries` counts how often it was sent.
    pub at: Option<Instant>,
    pub tries: u32,
    /// The number of SYNs that were not answered since the link was last down. Only these show that the
    /// network may drop SYNs with MP_CAPABLE.
    pub unanswered: u32,
    /// The time at which a second SYN is to be sent on another path unless this subflow's SYN was answered.
    pub second_syn_at: Option<Instant>,
    /// Set if the SYN goes without MP_CAPABLE, because the network seems to drop SYNs that have it (RFC
    /// 8684 section 3.7).
    pub omits_capable: bool,
    /// Set if the path was taken out of use while the connection still needed this subflow.
    pub left: bool,
    /// The payload of our SYN, until the SYN is answered.
    pub offer: Option<Offer>,
    /// The cookie to grant on the SYN/ACK.
    pub cookie: Option<FastOpenCookie>,
    /// The HMAC of a join's SYN/ACK, until it is verified: that may have to wait for the secret.
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
