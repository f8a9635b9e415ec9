//! Records: the bytes of box and server on the wire.
//!
//! A record has the form that TLS 1.3 gives it (RFC 8446 section 5), so that one sees of it from outside
//! what one sees of TLS: a type, a version, a length and ciphertext. The [`Content`] stands inside, behind
//! the bytes, and zeros that pad short records behind that. Nonce and additional data are also those of
//! TLS 1.3: each key numbers its records from 0, and the header is authenticated. Keys and handshake
//! are those that QUIC takes from TLS 1.3 (RFC 9001), because there the library protects bytes where
//! they stand; its own record layer copies them.

use std::collections::VecDeque;
use std::io::IoSliceMut;

use arrayvec::ArrayVec;
use rustls::quic::{PacketKey, Secrets};

use super::Broken;

/// Before the bytes of a record: type, version, length.
pub(super) const HEADER: usize = 5;
/// Behind them, where it is protected: the content, and the tag of the cipher.
const CONTENT: usize = 1;
const TAG: usize = 16;
/// What a protected record has besides its bytes, without padding.
pub const OVERHEAD: usize = HEADER + CONTENT + TAG;
/// Most bytes of a record: a reader needs all of it before it gets the first.
pub(super) const MOST: usize = 16 << 10;
/// Most of them that are somebody's.
pub(super) const MOST_PLAIN: usize = MOST - OVERHEAD;
/// The version that all records of TLS 1.3 bear (RFC 8446 section 5.1).
const VERSION: [u8; 2] = [3, 3];
/// The least that is encrypted in a record once there are keys: messages, ends of users' bytes, alerts
/// and a user's keystrokes look the same.
const LEAST_PADDED: usize = 128;
/// Up to here messages are padded to powers of two, longer ones to whole packets.
const MOST_DOUBLED: usize = 1024;
/// What is encrypted in a record of 1,400 bytes, which is a packet, whatever options it has.
const PACKET: usize = 1400 - HEADER - TAG;
/// A peer that replaces its key has made so many records under it: to replace one costs more than to read
/// one.
const LEAST_RECORDS: u64 = 1024;
/// Most keys that one direction may be ahead of the other, whose end has been asked to follow.
const MOST_AHEAD: usize = 16;
/// Most records that [`places`] makes room for.
pub(super) const PLACES: usize = 16;

/// The key that protects a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Clear,
    /// That of a ticket.
    Early,
    Handshake,
    /// That of both ends, once they know each other.
    Traffic,
}

/// The meaning of a record's bytes. All but the last are content types of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Something is wrong, or the sender will say no more (RFC 8446 section 6): level and description.
    Alert = 21,
    /// Messages of TLS.
    Handshake = 22,
    /// Bytes of a user, or messages about them.
    Data = 23,
    /// A user's bytes have ended; the connection goes on. No protocol has this number.
    FlowEnd = 0xe0,
}

impl Content {
    fn read(byte: u8) -> Option<Self> {
        match byte {
            21 => Some(Content::Alert),
            22 => Some(Content::Handshake),
            23 => Some(Content::Data),
            0xe0 => Some(Content::FlowEnd),
            _ => None,
        }
    }

    /// Returns whether the record belongs to a user: of two users one after the other, records of the
    /// second wait until the first is done.
    pub(super) fn is_flow(self) -> bool {
        matches!(self, Content::Data | Content::FlowEnd)
    }
}

/// The first byte of a connection. SOCKS5 begins by another one.
pub(super) const HELLO: u8 = Content::Handshake as u8;

/// The message by which early data ends (RFC 8446 section 4.5).
pub(super) const END_OF_EARLY_DATA: [u8; 4] = [5, 0, 0, 0];
/// The message after which the sender's next record has the next key (RFC 8446 section 4.6.3), up to its
/// last byte.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
/// The alert of a sender that will say no more.
pub(super) const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// Returns the message that replaces a key, and asks the other end to follow or does follow.
pub(super) fn key_update(asks: bool) -> [u8; 5] {
    let [a, b, c, d] = KEY_UPDATE;
    [a, b, c, d, u8::from(asks)]
}

/// Returns whether a message replaces the sender's key.
pub(super) fn is_key_update(message: &[u8]) -> bool {
    matches!(message.strip_prefix(&KEY_UPDATE[..]), Some([0 | 1]))
}

