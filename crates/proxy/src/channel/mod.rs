//! A connection between box and server, protected by TLS 1.3 or in clear.
//!
//! The calls are those of the [`Stack`]; what is read and written are the bytes that the two ends mean for
//! each other. A user's first bytes leave with the first flight where the server has given a ticket
//! before, and wait for its answer otherwise.
//!
//! Of users' bytes little is kept here, and none while a connection is idle: of what goes out a record,
//! or a batch of four where memory has run out; of what came in a batch that a reader did not take and
//! a record after it; and at a box what left with the first flight, until it is known to have been
//! taken. The library keeps an empty buffer of 4 to 18 kB for what comes in, beside keys.

mod broken;
mod frames;
mod scratch;
mod slices;
mod tls;

use core::fmt;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::sync::Arc;

use braid_engine::{ApiError, ConnId, Stack};
use braid_wire::Instant;
use rustls::Connection;

use crate::keys::PublicKey;

pub(crate) use broken::Broken;
use frames::{Incoming, Outgoing};
use scratch::{Plain, Scratch};
use slices::{Input, Output};
pub(crate) use tls::{Client, Server};
use tls::{EARLY_LIMIT, MOST_EARLY, MOST_EARLY_RECORDS, TicketClock};

/// Bytes of one record.
const RECORD: usize = 16 << 10;
/// What a record has on the wire besides: header, type and tag (RFC 8446 section 5.2).
const RECORD_OVERHEAD: usize = 5 + 1 + 16;
/// Most bytes that wait for the end of a handshake: a request, its hints, and what a user said
/// meanwhile.
const MOST_HELD: usize = 40 << 10;
/// Most bytes of a user that are protected, or shown to a reader, at a time.
const BATCH: usize = 4 * RECORD;
/// Most bytes that are handed to the engine at a time: all that one call protects.
const FLUSH: usize = BATCH + 4 * RECORD_OVERHEAD;
/// Most bytes that are taken in before a handshake ends: early data, and what is said besides. The
/// library would keep 64 kB of whoever has proved nothing.
const MOST_HANDSHAKE: usize = EARLY_LIMIT + (8 << 10);
/// How TLS begins: a handshake record. SOCKS5 begins by another byte.
const HANDSHAKE_RECORD: u8 = 22;

/// A connection to the other end.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) conn: ConnId,
    tls: Option<Box<Tls>>,
}

/// The state of protection.
struct Tls {
    session: Connection,
    clock: Arc<TicketClock>,
    scratch: Arc<Scratch>,
    /// Of a client: what was written before the server's answer.
    held: Vec<u8>,
    /// So much of it left with the first flight, and in how many records.
    early: usize,
    early_records: usize,
    /// What was taken out of the session and not read yet: of a server, what came with the client's
    /// first flight; of both, what a reader was shown and did not take.
    said: Vec<u8>,
    /// Of a server: the client's ticket is proof of its key.
    vouched: bool,
    /// Bytes that came before the handshake ended.
    shaken: usize,
    /// Bytes in the session that can be read.
    unread: usize,
    /// The other end will say no more.
    peer_ended: bool,
    ending: Ending,
    outgoing: Outgoing,
    incoming: Incoming,
    broken: Option<Broken>,
}

/// The end of what we send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    Wanted,
    /// The other end is told, once the record has gone.
    Said,
    /// The stack was told.
    Done,
}

impl Channel {
    /// A connection without protection.
    pub(crate) fn clear(conn: ConnId) -> Self {
        Channel { conn, tls: None }
    }

    /// A connection that `client` protects; its first words are written.
    ///
    /// # Errors
    /// There is no memory; the cryptographic library fails.
    pub(crate) fn open(
        now: Instant,
        conn: ConnId,
        client: &Client,
        stack: &mut Stack,
    ) -> Result<Self, ApiError> {
        let session = client.connect(now).map_err(|_| ApiError::LimitReached)?;
        let mut tls = Box::new(Tls::new(session.into(), &client.clock, &client.scratch));
        tls.flush(now, conn, stack)?;
        Ok(Channel {
            conn,
            tls: Some(tls),
        })
    }

