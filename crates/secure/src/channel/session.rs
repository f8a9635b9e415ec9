//! The state of a protected connection, and its send path; `incoming` is the receive path.
//!
//! Most users' bytes are sealed directly in the engine's memory ([`Tls::write_with`]). All other outgoing records
//! go to the engine through `pending` ([`Tls::flush`]).

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

/// Maximum number of bytes that wait for the end of a handshake: a request, its hints, and the user's first bytes.
/// 40 KiB is a guess, well above the early data of 14 KiB and the longest messages.
const MAX_PRE_HANDSHAKE_BUF: usize = 40 << 10;
/// Maximum number of bytes that this end accepts before a handshake ends: early data, and 8 KiB of handshake
/// messages. The limit keeps a peer without a key from filling memory. 8 KiB is a guess; messages with raw public
/// keys need about 1 KiB.
const MAX_BYTES_BEFORE_TRAFFIC_KEYS: usize = MAX_EARLY_DATA_ON_WIRE + (8 << 10);
/// Minimum contiguous room in the engine's memory for sealing in place. With less room a record would be mostly
/// overhead, so the bytes are sealed in scratch memory and copied. The factor 4 is a guess.
const MIN_IN_PLACE_ROOM: usize = 4 * RECORD_OVERHEAD;
/// Minimum room to ask the engine for: enough for a record with the minimum padding, 128 bytes and the overhead.
const MIN_WRITE_REQUEST: usize = 256;

/// The state of a protected connection.
pub(super) struct Tls {
    /// The TLS handshake of rustls. It sees no user's bytes and none of the records.
    session: Connection,
    endpoint: Arc<EndpointState>,
    /// The state of a server's end; `None` at a client.
    server: Option<ServerSide>,
    /// The version and the features that both ends speak, once the peer has announced its own.
    pub(super) agreed: Option<Agreed>,
    /// True if subflows authenticate by the server's secret, false if by the keys of MPTCP; `None` until the peer
    /// has announced what it supports.
    pub(super) joins_use_secret: Option<bool>,
    /// At a client, the families that the server reports to reach, until
    /// [`Channel::take_families`](super::Channel::take_families).
    pub(super) peer_families: Option<Families>,
    outgoing_keys: DirectionKeys,
    incoming_keys: DirectionKeys,
    /// The source of keys for rekeying; `None` until traffic keys exist.
    next_keys: Option<NextKeys>,
    /// The level of the records that this end writes, except early data.
    write_level: EncryptionLevel,
    /// The level of the records that this end reads. At [`EncryptionLevel::Handshake`], a server also reads early
    /// data, which has [`EncryptionLevel::Early`].
    read_level: EncryptionLevel,
    /// Sealed records that the engine has not taken yet.
    pending: Vec<u8>,
    /// The first part of a record whose rest has not arrived.
    partial: Vec<u8>,
    /// At a client, the payload that was written before the server's answer.
    first_flight: FirstFlight,
    /// Decrypted bytes that a reader was offered and did not take.
    plaintext_buf: Zeroizing<Vec<u8>>,
    /// An opened record that has to wait for a reader, or for the next user.
    opened: Option<Opened>,
    /// Bytes of all records received before the handshake ended, headers included.
    handshake_bytes: usize,
    /// True once the peer's close_notify has been opened.
    close_notify_received: bool,
    /// True once the record that ends the user's bytes has been opened. A reader may still have to take
    /// [`plaintext_buf`](Self::plaintext_buf).
    flow_ended: bool,
    closing: Closing,
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    /// The first error, which later errors do not replace.
    error: Option<ChannelError>,
}

/// State that only a server's end of a connection has.
pub(super) struct ServerSide {
    /// The secret that authenticates subflows; `None` once the engine has it.
    join_secret: Option<JoinSecret>,
    /// The tickets of all connections of the server.
    tickets: Arc<ServerTickets>,
    /// True while the client may send early data that this server cannot open, because the server does not know
    /// the ticket.
    skips_early: bool,
    /// True once a record of early data has opened. This proves that the client has the ticket's secret.
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

/// The payload that a client wrote before the server's answer. The client keeps the payload, because it sends the
/// payload again if the server rejects early data.
#[derive(Default)]
struct FirstFlight {
    pre_handshake_buf: Zeroizing<Vec<u8>>,
    /// Bytes at the front of `pre_handshake_buf` that left as early data.
    early: usize,
    /// The number of early records, and the bytes of padding in them.
    records: usize,
    padding: usize,
    /// True if the record that ends the user's bytes left as early data too.
    ended: bool,
}

impl FirstFlight {
    /// Returns the number of payload bytes that may still leave as early data.
    fn room(&self) -> usize {
        if self.records < MAX_EARLY_RECORDS {
            MAX_EARLY_DATA - self.early - self.padding
        } else {
            0
        }
    }

