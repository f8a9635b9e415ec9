//! SOCKS clients: programs of the LAN that request a destination from the box itself, by SOCKS5.
//!
//! The user name of a SOCKS client is read as [hints](FlowHints::from_text); the password is ignored. From its
//! request on, it is treated as any user, but receives a reply.

use core::net::{IpAddr, SocketAddr};
use std::io::{IoSlice, IoSliceMut};

use braid_units::value::ValueError;
use braid_wire::Instant;

use super::intake::Flow;
use crate::app::{Ctx, DownstreamError, DownstreamEvent, DownstreamId};
use crate::protocol::hints::FlowHints;
use crate::protocol::socks::{Destination, Reply, ServerHandshake, ServerStep};
use crate::relay::table::{Due, SessionId, Table};

/// Most bytes of a handshake that are read at once; a request has no more.
const GLANCE: usize = 512;

/// A SOCKS client whose request is incomplete.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) downstream: DownstreamId,
    pub(super) host: IpAddr,
    dscp: u8,
    handshake: ServerHandshake,
    hints: FlowHints,
    /// Items of the user name that are not valid hints.
    pub(super) mistakes: Vec<ValueError>,
}

/// The progress of a handshake.
#[derive(Debug)]
pub(super) enum Step {
    /// The handshake waits for more bytes.
    Waits,
    /// The client requests a connection, and waits for [`answer`].
    Asks(Guest, Flow),
    /// The client is gone, or was refused.
    Gone(Guest),
}

/// All SOCKS clients whose request is incomplete.
#[derive(Debug, Default)]
pub(super) struct Guests {
    table: Table<Guest>,
}

impl Guests {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Adds a client whose request must be complete by `deadline`.
    pub(super) fn welcome(
        &mut self,
        ctx: &mut Ctx<'_>,
        (downstream, host): (DownstreamId, IpAddr),
        dscp: u8,
        deadline: Instant,
    ) -> Step {
        let guest = Guest {
            downstream,
            host,
            dscp,
            handshake: ServerHandshake::anonymous(),
            hints: FlowHints::default(),
            mistakes: Vec::new(),
        };
        let id = self.table.insert(guest);
        self.table.bind_downstream(downstream, id);
        self.table.arm(id, deadline);
        self.listen(ctx, id).unwrap_or(Step::Waits)
    }

    /// Handles an event of a client; returns `None` if it was not one.
    pub(super) fn on_event(&mut self, ctx: &mut Ctx<'_>, event: &DownstreamEvent) -> Option<Step> {
        let id = self.table.by_downstream(event.id())?;
        match event {
            DownstreamEvent::Readable { .. } => self.listen(ctx, id),
            DownstreamEvent::Broken { .. } => self.send_away(ctx, id, &[]),
            _ => Some(Step::Waits),
        }
    }

    fn listen(&mut self, ctx: &mut Ctx<'_>, id: SessionId) -> Option<Step> {
        match self.table.get_mut(id)?.listen(ctx) {
            Ok(None) => Some(Step::Waits),
            Ok(Some(destination)) => {
                let mut guest = self.table.remove(id)?;
                let hints = core::mem::take(&mut guest.hints);
                let flow = Flow::new(destination, hints, guest.dscp);
                Some(Step::Asks(guest, flow))
            }
            Err(reply) => self.send_away(ctx, id, &reply),
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.table.next_timeout()
    }

    /// Refuses and returns the next client past its deadline.
    pub(super) fn pop_late(&mut self, ctx: &mut Ctx<'_>) -> Option<Guest> {
        let (id, Due::Timer) = self.table.pop_due(ctx.now)? else {
            return None;
        };
        match self.send_away(ctx, id, &[])? {
            Step::Gone(guest) => Some(guest),
            Step::Waits | Step::Asks(..) => None,
        }
    }

    fn send_away(&mut self, ctx: &mut Ctx<'_>, id: SessionId, reply: &[u8]) -> Option<Step> {
        let guest = self.table.remove(id)?;
        part(ctx, guest.downstream, reply);
        Some(Step::Gone(guest))
    }
}

impl Guest {
    /// Reads up to the end of the request and no further, as the rest is for the destination. On an error, returns
    /// the bytes still to be sent.
    fn listen(&mut self, ctx: &mut Ctx<'_>) -> Result<Option<Destination>, Vec<u8>> {
        let mut first = [0; GLANCE];
        loop {
            let there = match ctx.downstream.peek(self.downstream, &mut first) {
                Ok(0) => return Err(Vec::new()),
                Ok(n) => n,
                Err(DownstreamError::WouldBlock) => return Ok(None),
                Err(DownstreamError::Broken) => return Err(Vec::new()),
            };
            let (taken, step) = self.handshake.input(&first[..there]);
            let read = IoSliceMut::new(&mut first[..taken]);
            if taken > 0 && ctx.downstream.read(self.downstream, &mut [read]) != Ok(taken) {
                return Err(Vec::new());
            }
            match step {
                ServerStep::More => {}
                ServerStep::Send(bytes) => say(ctx, self.downstream, &bytes)?,
                ServerStep::Credentials { user, .. } => {
                    let text = String::from_utf8_lossy(&user);
                    (self.hints, self.mistakes) = FlowHints::from_text(&text);
                    self.handshake.accepted();
                    say(ctx, self.downstream, &ServerHandshake::ACCEPTED)?;
                }
                ServerStep::Request(request) => return Ok(Some(plain(request.destination))),
                // A message that only boxes send.
                ServerStep::Probe(_) => return Err(Vec::new()),
                ServerStep::Failed(error) => return Err(error.reply()),
            }
        }
    }
}

/// Converts a name that is an IP address in text to the address.
fn plain(destination: Destination) -> Destination {
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

/// Tells a client that its destination is connected; returns false where that fails.
pub(super) fn answer(ctx: &mut Ctx<'_>, downstream: DownstreamId) -> bool {
    say(ctx, downstream, &Reply::Succeeded.encode()).is_ok()
}

/// Ends the stream of a client that is not connected, after a last message.
pub(super) fn part(ctx: &mut Ctx<'_>, downstream: DownstreamId, words: &[u8]) {
    match words.is_empty() || say(ctx, downstream, words).is_err() {
        true => ctx.downstream.reset(downstream),
        false => ctx.downstream.close(downstream),
    }
}

/// Sends a few bytes, for which a stream that has carried hardly any has room.
fn say(ctx: &mut Ctx<'_>, downstream: DownstreamId, words: &[u8]) -> Result<(), Vec<u8>> {
    match ctx.downstream.write(downstream, &[IoSlice::new(words)]) {
        Ok(n) if n == words.len() => Ok(()),
        _ => Err(Vec::new()),
    }
}
