//! The record layer between box and server.
//!
//! A record has the form of TLS 1.3 (RFC 8446 section 5), so that an observer sees only what any TLS connection
//! shows: a type, a version, a length and ciphertext. The encrypted part contains the payload, one byte for the
//! [`ContentType`], and zeros as padding. Nonce and additional data also follow TLS 1.3: each key numbers its
//! records from 0, and the header is authenticated.
//!
//! Handshake and keys come from the QUIC interface of rustls (RFC 9001), because it encrypts in place. The record
//! layer of rustls, in contrast, copies every byte.

use std::collections::VecDeque;
use std::io::IoSliceMut;

use arrayvec::ArrayVec;
use rustls::quic::{PacketKey, Secrets};

use super::ChannelError;

/// Bytes of the record header: type, version, length.
pub(super) const HEADER_LEN: usize = 5;
/// Bytes of the content type, which follows the payload of a protected record.
const CONTENT_TYPE_LEN: usize = 1;
/// Bytes of the AEAD tag at the end of a protected record, the same for both ciphers.
const TAG_LEN: usize = 16;
/// Bytes that protection adds to the payload, without padding.
pub const RECORD_OVERHEAD: usize = HEADER_LEN + CONTENT_TYPE_LEN + TAG_LEN;
/// Maximum number of bytes of a record. TLS allows 2^14 payload bytes; here the whole record takes 2^14, so that
/// four records fill a batch exactly. Larger records would cost latency, because a reader can use no byte of a
/// record before all of the record has arrived.
pub(super) const MAX_RECORD: usize = 16 << 10;
/// Maximum number of payload bytes of a record.
pub(super) const MAX_PAYLOAD: usize = MAX_RECORD - RECORD_OVERHEAD;
/// The version in every TLS 1.3 record (RFC 8446 section 5.1).
const RECORD_VERSION: [u8; 2] = [3, 3];
/// Minimum size of a TLSInnerPlaintext (RFC 8446 section 5.2: payload, content type and padding), so that short
/// messages, ends of users' bytes, alerts and keystrokes have the same size. 128 is a guess: short messages fit,
/// and the padding takes little of a packet.
const MIN_INNER_PLAINTEXT: usize = 128;
/// Messages up to this size are padded to powers of two, longer ones to multiples of [`PACKET_INNER_PLAINTEXT`].
/// The next power of two, 2,048, would not fit a packet.
const MAX_DOUBLED_INNER_PLAINTEXT: usize = 1024;
/// The plaintext that fills a record of 1,400 bytes. Such a record fits a packet of 1,500 bytes with any options:
/// 1,500 less 40 (IPv6), 20 (TCP) and 40 (maximum TCP options).
const PACKET_INNER_PLAINTEXT: usize = 1400 - HEADER_LEN - TAG_LEN;
/// Minimum number of records under a key before the peer may replace the key. A rekey costs more than reading a
/// record, so a peer must not force a rekey with every record. 1,024 is a guess: spread over 1,024 records, the
/// cost of a rekey is negligible.
const MIN_RECORDS_PER_KEY: u64 = 1024;
/// Maximum number of rekeys by which one direction may be ahead of the other. Each of them keeps a key in memory.
/// 16 is a guess: a peer that reads follows each rekey, so an honest peer is a few rekeys behind at most.
const MAX_KEYS_AHEAD: usize = 16;
/// Maximum number of records that [`split_into_records`] lays out in one write. A batch of 64 KiB needs 4 records,
/// and more if the engine's memory is in short pieces; what does not fit is left to the next write.
pub(super) const MAX_RECORDS_PER_WRITE: usize = 16;

/// The keys that protect a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EncryptionLevel {
    Plaintext,
    /// The key of a ticket, for early data.
    Early,
    Handshake,
    /// The keys of the established connection, for application data.
    Traffic,
}

/// The content type of a record. All but [`FlowEnd`](Self::FlowEnd) are content types of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentType {
    /// An error or close_notify (RFC 8446 section 6): level and description.
    Alert = 21,
    /// Handshake messages of TLS.
    Handshake = 22,
    /// A user's bytes, or messages between box and server.
    Data = 23,
    /// The end of a user's bytes; the connection stays open. TLS has assigned no content type near this number.
    FlowEnd = 0xe0,
}

impl ContentType {
    fn read(byte: u8) -> Option<Self> {
        match byte {
            21 => Some(ContentType::Alert),
            22 => Some(ContentType::Handshake),
            23 => Some(ContentType::Data),
            0xe0 => Some(ContentType::FlowEnd),
            _ => None,
        }
    }