    /// Returns whether bytes wait for the server's answer because they did not leave as early data.
    fn is_waiting(&self) -> bool {
        self.early < self.pre_handshake_buf.len()
    }
}

/// An opened record of a user's bytes that no reader has taken.
struct Opened {
    content: ContentType,
    bytes: Zeroizing<Vec<u8>>,
}

/// The progress of this end's close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    No,
    /// The close_notify has to wait for the end of the handshake.
    Requested,
    /// The close_notify is in `pending`; the engine may not have taken it yet.
    Queued,
    /// The engine has taken the close_notify and was asked to end the direction.
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

    /// Refuses a client of `braid/3` by an alert in the record form of `braid/3`. For servers.
    pub(super) fn refuse_braid_3(&mut self) {
        // In `braid/3` a plaintext record consists of its type (1 byte), its length (2 bytes) and its payload.
        // Here the payload is the alert's description.
        const BRAID_3_ALERT: u8 = 6;
        let description = AlertDescription::NoApplicationProtocol.into();
        self.pending = vec![BRAID_3_ALERT, 0, 1, description];
        self.error = Some(ChannelError::Incompatible);
    }

    pub(super) fn peer(&self) -> Option<PublicKey> {
        let ticket_proved = self
            .server
            .as_ref()
            .is_some_and(|server| server.ticket_proved);
        let key_proved = ticket_proved || !self.session.is_handshaking();
        let certificate = self.session.peer_certificates()?.first()?;
        tls::public_key_of(certificate).filter(|_| key_proved)
    }

    /// Exports a secret once both ends have proved their keys in this handshake.
    pub(super) fn export_secret(
        &self,
        label: &[u8],
        context: &[u8],
    ) -> Option<Zeroizing<[u8; 32]>> {
        if self.read_level != EncryptionLevel::Traffic || self.error.is_some() {
            return None;
        }
        let mut secret = Zeroizing::new([0; 32]);
        self.session
            .export_keying_material(&mut secret[..], label, Some(context))
            .ok()?;
        Some(secret)
    }

    pub(super) fn has_flow_ended(&self) -> bool {
        let ended = matches!(self.outgoing, Outgoing::Ended | Outgoing::Delivered);
        ended && self.incoming == Incoming::Ended
    }

    /// Returns whether [`close`](Self::close) was called.
    pub(super) fn is_closing(&self) -> bool {
        self.closing != Closing::No
    }

    /// Returns whether the user's bytes have ended both ways and neither end has closed the connection.
    pub(super) fn is_reusable(&self) -> bool {
        let is_open = !self.is_closing() && !self.close_notify_received && self.error.is_none();
        self.has_flow_ended() && is_open
    }

    /// Returns whether this layer buffers no received byte.
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

    /// Switches both directions back to messages of box and server, after the user's bytes have ended both ways.
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

    // --- the send path

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
            // Take no more bytes than can leave as early data. The rest of a user's bytes waits in the user's
            // socket instead of in memory here.
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

    /// Lets `fill` write up to `room` bytes into scratch memory, seals them, and queues the records.
    fn write_via_scratch<E>(
        &mut self,
        room: usize,
        fill: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let endpoint = Arc::clone(&self.endpoint);
        endpoint.scratch.with(|memory| {
            let memory = &mut memory[..room];
            let filled = fill(&mut [IoSliceMut::new(memory)]);
            // A failed `fill` may have written anywhere in the room, so all of the room is wiped.
            let used = filled.as_ref().map_or(room, |filled| room.min(*filled));
            if filled.is_ok() {
                self.queue_bytes(&memory[..used]);
            }
            wipe(&mut memory[..used]);
            filled
        })
    }

