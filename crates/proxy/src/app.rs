//! The traits between an application on a [`Stack`] and the driver that has the clock, the packets and the sockets.
//!
//! What an application does, and how a driver does its part, is never here.

use core::net::SocketAddr;
use std::io::{IoSlice, IoSliceMut};

use braid_wire::Instant;

use braid_engine::{Event, Stack};

/// What a call into a [`Core`] works with.
pub struct Ctx<'a> {
    /// The time.
    pub now: Instant,
    /// The engine.
    pub stack: &'a mut Stack,
    /// The local side.
    pub local: &'a mut dyn LocalStreams,
}

/// An application as its driver sees it: a proxy between the engine and local streams, or a
/// program that uses the engine alone and leaves out the local side. After any call the driver
/// drains the stack (`poll_event` into [`Core::on_engine_event`], then `poll_transmit`).
pub trait Core {
    /// An event of the engine.
    fn on_engine_event(&mut self, ctx: &mut Ctx<'_>, event: Event);
    /// An event of the local side.
    fn on_local_event(&mut self, ctx: &mut Ctx<'_>, event: LocalEvent) {
        let _ = (ctx, event);
    }
    /// When [`Core::handle_timeout`] is due, if ever.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }
    /// Serves expired timers.
    fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        let _ = ctx;
    }
}

/// Serves what is due of the timers of the engine and of `core`.
pub fn serve_timers<C: Core + ?Sized>(core: &mut C, ctx: &mut Ctx<'_>) {
    let due = |at: Option<Instant>| at.is_some_and(|at| at <= ctx.now);
    if due(ctx.stack.next_timeout()) {
        ctx.stack.handle_timeout(ctx.now);
    }
    if due(core.next_timeout()) {
        core.handle_timeout(ctx);
    }
}

/// Byte streams of the local side. Nothing blocks.
pub trait LocalStreams {
    /// Starts a connection; `Connected` or `ConnectFailed` follows (within the driver's bound).
    fn connect(&mut self, destination: SocketAddr) -> Result<LocalId, ConnectFailure>;
    /// Starts a name look-up; `Resolved` follows. `None` where too many are pending.
    fn resolve(&mut self, name: &str, port: u16) -> Option<LocalId>;
    /// Reads into `bufs`; 0 is the end of the stream.
    fn read(&mut self, id: LocalId, bufs: &mut [IoSliceMut<'_>]) -> Result<usize, LocalError>;
    /// Copies what a read would give, as far as it is there and goes into `buf`, and takes none of
    /// it; 0 is the end of the stream.
    fn peek(&mut self, id: LocalId, buf: &mut [u8]) -> Result<usize, LocalError>;
    /// Writes from `bufs`.
    fn write(&mut self, id: LocalId, bufs: &[IoSlice<'_>]) -> Result<usize, LocalError>;
    /// Ends the sending direction after what was written.
    fn shutdown(&mut self, id: LocalId);
    /// Closes the stream in order and forgets the id.
    fn close(&mut self, id: LocalId);
    /// Resets the stream (RST) and forgets the id.
    fn reset(&mut self, id: LocalId);
}

/// A local stream or a pending name look-up. Never reused while events for it may be pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocalId(pub u64);

/// How a connection of the local network came here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It was on its way to its destination, and intercepted.
    Intercepted,
    /// Its user asked for this very listener.
    Addressed,
}

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
    /// This host has no way to any destination of that address family: the attempt failed before a packet left.
    FamilyUnreachable,
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
    /// A connection of the local network; it is established on its side.
    Accepted {
        /// The stream.
        id: LocalId,
        /// The user's address.
        peer: SocketAddr,
        /// Where the user connected to.
        destination: SocketAddr,
        /// Whether that is this host.
        arrival: Arrival,
        /// The differentiated services code point of the user's SYN (RFC 2474), 0 to 63; 0 where
        /// it is not known.
        dscp: u8,
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

impl LocalEvent {
    /// The stream or look-up that it happened to.
    pub fn id(&self) -> LocalId {
        match *self {
            LocalEvent::Accepted { id, .. }
            | LocalEvent::Connected { id }
            | LocalEvent::ConnectFailed { id, .. }
            | LocalEvent::Readable { id }
            | LocalEvent::Writable { id }
            | LocalEvent::Broken { id }
            | LocalEvent::Resolved { id, .. } => id,
        }
    }

    /// Whether the id is invalid from here on.
    pub fn ends_id(&self) -> bool {
        matches!(
            self,
            LocalEvent::ConnectFailed { .. } | LocalEvent::Resolved { .. }
        )
    }
}
