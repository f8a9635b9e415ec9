//! The events that the engine reports to its user. They are the only source of logs, counters and oracles.

use core::net::SocketAddr;
use core::time::Duration;

use crate::{ConnId, ListenerId, PathId, SubflowId};

/// An event of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A listener has a new connection; its handshake is complete.
    Accepted {
        /// The connection.
        conn: ConnId,
        /// The listener.
        listener: ListenerId,
        /// The address that was connected to.
        local: SocketAddr,
        /// The peer's address as seen here.
        remote: SocketAddr,
    },
    /// A connection opened here is established.
    Connected {
        /// The connection.
        conn: ConnId,
    },
    /// In-order data or the end of the peer's stream waits, and did not before the last read.
    Readable {
        /// The connection.
        conn: ConnId,
    },
    /// There is room to write again after a write fell short.
    Writable {
        /// The connection.
        conn: ConnId,
    },
    /// All of a flow that [was ended](crate::Stack::end_flow) has arrived at the peer.
    FlowDelivered {
        /// The connection.
        conn: ConnId,
    },
    /// The connection is over and its id is invalid from here on.
    Closed {
        /// The connection.
        conn: ConnId,
        /// The reason.
        reason: CloseReason,
    },
    /// MPTCP is not in use on this connection (RFC 8684 section 3.7).
    FellBack {
        /// The connection.
        conn: ConnId,
        /// The cause.
        cause: FallbackCause,
    },
    /// A subflow is usable.
    SubflowEstablished {
        /// The connection.
        conn: ConnId,
        /// The subflow.
        subflow: SubflowId,
        /// Its local path.
        path: PathId,
        /// The round-trip time of the handshake; zero if a repeated SYN left it unknown.
        rtt: Duration,
    },
    /// A subflow that had been established is gone.
    SubflowClosed {
        /// The connection.
        conn: ConnId,
        /// The subflow.
        subflow: SubflowId,
        /// Its local path.
        path: PathId,
        /// The reason.
        reason: SubflowCloseReason,
    },
    /// A join was refused, because its remote end did not prove to be the peer (RFC 8684 section 3.2, and
    /// [`JoinAuth`](crate::JoinAuth)): a mistake, or an attacker who wants a part of the data.
    JoinForged {
        /// The connection.
        conn: ConnId,
        /// The remote end.
        remote: SocketAddr,
    },
}

impl Event {
    /// Returns the connection that the event belongs to.
    pub fn conn(&self) -> ConnId {
        match *self {
            Event::Accepted { conn, .. }
            | Event::Connected { conn }
            | Event::Readable { conn }
            | Event::Writable { conn }
            | Event::FlowDelivered { conn }
            | Event::Closed { conn, .. }
            | Event::FellBack { conn, .. }
            | Event::SubflowEstablished { conn, .. }
            | Event::SubflowClosed { conn, .. }
            | Event::JoinForged { conn, .. } => conn,
        }
    }
}

/// The reason for the end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// Both directions were closed in order.
    Finished,
    /// The application aborted it here.
    Aborted,
    /// The peer reset it (RST with no other subflow, or MP_FASTCLOSE).
    Reset,
    /// The peer refused the connection attempt.
    Refused,
    /// The network reported that the peer cannot be reached.
    Unreachable,
    /// Nothing was heard for too long.
    TimedOut,
    /// A bound of this stack was hit.
    NoResources,
    /// The peer broke the protocol.
    PeerMisbehaved,
}

/// The reason for the end of a subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubflowCloseReason {
    /// FIN both ways, or the connection ended.
    Finished,
    /// The peer sent a RST.
    Reset,
    /// The handshake was not answered, or the subflow stayed silent.
    TimedOut,
    /// Its path was taken away.
    PathRemoved,
    /// Authentication or protocol failure.
    PeerMisbehaved,
    /// A DSS checksum was wrong, here or at the peer: something on the path changes the payload.
    BadChecksum,
    /// Memory for its data ran out here.
    LackOfResources,
}

/// The cause for which MPTCP is not in use; there is a counter for each (RFC 8684 section 3.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallbackCause {
    /// Opened as regular TCP by choice.
    NotRequested,
    /// No MP_CAPABLE, or an unusable one, in the SYN.
    PeerSynPlain,
    /// No MP_CAPABLE, or an unusable one, in the SYN/ACK.
    PeerSynAckPlain,
    /// Only a SYN without MP_CAPABLE was answered: the network drops SYNs with it, or did so lately.
    SynsDropped,
    /// No MP_CAPABLE in the third ACK or first data.
    ThirdAckPlain,
    /// Data, or an acknowledgement of data, without DSS at the start of the connection.
    DataPlain,
    /// The peer fell back, and sent the infinite mapping.
    PeerFellBack,
    /// A DSS checksum was wrong on the only subflow: something on the path changes the payload.
    BadChecksum,
    /// The peer found a wrong checksum (MP_FAIL).
    PeerBadChecksum,
}

impl FallbackCause {
    /// The number of causes.
    pub const COUNT: usize = FallbackCause::PeerBadChecksum as usize + 1;
}
