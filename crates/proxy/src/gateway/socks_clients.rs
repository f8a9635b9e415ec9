//! SOCKS clients: programs on LAN hosts that connect to the box itself and request a destination by SOCKS5.
//!
//! The user name of a SOCKS client is parsed as [hints](FlowHints::from_text), and the password is ignored. After
//! its request the client is treated as any user, except that it receives a reply.

use core::net::{IpAddr, SocketAddr};
use std::io::{IoSlice, IoSliceMut};

use braid_units::value::ValueError;
use braid_wire::Instant;

use super::classifier::Flow;
use crate::app::{Ctx, DownstreamError, DownstreamEvent, DownstreamId};
use crate::protocol::hints::FlowHints;
use crate::protocol::socks::{Destination, Reply, ServerHandshake, ServerStep};
use crate::relay::table::{Due, SessionId, Table};

/// The maximum number of bytes of a handshake that are read at once. The longest message, a user name and a
/// password of 255 bytes each with 3 bytes of framing (RFC 1929), just does not fit and is read in two parts.
const MAX_PEEKED_BYTES: usize = 512;

/// A SOCKS client whose request is incomplete.
#[derive(Debug)]
pub(super) struct SocksClient {
    pub(super) downstream: DownstreamId,
    pub(super) host: IpAddr,
    /// The differentiated services code point of the client's SYN.
    dscp: u8,
    handshake: ServerHandshake,
    /// The hints in the user name.
    hints: FlowHints,
    /// The parts of the user name that are not valid hints.
    pub(super) mistakes: Vec<ValueError>,
}

/// The progress of a handshake.
#[derive(Debug)]
pub(super) enum Step {
    /// The client's request is incomplete; the handshake waits for more bytes.
    Waits,
    /// The client has requested a connection, and waits for a reply ([`confirm`] or [`close_after`]).
    Requests(SocksClient, Flow),
    /// The client is gone, or was refused.
    Gone(SocksClient),
}

/// All SOCKS clients whose request is incomplete.
#[derive(Debug, Default)]
pub(super) struct SocksClients {
    table: Table<SocksClient>,
}

impl SocksClients {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Adds a client whose request must be complete by `deadline`.
    pub(super) fn accept(
        &mut self,
        ctx: &mut Ctx<'_>,
        (downstream, host): (DownstreamId, IpAddr),
        dscp: u8,
        deadline: Instant,
    ) -> Step {
        let client = SocksClient {
            downstream,
            host,
            dscp,
            handshake: ServerHandshake::anonymous(),
            hints: FlowHints::default(),
            mistakes: Vec::new(),
        };
        let id = self.table.insert(client);
        self.table.bind_downstream(downstream, id);
        self.table.arm(id, deadline);
        self.read_handshake(ctx, id).unwrap_or(Step::Waits)
    }

    /// Handles an event of a client; returns `None` if the event was of another stream.
    pub(super) fn on_event(&mut self, ctx: &mut Ctx<'_>, event: &DownstreamEvent) -> Option<Step> {
        let id = self.table.by_downstream(event.id())?;
        match event {
            DownstreamEvent::Readable { .. } => self.read_handshake(ctx, id),
            DownstreamEvent::Broken { .. } => self.refuse(ctx, id, &[]),
            _ => Some(Step::Waits),
        }
    }

