//! The traits between an application that uses a [`Stack`] and its driver. The driver owns the clock, and sends
//! and receives packets and the data of sockets.
//!
//! The traits are independent of any particular application or driver.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::io::{IoSlice, IoSliceMut};

use braid_wire::Instant;

use braid_engine::{Event, Stack};
pub use braid_tunnel::{PathId, Transmit as TunnelTransmit};

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
/// only the engine and has no downstream events. After any call the driver must drain the stack: pass each event
/// of `poll_event` to [`Core::on_engine_event`], and then send the packets of `poll_transmit`.
///
/// A core with a tunnel also exchanges datagrams with its peers, and IP packets with the packet device of the tunnel.
/// After any call the driver drains [`Core::poll_tunnel_change`], [`Core::poll_datagram`] and [`Core::poll_packet`]
/// too. A core without a tunnel needs none of these methods.
pub trait Core {
    /// Handles an event of the engine.
    fn on_engine_event(&mut self, ctx: &mut Ctx<'_>, event: Event);
    /// Handles an event of the downstream sockets.
    fn on_downstream_event(&mut self, ctx: &mut Ctx<'_>, event: DownstreamEvent) {
        let _ = (ctx, event);
    }
    /// Returns the time at which [`Core::handle_timeout`] is due; `None` if no timer is running.
    fn next_timeout(&self) -> Option<Instant> {
        None
    }
    /// Handles expired timers.
    fn handle_timeout(&mut self, ctx: &mut Ctx<'_>) {
        let _ = ctx;
    }
    /// Handles a datagram that came for the tunnel from `remote`, and opens it in place. `path` is the socket on which
    /// it came: at a box the number of the access link, at a server the number of the listening address.
    fn on_datagram(&mut self, now: Instant, path: PathId, remote: SocketAddr, datagram: &mut [u8]) {
        let _ = (now, path, remote, datagram);
    }
    /// Handles an IP packet that the packet device of the tunnel took in.
    fn on_packet(&mut self, now: Instant, packet: &[u8]) {
        let _ = (now, packet);
    }
    /// Appends the next datagram of the tunnel to `buf`, and returns on which socket and where it goes; `None` if there
    /// is none now.
    fn poll_datagram(&mut self, now: Instant, buf: &mut Vec<u8>) -> Option<TunnelTransmit> {
        let _ = (now, buf);
        None
    }
    /// Returns the next IP packet for the packet device of the tunnel; `None` if there is none now.
    fn poll_packet(&mut self) -> Option<&[u8]> {
        None
    }
    /// Returns the next change of the packet device of the tunnel, at a box. The device of a server has the addresses
    /// of the server's configuration from the start.
    fn poll_tunnel_change(&mut self) -> Option<TunnelChange> {
        None
    }
}

/// MTU in bytes of a server's packet device of the tunnel, and the largest packet that its sessions carry. Both are the
/// MTU of Ethernet, whatever the links of boxes take, because datagrams of the tunnel carry parts of packets.
pub const TUNNEL_MTU: u16 = 1500;

/// A change of the tunnel of a box, for the packet device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelChange {
    /// The tunnel carries packets. If it did before, addresses or MTU have changed.
    Up {
        /// The IPv4 address of the box in the tunnel.
        v4: Option<Ipv4Addr>,
        /// The IPv6 address of the box in the tunnel.
        v6: Option<Ipv6Addr>,
        /// The largest packet that the tunnel carries, in bytes.
        mtu: u16,
    },
    /// The tunnel carries nothing: packets are forwarded without it.
    Down {
        /// The reason.
        reason: TunnelDown,
    },
}

/// The reason why the tunnel of a box carries nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunnelDown {
    /// No server answers.
    NoServer,
    /// The server offers no tunnel.
    NotOffered,
    /// The server refuses this user a tunnel for now.
    Refused,
    /// No datagram comes back on any link.
    Unanswered,
    /// No link is up.
    NoLink,
    /// The session got no fresh keys for too long.
    KeysExpired,
    /// The server assigns an address that this machine uses otherwise.
    AddressInUse,
}

impl fmt::Display for TunnelDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TunnelDown::NoServer => "no server answers",
            TunnelDown::NotOffered => "the server offers no tunnel",
            TunnelDown::Refused => "the server refuses the tunnel",
            TunnelDown::Unanswered => "no datagram (UDP) comes back on any link",
            TunnelDown::NoLink => "no link is up",
            TunnelDown::KeysExpired => "the session got no fresh keys in time",
            TunnelDown::AddressInUse => {
                "the server assigns an address in the range of [tun] of this box"
            }
        })
    }
}

