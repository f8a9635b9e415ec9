//! The state of a protected connection.

use core::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use arrayvec::ArrayVec;
use braid_engine::{ApiError, ConnId, JoinAuth, Stack};
use braid_wire::Instant;
use rustls::AlertDescription;
use rustls::quic::{Connection, KeyChange};

use super::flow::{Incoming, Outgoing};
use super::joins::{self, JoinSecret};
use super::record::{self, Content, HEADER, Header, Kind, Level, MOST_PLAIN, OVERHEAD, Way};
use super::scratch::{Plain, Scratch};
use super::slices::{self, Input};
use super::tls::{self, EARLY_LIMIT, MOST_EARLY, MOST_EARLY_RECORDS, TicketClock};
use super::{BATCH, Broken};
use crate::keys::PublicKey;

/// Most bytes that wait for the end of a handshake: a request, its hints, and what a user said
/// meanwhile.
const MOST_HELD: usize = 40 << 10;
/// Most bytes that are taken in before a handshake ends: early data, and what is said besides.
const MOST_HANDSHAKE: usize = EARLY_LIMIT + (8 << 10);
/// Where the engine's next piece of memory is smaller than this, a record is made elsewhere and copied.
const LEAST_ROOM: usize = 4 * OVERHEAD;

/// The state of protection.
pub(super) struct Tls {
    session: Connection,
    clock: Arc<TicketClock>,
    scratch: Arc<Scratch>,
    /// Of a server, until both ends have agreed on it.
    join_secret: Option<JoinSecret>,
    /// Whether subflows prove themselves by it, once that is known.
    pub(super) joins_prove: Option<bool>,
    outgoing_keys: Way,
    incoming_keys: Way,
    /// What is written is protected by this key.
    writing: Level,
    /// What is read must be; of a client's first flight some is [`Level::Early`].
    reading: Level,
    /// Records that the engine has not taken yet.
    pending: Vec<u8>,
    /// The first part of a record of which the rest has not come.
    partial: Vec<u8>,
    /// Of a client: what was written before the server's answer.
    held: Vec<u8>,
    /// So much of it left with the first flight, and in how many records.
    early: usize,
    early_records: usize,
    /// The end of a user's bytes did too.
    early_end: bool,
    /// What a reader was shown and did not take.
    said: Vec<u8>,
    /// Of a server: the client's ticket is proof of its key.
    vouched: bool,
    /// Bytes that came before the handshake ended.
    shaken: usize,
    /// The other end will say no more.
    peer_ended: bool,
    /// A user's bytes end behind [`said`](Self::said).
    flow_ended: bool,
    ending: Ending,
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
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

/// Shows nothing of what users say.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("writing", &self.writing)
            .field("reading", &self.reading)
            .field("pending", &self.pending.len())
            .field("partial", &self.partial.len())
            .field("held", &self.held.len())
            .field("early", &self.early)
            .field("said", &self.said.len())
            .field("vouched", &self.vouched)
            .field("peer_ended", &self.peer_ended)
            .field("flow_ended", &self.flow_ended)
            .field("ending", &self.ending)
            .field("outgoing", &self.outgoing)
            .field("incoming", &self.incoming)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// `join_secret` is that of a server.
    pub(super) fn new(
        session: Connection,
        join_secret: Option<JoinSecret>,
        (clock, scratch): (&Arc<TicketClock>, &Arc<Scratch>),
    ) -> Self {
        let mut tls = Tls {
            session,
            clock: Arc::clone(clock),
            scratch: Arc::clone(scratch),
            join_secret,
            joins_prove: None,
            outgoing_keys: Way::new(),
            incoming_keys: Way::new(),
            writing: Level::Clear,
            reading: Level::Clear,
            pending: Vec::new(),
            partial: Vec::new(),
            held: Vec::new(),
            early: 0,
            early_records: 0,
            early_end: false,
            said: Vec::new(),
            vouched: false,
            shaken: 0,
            peer_ended: false,
            flow_ended: false,
            ending: Ending::No,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            broken: None,
        };
        if tls.is_client()
            && let Some(keys) = tls.session.zero_rtt_keys()
        {
            tls.outgoing_keys.set_early(keys.packet);
        }
        tls.speak();
        tls
    }