    /// A connection that came in, once its client has said something: protected by `server` where it
    /// asks for that.
    pub(crate) fn accept(
        now: Instant,
        conn: ConnId,
        server: &Server,
        stack: &mut Stack,
    ) -> Option<Self> {
        let mut first = None;
        let peek = |bufs: &[IoSlice<'_>]| {
            first = bufs.iter().find_map(|buf| buf.first().copied());
            Ok::<_, ApiError>(0)
        };
        let _ = stack.read_with(now, conn, peek);
        let tls = match first? {
            HANDSHAKE_RECORD => {
                let session = server.accept().ok()?.into();
                Some(Box::new(Tls::new(session, &server.clock, &server.scratch)))
            }
            _ => None,
        };
        Some(Channel { conn, tls })
    }

    /// Whether it is protected.
    pub(crate) fn is_protected(&self) -> bool {
        self.tls.is_some()
    }

    /// The key of the other end, once it has proved that it has it; with the first words of a client
    /// that did so for its ticket.
    pub(crate) fn peer(&self) -> Option<PublicKey> {
        let tls = self.tls.as_ref()?;
        let proved = tls.vouched || !tls.session.is_handshaking();
        let certificate = tls.session.peer_certificates()?.first()?;
        tls::key_of(certificate).filter(|_| proved)
    }

    /// Reads what there is for as far as that can be done without a reader: a handshake goes on, and
    /// the end comes to be known.
    ///
    /// # Errors
    /// The connection is no more, or broken.
    pub(crate) fn drive<E: From<ApiError> + From<Broken>>(
        &mut self,
        now: Instant,
        stack: &mut Stack,
    ) -> Result<(), E> {
        match &mut self.tls {
            Some(tls) => tls.drive(now, self.conn, stack, &mut Plain::default()),
            None => Ok(()),
        }
    }

    /// As [`Stack::read_with`].
    pub(crate) fn read_with<E: From<ApiError> + From<Broken>>(
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
    pub(crate) fn read_finished(&self, stack: &Stack) -> bool {
        match &self.tls {
            Some(tls) if tls.incoming == Incoming::Messages => tls.peer_ended && !tls.has_unread(),
            Some(tls) => tls.incoming == Incoming::Ended,
            None => stack.read_finished(self.conn),
        }
    }

    /// What is written from now on is a user's, whose end need not be that of the connection.
    pub(crate) fn begin_writing(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.outgoing = Outgoing::Frames;
        }
    }