    /// Returns whether the record belongs to a user's bytes. If a second user follows on the connection, the
    /// second user's records wait until the first user's bytes have been read.
    pub(super) fn is_flow(self) -> bool {
        matches!(self, ContentType::Data | ContentType::FlowEnd)
    }
}

/// The first byte of a TLS connection, from which a server recognizes protection: SOCKS5 begins with 5.
pub(super) const FIRST_TLS_BYTE: u8 = ContentType::Handshake as u8;

/// The EndOfEarlyData message (RFC 8446 section 4.5).
pub(super) const END_OF_EARLY_DATA: [u8; 4] = [5, 0, 0, 0];
/// The KeyUpdate message without its last byte (RFC 8446 section 4.6.3). The sender's next record after it uses
/// the next key.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
/// The close_notify alert: the sender writes no more.
pub(super) const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// Returns the KeyUpdate message. If `update_requested` is true, the message asks the peer to replace the peer's
/// key too.
pub(super) fn key_update(update_requested: bool) -> [u8; 5] {
    let [a, b, c, d] = KEY_UPDATE;
    [a, b, c, d, u8::from(update_requested)]
}

/// Returns whether `message` is a KeyUpdate.
pub(super) fn is_key_update(message: &[u8]) -> bool {
    matches!(message.strip_prefix(&KEY_UPDATE[..]), Some([0 | 1]))
}

/// Encodes a whole plaintext record.
pub(super) fn encode_plaintext(content: ContentType, bytes: &[u8]) -> Vec<u8> {
    let [a, b] = (bytes.len() as u16).to_be_bytes();
    let header = [content as u8, RECORD_VERSION[0], RECORD_VERSION[1], a, b];
    [&header[..], bytes].concat()
}

/// Returns the number of padding bytes for a record with `len` payload bytes.
///
/// Messages have few sizes, so that a size reveals neither the length of a destination's name nor the kind of
/// message. Users' bytes (`is_user_data`) are padded to [`MIN_INNER_PLAINTEXT`] only: padding bulk data would cost
/// capacity of the links.
pub(super) fn padding(len: usize, is_user_data: bool) -> usize {
    let inner = len + CONTENT_TYPE_LEN;
    let padded = match inner {
        _ if is_user_data => inner.max(MIN_INNER_PLAINTEXT),
        ..=MAX_DOUBLED_INNER_PLAINTEXT => inner.next_power_of_two().max(MIN_INNER_PLAINTEXT),
        _ => inner.next_multiple_of(PACKET_INNER_PLAINTEXT),
    };
    (padded - inner).min(MAX_PAYLOAD.saturating_sub(len))
}

/// The header of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    bytes: [u8; HEADER_LEN],
    /// The type that is visible on the wire. Every protected record shows [`ContentType::Data`].
    pub(super) outer: ContentType,
    /// Bytes of the record after the header.
    pub(super) body_len: usize,
}

impl Header {
    /// Parses a record header.
    ///
    /// # Errors
    /// The type, version or length is invalid.
    pub(super) fn read(bytes: [u8; HEADER_LEN]) -> Result<Self, ChannelError> {
        let [kind, major, minor, a, b] = bytes;
        let outer = ContentType::read(kind).filter(|c| *c != ContentType::FlowEnd);
        let outer = outer.ok_or(ChannelError::Damaged)?;
        // RFC 8446 section 5.1 allows the version of TLS 1.0 (3, 1) in the record of a ClientHello.
        let version = [major, minor] == RECORD_VERSION
            || (outer, major, minor) == (ContentType::Handshake, 3, 1);
        let body_len = usize::from(u16::from_be_bytes([a, b]));
        let min_body_len = match outer {
            ContentType::Data => CONTENT_TYPE_LEN + TAG_LEN,
            _ => 0,
        };
        let is_valid = version && body_len >= min_body_len && body_len <= MAX_RECORD - HEADER_LEN;
        let header = Header {
            bytes,
            outer,
            body_len,
        };
        is_valid.then_some(header).ok_or(ChannelError::Damaged)
    }
}

/// A key, and the number of its next record. The nonce is the record's number XORed with the key's IV; the library
/// computes it.
struct Key {
    key: Box<dyn PacketKey>,
    number: u64,
}

impl Key {
    fn new(key: Box<dyn PacketKey>) -> Self {
        Key { key, number: 0 }
    }
}

/// The keys of one direction.
pub(super) struct DirectionKeys {
    early: Option<Key>,
    handshake: Option<Key>,
    traffic: Option<Traffic>,
}

