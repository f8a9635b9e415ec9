//! A connection between box and server, protected by TLS 1.3 or in clear.
//!
//! The calls are those of the [`Stack`]; what is read and written are the bytes that the two ends mean for
//! each other. A user's first bytes leave with the first flight where the server has given a ticket
//! before, and wait for its answer otherwise.
//!
//! Of users' bytes little is kept here, and none while a connection is idle: of what goes out a record,
//! or what left with a first flight in vain, where memory has run out; of what came in a batch that a
//! reader did not take, a record behind that, and the first part of a record; and at a box what left with the first flight, until
//! it is known to have been taken. What goes out is protected in the engine's memory, where a socket put it.

mod broken;
mod flow;
mod parameters;
mod record;
mod scratch;
mod session;
mod slices;
mod tls;
mod versions;

use std::io::{IoSlice, IoSliceMut};

use braid_engine::{ApiError, ConnId, JoinAuth, Stack};
use braid_wire::Instant;

use crate::Families;
use crate::keys::PublicKey;

pub use broken::Broken;
use flow::Outgoing;
pub use record::OVERHEAD;
use session::{ServerSide, Tls};
pub use tls::{Client, Server};
pub use versions::{Agreed, Versions};

/// Most bytes that are protected, or shown to a reader, at a time.
const BATCH: usize = 64 << 10;
/// How a box of `braid/3` began, whose records had another form.
const OLDER_HELLO: u8 = 1;

/// A connection to the other end.
#[derive(Debug)]
pub struct Channel {
    /// The connection of the stack that carries it.
    pub conn: ConnId,
    tls: Option<Box<Tls>>,
}

impl Channel {
    /// A connection without protection.
    pub fn clear(conn: ConnId) -> Self {
        Channel { conn, tls: None }
    }

    /// A connection that came in. Nothing joins it before [`accept`](Self::accept) knows how it is
    /// protected.
    pub fn incoming(now: Instant, conn: ConnId, stack: &mut Stack) -> Self {
        // One that is gone says so by its `Closed`.
        let _ = stack.set_join_auth(now, conn, JoinAuth::Pending);
        Channel::clear(conn)
    }

    /// A connection that `client` protects; its first words are written.
    ///
    /// # Errors
    /// There is no memory; the cryptographic library fails.
    pub fn open(
        now: Instant,
        conn: ConnId,
        client: &Client,
        stack: &mut Stack,
    ) -> Result<Self, ApiError> {
        let session = client.connect(now).map_err(|_| ApiError::LimitReached)?;
        stack.set_join_auth(now, conn, JoinAuth::Pending)?;
        let mut tls = Box::new(Tls::new(session.into(), None, &client.end));
        tls.flush(now, conn, stack)?;
        Ok(Channel {
            conn,
            tls: Some(tls),
        })
    }

    /// A connection that came in, once its client has said something: protected by `server` where it
    /// asks for that.
    pub fn accept(now: Instant, conn: ConnId, server: &Server, stack: &mut Stack) -> Option<Self> {
        let mut first = None;
        let peek = |bufs: &[IoSlice<'_>]| {
            first = bufs.iter().find_map(|buf| buf.first().copied());
            Ok::<_, ApiError>(0)
        };
        let _ = stack.read_with(now, conn, peek);
        let tls = match first? {
            byte @ (record::HELLO | OLDER_HELLO) => {
                let (session, join_secret) = server.accept().ok()?;
                let own = ServerSide::new(join_secret, &server.tickets);
                let mut tls = Box::new(Tls::new(session.into(), Some(own), &server.end));
                if byte == OLDER_HELLO {
                    tls.meets_older();
                }
                Some(tls)
            }
            _ => {
                let _ = stack.set_join_auth(now, conn, JoinAuth::Keys);
                None
            }
        };
        Some(Channel { conn, tls })
    }

