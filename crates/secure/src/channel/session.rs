//! The state of a protected connection.

mod incoming;

use core::fmt;
use std::io::IoSliceMut;
use std::sync::Arc;

use arrayvec::ArrayVec;
use braid_engine::{ApiError, ConnId, Stack};
use braid_wire::Instant;
use rustls::AlertDescription;
use rustls::quic::{Connection, KeyChange};
use zeroize::Zeroizing;

use super::flow::{Incoming, Outgoing};
use super::parameters::JoinSecret;
use super::record::{
    self, CLOSE_NOTIFY, Content, END_OF_EARLY_DATA, HEADER, Level, MOST_PLAIN, NextKeys, OVERHEAD,
    Way,
};
use super::scratch::wipe;
use super::slices;
use super::tls::{self, EARLY_LIMIT, End, MOST_EARLY, MOST_EARLY_RECORDS, Remembered};
use super::versions::Agreed;
use super::{BATCH, Broken};
use crate::Families;
use crate::keys::PublicKey;

/// Most bytes that wait for the end of a handshake: a request, its hints, and what a user said
/// meanwhile.
const MOST_HELD: usize = 40 << 10;
/// Most bytes that are taken in before a handshake ends: early data, and what is said besides.
const MOST_HANDSHAKE: usize = EARLY_LIMIT + (8 << 10);
/// Where the engine's next piece of memory is smaller than this, a record is made elsewhere and copied.
const LEAST_ROOM: usize = 4 * OVERHEAD;
/// The room that is asked for at least: that of a record that needs padding.
const LEAST_WANTED: usize = 256;

/// The state of protection.
pub(super) struct Tls {
    session: Connection,
    end: Arc<End>,
    /// Of a server.
    server: Option<ServerSide>,
    /// The version and the features that both ends speak, once the other end has said its own.
    pub(super) agreed: Option<Agreed>,
    /// Whether subflows prove themselves by the secret of the server, once that is known.
    pub(super) joins_prove: Option<bool>,
    /// Of a client: the families in which the server says that it reaches destinations, until it is asked.
    pub(super) told_families: Option<Families>,
    outgoing_keys: Way,
    incoming_keys: Way,
    next_keys: Option<NextKeys>,
    /// What is written is protected by this key.
    writing: Level,
    /// What is read must be; of a client's first flight some is [`Level::Early`].
    reading: Level,
    /// Records that the engine has not taken yet.
    pending: Vec<u8>,
    /// The first part of a record of which the rest has not come.
    partial: Vec<u8>,
    /// Of a client: what was written before the server's answer.
    first: FirstFlight,
    /// What a reader was shown and did not take.
    said: Zeroizing<Vec<u8>>,
    /// A record that was opened, and has to wait for a reader, or for the next user.
    opened: Option<Opened>,
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

/// What a server alone has of a connection.
pub(super) struct ServerSide {
    /// The secret by which subflows prove themselves, until both ends have agreed on it.
    join_secret: Option<JoinSecret>,
    /// The tickets it gave.
    tickets: Arc<Remembered>,
    /// The client may have sent early data under a key that is not known.
    skips_early: bool,
    /// The client's ticket is proof of its key.
    vouched: bool,
}

impl ServerSide {
    pub(super) fn new(join_secret: JoinSecret, tickets: &Arc<Remembered>) -> Self {
        ServerSide {
            join_secret: Some(join_secret),
            tickets: Arc::clone(tickets),
            skips_early: false,
            vouched: false,
        }
    }
}

/// What a client wrote before it had the server's answer.
#[derive(Default)]
struct FirstFlight {
    held: Zeroizing<Vec<u8>>,
    /// So much of it left as early data, in how many records, and with how much padding.
    early: usize,
    records: usize,
    padding: usize,
    /// The end of a user's bytes did too.
    ended: bool,
}

impl FirstFlight {
    /// Returns how many bytes may still leave as early data.
    fn room(&self) -> usize {
        match self.records < MOST_EARLY_RECORDS {
            true => MOST_EARLY - self.early - self.padding,
            false => 0,
        }
    }