    /// Reads a client's messages; returns the progress, `None` if there is no such client.
    fn read_handshake(&mut self, ctx: &mut Ctx<'_>, id: SessionId) -> Option<Step> {
        match self.table.get_mut(id)?.read_handshake(ctx) {
            Ok(None) => Some(Step::Waits),
            Ok(Some(destination)) => {
                let mut client = self.table.remove(id)?;
                let hints = core::mem::take(&mut client.hints);
                let flow = Flow::new(destination, hints, client.dscp);
                Some(Step::Requests(client, flow))
            }
            Err(reply) => self.refuse(ctx, id, &reply),
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.table.next_timeout()
    }

    /// Refuses and returns the next client past its deadline.
    pub(super) fn pop_overdue(&mut self, ctx: &mut Ctx<'_>) -> Option<SocksClient> {
        let (id, Due::Timer) = self.table.pop_due(ctx.now)? else {
            return None;
        };
        match self.refuse(ctx, id, &[])? {
            Step::Gone(client) => Some(client),
            Step::Waits | Step::Requests(..) => None,
        }
    }

    /// Removes a client, and ends its stream after `reply`.
    fn refuse(&mut self, ctx: &mut Ctx<'_>, id: SessionId, reply: &[u8]) -> Option<Step> {
        let client = self.table.remove(id)?;
        close_after(ctx, client.downstream, reply);
        Some(Step::Gone(client))
    }
}

impl SocksClient {
    /// Reads up to the end of the request; bytes after it are for the destination and stay unread. Returns the
    /// requested destination once it is complete.
    ///
    /// # Errors
    /// The handshake failed. The value is the reply to send before the stream is closed; empty for none.
    fn read_handshake(&mut self, ctx: &mut Ctx<'_>) -> Result<Option<Destination>, Vec<u8>> {
        let mut first = [0; MAX_PEEKED_BYTES];
        loop {
            let len = match ctx.downstream.peek(self.downstream, &mut first) {
                Ok(0) => return Err(Vec::new()),
                Ok(n) => n,
                Err(DownstreamError::WouldBlock) => return Ok(None),
                Err(DownstreamError::Broken) => return Err(Vec::new()),
            };
            let (taken, step) = self.handshake.input(&first[..len]);
            let read = IoSliceMut::new(&mut first[..taken]);
            if taken > 0 && ctx.downstream.read(self.downstream, &mut [read]) != Ok(taken) {
                return Err(Vec::new());
            }
            match step {
                ServerStep::More => {}
                ServerStep::Send(bytes) => send(ctx, self.downstream, &bytes)?,
                ServerStep::Credentials { user, .. } => {
                    let text = String::from_utf8_lossy(&user);
                    (self.hints, self.mistakes) = FlowHints::from_text(&text);
                    self.handshake.accepted();
                    send(ctx, self.downstream, &ServerHandshake::ACCEPTED)?;
                }
                ServerStep::Request(request) => return Ok(Some(canonical(request.destination))),
                // Only boxes send this message, and only to servers.
                ServerStep::Probe(_) | ServerStep::Tunnel(_) => return Err(Vec::new()),
                ServerStep::Failed(error) => return Err(error.reply()),
            }
        }
    }
}

/// Converts a name that is an IP address in text form to the address, and an IPv4-mapped IPv6 address to IPv4.
/// Rules and predictions then apply to the address.
fn canonical(destination: Destination) -> Destination {
    match destination {
        Destination::Name(name, port) => match name.parse::<IpAddr>() {
            Ok(ip) => Destination::Address(SocketAddr::new(ip, port)),
            Err(_) => Destination::Name(name, port),
        },
        Destination::Address(addr) => {
            Destination::Address(SocketAddr::new(addr.ip().to_canonical(), addr.port()))
        }
    }
}

/// Sends a client the reply that its destination is connected; returns false if that fails.
pub(super) fn confirm(ctx: &mut Ctx<'_>, downstream: DownstreamId) -> bool {
    send(ctx, downstream, &Reply::Succeeded.encode()).is_ok()
}

/// Ends the stream of a client that has no connection: sends `bytes` and closes the stream, or resets it if there
/// are none to send.
pub(super) fn close_after(ctx: &mut Ctx<'_>, downstream: DownstreamId, bytes: &[u8]) {
    match bytes.is_empty() || send(ctx, downstream, bytes).is_err() {
        true => ctx.downstream.reset(downstream),
        false => ctx.downstream.close(downstream),
    }
}

/// Sends a few bytes. The socket's buffer has room for them, because hardly any bytes were sent to the client
/// before.
///
/// # Errors
/// The stream failed. The value is empty, because no reply can be sent.
fn send(ctx: &mut Ctx<'_>, downstream: DownstreamId, bytes: &[u8]) -> Result<(), Vec<u8>> {
    match ctx.downstream.write(downstream, &[IoSlice::new(bytes)]) {
        Ok(n) if n == bytes.len() => Ok(()),
        _ => Err(Vec::new()),
    }
}