    /// Of a server: the client speaks a version of Braid that has the records of TLS, and is told so in
    /// these.
    pub(super) fn meets_older(&mut self) {
        const ALERT: u8 = 21;
        const FATAL: u8 = 2;
        let what = AlertDescription::NoApplicationProtocol.into();
        self.pending = vec![ALERT, 3, 3, 0, 2, FATAL, what];
        self.broken = Some(Broken::Incompatible);
    }

    pub(super) fn peer(&self) -> Option<PublicKey> {
        let proved = self.vouched || !self.session.is_handshaking();
        let certificate = self.session.peer_certificates()?.first()?;
        tls::key_of(certificate).filter(|_| proved)
    }

    pub(super) fn has_parted(&self) -> bool {
        let said = matches!(self.outgoing, Outgoing::Ended | Outgoing::Delivered);
        said && self.incoming == Incoming::Ended
    }

    /// Whether this end is done with the connection.
    pub(super) fn is_ending(&self) -> bool {
        self.ending != Ending::No
    }

    /// Whether users' bytes have parted, and the connection goes on.
    pub(super) fn is_free(&self) -> bool {
        let goes_on = !self.is_ending() && !self.peer_ended && self.broken.is_none();
        self.has_parted() && goes_on
    }

    /// Whether nothing was taken in that is not read.
    pub(super) fn is_silent(&self) -> bool {
        self.said.is_empty() && self.partial.is_empty()
    }

    pub(super) fn read_finished(&self) -> bool {
        match self.incoming {
            Incoming::Messages => self.peer_ended && self.said.is_empty(),
            Incoming::Flow => false,
            Incoming::Ended => true,
        }
    }

    pub(super) fn begin_reading(&mut self) {
        self.incoming = Incoming::Flow;
        self.settle();
    }

    /// What follows a user's bytes that have ended are messages again.
    pub(super) fn release(&mut self) {
        (self.outgoing, self.incoming) = Default::default();
        self.flow_ended = false;
    }

    /// A reader may have come to the end of a user's bytes.
    fn settle(&mut self) {
        if self.incoming == Incoming::Flow && self.flow_ended && self.said.is_empty() {
            self.incoming = Incoming::Ended;
        }
    }

    fn is_client(&self) -> bool {
        matches!(self.session, Connection::Client(_))
    }

    /// A client that does not know yet what has become of its first flight.
    fn is_asking(&self) -> bool {
        self.is_client() && self.session.is_handshaking()
    }

    // --- what goes out

