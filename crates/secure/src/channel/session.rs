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
    self, CLOSE_NOTIFY, ContentType, DirectionKeys, END_OF_EARLY_DATA, EncryptionLevel, HEADER_LEN,
    MAX_PAYLOAD, NextKeys, RECORD_OVERHEAD,
};
use super::scratch::wipe;
use super::slices;
use super::tls::{
    self, EndpointState, MAX_EARLY_DATA, MAX_EARLY_DATA_ON_WIRE, MAX_EARLY_RECORDS, ServerTickets,
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
    endpoint: Arc<EndpointState>,
    /// State of a server's end; `None` at a client.
    server: Option<ServerSide>,
    /// The version and the features that both ends speak, once the peer has announced its own.
    pub(super) agreed: Option<Agreed>,
    /// Set once both ends have announced what they support: whether subflows authenticate by the server's secret.
    pub(super) joins_use_secret: Option<bool>,
    /// At a client, the families that the server reports to reach, until they are taken.
    pub(super) peer_families: Option<Families>,
    outgoing_keys: DirectionKeys,
    incoming_keys: DirectionKeys,
    next_keys: Option<NextKeys>,
    /// The level of records that this end writes.
    write_level: EncryptionLevel,
    /// The level of records to be read; a client's first flight may also contain [`EncryptionLevel::Early`].
    read_level: EncryptionLevel,
    /// Sealed records that the engine has not taken yet.
    pending: Vec<u8>,
    /// The first part of a record whose rest has not come.
    partial: Vec<u8>,
    /// At a client, the bytes that were written before the server's answer.
    first_flight: FirstFlight,
    /// Decrypted bytes that a reader was offered and did not take.
    plaintext_buf: Zeroizing<Vec<u8>>,
    /// An opened record that has to wait for a reader, or for the next user.
    opened: Option<Opened>,
    /// Bytes of the records received before the handshake ended.
    handshake_bytes: usize,
    /// The peer has sent close_notify.
    close_notify_received: bool,
    /// The user's bytes end behind [`plaintext_buf`](Self::plaintext_buf).
    flow_ended: bool,
    closing: Closing,
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    error: Option<ChannelError>,
}

/// State that only a server's end of a connection has.
pub(super) struct ServerSide {
    /// The secret that authenticates subflows, until it goes to the engine.
    join_secret: Option<JoinSecret>,
    /// The tickets that the server gave.
    tickets: Arc<ServerTickets>,
    /// The client may have sent early data under a key that this server does not have.
    skips_early: bool,
    /// The client's ticket has proved its key.
    ticket_proved: bool,
}

impl ServerSide {
    pub(super) fn new(join_secret: JoinSecret, tickets: &Arc<ServerTickets>) -> Self {
        ServerSide {
            join_secret: Some(join_secret),
            tickets: Arc::clone(tickets),
            skips_early: false,
            ticket_proved: false,
        }
    }
}

/// The bytes of a client from before the server's answer.
#[derive(Default)]
struct FirstFlight {
    pre_handshake_buf: Zeroizing<Vec<u8>>,
    /// Bytes of `pre_handshake_buf` that left as early data, in how many records, with how much padding.
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
        self.early < self.pre_handshake_buf.len()
    }
}

/// An opened record of users' bytes that nobody has read.
struct Opened {
    content: ContentType,
    bytes: Zeroizing<Vec<u8>>,
}

/// The progress of this end's close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    No,
    Wanted,
    /// The close_notify is written; the engine may not have taken it yet.
    Queued,
    /// The engine was asked to end the direction.
    Done,
}

