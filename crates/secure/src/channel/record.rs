//! The record layer between box and server.
//!
//! A record has the form of TLS 1.3 (RFC 8446 section 5), so that an observer sees only what TLS shows: a type, a
//! version, a length and ciphertext. The [`ContentType`] is encrypted behind the bytes, followed by zeros
//! that pad short records. Nonce and additional data also follow TLS 1.3: each key numbers its records from 0, and
//! the header is authenticated. Keys and handshake are those that QUIC takes from TLS 1.3 (RFC 9001), because that
//! interface of rustls encrypts in place; its own record layer copies.

use std::collections::VecDeque;
use std::io::IoSliceMut;

use arrayvec::ArrayVec;
use rustls::quic::{PacketKey, Secrets};

use super::ChannelError;

/// Bytes of the record header: type, version, length.
pub(super) const HEADER_LEN: usize = 5;
/// Bytes behind the payload of a protected record: the content type, and the AEAD tag.
const CONTENT_TYPE_LEN: usize = 1;
const TAG_LEN: usize = 16;
/// Bytes that protection adds to the payload, without padding.
pub const RECORD_OVERHEAD: usize = HEADER_LEN + CONTENT_TYPE_LEN + TAG_LEN;
/// Most bytes of a record. A reader needs the whole record before its first byte can be used.
pub(super) const MAX_RECORD: usize = 16 << 10;
/// Most payload bytes of a record.
pub(super) const MAX_PAYLOAD: usize = MAX_RECORD - RECORD_OVERHEAD;
/// The version in every TLS 1.3 record (RFC 8446 section 5.1).
const RECORD_VERSION: [u8; 2] = [3, 3];
/// The fewest bytes that are encrypted in a record once keys exist, so that messages, ends of users' bytes, alerts
/// and keystrokes have the same size.
const MIN_INNER_PLAINTEXT: usize = 128;
/// Messages up to this size are padded to powers of two, longer ones to multiples of [`PACKET_INNER_PLAINTEXT`].
const MAX_DOUBLED_INNER_PLAINTEXT: usize = 1024;
/// The plaintext that fills a record of 1,400 bytes, which fits a packet with any TCP options.
const PACKET_INNER_PLAINTEXT: usize = 1400 - HEADER_LEN - TAG_LEN;
/// Fewest records under a key before the peer may replace it. A rekey costs more than reading a record, so a peer
/// must not force one per record.
const MIN_RECORDS_PER_KEY: u64 = 1024;
/// Most keys that one direction may be ahead of the other, which was asked to follow.
const MAX_KEYS_AHEAD: usize = 16;
/// Most records that [`split_into_records`] lays out in one write.
pub(super) const MAX_RECORDS_PER_WRITE: usize = 16;

/// The keys that protect a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EncryptionLevel {
    Plaintext,
    /// The key of a ticket, for early data.
    Early,
    Handshake,
    /// The keys of the established connection.
    Traffic,
}

/// The content type of a record. All but the last are content types of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentType {
    /// An error or close_notify (RFC 8446 section 6): level and description.
    Alert = 21,
    /// Handshake messages of TLS.
    Handshake = 22,
    /// A user's bytes, or messages between box and server.
    Data = 23,
    /// The end of a user's bytes; the connection goes on. No protocol has assigned this number.
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

    /// Returns whether the record belongs to a user's bytes. Where one user follows another, the second one's
    /// records wait until the first is finished.
    pub(super) fn is_flow(self) -> bool {
        matches!(self, ContentType::Data | ContentType::FlowEnd)
    }
}

/// The first byte of a TLS connection. SOCKS5 begins with 5.
pub(super) const FIRST_TLS_BYTE: u8 = ContentType::Handshake as u8;

/// The EndOfEarlyData message (RFC 8446 section 4.5).
pub(super) const END_OF_EARLY_DATA: [u8; 4] = [5, 0, 0, 0];
/// The KeyUpdate message without its last byte (RFC 8446 section 4.6.3); the sender's next record uses the next
/// key.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
/// The close_notify alert: the sender writes no more.
pub(super) const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// Returns the KeyUpdate message, which asks the peer to follow where `asks`.
pub(super) fn key_update(asks: bool) -> [u8; 5] {
    let [a, b, c, d] = KEY_UPDATE;
    [a, b, c, d, u8::from(asks)]
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

/// Returns the padding of a record of `len` bytes. A user's bytes are padded to [`MIN_INNER_PLAINTEXT`] only.
/// Messages have few sizes, so that a size reveals neither the length of a destination's name nor the kind of
/// message.
pub(super) fn padding(len: usize, of_user: bool) -> usize {
    let inner = len + CONTENT_TYPE_LEN;
    let padded = match inner {
        _ if of_user => inner.max(MIN_INNER_PLAINTEXT),
        ..=MAX_DOUBLED_INNER_PLAINTEXT => inner.next_power_of_two().max(MIN_INNER_PLAINTEXT),
        _ => inner.next_multiple_of(PACKET_INNER_PLAINTEXT),
    };
    (padded - inner).min(MAX_PAYLOAD.saturating_sub(len))
}

/// The header of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    bytes: [u8; HEADER_LEN],
    /// The type visible on the wire: [`ContentType::Data`] on every protected record.
    pub(super) outer: ContentType,
    /// Bytes behind the header.
    pub(super) body: usize,
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
        // RFC 8446 section 5.1 allows 1.0 in a first record, as older libraries send it.
        let version = [major, minor] == RECORD_VERSION
            || (outer, major, minor) == (ContentType::Handshake, 3, 1);
        let body = usize::from(u16::from_be_bytes([a, b]));
        let least = match outer {
            ContentType::Data => CONTENT_TYPE_LEN + TAG_LEN,
            _ => 0,
        };
        let sound = version && body >= least && body <= MAX_RECORD - HEADER_LEN;
        sound
            .then_some(Header { bytes, outer, body })
            .ok_or(ChannelError::Damaged)
    }
}

