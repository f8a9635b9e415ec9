//! A connection between box and server, protected by TLS 1.3 or in plaintext.
//!
//! The methods of a channel mirror those of the [`Stack`], but count and pass payload only, without handshake and
//! record headers. If the box has a ticket of the server, a user's first bytes leave with the first flight.
//! Otherwise the user's bytes wait for the server's answer.
//!
//! A channel buffers few of the users' bytes, and none while a connection is idle:
//!
//! - Outgoing: one record, or a rejected first flight, until the engine has memory. A box also keeps its first
//!   flight until the server has accepted early data. All other outgoing bytes are read from the socket into the
//!   engine's memory, and encrypted there.
//! - Incoming: a batch that a reader did not take, one opened record after that batch, and the first part of a
//!   record whose rest has not arrived.

mod error;
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

use zeroize::Zeroizing;

use crate::Families;
use crate::keys::PublicKey;

pub use error::ChannelError;
use flow::Outgoing;
pub use record::RECORD_OVERHEAD;
use session::{ServerSide, Tls};
pub use tls::{Client, Server};
pub use versions::{Agreed, Versions};

/// Maximum number of bytes that are encrypted, or offered to a reader, at a time. 64 KiB is a guess: large enough
/// that a system call per batch costs little, small enough that a batch stays in the processor's cache.
const MAX_BATCH: usize = 64 << 10;
/// The first byte of a ClientHello from a box of the protocol `braid/3`, whose records had another form. A server
/// recognizes such a box only to send an alert that refuses the box's version.
const BRAID_3_FIRST_BYTE: u8 = 1;

/// A connection between box and server.
#[derive(Debug)]
pub struct Channel {
    /// The connection of the stack that carries this channel.
    pub conn: ConnId,
    tls: Option<Box<Tls>>,
}

impl Channel {
    /// Creates a channel without protection.
    pub fn plaintext(conn: ConnId) -> Self {
        Channel { conn, tls: None }
    }

    /// Creates a channel for an accepted connection. The engine holds subflows back until [`accept`](Self::accept)
    /// knows how they authenticate.
    pub fn incoming(now: Instant, conn: ConnId, stack: &mut Stack) -> Self {
        // The error is ignored: the `Closed` event reports a connection that is already gone.
        let _ = stack.set_join_auth(now, conn, JoinAuth::Pending);
        Channel::plaintext(conn)
    }

    /// Opens a channel that `client` protects, and writes the ClientHello.
    ///
    /// # Errors
    /// [`ApiError::LimitReached`] if the cryptographic library fails; the engine's error if the engine has no
    /// memory or the connection is gone.
    pub fn open(
        now: Instant,
        conn: ConnId,
        client: &Client,
        stack: &mut Stack,
    ) -> Result<Self, ApiError> {
        let session = client.connect(now).map_err(|_| ApiError::LimitReached)?;
        stack.set_join_auth(now, conn, JoinAuth::Pending)?;
        let mut tls = Box::new(Tls::new(session.into(), None, &client.endpoint));
        tls.flush(now, conn, stack)?;
        Ok(Channel {
            conn,
            tls: Some(tls),
        })
    }