struct Traffic {
    key: Key,
    /// Maximum number of records under one key, from the AEAD's confidentiality limit (RFC 9001 section 6.6).
    limit: u64,
    /// The number of earlier traffic keys of this direction.
    generation: u64,
}

impl DirectionKeys {
    pub(super) const fn new() -> Self {
        DirectionKeys {
            early: None,
            handshake: None,
            traffic: None,
        }
    }

    pub(super) fn set_early(&mut self, key: Box<dyn PacketKey>) {
        self.early = Some(Key::new(key));
    }

    pub(super) fn set_handshake(&mut self, key: Box<dyn PacketKey>) {
        self.handshake = Some(Key::new(key));
    }

    pub(super) fn set_traffic(&mut self, key: Box<dyn PacketKey>) {
        // The limit is checked before a batch of records is sealed, not before each record. It is therefore lower
        // than the AEAD's limit by the records of one batch.
        let limit = key.confidentiality_limit() - MAX_RECORDS_PER_WRITE as u64;
        self.traffic = Some(Traffic {
            key: Key::new(key),
            limit,
            generation: 0,
        });
    }

    pub(super) fn has_early(&self) -> bool {
        self.early.is_some()
    }

    /// Drops the key of early data. Called after the last early record was sealed or opened.
    pub(super) fn forget_early(&mut self) {
        self.early = None;
    }

    /// Drops the keys of early data and handshake. Called when the handshake is complete.
    pub(super) fn forget_handshake(&mut self) {
        self.early = None;
        self.handshake = None;
    }

    /// Returns whether the key has reached its record limit, so that it must be replaced before the next record.
    pub(super) fn is_key_limit_reached(&self) -> bool {
        let reached = |traffic: &Traffic| traffic.key.number >= traffic.limit;
        self.traffic.as_ref().is_some_and(reached)
    }

    /// Returns whether the peer may replace the key of this direction: the key has protected enough records, or
    /// the peer follows the `other` direction. Called after the peer's KeyUpdate was opened.
    pub(super) fn may_rekey(&self, other: &DirectionKeys) -> bool {
        // The number already counts the KeyUpdate itself, which is not one of the 1,024 records.
        let has_min_records = |traffic: &Traffic| traffic.key.number > MIN_RECORDS_PER_KEY;
        self.traffic.as_ref().is_some_and(has_min_records) || self.is_behind(other)
    }

    /// Returns whether this direction has replaced fewer keys than the `other` one.
    pub(super) fn is_behind(&self, other: &DirectionKeys) -> bool {
        let generation =
            |keys: &DirectionKeys| keys.traffic.as_ref().map(|traffic| traffic.generation);
        generation(self) < generation(other)
    }

    /// Replaces the key. The next record uses the new key.
    pub(super) fn replace_key(&mut self, key: Box<dyn PacketKey>) {
        if let Some(traffic) = &mut self.traffic {
            traffic.key = Key::new(key);
            traffic.generation += 1;
        }
    }

    fn key(&mut self, level: EncryptionLevel) -> Option<&mut Key> {
        match level {
            EncryptionLevel::Plaintext => None,
            EncryptionLevel::Early => self.early.as_mut(),
            EncryptionLevel::Handshake => self.handshake.as_mut(),
            EncryptionLevel::Traffic => self.traffic.as_mut().map(|traffic| &mut traffic.key),
        }
    }

    /// Seals a record in place. On entry `record` consists of room for the header, the `len` payload bytes, and
    /// room for content type, padding and tag. The length of `record` determines the padding.
    ///
    /// # Errors
    /// The key of this level is missing; the library fails.
    pub(super) fn seal(
        &mut self,
        (level, content): (EncryptionLevel, ContentType),
        record: &mut [u8],
        len: usize,
    ) -> Result<(), ChannelError> {
        let body = record.len() - HEADER_LEN;
        debug_assert!(len + CONTENT_TYPE_LEN + TAG_LEN <= body && record.len() <= MAX_RECORD);
        let [a, b] = u16::try_from(body)
            .map_err(|_| ChannelError::Failed)?
            .to_be_bytes();
        let header = [
            ContentType::Data as u8,
            RECORD_VERSION[0],
            RECORD_VERSION[1],
            a,
            b,
        ];
        let (slot, body) = record.split_at_mut(HEADER_LEN);
        slot.copy_from_slice(&header);
        let (bytes, tag) = body.split_at_mut(body.len() - TAG_LEN);
        let (content_slot, padding) = bytes[len..].split_at_mut(CONTENT_TYPE_LEN);
        content_slot.copy_from_slice(&[content as u8]);
        padding.fill(0);
        let key = self.key(level).ok_or(ChannelError::Failed)?;
        let computed_tag = key.key.encrypt_in_place(key.number, &header, bytes)?;
        tag.copy_from_slice(computed_tag.as_ref());
        key.number += 1;
        Ok(())
    }