    /// The same of what is read.
    pub(crate) fn begin_reading(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.incoming = Incoming::FRAMES;
        }
    }

    /// Whether a user's bytes have ended both ways, whatever becomes of the connection.
    pub(crate) fn has_parted(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.has_parted())
    }

    /// Whether they have, and the connection has not.
    pub(crate) fn is_free(&self) -> bool {
        let goes_on =
            |tls: &Tls| tls.ending == Ending::No && !tls.peer_ended && tls.broken.is_none();
        let tls = self.tls.as_ref();
        tls.is_some_and(|tls| tls.has_parted() && goes_on(tls))
    }

    /// The stack says that the other end has all of a user's bytes.
    pub(crate) fn on_delivered(&mut self) {
        if let Some(tls) = &mut self.tls
            && tls.outgoing == Outgoing::Ended
        {
            tls.outgoing = Outgoing::Delivered;
        }
    }

    /// Whether it has.
    pub(crate) fn is_delivered(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(|tls| tls.outgoing == Outgoing::Delivered)
    }

    /// Whether there is nothing to read.
    pub(crate) fn is_silent(&self, stack: &Stack) -> bool {
        let unread = self.tls.as_ref().is_some_and(|tls| tls.has_unread());
        !unread && stack.readable(self.conn) == 0
    }

    /// What follows a user's bytes that have ended are messages again.
    pub(crate) fn release(&mut self) {
        if let Some(tls) = &mut self.tls {
            (tls.outgoing, tls.incoming) = Default::default();
        }
    }

    /// Whether all was said both ways, where the stack says that both directions ended in order.
    pub(crate) fn is_whole(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.has_parted())
    }

    /// As [`Stack::write_with`], and so many records at a time as the engine has room for.
    pub(crate) fn write_with<E: From<ApiError>>(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        max: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let Some(tls) = &mut self.tls else {
            return stack.write_with(now, self.conn, max, fill);
        };
        tls.flush(now, self.conn, stack)?;
        let head = tls.head();
        let room = tls.room(stack.send_space(self.conn));
        let room = room.min(max.saturating_add(head));
        if room <= head {
            return Ok(0);
        }
        let scratch = Arc::clone(&tls.scratch);
        let filled = scratch.with(|memory| {
            let filled = fill(&mut [IoSliceMut::new(&mut memory[head..room])])?;
            if filled > 0 {
                tls.say(&mut memory[..(head + filled).min(room)]);
            }
            Ok::<_, E>(filled)
        })?;
        tls.flush(now, self.conn, stack)?;
        Ok(filled)
    }

    /// As [`Stack::write`]; of a protected connection it takes all or nothing.
    pub(crate) fn write(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        bytes: &[u8],
    ) -> Result<usize, ApiError> {
        let Some(tls) = &mut self.tls else {
            return stack.write(now, self.conn, bytes);
        };
        tls.flush(now, self.conn, stack)?;
        let head = tls.head();
        if bytes.is_empty() || !tls.takes(head + bytes.len()) {
            return Ok(0);
        }
        match head {
            0 => tls.write(bytes),
            _ => tls.say(&mut [&[0; frames::HEAD], bytes].concat()),
        }
        tls.flush(now, self.conn, stack)?;
        Ok(bytes.len())
    }

    /// [`write`](Self::write), whole or not at all: there is no room only where memory has run out.
    pub(crate) fn write_all(
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
    pub(crate) fn shutdown(&mut self, now: Instant, stack: &mut Stack) -> Result<(), ApiError> {
        match &mut self.tls {
            Some(tls) if tls.outgoing == Outgoing::Frames => {
                tls.outgoing = Outgoing::Ending;
                tls.write(&frames::END);
                tls.flush(now, self.conn, stack)
            }
            Some(tls) if tls.outgoing.is_over() => Ok(()),
            _ => self.close(now, stack),
        }
    }

    /// As [`Stack::shutdown`], after the other end was told.
    pub(crate) fn close(&mut self, now: Instant, stack: &mut Stack) -> Result<(), ApiError> {
        let Some(tls) = &mut self.tls else {
            return stack.shutdown(now, self.conn);
        };
        if tls.ending == Ending::No {
            tls.ending = Ending::Wanted;
        }
        tls.flush(now, self.conn, stack)
    }

    /// As [`Stack::abort`].
    pub(crate) fn abort(&self, now: Instant, stack: &mut Stack) {
        stack.abort(now, self.conn);
    }
}

/// Shows nothing of what users say.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("handshaking", &self.session.is_handshaking())
            .field("held", &self.held.len())
            .field("early", &self.early)
            .field("said", &self.said.len())
            .field("vouched", &self.vouched)
            .field("unread", &self.unread)
            .field("peer_ended", &self.peer_ended)
            .field("ending", &self.ending)
            .field("outgoing", &self.outgoing)
            .field("incoming", &self.incoming)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

impl Tls {
    fn new(mut session: Connection, clock: &Arc<TicketClock>, scratch: &Arc<Scratch>) -> Self {
        // What waits here is bounded by who writes.
        session.set_buffer_limit(None);
        Tls {
            session,
            clock: Arc::clone(clock),
            scratch: Arc::clone(scratch),
            held: Vec::new(),
            early: 0,
            early_records: 0,
            said: Vec::new(),
            vouched: false,
            shaken: 0,
            unread: 0,
            peer_ended: false,
            ending: Ending::No,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            broken: None,
        }
    }

    fn has_parted(&self) -> bool {
        let said = matches!(self.outgoing, Outgoing::Ended | Outgoing::Delivered);
        said && self.incoming == Incoming::Ended
    }

    fn has_unread(&self) -> bool {
        self.unread > 0 || !self.said.is_empty()
    }

    /// A client that does not know yet what has become of its first flight.
    fn is_asking(&self) -> bool {
        matches!(self.session, Connection::Client(_)) && self.session.is_handshaking()
    }