    /// Returns whether something has to wait for the server's answer.
    fn is_waiting(&self) -> bool {
        self.early < self.held.len()
    }
}

/// A record of users' bytes, which nobody has read.
struct Opened {
    content: Content,
    bytes: Zeroizing<Vec<u8>>,
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
            .field("held", &self.first.held.len())
            .field("early", &self.first.early)
            .field("said", &self.said.len())
            .field("opened", &self.opened.as_ref().map(|o| o.bytes.len()))
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
    pub(super) fn new(session: Connection, server: Option<ServerSide>, end: &Arc<End>) -> Self {
        let mut tls = Tls {
            session,
            end: Arc::clone(end),
            server,
            agreed: None,
            joins_prove: None,
            told_families: None,
            outgoing_keys: Way::new(),
            incoming_keys: Way::new(),
            next_keys: None,
            writing: Level::Clear,
            reading: Level::Clear,
            pending: Vec::new(),
            partial: Vec::new(),
            first: FirstFlight::default(),
            said: Zeroizing::default(),
            opened: None,
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

    /// Of a server: the client speaks `braid/3`, whose records had another form, and is told in that form
    /// that nobody speaks it here.
    pub(super) fn meets_older(&mut self) {
        // In plaintext an alert, of one byte.
        const ALERT: u8 = 6;
        let what = AlertDescription::NoApplicationProtocol.into();
        self.pending = vec![ALERT, 0, 1, what];
        self.broken = Some(Broken::Incompatible);
    }

    pub(super) fn peer(&self) -> Option<PublicKey> {
        let vouched = self.server.as_ref().is_some_and(|server| server.vouched);
        let proved = vouched || !self.session.is_handshaking();
        let certificate = self.session.peer_certificates()?.first()?;
        tls::key_of(certificate).filter(|_| proved)
    }

    pub(super) fn has_parted(&self) -> bool {
        let said = matches!(self.outgoing, Outgoing::Ended | Outgoing::Delivered);
        said && self.incoming == Incoming::Ended
    }

    /// Returns whether this end is done with the connection.
    pub(super) fn is_ending(&self) -> bool {
        self.ending != Ending::No
    }

    /// Returns whether users' bytes have parted, and the connection goes on.
    pub(super) fn is_free(&self) -> bool {
        let goes_on = !self.is_ending() && !self.peer_ended && self.broken.is_none();
        self.has_parted() && goes_on
    }

    /// Returns whether nothing was taken in that is not read.
    pub(super) fn is_silent(&self) -> bool {
        self.said.is_empty() && self.opened.is_none() && self.partial.is_empty()
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
            true if self.first.is_waiting() => 0,
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
        let end = Arc::clone(&self.end);
        end.scratch.with(|memory| {
            let memory = &mut memory[..room];
            let filled = fill(&mut [IoSliceMut::new(memory)]);
            // One that fails may have written anywhere.
            let used = filled.as_ref().map_or(room, |filled| room.min(*filled));
            if filled.is_ok() {
                self.say_bytes(&memory[..used]);
            }
            wipe(&mut memory[..used]);
            filled
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
            self.renew(true);
            self.flush(now, conn, stack)?;
            if !self.pending.is_empty() {
                return Ok(0);
            }
        }
        let mut filled = 0;
        // With room for padding, where there is little to write.
        let wanted = max.saturating_add(OVERHEAD).clamp(LEAST_WANTED, BATCH);
        stack.write_with(now, conn, wanted, |bufs| {
            if bufs.first().is_none_or(|buf| buf.len() < LEAST_ROOM) {
                filled = self.fill_elsewhere(max.min(MOST_PLAIN), fill)?;
                return Ok(self.pass(bufs));
            }
            let mut places = record::places(bufs);
            let mut left = max;
            let plain = places.iter_mut().map(|place| {
                let plain = record::plain_of(place);
                let len = plain.len().min(left);
                left -= len;
                &mut plain[..len]
            });
            let mut plain: ArrayVec<_, { record::PLACES }> = plain.map(IoSliceMut::new).collect();
            filled = fill(&mut plain)?;
            drop(plain);
            Ok::<_, E>(self.seal_in_place(&mut places, filled))
        })?;
        self.flush(now, conn, stack)?;
        Ok(filled)
    }

    /// Makes records of the `filled` bytes that stand in the first of `places`, and returns the size of the
    /// records.
    fn seal_in_place(&mut self, places: &mut [&mut [u8]], filled: usize) -> usize {
        let (mut left, mut used) = (filled, 0);
        for place in places {
            let room = place.len() - OVERHEAD;
            let len = left.min(room);
            if len == 0 {
                break;
            }
            let padding = record::padding(len, true).min(room - len);
            let record = &mut place[..len + OVERHEAD + padding];
            let sealed = self
                .outgoing_keys
                .seal((self.writing, Content::Data), record, len);
            if let Err(broken) = sealed {
                self.broken = self.broken.or(Some(broken));
                break;
            }
            (left, used) = (left - len, used + record.len());
        }
        used
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
            true => self.first.held.len() + bytes.len() <= MOST_HELD,
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
                    true if !self.first.is_waiting() && self.early_room() > 0 => {
                        self.say_early(Content::FlowEnd, &[]);
                        self.first.ended = true;
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
        match self.outgoing_keys.has_early() {
            true => self.first.room(),
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
        let room = self.early_room();
        let first = &mut self.first;
        first.held.extend_from_slice(bytes);
        let next = (first.held.len() - first.early).min(room);
        if next > 0 {
            let next = Zeroizing::new(first.held[first.early..first.early + next].to_vec());
            first.early += next.len();
            self.say_early(Content::Data, &next);
        }
    }

    fn say_early(&mut self, content: Content, bytes: &[u8]) {
        let padding = record::padding(bytes.len(), self.is_of_user()).min(self.early_room());
        self.first.records += 1;
        self.first.padding += padding;
        self.add_sealed((Level::Early, content), bytes, padding);
    }

    /// Of a client: says that early data has ended, where the server took it.
    fn end_early(&mut self) {
        if let Connection::Client(client) = &self.session
            && client.is_early_data_accepted()
            && self.outgoing_keys.has_early()
        {
            let padding = record::padding(END_OF_EARLY_DATA.len(), false);
            self.add_sealed(
                (Level::Early, Content::Handshake),
                &END_OF_EARLY_DATA,
                padding,
            );
            self.outgoing_keys.forget_early();
        }
    }

    /// Protects `bytes`, which may be none, by what there is.
    fn say(&mut self, content: Content, bytes: &[u8]) {
        self.say_as(content, bytes, self.is_of_user());
    }

    /// As [`say`](Self::say), padded as a user's bytes or as messages.
    fn say_as(&mut self, content: Content, bytes: &[u8], of_user: bool) {
        let mut rest = bytes;
        loop {
            if self.outgoing_keys.is_worn() {
                self.renew(true);
            }
            let (now, later) = rest.split_at(rest.len().min(MOST_PLAIN));
            self.add_record(content, now, of_user);
            rest = later;
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Returns whether what is written now are a user's bytes.
    fn is_of_user(&self) -> bool {
        self.outgoing == Outgoing::Flow
    }

    /// Replaces the key of what this end says: `asks` the other end to follow, or follows it.
    fn renew(&mut self, asks: bool) {
        let Some(next) = &mut self.next_keys else {
            return;
        };
        match next.local() {
            Ok(key) => {
                self.add_record(Content::Handshake, &record::key_update(asks), false);
                self.outgoing_keys.renew(key);
            }
            Err(broken) => self.broken = self.broken.or(Some(broken)),
        }
    }

    fn add_record(&mut self, content: Content, bytes: &[u8], of_user: bool) {
        let padding = match self.writing {
            Level::Clear => {
                let record = record::plaintext(content, bytes);
                return self.pending.extend_from_slice(&record);
            }
            // Their sizes are those of TLS.
            Level::Handshake => 0,
            _ => record::padding(bytes.len(), of_user),
        };
        self.add_sealed((self.writing, content), bytes, padding);
    }

    fn add_sealed(&mut self, kind: (Level, Content), bytes: &[u8], padding: usize) {
        let at = self.pending.len();
        self.pending.resize(at + HEADER, 0);
        self.pending.extend_from_slice(bytes);
        self.pending
            .resize(at + bytes.len() + OVERHEAD + padding, 0);
        let sealed = self
            .outgoing_keys
            .seal(kind, &mut self.pending[at..], bytes.len());
        if let Err(broken) = sealed {
            wipe(&mut self.pending[at..]);
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
            if self.follows() {
                self.renew(false);
            }
            while !self.pending.is_empty() && self.ending != Ending::Done {
                let most = self.pending.len();
                let passed =
                    stack.write_with(now, conn, most, |bufs| Ok::<_, ApiError>(self.pass(bufs)))?;
                if passed == 0 {
                    return Ok(());
                }
            }
            match self.ending {
                _ if self.follows() => {}
                Ending::Wanted if !self.session.is_handshaking() => {
                    self.say(Content::Alert, &CLOSE_NOTIFY);
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

    /// Returns whether the other end has replaced its key and this end is to do the same now.
    fn follows(&self) -> bool {
        let behind = self.outgoing_keys.is_behind(&self.incoming_keys);
        behind && self.pending.is_empty() && self.ending == Ending::No && self.broken.is_none()
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

    /// Says the messages of TLS that there are to say, and notes the keys of those that follow.
    fn speak(&mut self) {
        loop {
            let mut messages = Vec::new();
            let change = self.session.write_hs(&mut messages);
            if !messages.is_empty() {
                self.end_early();
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
                    self.outgoing_keys.set_traffic(keys.local.packet);
                    self.incoming_keys.set_traffic(keys.remote.packet);
                    self.next_keys = Some(NextKeys::new(next));
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
        let held = core::mem::take(&mut self.first.held);
        let (arrived, ended) = match client.is_early_data_accepted() {
            true => (self.first.early, self.first.ended),
            false => (0, false),
        };
        if arrived < held.len() {
            // A request is in there, or was.
            self.say_as(Content::Data, &held[arrived..], false);
        }
        if self.outgoing == Outgoing::Ending && !ended {
            self.say(Content::FlowEnd, &[]);
        }
    }
}