/// Hides users' bytes from logs.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("write_level", &self.write_level)
            .field("read_level", &self.read_level)
            .field("pending", &self.pending.len())
            .field("partial", &self.partial.len())
            .field(
                "pre_handshake_buf",
                &self.first_flight.pre_handshake_buf.len(),
            )
            .field("early", &self.first_flight.early)
            .field("plaintext_buf", &self.plaintext_buf.len())
            .field("opened", &self.opened.as_ref().map(|o| o.bytes.len()))
            .field("close_notify_received", &self.close_notify_received)
            .field("flow_ended", &self.flow_ended)
            .field("closing", &self.closing)
            .field("outgoing", &self.outgoing)
            .field("incoming", &self.incoming)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl Tls {
    pub(super) fn new(
        session: Connection,
        server: Option<ServerSide>,
        endpoint: &Arc<EndpointState>,
    ) -> Self {
        let mut tls = Tls {
            session,
            endpoint: Arc::clone(endpoint),
            server,
            agreed: None,
            joins_use_secret: None,
            peer_families: None,
            outgoing_keys: DirectionKeys::new(),
            incoming_keys: DirectionKeys::new(),
            next_keys: None,
            write_level: EncryptionLevel::Plaintext,
            read_level: EncryptionLevel::Plaintext,
            pending: Vec::new(),
            partial: Vec::new(),
            first_flight: FirstFlight::default(),
            plaintext_buf: Zeroizing::default(),
            opened: None,
            handshake_bytes: 0,
            close_notify_received: false,
            flow_ended: false,
            closing: Closing::No,
            outgoing: Outgoing::default(),
            incoming: Incoming::default(),
            error: None,
        };
        if tls.is_client()
            && let Some(keys) = tls.session.zero_rtt_keys()
        {
            tls.outgoing_keys.set_early(keys.packet);
        }
        tls.write_handshake();
        tls
    }

    /// Refuses a client of `braid/3`, whose records had another form, by an alert in that form. For servers.
    pub(super) fn refuse_braid_3(&mut self) {
        // The record type of a one-byte plaintext alert in `braid/3`.
        const ALERT: u8 = 6;
        let what = AlertDescription::NoApplicationProtocol.into();
        self.pending = vec![ALERT, 0, 1, what];
        self.error = Some(ChannelError::Incompatible);
    }

    pub(super) fn peer(&self) -> Option<PublicKey> {
        let ticket_proved = self
            .server
            .as_ref()
            .is_some_and(|server| server.ticket_proved);
        let proved = ticket_proved || !self.session.is_handshaking();
        let certificate = self.session.peer_certificates()?.first()?;
        tls::public_key_of(certificate).filter(|_| proved)
    }

    pub(super) fn has_flow_ended(&self) -> bool {
        let ended = matches!(self.outgoing, Outgoing::Ended | Outgoing::Delivered);
        ended && self.incoming == Incoming::Ended
    }

    /// Returns whether this end has closed the connection.
    pub(super) fn is_closing(&self) -> bool {
        self.closing != Closing::No
    }

    /// Returns whether the user's bytes have ended both ways and the connection can go on.
    pub(super) fn is_reusable(&self) -> bool {
        let goes_on = !self.is_closing() && !self.close_notify_received && self.error.is_none();
        self.has_flow_ended() && goes_on
    }

    /// Returns whether no received byte waits to be read.
    pub(super) fn is_drained(&self) -> bool {
        self.plaintext_buf.is_empty() && self.opened.is_none() && self.partial.is_empty()
    }

    pub(super) fn read_finished(&self) -> bool {
        match self.incoming {
            Incoming::Messages => self.close_notify_received && self.plaintext_buf.is_empty(),
            Incoming::Flow => false,
            Incoming::Ended => true,
        }
    }

    pub(super) fn begin_reading(&mut self) {
        self.incoming = Incoming::Flow;
        self.finish_flow_if_read();
    }

    /// Starts over with messages of box and server behind the ended bytes of a user.
    pub(super) fn release(&mut self) {
        (self.outgoing, self.incoming) = Default::default();
        self.flow_ended = false;
    }

    /// Notes the end of the user's bytes once a reader has taken all of them.
    fn finish_flow_if_read(&mut self) {
        if self.incoming == Incoming::Flow && self.flow_ended && self.plaintext_buf.is_empty() {
            self.incoming = Incoming::Ended;
        }
    }

    fn is_client(&self) -> bool {
        matches!(self.session, Connection::Client(_))
    }

    /// Returns whether this client does not know yet whether the server accepts its early data.
    fn awaits_server(&self) -> bool {
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
        if self.is_closing() || self.outgoing.is_over() || self.error.is_some() {
            return Ok(0);
        }
        let room = match self.awaits_server() {
            // Take only what may leave at once: a user's bytes that must wait do so in the socket, not in memory
            // here.
            true if self.first_flight.is_waiting() => 0,
            true => self.early_room(),
            false if self.write_level != EncryptionLevel::Traffic || !self.pending.is_empty() => 0,
            false => return self.write_in_place(now, conn, stack, max, fill),
        };
        let room = room.min(max);
        if room == 0 {
            return Ok(0);
        }
        let filled = self.write_via_scratch(room, fill)?;
        self.flush(now, conn, stack)?;
        Ok(filled)
    }

    /// Seals up to `room` bytes that `fill` writes to scratch memory, and queues the records.
    fn write_via_scratch<E>(
        &mut self,
        room: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let endpoint = Arc::clone(&self.endpoint);
        endpoint.scratch.with(|memory| {
            let memory = &mut memory[..room];
            let filled = fill(&mut [IoSliceMut::new(memory)]);
            // A failing `fill` may have written anywhere, so all of the room is wiped.
            let used = filled.as_ref().map_or(room, |filled| room.min(*filled));
            if filled.is_ok() {
                self.queue_bytes(&memory[..used]);
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
                filled = self.write_via_scratch(max.min(MAX_PAYLOAD), fill)?;
                return Ok(self.move_pending(bufs));
            }
            let mut slots = record::split_into_records(bufs);
            let mut left = max;
            let plain = slots.iter_mut().map(|slot| {
                let plain = record::payload_mut(slot);
                let len = plain.len().min(left);
                left -= len;
                &mut plain[..len]
            });
            let mut plain: ArrayVec<_, { record::MAX_RECORDS_PER_WRITE }> =
                plain.map(IoSliceMut::new).collect();
            filled = fill(&mut plain)?;
            drop(plain);
            Ok::<_, E>(self.seal_in_place(&mut slots, filled))
        })?;
        self.flush(now, conn, stack)?;
        Ok(filled)
    }

    /// Seals the `filled` bytes that stand at the front of `slots`, and returns the total size of the records.
    fn seal_in_place(&mut self, slots: &mut [&mut [u8]], filled: usize) -> usize {
        let (mut left, mut used) = (filled, 0);
        for slot in slots {
            let room = slot.len() - RECORD_OVERHEAD;
            let len = left.min(room);
            if len == 0 {
                break;
            }
            let padding = record::padding(len, true).min(room - len);
            let record = &mut slot[..len + RECORD_OVERHEAD + padding];
            let sealed =
                self.outgoing_keys
                    .seal((self.write_level, ContentType::Data), record, len);
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
        let takes = match self.awaits_server() {
            true => {
                self.first_flight.pre_handshake_buf.len() + bytes.len() <= MAX_PRE_HANDSHAKE_BUF
            }
            false => self.write_level == EncryptionLevel::Traffic && self.pending.is_empty(),
        };
        if !takes {
            return Ok(0);
        }
        self.queue_bytes(bytes);
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
                match self.awaits_server() {
                    true if !self.first_flight.is_waiting() && self.early_room() > 0 => {
                        self.queue_early_record(ContentType::FlowEnd, &[]);
                        self.first_flight.ended = true;
                    }
                    true => {}
                    false => self.queue_record(ContentType::FlowEnd, &[]),
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
        if !self.is_closing() {
            self.closing = Closing::Wanted;
        }
        self.flush(now, conn, stack)
    }

    /// Returns the number of bytes that may still leave with the first flight.
    fn early_room(&self) -> usize {
        if self.outgoing_keys.has_early() {
            self.first_flight.room()
        } else {
            0
        }
    }

    /// Queues `bytes` for writing, as early data or to wait for the answer while a client's handshake runs. Does
    /// nothing if they are empty.
    fn queue_bytes(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if !self.awaits_server() {
            return self.queue_record(ContentType::Data, bytes);
        }
        let room = self.early_room();
        let first = &mut self.first_flight;
        first.pre_handshake_buf.extend_from_slice(bytes);
        let next = (first.pre_handshake_buf.len() - first.early).min(room);
        if next > 0 {
            let next =
                Zeroizing::new(first.pre_handshake_buf[first.early..first.early + next].to_vec());
            first.early += next.len();
            self.queue_early_record(ContentType::Data, &next);
        }
    }

    fn queue_early_record(&mut self, content: ContentType, bytes: &[u8]) {
        let padding = record::padding(bytes.len(), self.is_writing_flow()).min(self.early_room());
        self.first_flight.records += 1;
        self.first_flight.padding += padding;
        self.push_sealed((EncryptionLevel::Early, content), bytes, padding);
    }

    /// Ends early data where the server accepted it (RFC 8446 section 4.5). For clients.
    fn queue_end_of_early_data(&mut self) {
        if let Connection::Client(client) = &self.session
            && client.is_early_data_accepted()
            && self.outgoing_keys.has_early()
        {
            let padding = record::padding(END_OF_EARLY_DATA.len(), false);
            self.push_sealed(
                (EncryptionLevel::Early, ContentType::Handshake),
                &END_OF_EARLY_DATA,
                padding,
            );
            self.outgoing_keys.forget_early();
        }
    }

    /// Seals `bytes`, which may be empty, at the current level and queues the records.
    fn queue_record(&mut self, content: ContentType, bytes: &[u8]) {
        self.queue_padded_record(content, bytes, self.is_writing_flow());
    }

    /// Works as [`queue_record`](Self::queue_record) does, padding as a user's bytes or as messages.
    fn queue_padded_record(&mut self, content: ContentType, bytes: &[u8], of_user: bool) {
        let mut rest = bytes;
        loop {
            if self.outgoing_keys.is_key_limit_reached() {
                self.rekey(true);
            }
            let (now, later) = rest.split_at(rest.len().min(MAX_PAYLOAD));
            self.push_record(content, now, of_user);
            rest = later;
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Returns whether a user's bytes are written now.
    fn is_writing_flow(&self) -> bool {
        self.outgoing == Outgoing::Flow
    }

    /// Replaces this end's key by a KeyUpdate, which asks the peer to follow where `asks`.
    fn rekey(&mut self, asks: bool) {
        let Some(next) = &mut self.next_keys else {
            return;
        };
        match next.local() {
            Ok(key) => {
                self.push_record(ContentType::Handshake, &record::key_update(asks), false);
                self.outgoing_keys.replace_key(key);
            }
            Err(error) => self.error = self.error.or(Some(error)),
        }
    }

    fn push_record(&mut self, content: ContentType, bytes: &[u8], of_user: bool) {
        let padding = match self.write_level {
            EncryptionLevel::Plaintext => {
                let record = record::encode_plaintext(content, bytes);
                return self.pending.extend_from_slice(&record);
            }
            // Handshake records have the sizes of any TLS handshake; padding would hide nothing.
            EncryptionLevel::Handshake => 0,
            _ => record::padding(bytes.len(), of_user),
        };
        self.push_sealed((self.write_level, content), bytes, padding);
    }

    fn push_sealed(&mut self, kind: (EncryptionLevel, ContentType), bytes: &[u8], padding: usize) {
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
            if self.must_follow_rekey() {
                self.rekey(false);
            }
            while !self.pending.is_empty() && self.closing != Closing::Done {
                let most = self.pending.len();
                let passed = stack.write_with(now, conn, most, |bufs| {
                    Ok::<_, ApiError>(self.move_pending(bufs))
                })?;
                if passed == 0 {
                    return Ok(());
                }
            }
            match self.closing {
                // The peer has replaced several keys: follow each of them.
                _ if self.must_follow_rekey() => {}
                Closing::Wanted if !self.session.is_handshaking() => {
                    self.queue_record(ContentType::Alert, &CLOSE_NOTIFY);
                    self.closing = Closing::Queued;
                }
                Closing::Queued => {
                    self.closing = Closing::Done;
                    return stack.shutdown(now, conn);
                }
                _ if self.outgoing == Outgoing::Ending && !self.awaits_server() => {
                    self.outgoing = Outgoing::Ended;
                    return stack.end_flow(now, conn);
                }
                _ => return Ok(()),
            }
        }
    }

    /// Returns whether the peer has replaced its key and this end is to follow now.
    fn must_follow_rekey(&self) -> bool {
        let behind = self.outgoing_keys.is_behind(&self.incoming_keys);
        behind && self.pending.is_empty() && self.closing == Closing::No && self.error.is_none()
    }

    /// Moves queued records into `bufs` until either ends, and returns the number of bytes moved.
    fn move_pending(&mut self, bufs: &mut [IoSliceMut<'_>]) -> usize {
        let passed = slices::copy(&self.pending, bufs);
        self.pending.drain(..passed);
        if self.pending.is_empty() {
            // Release the memory, so that an idle connection keeps none.
            self.pending = Vec::new();
        }
        passed
    }

    /// Writes rustls's pending handshake messages, and installs the keys that follow them.
    fn write_handshake(&mut self) {
        loop {
            let mut messages = Vec::new();
            let change = self.session.write_hs(&mut messages);
            if !messages.is_empty() {
                // EndOfEarlyData precedes the client's Finished (RFC 8446 section 4.5).
                self.queue_end_of_early_data();
                self.queue_record(ContentType::Handshake, &messages);
            }
            match change {
                Some(KeyChange::Handshake { keys }) => {
                    self.outgoing_keys.set_handshake(keys.local.packet);
                    self.incoming_keys.set_handshake(keys.remote.packet);
                    (self.write_level, self.read_level) =
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
                    self.write_level = EncryptionLevel::Traffic;
                }
                None => return,
            }
        }
    }

    /// Writes what the server did not accept of the first flight. For clients.
    fn queue_rejected_first_flight(&mut self) {
        let Connection::Client(client) = &self.session else {
            return;
        };
        let unsent = core::mem::take(&mut self.first_flight.pre_handshake_buf);
        let (arrived, ended) = match client.is_early_data_accepted() {
            true => (self.first_flight.early, self.first_flight.ended),
            false => (0, false),
        };
        if arrived < unsent.len() {
            // A request stands in these bytes or before them, so they are padded like messages.
            self.queue_padded_record(ContentType::Data, &unsent[arrived..], false);
        }
        if self.outgoing == Outgoing::Ending && !ended {
            self.queue_record(ContentType::FlowEnd, &[]);
        }
    }
}
