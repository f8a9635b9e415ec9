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
    self, CLOSE_NOTIFY, Content, DirectionKeys, END_OF_EARLY_DATA, EncryptionLevel, HEADER_LEN,
    MAX_PAYLOAD, NextKeys, RECORD_OVERHEAD,
};
use super::scratch::wipe;
use super::slices;
use super::tls::{
    self, End, MAX_EARLY_DATA, MAX_EARLY_DATA_ON_WIRE, MAX_EARLY_RECORDS, Remembered,
};
use super::versions::Agreed;
use super::{ChannelError, MAX_BATCH};
use crate::Families;
use crate::keys::PublicKey;

/// Most bytes that wait for the end of a handshake: a request, its hints, and the user's first bytes.
const MAX_PRE_HANDSHAKE_BUF: usize = 40 << 10;
/// Most bytes that are accepted before a handshake ends: early data, and 8 KiB of handshake messages.
const MAX_BYTES_BEFORE_TRAFFIC_KEYS: usize = MAX_EARLY_DATA_ON_WIRE + (8 << 10);
/// Least contiguous room in the engine's memory; below it a record is sealed in scratch memory and copied.
const MIN_IN_PLACE_ROOM: usize = 4 * RECORD_OVERHEAD;
/// Least room to ask the engine for: enough for a padded record.
const MIN_WRITE_REQUEST: usize = 256;

/// The state of a protected connection.
pub(super) struct Tls {
    session: Connection,
    end: Arc<End>,
    /// State of a server's end; `None` at a client.
    server: Option<ServerSide>,
    /// The version and the features that both ends speak, once the other end has said its own.
    pub(super) agreed: Option<Agreed>,
    /// Set once both ends have said what they support: whether subflows authenticate by the server's secret.
    pub(super) joins_prove: Option<bool>,
    /// At a client, the families that the server reports to reach, until they are taken.
    pub(super) told_families: Option<Families>,
    outgoing_keys: DirectionKeys,
    incoming_keys: DirectionKeys,
    next_keys: Option<NextKeys>,
    /// The level of records that this end writes.
    writing: EncryptionLevel,
    /// The level of records to be read; a client's first flight may also contain [`EncryptionLevel::Early`].
    reading: EncryptionLevel,
    /// Sealed records that the engine has not taken yet.
    pending: Vec<u8>,
    /// The first part of a record whose rest has not come.
    partial: Vec<u8>,
    /// At a client, the bytes that were written before the server's answer.
    first: FirstFlight,
    /// Bytes that a reader was shown and did not take.
    said: Zeroizing<Vec<u8>>,
    /// An opened record that has to wait for a reader, or for the next user.
    opened: Option<Opened>,
    /// Bytes of the records received before the handshake ended.
    shaken: usize,
    /// The peer has sent close_notify.
    peer_ended: bool,
    /// The user's bytes end behind [`said`](Self::said).
    flow_ended: bool,
    ending: Ending,
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    error: Option<ChannelError>,
}

/// State that only a server's end of a connection has.
pub(super) struct ServerSide {
    /// The secret that authenticates subflows, until it goes to the engine.
    join_secret: Option<JoinSecret>,
    /// The tickets that the server gave.
    tickets: Arc<Remembered>,
    /// The client may have sent early data under a key that this server does not have.
    skips_early: bool,
    /// The client's ticket has proved its key.
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

/// The bytes of a client from before the server's answer.
#[derive(Default)]
struct FirstFlight {
    held: Zeroizing<Vec<u8>>,
    /// Bytes of `held` that left as early data, in how many records, with how much padding.
    early: usize,
    records: usize,
    padding: usize,
    /// The end of the user's bytes left as early data too.
    ended: bool,
}

impl FirstFlight {
    /// Returns how many bytes may still leave as early data.
    fn room(&self) -> usize {
        if self.records < MAX_EARLY_RECORDS {
            MAX_EARLY_DATA - self.early - self.padding
        } else {
            0
        }
    }

