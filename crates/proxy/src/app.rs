//! The traits between an application on a [`Stack`] and the driver, which owns clock, packets and sockets.
//!
//! The module knows neither an application's work nor a driver's.

use core::net::SocketAddr;
use std::io::{IoSlice, IoSliceMut};

use braid_wire::Instant;

use braid_engine::{Event, Stack};

/// The environment of a call into a [`Core`].
pub struct Ctx<'a> {
    /// The current time.
    pub now: Instant,
    /// The engine.
    pub stack: &'a mut Stack,
    /// The downstream sockets.
    pub downstream: &'a mut dyn DownstreamSockets,
}

/// An application as its driver sees it: a proxy between the engine and downstream sockets, or a program that uses
/// the engine alone and ignores local events. After any call the driver drains the stack (`poll_event` into
/// [`Core::on_engine_event`], then `poll_transmit`).
pub trait Core {
    /// Handles an event of the engine.
    fn on_engine_event(&mut self, ctx: &mut Ctx<'_>, event: Event);
    /// Handles an event of the downstream sockets.
    fn on_downstream_event(&mut self, ctx: &mut Ctx<'_>, event: DownstreamEvent) {
        let _ = (ctx, event);
    }
    /// Returns the time at which [`Core::handle_timeout`] is due, if ever.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }
    /// Handles expired timers.
    fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        let _ = ctx;
    }
}

/// Handles expired timers of the engine and of `core`.
pub fn serve_timers<C: Core + ?Sized>(core: &mut C, ctx: &mut Ctx<'_>) {
    let due = |at: Option<Instant>| at.is_some_and(|at| at <= ctx.now);
    if due(ctx.stack.next_timeout()) {
        ctx.stack.handle_timeout(ctx.now);
    }
    if due(core.next_timeout()) {
        core.handle_timeout(ctx);
    }
}

/// Downstream sockets: non-blocking byte streams.
pub trait DownstreamSockets {
    /// Starts a connection; `Connected` or `ConnectFailed` follows within the driver's time limit.
    fn connect(&mut self, destination: SocketAddr) -> Result<DownstreamId, ConnectFailure>;
    /// Starts a name look-up; `Resolved` follows. Returns `None` where too many are pending.
    fn resolve(&mut self, name: &str, port: u16) -> Option<DownstreamId>;
    /// Reads into `bufs`; returns 0 at the end of the stream.
    fn read(
        &mut self,
        id: DownstreamId,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<usize, DownstreamError>;
    /// Copies readable bytes into `buf` without consuming them; returns 0 at the end of the stream.
    fn peek(&mut self, id: DownstreamId, buf: &mut [u8]) -> Result<usize, DownstreamError>;
    /// Writes from `bufs`.
    fn write(&mut self, id: DownstreamId, bufs: &[IoSlice<'_>]) -> Result<usize, DownstreamError>;
    /// Ends the sending direction after the bytes written.
    fn shutdown(&mut self, id: DownstreamId);
    /// Closes the stream in order and releases the identifier.
    fn close(&mut self, id: DownstreamId);
    /// Resets the stream (RST) and releases the identifier.
    fn reset(&mut self, id: DownstreamId);
}

/// The identifier of a downstream stream or a pending name look-up. Not reused while events for it may be pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DownstreamId(pub u64);

/// The way in which a connection from the local network arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The connection was on its way to its destination, and was intercepted.
    Intercepted,
    /// The user addressed this listener.
    Addressed,
}

/// The reason why a read or write did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DownstreamError {
    /// No data or no room; an event follows when that changes.
    WouldBlock,
    /// The stream failed (reset, timed out); only `close` remains.
    Broken,
}

/// The reason why a connection attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectFailure {
    /// RST.
    Refused,
    /// Host unreachable.
    HostUnreachable,
    /// Network unreachable.
    NetworkUnreachable,
    /// This host has no route to any destination of the address family: the attempt failed before a packet left.
    FamilyUnreachable,
    /// No answer.
    TimedOut,
    /// The name does not exist, or its servers do not answer.
    NameNotResolved,
    /// A limit of this machine was reached (descriptors, ports, memory).
    NoResources,
}

/// An event of a downstream stream. Readiness is edge-triggered: after `Readable` read until `WouldBlock`, after
/// `Writable` write until `WouldBlock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownstreamEvent {
    /// A connection from the local network, whose downstream handshake is complete.
    Accepted {
        /// The stream.
        id: DownstreamId,
        /// The user's address.
        peer: SocketAddr,
        /// The address that the user connected to.
        destination: SocketAddr,
        /// The way in which it arrived.
        arrival: Arrival,
        /// The differentiated services code point of the user's SYN (RFC 2474), 0 to 63; 0 where it is unknown.
        dscp: u8,
    },
    /// A connection opened by [`DownstreamSockets::connect`] is established.
    Connected {
        /// The stream.
        id: DownstreamId,
    },
    /// A connection attempt failed; the identifier is invalid from here on.
    ConnectFailed {
        /// The stream.
        id: DownstreamId,
        /// The reason.
        failure: ConnectFailure,
    },
    /// Data or the end of the stream can be read.
    Readable {
        /// The stream.
        id: DownstreamId,
    },
    /// There may be room to write.
    Writable {
        /// The stream.
        id: DownstreamId,
    },
    /// The stream failed while neither side was reading (reset by the peer, keepalive timeout).
    Broken {
        /// The stream.
        id: DownstreamId,
    },
    /// A look-up ended; the identifier is invalid from here on.
    Resolved {
        /// The look-up.
        id: DownstreamId,
        /// Addresses in order of preference; empty where the name does not resolve.
        addresses: Vec<SocketAddr>,
    },
}

impl DownstreamEvent {
    /// Returns the stream or look-up of the event.
    pub fn id(&self) -> DownstreamId {
        match *self {
            DownstreamEvent::Accepted { id, .. }
            | DownstreamEvent::Connected { id }
            | DownstreamEvent::ConnectFailed { id, .. }
            | DownstreamEvent::Readable { id }
            | DownstreamEvent::Writable { id }
            | DownstreamEvent::Broken { id }
            | DownstreamEvent::Resolved { id, .. } => id,
        }
    }

    /// Returns whether the identifier is invalid from here on.
    pub fn ends_id(&self) -> bool {
        matches!(
            self,
            DownstreamEvent::ConnectFailed { .. } | DownstreamEvent::Resolved { .. }
        )
    }
}