/// Returns the bytes of a whole record in plaintext.
pub(super) fn plaintext(content: Content, bytes: &[u8]) -> Vec<u8> {
    let [a, b] = (bytes.len() as u16).to_be_bytes();
    let header = [content as u8, VERSION[0], VERSION[1], a, b];
    [&header[..], bytes].concat()
}

/// Returns the zeros that pad a record of `len` bytes. Bytes of a user are padded only where there are
/// fewer than in any other record. Messages come in few sizes, so that their size tells neither the
/// length of a destination's name nor the kind of message.
pub(super) fn padding(len: usize, of_user: bool) -> usize {
    let inner = len + CONTENT;
    let padded = match inner {
        _ if of_user => inner.max(LEAST_PADDED),
        ..=MOST_DOUBLED => inner.next_power_of_two().max(LEAST_PADDED),
        _ => inner.next_multiple_of(PACKET),
    };
    (padded - inner).min(MOST_PLAIN.saturating_sub(len))
}

/// The bytes before those of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    bytes: [u8; HEADER],
    /// What is seen from outside: protected records are all [`Content::Data`].
    pub(super) outer: Content,
    /// Bytes that follow.
    pub(super) body: usize,
}

impl Header {
    /// # Errors
    /// There is no such record.
    pub(super) fn read(bytes: [u8; HEADER]) -> Result<Self, Broken> {
        let [kind, major, minor, a, b] = bytes;
        let outer = Content::read(kind).filter(|c| *c != Content::FlowEnd);
        let outer = outer.ok_or(Broken::Damaged)?;
        // The first record of an older library may say 1.0 (RFC 8446 section 5.1).
        let version =
            [major, minor] == VERSION || (outer, major, minor) == (Content::Handshake, 3, 1);
        let body = usize::from(u16::from_be_bytes([a, b]));
        let least = match outer {
            Content::Data => CONTENT + TAG,
            _ => 0,
        };
        let sound = version && body >= least && body <= MOST - HEADER;
        sound
            .then_some(Header { bytes, outer, body })
            .ok_or(Broken::Damaged)
    }
}

/// A key, and the number of its next record.
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
pub(super) struct Way {
    early: Option<Key>,
    handshake: Option<Key>,
    traffic: Option<Traffic>,
}

struct Traffic {
    key: Key,
    /// Most records under one key.
    limit: u64,
    /// How many keys there were before this one.
    generation: u64,
}