    /// Lets `fill` write into the engine's own memory, and seals the bytes there, without a copy. For established
    /// connections.
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
        // Short writes need more room for padding than for payload.
        let wanted = max
            .saturating_add(RECORD_OVERHEAD)
            .clamp(MIN_WRITE_REQUEST, MAX_BATCH);
        stack.write_with(now, conn, wanted, |bufs| {
            if bufs.first().is_none_or(|buf| buf.len() < MIN_IN_PLACE_ROOM) {
                filled = self.write_via_scratch(max.min(MAX_PAYLOAD), fill)?;
                return Ok(self.move_pending(bufs));
            }
            let mut slots = record::split_into_records(bufs);
            let mut remaining = max;
            let plain = slots.iter_mut().map(|slot| {
                let plain = record::payload_mut(slot);
                let len = plain.len().min(remaining);
                remaining -= len;
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

    /// Seals the first `filled` payload bytes of `slots`, and returns the total size of the records. Only the last
    /// record may leave its slot partly unused, so the records follow each other without a gap.
    fn seal_in_place(&mut self, slots: &mut [&mut [u8]], filled: usize) -> usize {
        let (mut remaining, mut used) = (filled, 0);
        for slot in slots {
            let room = slot.len() - RECORD_OVERHEAD;
            let len = remaining.min(room);
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
            (remaining, used) = (remaining - len, used + record.len());
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
        let has_room = match self.awaits_server() {
            true => {
                self.first_flight.pre_handshake_buf.len() + bytes.len() <= MAX_PRE_HANDSHAKE_BUF
            }
            false => self.write_level == EncryptionLevel::Traffic && self.pending.is_empty(),
        };
        if !has_room {
            return Ok(0);
        }
        self.queue_bytes(bytes);
        self.flush(now, conn, stack)?;
        Ok(bytes.len())
    }

    /// Ends the user's bytes if the outgoing direction carries any; otherwise closes the connection.
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
                    // The end must not overtake bytes that still wait, so it leaves as early data only if all of
                    // them did.
                    true if !self.first_flight.is_waiting() && self.early_room() > 0 => {
                        self.queue_early_record(ContentType::FlowEnd, &[]);
                        self.first_flight.ended = true;
                    }
                    // `queue_rejected_first_flight` queues the end after the handshake.
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
            self.closing = Closing::Requested;
        }
        self.flush(now, conn, stack)
    }

    /// Returns the number of bytes that may still leave as early data: 0 without a key for early data.
    fn early_room(&self) -> usize {
        if self.outgoing_keys.has_early() {
            self.first_flight.room()
        } else {
            0
        }
    }

    /// Queues `bytes` for writing, unless they are empty. While a client's handshake runs, the bytes become early
    /// data as far as the limit of early data allows. The client keeps all of them until the server's answer.
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
        let len = (first.pre_handshake_buf.len() - first.early).min(room);
        if len > 0 {
            let chunk =
                Zeroizing::new(first.pre_handshake_buf[first.early..first.early + len].to_vec());
            first.early += chunk.len();
            self.queue_early_record(ContentType::Data, &chunk);
        }
    }

    /// Queues a record of early data. Padding counts against the limit of early data, so a record near the limit
    /// gets less padding.
    fn queue_early_record(&mut self, content: ContentType, bytes: &[u8]) {
        let padding = record::padding(bytes.len(), self.is_writing_flow()).min(self.early_room());
        self.first_flight.records += 1;
        self.first_flight.padding += padding;
        self.push_sealed((EncryptionLevel::Early, content), bytes, padding);
    }

    /// Queues EndOfEarlyData if the server accepted early data (RFC 8446 section 4.5). For clients.
    ///
    /// EndOfEarlyData only tells the server that the next record has the handshake's key. Unlike in RFC 8446, the
    /// message is no part of the transcript, because the QUIC interface of rustls knows no EndOfEarlyData (RFC
    /// 9001 section 8.3).
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

    /// Works as [`queue_record`](Self::queue_record) does, but pads as for a user's bytes if `is_user_data` is
    /// true, and as for messages otherwise.
    fn queue_padded_record(&mut self, content: ContentType, bytes: &[u8], is_user_data: bool) {
        let mut rest = bytes;
        // The loop runs at least once, because an empty record (the end of a user's bytes) is sealed too.
        loop {
            if self.outgoing_keys.is_key_limit_reached() {
                self.rekey(true);
            }
            let (payload, remaining) = rest.split_at(rest.len().min(MAX_PAYLOAD));
            self.push_record(content, payload, is_user_data);
            rest = remaining;
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Returns whether the outgoing direction carries a user's bytes.
    fn is_writing_flow(&self) -> bool {
        self.outgoing == Outgoing::Flow
    }

    /// Replaces this end's key, and announces the new key by a KeyUpdate under the old key. If `update_requested`
    /// is true, the KeyUpdate asks the peer to replace the peer's key too. Before the handshake has traffic keys,
    /// there is nothing to replace.
    fn rekey(&mut self, update_requested: bool) {
        let Some(next) = &mut self.next_keys else {
            return;
        };
        match next.local() {
            Ok(key) => {
                let message = record::key_update(update_requested);
                self.push_record(ContentType::Handshake, &message, false);
                self.outgoing_keys.replace_key(key);
            }
            Err(error) => self.error = self.error.or(Some(error)),
        }
    }

    /// Appends one record at the current level to `pending`.
    fn push_record(&mut self, content: ContentType, bytes: &[u8], is_user_data: bool) {
        let padding = match self.write_level {
            EncryptionLevel::Plaintext => {
                let record = record::encode_plaintext(content, bytes);
                return self.pending.extend_from_slice(&record);
            }
            // The sizes of handshake messages are the same for all boxes, so there is nothing to hide.
            EncryptionLevel::Handshake => 0,
            _ => record::padding(bytes.len(), is_user_data),
        };
        self.push_sealed((self.write_level, content), bytes, padding);
    }

    /// Seals one record at the end of `pending`. On an error no payload stays there.
    fn push_sealed(&mut self, kind: (EncryptionLevel, ContentType), bytes: &[u8], padding: usize) {
        let start = self.pending.len();
        self.pending.resize(start + HEADER_LEN, 0);
        self.pending.extend_from_slice(bytes);
        self.pending
            .resize(start + bytes.len() + RECORD_OVERHEAD + padding, 0);
        let sealed = self
            .outgoing_keys
            .seal(kind, &mut self.pending[start..], bytes.len());
        if let Err(error) = sealed {
            wipe(&mut self.pending[start..]);
            self.pending.truncate(start);
            self.error = self.error.or(Some(error));
        }
    }

    /// Passes queued records to the engine while it has room, and queues the records that are due after them:
    /// rekeys, close_notify, and the end of the user's bytes. If the room ends, the engine reports when there is
    /// room again, and the caller flushes again.
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
                let max = self.pending.len();
                let moved = stack.write_with(now, conn, max, |bufs| {
                    Ok::<_, ApiError>(self.move_pending(bufs))
                })?;
                if moved == 0 {
                    return Ok(());
                }
            }
            match self.closing {
                // The peer may have replaced several keys, so the loop repeats until this end has replaced as
                // many.
                _ if self.must_follow_rekey() => {}
                Closing::Requested if !self.session.is_handshaking() => {
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

    /// Returns whether this end has to replace its key, because the peer has replaced its own more often. This end
    /// follows only while `pending` is empty. Otherwise a peer that does not read could make KeyUpdates pile up.
    fn must_follow_rekey(&self) -> bool {
        let behind = self.outgoing_keys.is_behind(&self.incoming_keys);
        behind && self.pending.is_empty() && self.closing == Closing::No && self.error.is_none()
    }

    /// Moves queued records into `bufs` until either ends, and returns the number of bytes moved.
    fn move_pending(&mut self, bufs: &mut [IoSliceMut<'_>]) -> usize {
        let moved = slices::copy(&self.pending, bufs);
        self.pending.drain(..moved);
        if self.pending.is_empty() {
            // Release the memory, so that an idle connection keeps none.
            self.pending = Vec::new();
        }
        moved
    }

    /// Queues the handshake messages that rustls has to send, and installs the keys that rustls derives after
    /// each.
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
                    // A client already got these keys in `new`.
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
                    // The read level follows in `read_handshake`, once the peer's Finished is verified.
                    self.write_level = EncryptionLevel::Traffic;
                }
                None => return,
            }
        }
    }

    /// Queues the part of the first flight that did not leave as early data, or all of it if the server rejected
    /// early data. For clients, after the handshake.
    fn queue_rejected_first_flight(&mut self) {
        let Connection::Client(client) = &self.session else {
            return;
        };
        let payload = core::mem::take(&mut self.first_flight.pre_handshake_buf);
        let (accepted, ended) = match client.is_early_data_accepted() {
            true => (self.first_flight.early, self.first_flight.ended),
            false => (0, false),
        };
        if accepted < payload.len() {
            // These bytes may contain a request, so they are padded like messages.
            self.queue_padded_record(ContentType::Data, &payload[accepted..], false);
        }
        if self.outgoing == Outgoing::Ending && !ended {
            self.queue_record(ContentType::FlowEnd, &[]);
        }
    }
}
