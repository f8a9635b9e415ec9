//! Counters and estimates for people.

use core::net::IpAddr;
use core::time::Duration;

use arrayvec::ArrayVec;
use braid_engine::PathId;
use braid_wire::Instant;

use crate::config::{MAX_PATHS, Mode};

/// Counters of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Inner packets accepted by [`crate::Tunnel::send`].
    pub packets_sent: u64,
    /// Inner packets refused because the queue was full or its delay stood.
    pub packets_dropped: u64,
    /// Inner packets handed out by [`crate::Tunnel::poll_delivery`].
    pub packets_delivered: u64,
    /// Inner packets that were given up while later ones of their flow waited.
    pub packets_missing: u64,
    /// Inner packets delivered after later ones of their flow.
    pub packets_reordered: u64,
    /// Inner packets received more than once and dropped.
    pub packets_duplicate: u64,
    /// Packets sent once more because the peer asked for them, their path died, or as a copy.
    pub packets_resent: u64,
    /// Packets that the peer was asked to send once more.
    pub packets_rerequested: u64,
    /// Packets that were cut in two.
    pub packets_cut: u64,
    /// Packets that were dropped because no path takes them in two datagrams.
    pub packets_too_large: u64,
    /// Datagrams that were dropped because no key opened them.
    pub datagrams_forged: u64,
    /// Datagrams that were dropped because they were received before.
    pub datagrams_replayed: u64,
    /// Bytes of inner packets that wait to be sent.
    pub queued_bytes: usize,
}

/// Counters and estimates of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStats {
    /// The path.
    pub path: PathId,
    /// The path may carry inner packets.
    pub usable: bool,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Bytes of datagrams sent.
    pub bytes_sent: u64,
    /// Datagrams sent that the peer reports as lost, or that are still to come.
    pub datagrams_lost: u64,
    /// Datagrams received.
    pub datagrams_received: u64,
    /// Bytes of datagrams received.
    pub bytes_received: u64,
    /// The smoothed round-trip time.
    pub round_trip: Option<Duration>,
    /// The delay by the queue of the link.
    pub queue_delay: Duration,
    /// The estimate of the rate to the peer, in bytes per second.
    pub rate: Option<u64>,
    /// The size of the largest IP packet that is known to cross the path, in bytes.
    pub mtu: usize,
    /// The longest time by which a datagram lately came after one with a higher number.
    pub lateness: Duration,
}

/// The part of one path in a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowPathStats {
    /// The path.
    pub path: PathId,
    /// Bytes of inner packets sent on the path, with those of repeated packets.
    pub bytes_sent: u64,
    /// Bytes of inner packets received on the path, with those of repeated packets.
    pub bytes_received: u64,
}

/// The decisions of this end for the packets of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowTreatment {
    /// The urgency, 0 to 7; 0 is the most urgent.
    pub urgency: u8,
    /// The rule by which paths take packets of the flow.
    pub mode: Mode,
    /// True if lost packets are sent again and waited for.
    pub hides_losses: bool,
    /// Bytes of inner packets that wait to be sent.
    pub queued_bytes: usize,
}

/// The traffic of a flow: packets with the same addresses, protocol and ports, in both directions.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowStats {
    /// The number of the protocol above IP.
    pub protocol: u8,
    /// The address at this end.
    pub local: IpAddr,
    /// The address behind the peer.
    pub remote: IpAddr,
    /// The ports of `local` and `remote`; `None` if both are 0, as for protocols without ports and for fragments.
    pub ports: Option<(u16, u16)>,
    /// The time of the first packet.
    pub started_at: Instant,
    /// The time of the last packet.
    pub used_at: Instant,
    /// Bytes of inner packets sent, each once.
    pub bytes_sent: u64,
    /// Bytes of inner packets received, each once.
    pub bytes_received: u64,
    /// Packets to the peer that the flow's queue refused.
    pub packets_dropped: u64,
    /// The treatment of packets to the peer; `None` if there were none.
    pub treatment: Option<FlowTreatment>,
    /// The paths that have carried packets of the flow.
    pub paths: ArrayVec<FlowPathStats, MAX_PATHS>,
}