    /// Returns whether some bytes have to wait for the server's answer.
    fn is_waiting(&self) -> bool {
        self.early < self.held.len()
    }
}

/// An opened record of users' bytes that nobody has read.
struct Opened {
    content: Content,
    bytes: Zeroizing<Vec<u8>>,
}

/// The progress of this end's close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    Wanted,
    /// The close_notify is written; the engine may not have taken it yet.
    Said,
    /// The engine has been told to end the direction.
    Done,
}

/// Hides users' bytes from logs.
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
            .field("error", &self.error)
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
            outgoing_keys: DirectionKeys::new(),
            incoming_keys: DirectionKeys::new(),
            next_keys: None,
            writing: EncryptionLevel::Plaintext,
            reading: EncryptionLevel::Plaintext,
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
            error: None,
        };
        if tls.is_client()
            && let Some(keys) = tls.session.zero_rtt_keys()
        {
            tls.outgoing_keys.set_early(keys.packet);
        }
        tls.speak();
        tls
    }

    /// Refuses a client of `braid/3`, whose records had another form, by an alert in that form. For servers.
    pub(super) fn meets_older(&mut self) {
        // The record type of a one-byte plaintext alert in `braid/3`.
        const ALERT: u8 = 6;
        let what = AlertDescription::NoApplicationProtocol.into();
        self.pending = vec![ALERT, 0, 1, what];
        self.error = Some(ChannelError::Incompatible);
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

    /// Returns whether this end has closed the connection.
    pub(super) fn is_ending(&self) -> bool {
        self.ending != Ending::No
    }

    /// Returns whether the user's bytes have ended both ways and the connection can go on.
    pub(super) fn is_free(&self) -> bool {
        let goes_on = !self.is_ending() && !self.peer_ended && self.error.is_none();
        self.has_parted() && goes_on
    }

    /// Returns whether no received byte waits to be read.
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

    /// Starts over with messages of box and server behind the ended bytes of a user.
    pub(super) fn release(&mut self) {
        (self.outgoing, self.incoming) = Default::default();
        self.flow_ended = false;
    }

    /// Notes the end of the user's bytes once a reader has taken all of them.
    fn settle(&mut self) {
        if self.incoming == Incoming::Flow && self.flow_ended && self.said.is_empty() {
            self.incoming = Incoming::Ended;
        }
    }

    fn is_client(&self) -> bool {
        matches!(self.session, Connection::Client(_))
    }

    /// Returns whether this client does not know yet whether the server accepts its early data.
    fn is_asking(&self) -> bool {
        self.is_client() && self.session.is_handshaking()
    }

    // --- what goes out

    /// Writes as [`Stack::write_with`] does.
    pub(super) fn write_with<E: From<ApiError>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
        max: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        self.flush(now, conn, stack)?;
        if self.is_ending() || self.outgoing.is_over() || self.error.is_some() {
            return Ok(0);
        }
        let room = match self.is_asking() {
            // Take only what may leave at once: a user's bytes that must wait do so in the socket, not in memory
            // here.
            true if self.first.is_waiting() => 0,
            true => self.early_room(),
            false if self.writing != EncryptionLevel::Traffic || !self.pending.is_empty() => 0,
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

    /// Seals up to `room` bytes that `fill` writes to scratch memory, and queues the records.
    fn fill_elsewhere<E>(
        &mut self,
        room: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let end = Arc::clone(&self.end);
        end.scratch.with(|memory| {
            let memory = &mut memory[..room];
            let filled = fill(&mut [IoSliceMut::new(memory)]);
            // A failing `fill` may have written anywhere, so all of the room is wiped.
            let used = filled.as_ref().map_or(room, |filled| room.min(*filled));
            if filled.is_ok() {
                self.say_bytes(&memory[..used]);
            }
            wipe(&mut memory[..used]);
            filled
        })
    }

    /// Seals what `fill` writes in the engine's own memory, without a copy. For established connections.
    fn write_in_place<E: From<ApiError>>(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
        max: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        if self.outgoing_keys.is_key_limit_reached() {
            self.rekey(true);
            self.flush(now, conn, stack)?;
            if !self.pending.is_empty() {
                return Ok(0);
            }
        }
        let mut filled = 0;
        // Ask for room for padding even where there is little to write.
        let wanted = max
            .saturating_add(RECORD_OVERHEAD)
            .clamp(MIN_WRITE_REQUEST, MAX_BATCH);
        stack.write_with(now, conn, wanted, |bufs| {
            if bufs.first().is_none_or(|buf| buf.len() < MIN_IN_PLACE_ROOM) {
                filled = self.fill_elsewhere(max.min(MAX_PAYLOAD), fill)?;
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
            let mut plain: ArrayVec<_, { record::MAX_RECORDS_PER_WRITE }> =
                plain.map(IoSliceMut::new).collect();
            filled = fill(&mut plain)?;
            drop(plain);
            Ok::<_, E>(self.seal_in_place(&mut places, filled))
        })?;
        self.flush(now, conn, stack)?;
        Ok(filled)
    }

    /// Seals the `filled` bytes that stand at the front of `places`, and returns the total size of the records.
    fn seal_in_place(&mut self, places: &mut [&mut [u8]], filled: usize) -> usize {
        let (mut left, mut used) = (filled, 0);
        for place in places {
            let room = place.len() - RECORD_OVERHEAD;
            let len = left.min(room);
            if len == 0 {
                break;
            }
            let padding = record::padding(len, true).min(room - len);
            let record = &mut place[..len + RECORD_OVERHEAD + padding];
            let sealed = self
                .outgoing_keys
                .seal((self.writing, Content::Data), record, len);
            if let Err(error) = sealed {
                self.error = self.error.or(Some(error));
                break;
            }
            (left, used) = (left - len, used + record.len());
        }
        used
    }

    /// Writes all of `bytes` or none.
    pub(super) fn write(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
        bytes: &[u8],
    ) -> Result<usize, ApiError> {
        self.flush(now, conn, stack)?;
        let takes = match self.is_asking() {
            true => self.first.held.len() + bytes.len() <= MAX_PRE_HANDSHAKE_BUF,
            false => self.writing == EncryptionLevel::Traffic && self.pending.is_empty(),
        };
        if !takes {
            return Ok(0);
        }
        self.say_bytes(bytes);
        self.flush(now, conn, stack)?;
        Ok(bytes.len())
    }

    /// Ends the user's bytes where a user's are written, else the connection.
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

    /// Returns the number of bytes that may still leave with the first flight.
    fn early_room(&self) -> usize {
        if self.outgoing_keys.has_early() {
            self.first.room()
        } else {
            0
        }
    }

    /// Queues `bytes` for writing, as early data or to wait for the answer while a client's handshake runs. Does
    /// nothing if they are empty.
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
        self.add_sealed((EncryptionLevel::Early, content), bytes, padding);
    }

    /// Ends early data where the server accepted it (RFC 8446 section 4.5). For clients.
    fn end_early(&mut self) {
        if let Connection::Client(client) = &self.session
            && client.is_early_data_accepted()
            && self.outgoing_keys.has_early()
        {
            let padding = record::padding(END_OF_EARLY_DATA.len(), false);
            self.add_sealed(
                (EncryptionLevel::Early, Content::Handshake),
                &END_OF_EARLY_DATA,
                padding,
            );
            self.outgoing_keys.forget_early();
        }
    }

    /// Seals `bytes`, which may be empty, at the current level and queues the records.
    fn say(&mut self, content: Content, bytes: &[u8]) {
        self.say_as(content, bytes, self.is_of_user());
    }

    /// Works as [`say`](Self::say) does, padding as a user's bytes or as messages.
    fn say_as(&mut self, content: Content, bytes: &[u8], of_user: bool) {
        let mut rest = bytes;
        loop {
            if self.outgoing_keys.is_key_limit_reached() {
                self.rekey(true);
            }
            let (now, later) = rest.split_at(rest.len().min(MAX_PAYLOAD));
            self.add_record(content, now, of_user);
            rest = later;
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Returns whether a user's bytes are written now.
    fn is_of_user(&self) -> bool {
        self.outgoing == Outgoing::Flow
    }

    /// Replaces this end's key by a KeyUpdate, which asks the peer to follow where `asks`.
    fn rekey(&mut self, asks: bool) {
        let Some(next) = &mut self.next_keys else {
            return;
        };
        match next.local() {
            Ok(key) => {
                self.add_record(Content::Handshake, &record::key_update(asks), false);
                self.outgoing_keys.replace_key(key);
            }
            Err(error) => self.error = self.error.or(Some(error)),
        }
    }

    fn add_record(&mut self, content: Content, bytes: &[u8], of_user: bool) {
        let padding = match self.writing {
            EncryptionLevel::Plaintext => {
                let record = record::encode_plaintext(content, bytes);
                return self.pending.extend_from_slice(&record);
            }
            // Handshake records have the sizes of any TLS handshake; padding would hide nothing.
            EncryptionLevel::Handshake => 0,
            _ => record::padding(bytes.len(), of_user),
        };
        self.add_sealed((self.writing, content), bytes, padding);
    }

    fn add_sealed(&mut self, kind: (EncryptionLevel, Content), bytes: &[u8], padding: usize) {
        let at = self.pending.len();
        self.pending.resize(at + HEADER_LEN, 0);
        self.pending.extend_from_slice(bytes);
        self.pending
            .resize(at + bytes.len() + RECORD_OVERHEAD + padding, 0);
        let sealed = self
            .outgoing_keys
            .seal(kind, &mut self.pending[at..], bytes.len());
        if let Err(error) = sealed {
            wipe(&mut self.pending[at..]);
            self.pending.truncate(at);
            self.error = self.error.or(Some(error));
        }
    }

    /// Passes queued records to the engine until its room ends; the engine then reports when there is room again.
    pub(super) fn flush(
        &mut self,
        now: Instant,
        conn: ConnId,
        stack: &mut Stack,
    ) -> Result<(), ApiError> {
        loop {
            if self.follows() {
                self.rekey(false);
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
                // The peer has replaced several keys: follow each of them.
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

    /// Returns whether the peer has replaced its key and this end is to follow now.
    fn follows(&self) -> bool {
        let behind = self.outgoing_keys.is_behind(&self.incoming_keys);
        behind && self.pending.is_empty() && self.ending == Ending::No && self.error.is_none()
    }

    /// Moves queued records into `bufs` until either ends, and returns the number of bytes moved.
    fn pass(&mut self, bufs: &mut [IoSliceMut<'_>]) -> usize {
        let passed = slices::copy(&self.pending, bufs);
        self.pending.drain(..passed);
        if self.pending.is_empty() {
            // Release the memory, so that an idle connection keeps none.
            self.pending = Vec::new();
        }
        passed
    }

    /// Writes rustls's pending handshake messages, and installs the keys that follow them.
    fn speak(&mut self) {
        loop {
            let mut messages = Vec::new();
            let change = self.session.write_hs(&mut messages);
            if !messages.is_empty() {
                // EndOfEarlyData precedes the client's Finished (RFC 8446 section 4.5).
                self.end_early();
                self.say(Content::Handshake, &messages);
            }
            match change {
                Some(KeyChange::Handshake { keys }) => {
                    self.outgoing_keys.set_handshake(keys.local.packet);
                    self.incoming_keys.set_handshake(keys.remote.packet);
                    (self.writing, self.reading) =
                        (EncryptionLevel::Handshake, EncryptionLevel::Handshake);
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
                    self.writing = EncryptionLevel::Traffic;
                }
                None => return,
            }
        }
    }

    /// Writes what the server did not accept of the first flight. For clients.
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
            // A request stands in these bytes or before them, so they are padded like messages.
            self.say_as(Content::Data, &held[arrived..], false);
        }
        if self.outgoing == Outgoing::Ending && !ended {
            self.say(Content::FlowEnd, &[]);
        }
    }
}
