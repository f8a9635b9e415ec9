//! Counters and snapshots.

use core::net::SocketAddr;
use core::time::Duration;

use crate::mptcp::subflow::Subflow;
use crate::{PathId, SubflowId};

/// Counters of a stack since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StackStats {
    /// Packets taken in, super-segments counted once.
    pub packets_in: u64,
    /// Packets handed out, super-segments counted once.
    pub packets_out: u64,
    /// Packets that are not well-formed IP or TCP, or of an unknown protocol.
    pub malformed: u64,
    /// Packets with a wrong checksum.
    pub bad_checksum: u64,
    /// Segments for no connection here; those for an address of ours are answered by RST, within
    /// a bound.
    pub strays: u64,
    /// SYNs dropped because a bound of [`crate::Config`] was reached.
    pub syns_dropped: u64,
    /// MP_JOINs refused: unknown token, or the bound on subflows.
    pub joins_refused: u64,
}

/// A subflow at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubflowStats {
    /// Its id.
    pub id: SubflowId,
    /// Its local path.
    pub path: PathId,
    /// Local address and port.
    pub local: SocketAddr,
    /// Remote address and port as seen here.
    pub remote: SocketAddr,
    /// Its handshake is through.
    pub established: bool,
    /// Used only where no other works.
    pub backup: bool,
    /// Potentially failed.
    pub stale: bool,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Lowest round-trip time.
    pub min_rtt: Duration,
    /// Congestion window, bytes.
    pub cwnd: u64,
    /// Bytes in flight.
    pub in_flight: u64,
    /// Payload bytes sent, retransmissions excluded.
    pub bytes_sent: u64,
    /// Payload bytes sent again on this subflow.
    pub bytes_retransmitted: u64,
    /// Payload bytes received in order on this subflow.
    pub bytes_received: u64,
    /// Retransmission timeouts.
    pub rtos: u64,
    /// Of these, those that turned out needless.
    pub spurious_rtos: u64,
}

impl SubflowStats {
    pub(crate) fn of(s: &Subflow) -> Self {
        SubflowStats {
            id: s.id,
            path: s.path,
            local: s.tuple.local,
            remote: s.tuple.remote,
            established: s.is_established(),
            backup: s.backup || s.peer_backup,
            stale: s.stale,
            srtt: s.snd.rtt.srtt(),
            min_rtt: s.snd.rtt.min(),
            cwnd: s.snd.cwnd(),
            in_flight: s.snd.in_flight(),
            bytes_sent: s.snd.stats.bytes_sent,
            bytes_retransmitted: s.snd.stats.bytes_retransmitted,
            bytes_received: s.rcv.nxt - 1,
            rtos: s.snd.stats.rtos,
            spurious_rtos: s.snd.stats.spurious_rtos,
        }
    }
}