impl Way {
    pub(super) const fn new() -> Self {
        Way {
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
        // A few are left for those that are made at a time.
        let limit = key.confidentiality_limit() - PLACES as u64;
        self.traffic = Some(Traffic {
            key: Key::new(key),
            limit,
            generation: 0,
        });
    }

    pub(super) fn has_early(&self) -> bool {
        self.early.is_some()
    }

    /// Forgets the key of early data, which has ended.
    pub(super) fn forget_early(&mut self) {
        self.early = None;
    }

    /// Forgets the keys of the handshake, which has ended.
    pub(super) fn forget_handshake(&mut self) {
        self.early = None;
        self.handshake = None;
    }

    /// Returns whether the key has to be replaced before the next record.
    pub(super) fn is_worn(&self) -> bool {
        let worn = |traffic: &Traffic| traffic.key.number >= traffic.limit;
        self.traffic.as_ref().is_some_and(worn)
    }

    /// Returns whether the sender of these records may replace the key: after enough records, or to follow
    /// the `other` direction.
    pub(super) fn may_renew(&self, other: &Way) -> bool {
        let used = |traffic: &Traffic| traffic.key.number > LEAST_RECORDS;
        self.traffic.as_ref().is_some_and(used) || self.is_behind(other)
    }

    /// Returns whether fewer keys of this direction were replaced than of the `other` one.
    pub(super) fn is_behind(&self, other: &Way) -> bool {
        let generation = |way: &Way| way.traffic.as_ref().map(|traffic| traffic.generation);
        generation(self) < generation(other)
    }

    /// Replaces the key from now on.
    pub(super) fn renew(&mut self, key: Box<dyn PacketKey>) {
        if let Some(traffic) = &mut self.traffic {
            traffic.key = Key::new(key);
            traffic.generation += 1;
        }
    }

    fn key(&mut self, level: Level) -> Option<&mut Key> {
        match level {
            Level::Clear => None,
            Level::Early => self.early.as_mut(),
            Level::Handshake => self.handshake.as_mut(),
            Level::Traffic => self.traffic.as_mut().map(|traffic| &mut traffic.key),
        }
    }

    /// Makes a protected record of the `len` bytes that stand in `record` behind room for the header.
    /// What is left behind them, but for content and tag, is padding.
    ///
    /// # Errors
    /// There is no such key; the library fails.
    pub(super) fn seal(
        &mut self,
        (level, content): (Level, Content),
        record: &mut [u8],
        len: usize,
    ) -> Result<(), Broken> {
        let body = record.len() - HEADER;
        debug_assert!(len + CONTENT + TAG <= body && record.len() <= MOST);
        let [a, b] = u16::try_from(body)
            .map_err(|_| Broken::Failed)?
            .to_be_bytes();
        let header = [Content::Data as u8, VERSION[0], VERSION[1], a, b];
        let (place, body) = record.split_at_mut(HEADER);
        place.copy_from_slice(&header);
        let (bytes, tag) = body.split_at_mut(body.len() - TAG);
        let (content_place, padding) = bytes[len..].split_at_mut(CONTENT);
        content_place.copy_from_slice(&[content as u8]);
        padding.fill(0);
        let key = self.key(level).ok_or(Broken::Failed)?;
        let made = key.key.encrypt_in_place(key.number, &header, bytes)?;
        tag.copy_from_slice(made.as_ref());
        key.number += 1;
        Ok(())
    }

    /// Makes of a protected record's `body` the bytes that its sender put in, which stand where they stood,
    /// and returns the content and how many there are. One that cannot be opened has no number.
    ///
    /// # Errors
    /// There is no such key; it is not as its sender made it.
    pub(super) fn open(
        &mut self,
        level: Level,
        header: &Header,
        body: &mut [u8],
    ) -> Result<(Content, usize), Broken> {
        let key = self.key(level).ok_or(Broken::Damaged)?;
        let opened = key.key.decrypt_in_place(key.number, &header.bytes, body);
        let bytes = opened.map_err(|_| Broken::Damaged)?;
        key.number += 1;
        let len = bytes.iter().rposition(|byte| *byte != 0);
        let len = len.ok_or(Broken::Damaged)?;
        let content = Content::read(bytes[len]).ok_or(Broken::Damaged)?;
        Ok((content, len))
    }
}

/// The secrets of the keys to come. The library derives the next keys of both directions at a time and
/// keeps nothing older. So no secret is left of a key that was replaced; the key of the direction
/// that has not come so far waits here.
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

    /// Returns the next key of what this end says.
    ///
    /// # Errors
    /// The other end does not follow.
    pub(super) fn local(&mut self) -> Result<Box<dyn PacketKey>, Broken> {
        if let Some(key) = self.local.pop_front() {
            return Ok(key);
        }
        let keys = self.secrets.next_packet_keys();
        self.remote.push_back(keys.remote);
        let follows = self.remote.len() <= MOST_AHEAD;
        follows.then_some(keys.local).ok_or(Broken::Damaged)
    }

    /// Returns the next key of what the other end says.
    ///
    /// # Errors
    /// This end could not follow, as the other end takes nothing.
    pub(super) fn remote(&mut self) -> Result<Box<dyn PacketKey>, Broken> {
        if let Some(key) = self.remote.pop_front() {
            return Ok(key);
        }
        let keys = self.secrets.next_packet_keys();
        self.local.push_back(keys.local);
        let follows = self.local.len() <= MOST_AHEAD;
        follows.then_some(keys.remote).ok_or(Broken::Damaged)
    }
}

/// Cuts memory into places for records that stand one behind the other: the last one in use need not be
/// full. None is so small that nothing fits, unless all are left out from there on.
pub(super) fn places<'a>(bufs: &'a mut [IoSliceMut<'_>]) -> ArrayVec<&'a mut [u8], PLACES> {
    let mut places = ArrayVec::new();
    for buf in bufs {
        let mut rest = &mut buf[..];
        let count = rest.len().div_ceil(MOST);
        for left in (1..=count).rev() {
            let (place, after) = rest.split_at_mut(rest.len() / left);
            rest = after;
            if place.len() <= OVERHEAD || places.try_push(place).is_err() {
                return places;
            }
        }
    }
    places
}

/// Where the bytes of a protected record stand in its place.
pub(super) fn plain_of(place: &mut [u8]) -> &mut [u8] {
    let end = place.len() - CONTENT - TAG;
    &mut place[HEADER..end]
}

#[cfg(test)]
mod tests;