/// Handles the expired timers of the engine and of `core`, if there are any.
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
    /// Starts a connection. [`DownstreamEvent::Connected`] or [`DownstreamEvent::ConnectFailed`] follows within
    /// the driver's time limit.
    fn connect(&mut self, destination: SocketAddr) -> Result<DownstreamId, ConnectFailure>;
    /// Starts a name look-up. [`DownstreamEvent::Resolved`] follows. Returns `None` if too many look-ups are
    /// pending.
    fn resolve(&mut self, name: &str, port: u16) -> Option<DownstreamId>;
    /// Reads into `bufs` and returns the number of bytes; 0 at the end of the stream.
    fn read(
        &mut self,
        id: DownstreamId,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Result<usize, DownstreamError>;
    /// Copies readable bytes into `buf` without consuming them, and returns their number; 0 at the end of the
    /// stream.
    fn peek(&mut self, id: DownstreamId, buf: &mut [u8]) -> Result<usize, DownstreamError>;
    /// Writes bytes of `bufs`, and returns the number of bytes written.
    fn write(&mut self, id: DownstreamId, bufs: &[IoSlice<'_>]) -> Result<usize, DownstreamError>;
    /// Ends the sending direction (FIN) after the bytes written so far.
    fn shutdown(&mut self, id: DownstreamId);
    /// Closes the stream gracefully and releases the identifier.
    fn close(&mut self, id: DownstreamId);
    /// Resets the stream (RST) and releases the identifier.
    fn reset(&mut self, id: DownstreamId);
}

/// The identifier of a downstream stream or a pending name look-up. It is not reused while events for it may be
/// pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DownstreamId(pub u64);

/// The way in which a connection from the local network arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The connection was on its way to its destination, and was intercepted.
    Intercepted,
    /// The connection was addressed to this machine's own listener.
    Addressed,
}

/// The reason why a read or write did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DownstreamError {
    /// No data can be read, or there is no room to write. An event follows when that changes.
    WouldBlock,
    /// The stream failed (reset or timed out). Only [`close`](DownstreamSockets::close) and
    /// [`reset`](DownstreamSockets::reset) are useful now.
    Broken,
}

/// The reason why a connection attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectFailure {
    /// The destination refused the connection (RST).
    Refused,
    /// The network reports that the host is unreachable (ICMP).
    HostUnreachable,
    /// The network of the destination is unreachable (a report by ICMP, or no route), or a firewall of this
    /// machine forbids the connection.
    NetworkUnreachable,
    /// This machine has no route to any destination of the address family, so no packet was sent.
    FamilyUnreachable,
    /// The destination did not answer in time.
    TimedOut,
    /// The name does not exist, or its name servers do not answer.
    NameNotResolved,
    /// A limit of this machine was reached (descriptors, ports, memory).
    NoResources,
}

/// An event of a downstream stream or a name look-up. Readiness is edge-triggered: after `Readable` read until
/// [`DownstreamError::WouldBlock`], and after `Writable` write until that error. No further event comes earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownstreamEvent {
    /// A connection from the local network was accepted; its TCP handshake is complete.
    Accepted {
        /// The stream.
        id: DownstreamId,
        /// The user's address.
        peer: SocketAddr,
        /// The address that the user connected to.
        destination: SocketAddr,
        /// The way in which the connection arrived.
        arrival: Arrival,
        /// The differentiated services code point (RFC 2474) of the user's SYN, 0 to 63; 0 if it is unknown.
        dscp: u8,
    },
    /// A connection opened by [`DownstreamSockets::connect`] is established.
    Connected {
        /// The stream.
        id: DownstreamId,
    },
    /// A connection attempt failed. The identifier is invalid from now on.
    ConnectFailed {
        /// The stream.
        id: DownstreamId,
        /// The reason.
        failure: ConnectFailure,
    },
    /// Data, or the end of the stream, can be read.
    Readable {
        /// The stream.
        id: DownstreamId,
    },
    /// There may be room to write.
    Writable {
        /// The stream.
        id: DownstreamId,
    },
    /// The stream failed (reset by the peer, keepalive timeout) while nothing was read or written.
    Broken {
        /// The stream.
        id: DownstreamId,
    },
    /// A look-up ended. The identifier is invalid from now on.
    Resolved {
        /// The look-up.
        id: DownstreamId,
        /// The addresses in order of preference; empty if the name does not resolve.
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

    /// Returns whether the identifier is invalid after this event.
    pub fn ends_id(&self) -> bool {
        matches!(
            self,
            DownstreamEvent::ConnectFailed { .. } | DownstreamEvent::Resolved { .. }
        )
    }
}