    /// Returns whether it is protected.
    pub fn is_protected(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns whether it is protected, and the other end is of a release whose subflows do not prove themselves.
    pub fn is_joined_by_keys(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(|tls| tls.joins_prove == Some(false))
    }

    /// Returns the version and the features that both ends speak, once that is known; `None` of a connection
    /// without protection too.
    pub fn agreed(&self) -> Option<Agreed> {
        self.tls.as_ref()?.agreed
    }

    /// Takes the families in which the server says that it reaches destinations: once, when the handshake has
    /// ended.
    pub fn take_families(&mut self) -> Option<Families> {
        self.tls.as_mut()?.told_families.take()
    }

    /// The key of the other end, once it has proved that it has it; with the first words of a client
    /// that did so for its ticket.
    pub fn peer(&self) -> Option<PublicKey> {
        self.tls.as_ref()?.peer()
    }

    /// Reads what there is for as far as that can be done without a reader: a handshake goes on, and
    /// the end comes to be known.
    ///
    /// # Errors
    /// The connection is no more, or broken.
    pub fn drive<E: From<ApiError> + From<Broken>>(
        &mut self,
        now: Instant,
        stack: &mut Stack,
    ) -> Result<(), E> {
        match &mut self.tls {
            Some(tls) => tls.drive(now, self.conn, stack, None),
            None => Ok(()),
        }
    }

    /// As [`Stack::read_with`].
    pub fn read_with<E: From<ApiError> + From<Broken>>(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        drain: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let Some(tls) = &mut self.tls else {
            return stack.read_with(now, self.conn, drain);
        };
        tls.read_with(now, self.conn, stack, drain)
    }

    /// As [`Stack::read_finished`]; of a protected connection, whether the other end said so: of the
    /// connection, or of a user's while its bytes are read.
    pub fn read_finished(&self, stack: &Stack) -> bool {
        match &self.tls {
            Some(tls) => tls.read_finished(),
            None => stack.read_finished(self.conn),
        }
    }

    /// What is written from now on is a user's, whose end need not be that of the connection.
    pub fn begin_writing(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.outgoing = Outgoing::Flow;
        }
    }

    /// The same of what is read.
    pub fn begin_reading(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.begin_reading();
        }
    }

    /// Returns whether a user's bytes have ended both ways, whatever becomes of the connection.
    pub fn has_parted(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_parted())
    }

    /// Returns whether they have, and the connection has not.
    pub fn is_free(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_free())
    }

    /// The stack says that the other end has all of a user's bytes.
    pub fn on_delivered(&mut self) {
        if let Some(tls) = &mut self.tls
            && tls.outgoing == Outgoing::Ended
        {
            tls.outgoing = Outgoing::Delivered;
        }
    }

    /// Returns whether it has.
    pub fn is_delivered(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(|tls| tls.outgoing == Outgoing::Delivered)
    }

    /// Returns whether there is nothing to read.
    pub fn is_silent(&self, stack: &Stack) -> bool {
        let silent = self.tls.as_ref().is_none_or(|tls| tls.is_silent());
        silent && stack.readable(self.conn) == 0
    }

    /// What follows a user's bytes that have ended are messages again.
    pub fn release(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.release();
        }
    }

    /// Returns whether all was said both ways, where the stack says that both directions ended in order.
    pub fn is_whole(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.has_parted())
    }

    /// As [`Stack::write_with`].
    pub fn write_with<E: From<ApiError>>(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        max: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let Some(tls) = &mut self.tls else {
            return stack.write_with(now, self.conn, max, fill);
        };
        tls.write_with(now, self.conn, stack, max, fill)
    }

    /// As [`Stack::write`]; of a protected connection it takes all or nothing.
    pub fn write(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        bytes: &[u8],
    ) -> Result<usize, ApiError> {
        let Some(tls) = &mut self.tls else {
            return stack.write(now, self.conn, bytes);
        };
        tls.write(now, self.conn, stack, bytes)
    }

    /// [`write`](Self::write), whole or not at all: there is no room only where memory has run out.
    pub fn write_all(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        bytes: &[u8],
    ) -> Result<(), ApiError> {
        match self.write(now, stack, bytes)? {
            n if n == bytes.len() => Ok(()),
            _ => Err(ApiError::LimitReached),
        }
    }

    /// Says that no more will be written: of a user's, whose bytes may be all that ends, or else as
    /// [`close`](Self::close). Of the former [`Event::FlowDelivered`](braid_engine::Event) says when the
    /// other end has it.
    pub fn shutdown(&mut self, now: Instant, stack: &mut Stack) -> Result<(), ApiError> {
        match &mut self.tls {
            Some(tls) => tls.shutdown(now, self.conn, stack),
            None => self.close(now, stack),
        }
    }

    /// Returns whether [`Self::close`] was called on one that is protected: the other end is told, or will be.
    pub fn is_ending(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_ending())
    }

    /// As [`Stack::shutdown`], after the other end was told.
    pub fn close(&mut self, now: Instant, stack: &mut Stack) -> Result<(), ApiError> {
        match &mut self.tls {
            Some(tls) => tls.close(now, self.conn, stack),
            None => stack.shutdown(now, self.conn),
        }
    }

    /// As [`Stack::abort`].
    pub fn abort(&self, now: Instant, stack: &mut Stack) {
        stack.abort(now, self.conn);
    }
}
