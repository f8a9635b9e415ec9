//! Programs of the LAN that ask the box itself for a destination, by SOCKS5.
//!
//! The user name of such a program is read as [hints](FlowHints::from_text); its password is not
//! looked at. From its request on it is a user like the others, but that it is answered.

use core::net::{IpAddr, SocketAddr};
use std::io::{IoSlice, IoSliceMut};

use braid_units::value::ValueError;
use braid_wire::Instant;

use super::intake::Flow;
use crate::app::{Ctx, LocalError, LocalEvent, LocalId};
use crate::protocol::hints::FlowHints;
use crate::protocol::socks::{Destination, Reply, ServerHandshake, ServerStep};
use crate::relay::table::{Due, SessionId, Table};

/// Most bytes of a handshake that are looked at in one go; a request has no more.
const GLANCE: usize = 512;

/// A program that has not said where it wants to go.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) local: LocalId,
    pub(super) host: IpAddr,
    dscp: u8,
    handshake: ServerHandshake,
    hints: FlowHints,
    /// What it says and is no hint.
    pub(super) mistakes: Vec<ValueError>,
}

/// Where a handshake stands.
#[derive(Debug)]
pub(super) enum Step {
    /// More is to come.
    Waits,
    /// The program asks for a connection; it waits for [`answer`].
    Asks(Guest, Flow),
    /// The program is gone, or was sent away.
    Gone(Guest),
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Guests {
    table: Table<Guest>,
}

impl Guests {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Takes in a program that has to say by `deadline` what it wants.
    pub(super) fn welcome(
        &mut self,
        ctx: &mut Ctx<'_>,
        (local, host): (LocalId, IpAddr),
        dscp: u8,
        deadline: Instant,
    ) -> Step {
        let guest = Guest {
            local,
            host,
            dscp,
            handshake: ServerHandshake::open(),
            hints: FlowHints::default(),
            mistakes: Vec::new(),
        };
        let id = self.table.insert(guest);
        self.table.bind_local(local, id);
        self.table.arm(id, deadline);
        self.listen(ctx, id).unwrap_or(Step::Waits)
    }

    /// Whether an event is of one of these; if so what follows.
    pub(super) fn on_event(&mut self, ctx: &mut Ctx<'_>, event: &LocalEvent) -> Option<Step> {
        let id = self.table.by_local(event.id())?;
        match event {
            LocalEvent::Readable { .. } => self.listen(ctx, id),
            LocalEvent::Broken { .. } => self.send_away(ctx, id, &[]),
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

    /// The next program that took too long, which is sent away.
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
        part(ctx, guest.local, reply);
        Some(Step::Gone(guest))
    }
}

impl Guest {
    /// Reads on, up to the request and no further: what follows it is for the destination. On an
    /// error says what is still to be sent.
    fn listen(&mut self, ctx: &mut Ctx<'_>) -> Result<Option<Destination>, Vec<u8>> {
        let mut first = [0; GLANCE];
        loop {
            let there = match ctx.local.peek(self.local, &mut first) {
                Ok(0) => return Err(Vec::new()),
                Ok(n) => n,
                Err(LocalError::WouldBlock) => return Ok(None),
                Err(LocalError::Broken) => return Err(Vec::new()),
            };
            let (taken, step) = self.handshake.input(&first[..there]);
            let read = IoSliceMut::new(&mut first[..taken]);
            if taken > 0 && ctx.local.read(self.local, &mut [read]) != Ok(taken) {
                return Err(Vec::new());
            }
            match step {
                ServerStep::More => {}
                ServerStep::Send(bytes) => say(ctx, self.local, &bytes)?,
                ServerStep::Credentials { user, .. } => {
                    let text = String::from_utf8_lossy(&user);
                    (self.hints, self.mistakes) = FlowHints::from_text(&text);
                    self.handshake.accepted();
                    say(ctx, self.local, &ServerHandshake::ACCEPTED)?;
                }
                ServerStep::Request(request) => return Ok(Some(plain(request.destination))),
                // A box's word, which is none here.
                ServerStep::Probe(_) => return Err(Vec::new()),
                ServerStep::Failed(error) => return Err(error.reply()),
            }
        }
    }
}

/// An address stays one where a program wrote it as a name.
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

/// Tells a program that its destination is connected; false where it cannot be told.
pub(super) fn answer(ctx: &mut Ctx<'_>, local: LocalId) -> bool {
    say(ctx, local, &Reply::Succeeded.encode()).is_ok()
}

/// Ends the stream of a program that is not connected, after the last `words` to it.
pub(super) fn part(ctx: &mut Ctx<'_>, local: LocalId, words: &[u8]) {
    match words.is_empty() || say(ctx, local, words).is_err() {
        true => ctx.local.reset(local),
        false => ctx.local.close(local),
    }
}

/// Sends a few bytes, for which a stream has room that carried hardly any before.
fn say(ctx: &mut Ctx<'_>, local: LocalId, words: &[u8]) -> Result<(), Vec<u8>> {
    match ctx.local.write(local, &[IoSlice::new(words)]) {
        Ok(n) if n == words.len() => Ok(()),
        _ => Err(Vec::new()),
    }
}