    /// Starts an accepted connection once its first byte has arrived. If that byte begins a TLS handshake,
    /// `server` protects the connection; otherwise it is plaintext. Returns `None` while no byte has arrived, or
    /// if the cryptographic library fails.
    pub fn accept(now: Instant, conn: ConnId, server: &Server, stack: &mut Stack) -> Option<Self> {
        let mut first_byte = None;
        // Returning 0 leaves the byte in the engine.
        let peek = |bufs: &[IoSlice<'_>]| {
            first_byte = bufs.iter().find_map(|buf| buf.first().copied());
            Ok::<_, ApiError>(0)
        };
        let _ = stack.read_with(now, conn, peek);
        let tls = match first_byte? {
            byte @ (record::FIRST_TLS_BYTE | BRAID_3_FIRST_BYTE) => {
                let (session, join_secret) = server.accept().ok()?;
                let side = ServerSide::new(join_secret, &server.tickets);
                let mut tls = Box::new(Tls::new(session.into(), Some(side), &server.endpoint));
                if byte == BRAID_3_FIRST_BYTE {
                    tls.refuse_braid_3();
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

    /// Returns whether the channel is protected.
    pub fn is_protected(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns whether the channel is protected, but the peer's release cannot authenticate subflows by a secret.
    pub fn joins_use_keys(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(|tls| tls.joins_use_secret == Some(false))
    }

    /// Returns the version and features in use once both ends know them; `None` in plaintext.
    pub fn agreed(&self) -> Option<Agreed> {
        self.tls.as_ref()?.agreed
    }

    /// Takes the address families that the server reports to reach. Returns them once, after the handshake of a
    /// client.
    pub fn take_families(&mut self) -> Option<Families> {
        self.tls.as_mut()?.peer_families.take()
    }

    /// Returns the peer's key, once the peer has proved that it has the private key. A client that resumes with a
    /// ticket has proved this when its first early data opens.
    pub fn peer(&self) -> Option<PublicKey> {
        self.tls.as_ref()?.peer()
    }

    /// Exports a secret that only the two ends of this channel can compute (RFC 8446 section 7.5). Both ends get the
    /// same secret for the same `label` and `context`, and unrelated ones for others. Returns `None` in plaintext, and
    /// before the peer's Finished is verified: early data is no proof that the handshake is fresh.
    pub fn export_secret(&self, label: &[u8], context: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
        self.tls.as_ref()?.export_secret(label, context)
    }

    /// Processes received records as far as possible without a reader: handshake, alerts, end of the connection.
    ///
    /// # Errors
    /// The connection is gone, or a protocol error has ended it.
    pub fn drive<E: From<ApiError> + From<ChannelError>>(
        &mut self,
        now: Instant,
        stack: &mut Stack,
    ) -> Result<(), E> {
        match &mut self.tls {
            Some(tls) => tls.drive(now, self.conn, stack, None),
            None => Ok(()),
        }
    }

    /// Reads as [`Stack::read_with`] does.
    pub fn read_with<E: From<ApiError> + From<ChannelError>>(
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

    /// Returns whether the incoming direction has ended, as [`Stack::read_finished`] does. On a protected channel
    /// the peer must have announced the end by close_notify or, between [`begin_reading`](Self::begin_reading) and
    /// [`release`](Self::release), by the end of the user's bytes. A DATA_FIN alone could be forged.
    pub fn read_finished(&self, stack: &Stack) -> bool {
        match &self.tls {
            Some(tls) => tls.read_finished(),
            None => stack.read_finished(self.conn),
        }
    }

    /// Declares that the bytes written from now on are a user's, which can end before the connection does.
    pub fn begin_writing(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.outgoing = Outgoing::Flow;
        }
    }

    /// Declares that the bytes read from now on are a user's, which can end before the connection does.
    pub fn begin_reading(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.begin_reading();
        }
    }

    /// Returns whether the user's bytes have ended in both directions, even if the connection has failed or
    /// closed.
    pub fn has_flow_ended(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_flow_ended())
    }

    /// Returns whether the user's bytes have ended in both directions and the connection can serve another user.
    pub fn is_reusable(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_reusable())
    }

    /// Handles the stack's event [`FlowDelivered`](braid_engine::Event): the peer has acknowledged all of the
    /// user's bytes.
    pub fn on_delivered(&mut self) {
        if let Some(tls) = &mut self.tls
            && tls.outgoing == Outgoing::Ended
        {
            tls.outgoing = Outgoing::Delivered;
        }
    }

    /// Returns whether the peer has acknowledged all of the user's bytes and their end.
    pub fn is_delivered(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(|tls| tls.outgoing == Outgoing::Delivered)
    }

    /// Returns whether nothing is buffered for a reader, here or in the engine.
    pub fn is_drained(&self, stack: &Stack) -> bool {
        let read = self.tls.as_ref().is_none_or(|tls| tls.is_drained());
        read && stack.readable(self.conn) == 0
    }

    /// Forgets the current user, whose bytes have ended both ways. Box and server exchange messages from now on,
    /// until the next user.
    pub fn release(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.release();
        }
    }

    /// Returns whether every byte of the user was delivered both ways. The caller has to know from the stack that
    /// both directions ended in order. A plaintext channel knows nothing more, and returns true.
    pub fn is_complete(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.has_flow_ended())
    }

    /// Writes as [`Stack::write_with`] does.
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

    /// Writes as [`Stack::write`] does, but a protected channel takes all of `bytes` or none, so that a message is
    /// not split over differently padded records.
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

    /// Writes all of `bytes`. For the messages of box and server. They always fit, unless memory has run out.
    ///
    /// # Errors
    /// [`ApiError::LimitReached`] if the engine has no memory; the engine's other errors.
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

    /// Ends the outgoing direction. After [`begin_writing`](Self::begin_writing) on a protected channel, only the
    /// user's bytes end, and [`Event::FlowDelivered`](braid_engine::Event) later reports that the peer has
    /// acknowledged their end. Otherwise the connection ends, as by [`close`](Self::close).
    pub fn shutdown(&mut self, now: Instant, stack: &mut Stack) -> Result<(), ApiError> {
        match &mut self.tls {
            Some(tls) => tls.shutdown(now, self.conn, stack),
            None => self.close(now, stack),
        }
    }

    /// Returns whether [`Self::close`] was called on a protected channel: its close_notify was sent, or will be.
    pub fn is_closing(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_closing())
    }

    /// Ends the connection as [`Stack::shutdown`] does, after a close_notify where the channel is protected.
    pub fn close(&mut self, now: Instant, stack: &mut Stack) -> Result<(), ApiError> {
        match &mut self.tls {
            Some(tls) => tls.close(now, self.conn, stack),
            None => stack.shutdown(now, self.conn),
        }
    }

    /// Resets the connection as [`Stack::abort`] does.
    pub fn abort(&self, now: Instant, stack: &mut Stack) {
        stack.abort(now, self.conn);
    }
}