    /// As [`Stack::write_with`].
    pub(super) fn write_with<E: From<ApiError>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
        max: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.flush(now, conn, stack)?;
        if self.is_ending() || self.outgoing.is_over() || self.broken.is_some() {
            return Ok(0);
        }
        let room = match self.is_asking() {
            // Only what may leave at once: a user's bytes that wait had better do so in the socket.
            true if self.early < self.held.len() => 0,
            true => self.early_room(),
            false if self.writing != Level::Traffic || !self.pending.is_empty() => 0,
            false => return self.write_in_place(now, conn, stack, max, fill),
        };
        let room = room.min(max);
        if room == 0 {
            return Ok(0);
        }
        let filled = self.fill_elsewhere(room, fill)?;
        self.flush(now, conn, stack)?;
        Ok(filled)
    }

    /// Protects up to `room` bytes, which `fill` writes, and has them wait.
    fn fill_elsewhere<E>(
        &mut self,
        room: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let scratch = Arc::clone(&self.scratch);
        scratch.with(|memory| {
            let filled = fill(&mut [IoSliceMut::new(&mut memory[..room])])?;
            self.say_bytes(&memory[..filled.min(room)]);
            Ok(filled)
        })
    }

    /// The same once both ends know each other: what `fill` writes is protected where it stands.
    fn write_in_place<E: From<ApiError>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
        max: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        if self.outgoing_keys.is_worn() {
            self.renew();
            self.flush(now, conn, stack)?;
            if !self.pending.is_empty() {
                return Ok(0);
            }
        }
        let kind = self.kind(Content::Data);
        let mut filled = 0;
        stack.write_with(now, conn, max.saturating_add(OVERHEAD).min(BATCH), |bufs| {
            if bufs.first().is_none_or(|buf| buf.len() < LEAST_ROOM) {
                filled = self.fill_elsewhere(max.min(MOST_PLAIN), fill)?;
                return Ok(self.pass(bufs));
            }
            let mut places = record::places(bufs);
            let plain = places.iter_mut().map(|place| record::plain_of(place));
            let mut plain: ArrayVec<_, { record::PLACES }> = plain.map(IoSliceMut::new).collect();
            filled = fill(&mut plain)?;
            drop(plain);
            let (mut left, mut used) = (filled, 0);
            for place in &mut places {
                let len = left.min(place.len() - OVERHEAD);
                if len == 0 {
                    break;
                }
                let record = &mut place[..len + OVERHEAD];
                if let Err(broken) = self.outgoing_keys.seal(kind, record) {
                    self.broken = self.broken.or(Some(broken));
                    break;
                }
                (left, used) = (left - len, used + record.len());
            }
            Ok::<_, E>(used)
        })?;
        self.flush(now, conn, stack)?;
        Ok(filled)
    }

    /// Writes `bytes`, all or nothing.
    pub(super) fn write(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
        bytes: &[u8],
    ) -> Result<usize, ApiError> {
        self.flush(now, conn, stack)?;
        let takes = match self.is_asking() {
            true => self.held.len() + bytes.len() <= MOST_HELD,
            false => self.writing == Level::Traffic && self.pending.is_empty(),
        };
        if !takes {
            return Ok(0);
        }
        self.say_bytes(bytes);
        self.flush(now, conn, stack)?;
        Ok(bytes.len())
    }

    /// Says that no more will be written: of a user's bytes where it is these, or else at all.
    pub(super) fn shutdown(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
    ) -> Result<(), ApiError> {
        match self.outgoing {
            Outgoing::Flow => {
                self.outgoing = Outgoing::Ending;
                match self.is_asking() {
                    true if self.early == self.held.len() && self.early_room() > 0 => {
                        self.say_early(Content::FlowEnd, &[]);
                        self.early_end = true;
                    }
                    true => {}
                    false => self.say(Content::FlowEnd, &[]),
                }
                self.flush(now, conn, stack)
            }
            outgoing if outgoing.is_over() => Ok(()),
            _ => self.close(now, conn, stack),
        }
    }

    pub(super) fn close(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
    ) -> Result<(), ApiError> {
        if !self.is_ending() {
            self.ending = Ending::Wanted;
        }
        self.flush(now, conn, stack)
    }

    /// Bytes that may leave with the first flight.
    fn early_room(&self) -> usize {
        match self.outgoing_keys.has_early() && self.early_records < MOST_EARLY_RECORDS {
            true => MOST_EARLY - self.early,
            false => 0,
        }
    }

    /// What is not empty.
    fn say_bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if !self.is_asking() {
            return self.say(Content::Data, bytes);
        }
        self.held.extend_from_slice(bytes);
        let next = self.held.len() - self.early;
        let next = next.min(self.early_room());
        if next > 0 {
            let next = self.held[self.early..self.early + next].to_vec();
            self.early += next.len();
            self.say_early(Content::Data, &next);
        }
    }

    fn say_early(&mut self, content: Content, bytes: &[u8]) {
        self.early_records += 1;
        let kind = Kind {
            level: Level::Early,
            content,
        };
        self.add_record(kind, bytes);
    }

    /// Protects `bytes`, which may be none, by what there is.
    fn say(&mut self, content: Content, bytes: &[u8]) {
        let kind = self.kind(content);
        let mut rest = bytes;
        loop {
            if self.outgoing_keys.is_worn() {
                self.renew();
            }
            let (now, later) = rest.split_at(rest.len().min(MOST_PLAIN));
            self.add_record(kind, now);
            rest = later;
            if rest.is_empty() {
                return;
            }
        }
    }

    fn kind(&self, content: Content) -> Kind {
        let level = self.writing;
        Kind { level, content }
    }

    fn renew(&mut self) {
        self.add_record(self.kind(Content::KeyUpdate), &[]);
        self.outgoing_keys.renew();
    }

    fn add_record(&mut self, kind: Kind, bytes: &[u8]) {
        let at = self.pending.len();
        self.pending.resize(at + HEADER, 0);
        self.pending.extend_from_slice(bytes);
        self.pending.resize(at + kind.wire_len(bytes.len()), 0);
        let sealed = self.outgoing_keys.seal(kind, &mut self.pending[at..]);
        if let Err(broken) = sealed {
            self.pending.truncate(at);
            self.broken = self.broken.or(Some(broken));
        }
    }

    /// Hands records to the engine, for as far as there is room; where there is none, the engine says
    /// when there is.
    pub(super) fn flush(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
    ) -> Result<(), ApiError> {
        loop {
            while !self.pending.is_empty() && self.ending != Ending::Done {
                let most = self.pending.len();
                let passed =
                    stack.write_with(now, conn, most, |bufs| Ok::<_, ApiError>(self.pass(bufs)))?;
                if passed == 0 {
                    return Ok(());
                }
            }
            match self.ending {
                Ending::Wanted if !self.session.is_handshaking() => {
                    self.say(Content::End, &[]);
                    self.ending = Ending::Said;
                }
                Ending::Said => {
                    self.ending = Ending::Done;
                    return stack.shutdown(now, conn);
                }
                _ if self.outgoing == Outgoing::Ending && !self.is_asking() => {
                    self.outgoing = Outgoing::Ended;
                    return stack.end_flow(now, conn);
                }
                _ => return Ok(()),
            }
        }
    }

    /// Moves what waits into `bufs`, for as far as there is room, and returns how much.
    fn pass(&mut self, bufs: &mut [IoSliceMut<'_>]) -> usize {
        let passed = slices::copy(&self.pending, bufs);
        self.pending.drain(..passed);
        if self.pending.is_empty() {
            self.pending = Vec::new();
        }
        passed
    }

    // --- what comes in

    /// Takes in what there is: into `plain` what is for a reader, for as far as there is room, and where
    /// there is none of that, what stands before it.
    pub(super) fn drive<E: From<ApiError> + From<Broken>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
        mut plain: Option<&mut Plain<'_>>,
    ) -> Result<(), E> {
        self.flush(now, conn, stack)?;
        while self.broken.is_none() && stack.readable(conn) > 0 {
            self.clock.pass(now);
            let taken = stack.read_with(now, conn, |bufs| {
                let mut input = Input::new(bufs);
                let all = input.left();
                if self.peer_ended {
                    // What comes after the end means nothing.
                    return Ok(all);
                }
                if let Err(broken) = self.take(&mut input, &mut plain) {
                    self.fail(broken);
                }
                Ok::<_, ApiError>(all - input.left())
            })?;
            // Before the box can know the secret, and use it.
            self.agree_on_joins(now, conn, stack)?;
            // An answer, or the alert that says what was wrong.
            self.flush(now, conn, stack)?;
            if taken == 0 {
                break;
            }
        }
        // No more will come: had the other end ended, it would have said so.
        if stack.read_finished(conn) && !self.peer_ended {
            self.broken = self.broken.or(Some(Broken::Truncated));
        }
        let unread = !self.said.is_empty() || plain.is_some_and(|plain| !plain.is_empty());
        if unread {
            return Ok(());
        }
        self.settle();
        // A user's bytes had ended before, else they are not all there.
        if self.peer_ended && self.incoming == Incoming::Flow {
            self.broken = self.broken.or(Some(Broken::Truncated));
        }
        match self.broken {
            Some(broken) => Err(broken.into()),
            None => Ok(()),
        }
    }

    /// Tells the engine how subflows prove themselves, once the other end has said what it can do: a box in
    /// its ClientHello, and a server in what its Finished confirms.
    fn agree_on_joins(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
    ) -> Result<(), ApiError> {
        if self.joins_prove.is_some() || self.is_asking() {
            return Ok(());
        }
        let Some(told) = self.session.quic_transport_parameters() else {
            return Ok(());
        };
        let auth = joins::agreed(self.join_secret.take().as_ref(), told);
        self.joins_prove = Some(auth != JoinAuth::Keys);
        stack.set_join_auth(now, conn, auth)
    }

    pub(super) fn read_with<E: From<ApiError> + From<Broken>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
        drain: impl FnOnce(&[IoSlice<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        if !self.said.is_empty() {
            self.drive::<E>(now, conn, stack, None)?;
            let taken = drain(&[IoSlice::new(&self.said)]);
            self.said.drain(..*taken.as_ref().unwrap_or(&0));
            if self.said.is_empty() {
                self.said = Vec::new();
            }
            self.settle();
            return taken;
        }
        let scratch = Arc::clone(&self.scratch);
        scratch.with(|memory| {
            let mut plain = Plain::new(memory);
            let driven = self.drive(now, conn, stack, Some(&mut plain));
            if plain.is_empty() {
                driven?;
                if self.flow_ended && self.incoming == Incoming::Messages {
                    // A user's bytes end of which nobody spoke.
                    self.fail(Broken::Damaged);
                    self.flush(now, conn, stack)?;
                    return Err(Broken::Damaged.into());
                }
                return Ok(0);
            }
            let taken = driven.and_then(|()| drain(&[IoSlice::new(plain.bytes())]));
            let done = *taken.as_ref().unwrap_or(&0);
            self.said.extend_from_slice(&plain.bytes()[done..]);
            self.settle();
            taken
        })
    }

    /// Something is wrong with what came in, and the other end is told.
    fn fail(&mut self, broken: Broken) {
        self.broken = self.broken.or(Some(broken));
        let alert = self.session.alert().or(broken.alert());
        if let Some(alert) = alert {
            self.say(Content::Alert, &[alert.into()]);
        }
    }

    /// Takes records while there is room for what is in them. What a user says after his end is left
    /// where it is: the next one's it is.
    fn take(
        &mut self,
        input: &mut Input<'_, '_>,
        plain: &mut Option<&mut Plain<'_>>,
    ) -> Result<(), Broken> {
        // Nobody reads any more.
        let waste = self.is_ending() && self.has_parted();
        while !self.peer_ended {
            let Some(header) = self.next_header(*input)? else {
                self.keep(input);
                return Ok(());
            };
            let size = HEADER + header.body;
            if self.reading != Level::Traffic && self.shaken + size > MOST_HANDSHAKE {
                return Err(Broken::Damaged);
            }
            let flow = header.kind.is_flow();
            if flow && self.flow_ended && !waste {
                return Ok(());
            }
            // Early data has to make way for the end of the handshake, which stands behind it.
            let stays = flow && !waste && header.kind.level != Level::Early;
            let mut control = Vec::new();
            let body = match plain {
                Some(plain) => match plain.room().get_mut(..header.body) {
                    Some(body) => body,
                    None => return Ok(()),
                },
                None if stays => return Ok(()),
                None => {
                    control.resize(header.body, 0);
                    &mut control[..]
                }
            };
            if self.partial.len() + input.left() < size {
                self.keep(input);
                return Ok(());
            }
            self.gather(input, body);
            let len = self.open(&header, body)?;
            let Some(len) = len else { continue };
            match header.kind.content {
                Content::Data if len == 0 => return Err(Broken::Damaged),
                Content::Data if waste => {}
                Content::Data => match plain {
                    Some(plain) => plain.commit(len),
                    None => self.said.extend_from_slice(&control[..len]),
                },
                Content::Handshake => self.hear(&body[..len])?,
                Content::Alert => {
                    let &[alert] = &body[..len] else {
                        return Err(Broken::Damaged);
                    };
                    return Err(heard(header.kind.level, alert.into()));
                }
                _ if len > 0 => return Err(Broken::Damaged),
                Content::FlowEnd => self.flow_ended = true,
                Content::KeyUpdate if !self.incoming_keys.may_renew() => {
                    return Err(Broken::Damaged);
                }
                Content::KeyUpdate => self.incoming_keys.renew(),
                Content::End => self.peer_ended = true,
            }
        }
        input.skip();
        Ok(())
    }

    /// The head of the next record, if all of it has come.
    fn next_header(&self, mut input: Input<'_, '_>) -> Result<Option<Header>, Broken> {
        let mut bytes = [0; HEADER];
        let kept = self.partial.len().min(HEADER);
        bytes[..kept].copy_from_slice(&self.partial[..kept]);
        match kept + input.read(&mut bytes[kept..]) {
            HEADER => match Header::read(bytes) {
                // Whoever this is has never said a word that is Braid's.
                Err(_) if self.reading == Level::Clear && self.is_client() => {
                    Err(Broken::Incompatible)
                }
                header => header.map(Some),
            },
            _ => Ok(None),
        }
    }

    /// Keeps what is left, which is less than a record.
    fn keep(&mut self, input: &mut Input<'_, '_>) {
        while let piece @ [_, ..] = input.piece(usize::MAX) {
            self.partial.extend_from_slice(piece);
        }
    }

    /// Copies what follows a head, all of which has come, into `body`.
    fn gather(&mut self, input: &mut Input<'_, '_>, body: &mut [u8]) {
        let partial = core::mem::take(&mut self.partial);
        match partial.get(HEADER..) {
            Some(kept) => {
                body[..kept.len()].copy_from_slice(kept);
                input.read(&mut body[kept.len()..]);
            }
            None => {
                input.read(&mut [0; HEADER][partial.len()..]);
                input.read(body);
            }
        }
    }

    /// Opens a record, if there is any sense in that.
    fn open(&mut self, header: &Header, body: &mut [u8]) -> Result<Option<usize>, Broken> {
        let level = header.kind.level;
        if self.reading != Level::Traffic {
            self.shaken += HEADER + body.len();
        }
        let early = level == Level::Early && self.reading == Level::Handshake && !self.is_client();
        if level != self.reading && !early {
            return Err(Broken::Damaged);
        }
        if early && !self.incoming_keys.has_early() {
            // It is said again.
            self.incoming_keys.skip();
            return Ok(None);
        }
        let len = self.incoming_keys.open(header, body)?;
        self.vouched |= early;
        Ok(Some(len))
    }

    /// Takes in messages of TLS.
    fn hear(&mut self, messages: &[u8]) -> Result<(), Broken> {
        // A client has no more to say of that kind once it is known, and nobody says nothing.
        let over = self.reading == Level::Traffic && !self.is_client();
        if over || messages.is_empty() {
            return Err(Broken::Damaged);
        }
        self.session.read_hs(messages)?;
        self.speak();
        if self.reading == Level::Handshake && !self.session.is_handshaking() {
            self.reading = Level::Traffic;
            self.outgoing_keys.forget_handshake();
            self.incoming_keys.forget_handshake();
            self.say_held();
        }
        Ok(())
    }

    /// Says the messages of TLS that there are to say, and notes the keys of those that follow.
    fn speak(&mut self) {
        loop {
            let mut messages = Vec::new();
            let change = self.session.write_hs(&mut messages);
            if !messages.is_empty() {
                self.say(Content::Handshake, &messages);
            }
            match change {
                Some(KeyChange::Handshake { keys }) => {
                    self.outgoing_keys.set_handshake(keys.local.packet);
                    self.incoming_keys.set_handshake(keys.remote.packet);
                    (self.writing, self.reading) = (Level::Handshake, Level::Handshake);
                    if !self.is_client()
                        && let Some(keys) = self.session.zero_rtt_keys()
                    {
                        self.incoming_keys.set_early(keys.packet);
                    }
                }
                Some(KeyChange::OneRtt { keys, next }) => {
                    let (local, remote) = (keys.local.packet, keys.remote.packet);
                    self.outgoing_keys.set_traffic(local, next.clone(), false);
                    self.incoming_keys.set_traffic(remote, next, true);
                    self.writing = Level::Traffic;
                }
                None => return,
            }
        }
    }

    /// Of a client: says what the server did not take with the first flight.
    fn say_held(&mut self) {
        let Connection::Client(client) = &self.session else {
            return;
        };
        let held = core::mem::take(&mut self.held);
        let (arrived, ended) = match client.is_early_data_accepted() {
            true => (self.early, self.early_end),
            false => (0, false),
        };
        self.say_bytes(&held[arrived..]);
        if self.outgoing == Outgoing::Ending && !ended {
            self.say(Content::FlowEnd, &[]);
        }
    }
}

/// What an alert means. In clear anybody may have said it, and a server that does not know a key says so
/// under another.
fn heard(level: Level, alert: AlertDescription) -> Broken {
    match rustls::Error::AlertReceived(alert).into() {
        Broken::Refused if level == Level::Clear => Broken::Alert(alert),
        broken => broken,
    }
}
