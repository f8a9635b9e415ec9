//! The other side of a relay: byte streams of the local network.

use core::net::SocketAddr;
use std::io::{IoSlice, IoSliceMut};

/// A local stream or a pending name look-up. Never reused while events for it may be pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalId(pub u64);

/// Why a read or write did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalError {
    /// Nothing to read or no room; an event follows when that changes.
    WouldBlock,
    /// The stream is broken (reset, timed out); only `close` is left to do.
    Broken,
}

/// Why a connection attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectFailure {
    /// RST.
    Refused,
    /// Host unreachable.
    HostUnreachable,
    /// Network unreachable.
    NetworkUnreachable,
    /// No answer.
    TimedOut,
    /// The name does not exist or its servers do not answer.
    NameNotResolved,
    /// A limit of this machine (descriptors, ports, memory).
    NoResources,
}

/// Something happened on the local side. Readiness is edge-like: after `Readable` read until
/// `WouldBlock`, after `Writable` write until `WouldBlock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalEvent {
    /// An intercepted connection of the local network; it is established on its side.
    Accepted {
        /// The stream.
        id: LocalId,
        /// The user's address.
        peer: SocketAddr,
        /// Where the user wanted to go.
        destination: SocketAddr,
    },
    /// A connection opened by [`LocalStreams::connect`] is established.
    Connected {
        /// The stream.
        id: LocalId,
    },
    /// A connection attempt failed; the id is invalid from here on.
    ConnectFailed {
        /// The stream.
        id: LocalId,
        /// Why.
        failure: ConnectFailure,
    },
    /// Data or end of stream may be read.
    Readable {
        /// The stream.
        id: LocalId,
    },
    /// There may be room to write.
    Writable {
        /// The stream.
        id: LocalId,
    },
    /// The stream broke while neither side was reading (reset by peer, keepalive timeout).
    Broken {
        /// The stream.
        id: LocalId,
    },
    /// A look-up ended; the id is invalid from here on.
    Resolved {
        /// The look-up.
        id: LocalId,
        /// Addresses in order of preference; empty where the name does not resolve.
        addresses: Vec<SocketAddr>,
    },
}

/// Byte streams of the local side. Nothing blocks.
pub trait LocalStreams {
    /// Starts a connection; `Connected` or `ConnectFailed` follows (within the driver's bound).
    fn connect(&mut self, destination: SocketAddr) -> Result<LocalId, ConnectFailure>;
    /// Starts a name look-up; `Resolved` follows. `None` where too many are pending.
    fn resolve(&mut self, name: &str, port: u16) -> Option<LocalId>;
    /// Reads into `bufs`; 0 is the end of the stream.
    fn read(&mut self, id: LocalId, bufs: &mut [IoSliceMut<'_>]) -> Result<usize, LocalError>;
    /// Writes from `bufs`.
    fn write(&mut self, id: LocalId, bufs: &[IoSlice<'_>]) -> Result<usize, LocalError>;
    /// Ends the sending direction after what was written.
    fn shutdown(&mut self, id: LocalId);
    /// Closes the stream in order and forgets the id.
    fn close(&mut self, id: LocalId);
    /// Resets the stream (RST) and forgets the id.
    fn reset(&mut self, id: LocalId);
}