    /// Bytes of a user that may be written now, where the engine takes `space`: whole records that it
    /// takes, and one at least, of which a part may have to wait here.
    fn room(&mut self, space: usize) -> usize {
        if self.ending != Ending::No || self.outgoing.is_over() {
            return 0;
        }
        if self.is_asking() {
            // Only what may leave at once: a user's bytes that wait had better do so in the socket.
            return match self.early == self.held.len() {
                true => self.early_room(),
                false => 0,
            };
        }
        match self.session.wants_write() {
            true => 0,
            false => (space / (RECORD + RECORD_OVERHEAD) * RECORD).clamp(RECORD, BATCH),
        }
    }

    /// Bytes before what is written at a time.
    fn head(&self) -> usize {
        match self.outgoing {
            Outgoing::Frames => frames::HEAD,
            _ => 0,
        }
    }

    /// As [`write`](Self::write), with room for a [`head`](Self::head) before it.
    fn say(&mut self, bytes: &mut [u8]) {
        if self.head() > 0 {
            frames::seal(bytes);
        }
        self.write(bytes);
    }

    /// Bytes that may leave with the first flight.
    fn early_room(&mut self) -> usize {
        let Connection::Client(client) = &mut self.session else {
            return 0;
        };
        match client.early_data() {
            Some(_) if self.early_records < MOST_EARLY_RECORDS => MOST_EARLY - self.early,
            _ => 0,
        }
    }

    /// Whether a message of `len` bytes may be written now.
    fn takes(&self, len: usize) -> bool {
        debug_assert!(len <= frames::MOST, "{len} bytes in a message");
        match self.is_asking() {
            true => self.held.len() + len <= MOST_HELD,
            false => !self.session.wants_write(),
        }
    }

    /// Protects what [`room`](Self::room) or [`takes`](Self::takes) allowed.
    fn write(&mut self, bytes: &[u8]) {
        if self.is_asking() {
            self.held.extend_from_slice(bytes);
            let room = self.early_room();
            let next = &self.held[self.early..];
            if let Connection::Client(client) = &mut self.session
                && let Some(mut early) = client.early_data().filter(|_| room > 0)
            {
                let sent = early.write(&next[..next.len().min(room)]);
                self.early += sent.unwrap_or(0);
                self.early_records += 1;
            }
        } else {
            // It has no bound, so it takes all.
            let _ = self.session.writer().write_all(bytes);
        }
    }

