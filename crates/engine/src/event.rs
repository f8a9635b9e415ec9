//! The events that the engine reports to its application. The engine itself writes no logs; an application can
//! write them from these events.

use core::net::SocketAddr;
use core::time::Duration;

use crate::{ConnId, ListenerId, PathId, SubflowId};

/// An event of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A listener has a new connection. Its handshake is complete, unless its SYN carried payload
    /// ([`Config::fast_open`](crate::Config::fast_open)).
    Accepted {
        /// The connection.
        conn: ConnId,
        /// The listener.
        listener: ListenerId,
        /// The address to which the peer connected.
        local: SocketAddr,
        /// The peer's address, as seen here.
        remote: SocketAddr,
    },
    /// A connection opened here is established.
    Connected {
        /// The connection.
        conn: ConnId,
    },
    /// In-order data, or the end of the peer's stream, is there to be read. Reported once between two reads.
    Readable {
        /// The connection.
        conn: ConnId,
    },
    /// There is room to write again after a write that found no room.
    Writable {
        /// The connection.
        conn: ConnId,
    },
    /// All data of a flow that [was ended](crate::Stack::end_flow) has arrived at the peer.
    FlowDelivered {
        /// The connection.
        conn: ConnId,
    },
    /// The connection has ended. Its id is no longer valid, except for
    /// [`conn_stats`](crate::Stack::conn_stats) until the next event is polled.
    Closed {
        /// The connection.
        conn: ConnId,
        /// The reason.
        reason: CloseReason,
    },
    /// The connection has fallen back to regular TCP (RFC 8684 section 3.7).
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
        /// The local path of the subflow.
        path: PathId,
        /// The round-trip time of the handshake; zero if it is unknown because the SYN was repeated.
        rtt: Duration,
    },
    /// A subflow that was established before has ended.
    SubflowClosed {
        /// The connection.
        conn: ConnId,
        /// The subflow.
        subflow: SubflowId,
        /// The local path of the subflow.
        path: PathId,
        /// The reason.
        reason: SubflowCloseReason,
    },
    /// A join was refused, because its HMAC did not prove that the remote end is the peer (RFC 8684 section
    /// 3.2, and [`JoinAuth`](crate::JoinAuth)). Either a middlebox changes options, or an attacker tries to get
    /// a part of the data.
    JoinForged {
        /// The connection.
        conn: ConnId,
        /// The address of the remote end.
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
    /// Both directions were closed, and all data was delivered.
    Finished,
    /// The application of this end aborted the connection.
    Aborted,
    /// The peer reset the connection, by MP_FASTCLOSE or by a RST on a subflow that nothing could replace.
    Reset,
    /// The peer refused the connection attempt.
    Refused,
    /// The network reported that the peer cannot be reached, or the only path was removed.
    Unreachable,
    /// The peer was silent, or did not acknowledge data, for too long.
    TimedOut,
    /// The connection was ended because others needed its place or memory.
    NoResources,
    /// The peer broke the protocol.
    PeerMisbehaved,
}

/// The reason for the end of a subflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubflowCloseReason {
    /// FINs were exchanged, or the connection ended.
    Finished,
    /// The peer sent a RST.
    Reset,
    /// The handshake was not answered, or the peer was silent on the subflow for too long.
    TimedOut,
    /// The path, or one of the subflow's addresses, is no longer in use.
    PathRemoved,
    /// The peer failed to authenticate, or broke the protocol; or a middlebox changed the options.
    PeerMisbehaved,
    /// A DSS checksum was wrong, here or at the peer, so a middlebox on the path changes the payload.
    BadChecksum,
    /// This end had no memory for the data of the subflow, or no place for the subflow.
    LackOfResources,
}

/// The cause for which MPTCP is not in use on a connection (RFC 8684 section 3.7). Each cause has a counter
/// ([`StackStats::fallbacks`](crate::stats::StackStats::fallbacks)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallbackCause {
    /// The connection was opened as regular TCP by choice.
    NotRequested,
    /// The peer's SYN had no MP_CAPABLE, or an unusable one.
    PeerSynPlain,
    /// The peer's SYN/ACK had no MP_CAPABLE, or an unusable one.
    PeerSynAckPlain,
    /// Only a SYN without MP_CAPABLE was answered, so the network drops SYNs with MP_CAPABLE. Or the network did
    /// so lately, so the SYN omitted MP_CAPABLE.
    SynsDropped,
    /// The opener's third ACK, or its first data, had no MP_CAPABLE with our key.
    ThirdAckPlain,
    /// The peer sent data, or acknowledged data, without DSS at the start of the connection.
    DataPlain,
    /// The peer fell back first, and sent the infinite mapping.
    PeerFellBack,
    /// A DSS checksum was wrong on the only subflow, so a middlebox on the path changes the payload.
    BadChecksum,
    /// The peer found a wrong DSS checksum on the only subflow (MP_FAIL).
    PeerBadChecksum,
}

impl FallbackCause {
    /// The number of causes.
    pub const COUNT: usize = FallbackCause::PeerBadChecksum as usize + 1;
}