/// A key, and the number of its next record, from which the nonce follows.
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
    /// Most records under one key, from the AEAD's confidentiality limit.
    limit: u64,
    /// The number of keys before this one.
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
        // A batch is sealed without a check in between, so a batch's worth of records is held in reserve.
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

    /// Drops the key of early data at its end.
    pub(super) fn forget_early(&mut self) {
        self.early = None;
    }

    /// Drops the handshake's keys at its end.
    pub(super) fn forget_handshake(&mut self) {
        self.early = None;
        self.handshake = None;
    }

    /// Returns whether the key has reached its record limit, so that a rekey must come first.
    pub(super) fn is_key_limit_reached(&self) -> bool {
        let reached = |traffic: &Traffic| traffic.key.number >= traffic.limit;
        self.traffic.as_ref().is_some_and(reached)
    }

    /// Returns whether the sender of these records may rekey: after enough records, or to follow the `other`
    /// direction.
    pub(super) fn may_rekey(&self, other: &DirectionKeys) -> bool {
        let used = |traffic: &Traffic| traffic.key.number > MIN_RECORDS_PER_KEY;
        self.traffic.as_ref().is_some_and(used) || self.is_behind(other)
    }

    /// Returns whether this direction has replaced fewer keys than the `other` one.
    pub(super) fn is_behind(&self, other: &DirectionKeys) -> bool {
        let generation =
            |keys: &DirectionKeys| keys.traffic.as_ref().map(|traffic| traffic.generation);
        generation(self) < generation(other)
    }

    /// Replaces the key, from the next record on.
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

    /// Seals a record in place. The `len` payload bytes stand in `record` behind room for the header; the rest of
    /// `record`, but for content type and tag, becomes padding.
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
        let made = key.key.encrypt_in_place(key.number, &header, bytes)?;
        tag.copy_from_slice(made.as_ref());
        key.number += 1;
        Ok(())
    }

    /// Opens a record in place: decrypts `body` and returns the content type and the length of the payload at its
    /// start. A record that cannot be opened does not advance the record number.
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

/// The secret from which the next keys follow. The library derives the keys of both directions at a time and keeps
/// no older secret. The key of the direction that has not rekeyed yet waits here, so no secret is left of a key
/// that was replaced.
pub(super) struct NextKeys {
    secrets: Secrets,
    local: VecDeque<Box<dyn PacketKey>>,
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
        let follows = self.remote.len() <= MAX_KEYS_AHEAD;
        follows.then_some(keys.local).ok_or(ChannelError::Damaged)
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
        let follows = self.local.len() <= MAX_KEYS_AHEAD;
        follows.then_some(keys.remote).ok_or(ChannelError::Damaged)
    }
}

/// Divides memory into slots for consecutive records, of which the last one in use need not be full. Stops at the
/// first slot that would be too small for any payload.
pub(super) fn split_into_records<'a>(
    bufs: &'a mut [IoSliceMut<'_>],
) -> ArrayVec<&'a mut [u8], MAX_RECORDS_PER_WRITE> {
    let mut slots = ArrayVec::new();
    for buf in bufs {
        let mut rest = &mut buf[..];
        let count = rest.len().div_ceil(MAX_RECORD);
        for left in (1..=count).rev() {
            let (slot, after) = rest.split_at_mut(rest.len() / left);
            rest = after;
            if slot.len() <= RECORD_OVERHEAD || slots.try_push(slot).is_err() {
                return slots;
            }
        }
    }
    slots
}

/// Returns the payload bytes of a protected record's slot.
pub(super) fn payload_mut(slot: &mut [u8]) -> &mut [u8] {
    let end = slot.len() - CONTENT_TYPE_LEN - TAG_LEN;
    &mut slot[HEADER_LEN..end]
}

#[cfg(test)]
mod tests;