    /// Takes in what there is, into `plain` for as far as there is room, then a record at most.
    fn drive<E: From<ApiError> + From<Broken>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
        plain: &mut Plain<'_>,
    ) -> Result<(), E> {
        self.flush(now, conn, stack)?;
        self.pass_on(plain);
        self.drop_unread();
        while self.unread == 0 && self.broken.is_none() && stack.readable(conn) > 0 {
            self.clock.pass(now);
            let taken = stack.read_with(now, conn, |bufs| {
                let mut input = Input::new(bufs);
                if self.peer_ended {
                    // What comes after the end means nothing.
                    return Ok(bufs.iter().map(|buf| buf.len()).sum());
                }
                let before = input.left();
                self.broken = self.take(&mut input, plain).err();
                Ok::<_, ApiError>(before - input.left())
            })?;
            self.drop_unread();
            // An answer, or the alert that says what was wrong.
            self.flush(now, conn, stack)?;
            if taken == 0 {
                break;
            }
        }
        if stack.read_finished(conn) {
            self.on_finished();
        }
        if plain.is_empty() {
            self.on_cut();
        }
        match self.broken {
            Some(broken) if !self.has_unread() && plain.is_empty() => Err(broken.into()),
            _ => Ok(()),
        }
    }

    /// No more will come: had the other end ended, it would have said so.
    fn on_finished(&mut self) {
        if !self.peer_ended {
            self.broken = self.broken.or(Some(Broken::Truncated));
        }
    }

    /// Behind a user's bytes, on a connection that is to end, nothing is for anybody.
    fn drop_unread(&mut self) {
        if self.ending == Ending::No || !self.has_parted() {
            return;
        }
        let mut waste = [0; 256];
        while matches!(self.session.reader().read(&mut waste), Ok(1..)) {}
        self.unread = 0;
        self.said = Vec::new();
    }

    /// No more will come: a user's bytes had ended before, else they are not all there.
    fn on_cut(&mut self) {
        if self.peer_ended && !self.has_unread() && self.incoming.is_open() {
            self.broken = self.broken.or(Some(Broken::Truncated));
        }
    }

    /// Takes records until there is something to read that `plain` has no room for.
    fn take(&mut self, input: &mut Input<'_, '_>, plain: &mut Plain<'_>) -> Result<(), Broken> {
        while self.session.wants_read() && input.left() > 0 {
            let read = self.session.read_tls(input);
            let read = read.map_err(|_| Broken::Damaged)?;
            let state = self.session.process_new_packets()?;
            if self.session.is_handshaking() {
                self.shaken += read;
                if self.shaken > MOST_HANDSHAKE {
                    return Err(Broken::Damaged);
                }
            }
            self.unread = state.plaintext_bytes_to_read();
            self.peer_ended = state.peer_has_closed();
            self.on_progress()?;
            self.pass_on(plain);
        }
        Ok(())
    }

    /// Moves what can be read into `plain`, for as far as there is room and nothing comes before it.
    fn pass_on(&mut self, plain: &mut Plain<'_>) {
        if self.unread > 0 && self.said.is_empty() {
            self.unread -= plain.fill(&mut self.session.reader());
        }
    }

    /// The handshake may have come further.
    fn on_progress(&mut self) -> Result<(), Broken> {
        match &mut self.session {
            Connection::Server(server) => {
                if let Some(mut early) = server.early_data() {
                    early
                        .read_to_end(&mut self.said)
                        .map_err(|_| Broken::Failed)?;
                    self.vouched |= !self.said.is_empty();
                }
            }
            Connection::Client(client) if !self.held.is_empty() && !client.is_handshaking() => {
                let held = core::mem::take(&mut self.held);
                let arrived = match client.is_early_data_accepted() {
                    true => self.early,
                    false => 0,
                };
                let written = client.writer().write_all(&held[arrived..]);
                written.map_err(|_| Broken::Failed)?;
            }
            Connection::Client(_) => {}
        }
        Ok(())
    }

    fn read_with<E: From<ApiError> + From<Broken>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
        drain: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let scratch = Arc::clone(&self.scratch);
        scratch.with(|memory| {
            let mut drain = Some(drain);
            loop {
                let mut plain = Plain::new(memory);
                let driven = self.drive(now, conn, stack, &mut plain);
                if plain.is_empty() {
                    driven?;
                } else if let Err(error) = driven {
                    self.said.extend_from_slice(plain.bytes());
                    return Err(error);
                }
                let show = |parts: &[IoSlice<'_>]| drain.take().map_or(Ok(0), |drain| drain(parts));
                let (taken, done) = match plain.is_empty() {
                    true => self.read_said(show),
                    false => {
                        let (taken, done) = self.incoming.show(plain.bytes(), show);
                        self.said.extend_from_slice(&plain.bytes()[done..]);
                        (taken, done)
                    }
                };
                // There may have been nothing but the head of what comes next.
                if drain.is_none() || done == 0 || !self.incoming.is_open() {
                    return taken;
                }
            }
        })
    }

    fn read_said<E>(
        &mut self,
        drain: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> (Result<usize, E>, usize) {
        let (taken, done) = self.incoming.show(&self.said, drain);
        self.said.drain(..done);
        if self.said.is_empty() {
            self.said = Vec::new();
        }
        (taken, done)
    }

    /// Hands what is protected to the engine, for as far as there is room; where there is none, the
    /// engine says when there is.
    fn flush(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) -> Result<(), ApiError> {
        loop {
            while self.session.wants_write() && self.ending != Ending::Done {
                let session = &mut self.session;
                let wrote = stack.write_with(now, conn, FLUSH, |bufs| {
                    Ok::<_, ApiError>(session.write_tls(&mut Output::new(bufs)).unwrap_or(0))
                })?;
                if wrote == 0 {
                    return Ok(());
                }
            }
            match self.ending {
                Ending::Wanted if !self.session.is_handshaking() => {
                    self.session.send_close_notify();
                    self.ending = Ending::Said;
                }
                Ending::Said => {
                    self.ending = Ending::Done;
                    return stack.shutdown(now, conn);
                }
                _ if self.outgoing == Outgoing::Ending && self.held.is_empty() => {
                    self.outgoing = Outgoing::Ended;
                    return stack.end_flow(now, conn);
                }
                _ => return Ok(()),
            }
        }
    }
}