    /// Opens a record in place: decrypts `body`, and returns the content type and the length of the payload, which
    /// is at the start of `body`. A record that cannot be opened does not advance the record number, so that a
    /// server can skip rejected early data.
    ///
    /// # Errors
    /// The key of this level is missing; authentication fails; the content type is unknown.
    pub(super) fn open(
        &mut self,
        level: EncryptionLevel,
        header: &Header,
        body: &mut [u8],
    ) -> Result<(ContentType, usize), ChannelError> {
        let key = self.key(level).ok_or(ChannelError::Damaged)?;
        let opened = key.key.decrypt_in_place(key.number, &header.bytes, body);
        let bytes = opened.map_err(|_| ChannelError::Damaged)?;
        key.number += 1;
        // The content type is the last byte that is not padding (RFC 8446 section 5.4).
        let len = bytes.iter().rposition(|byte| *byte != 0);
        let len = len.ok_or(ChannelError::Damaged)?;
        let content = ContentType::read(bytes[len]).ok_or(ChannelError::Damaged)?;
        Ok((content, len))
    }
}

/// The secrets from which the next keys are derived.
///
/// The library derives the next keys of both directions together, and overwrites the secrets. If one direction
/// rekeys first, the other direction's new key waits here. If the secrets were kept instead, somebody who reads
/// memory could derive the replaced key again.
pub(super) struct NextKeys {
    secrets: Secrets,
    /// Derived keys that this end's direction has not taken yet, oldest first.
    local: VecDeque<Box<dyn PacketKey>>,
    /// Derived keys that the peer's direction has not taken yet, oldest first.
    remote: VecDeque<Box<dyn PacketKey>>,
}

impl NextKeys {
    pub(super) fn new(secrets: Secrets) -> Self {
        NextKeys {
            secrets,
            local: VecDeque::new(),
            remote: VecDeque::new(),
        }
    }

    /// Returns the next key of this end's direction.
    ///
    /// # Errors
    /// The peer has not followed [`MAX_KEYS_AHEAD`] rekeys of this end.
    pub(super) fn local(&mut self) -> Result<Box<dyn PacketKey>, ChannelError> {
        if let Some(key) = self.local.pop_front() {
            return Ok(key);
        }
        let keys = self.secrets.next_packet_keys();
        self.remote.push_back(keys.remote);
        let is_within_limit = self.remote.len() <= MAX_KEYS_AHEAD;
        is_within_limit
            .then_some(keys.local)
            .ok_or(ChannelError::Damaged)
    }

    /// Returns the next key of the peer's direction.
    ///
    /// # Errors
    /// This end could not follow [`MAX_KEYS_AHEAD`] rekeys, because the peer does not read.
    pub(super) fn remote(&mut self) -> Result<Box<dyn PacketKey>, ChannelError> {
        if let Some(key) = self.remote.pop_front() {
            return Ok(key);
        }
        let keys = self.secrets.next_packet_keys();
        self.local.push_back(keys.local);
        let is_within_limit = self.local.len() <= MAX_KEYS_AHEAD;
        is_within_limit
            .then_some(keys.remote)
            .ok_or(ChannelError::Damaged)
    }
}

/// Divides memory into slots for consecutive records. Each buffer gives slots of about equal size, so that none is
/// a small remainder.
///
/// Stops at the first slot that is too small for any payload. To skip the slot would leave a gap between the
/// records.
pub(super) fn split_into_records<'a>(
    bufs: &'a mut [IoSliceMut<'_>],
) -> ArrayVec<&'a mut [u8], MAX_RECORDS_PER_WRITE> {
    let mut slots = ArrayVec::new();
    for buf in bufs {
        let mut rest = &mut buf[..];
        let count = rest.len().div_ceil(MAX_RECORD);
        for remaining in (1..=count).rev() {
            let (slot, after) = rest.split_at_mut(rest.len() / remaining);
            rest = after;
            if slot.len() <= RECORD_OVERHEAD || slots.try_push(slot).is_err() {
                return slots;
            }
        }
    }
    slots
}

/// Returns the part of a slot for the payload of a protected record.
pub(super) fn payload_mut(slot: &mut [u8]) -> &mut [u8] {
    let end = slot.len() - CONTENT_TYPE_LEN - TAG_LEN;
    &mut slot[HEADER_LEN..end]
}

#[cfg(test)]
mod tests;
