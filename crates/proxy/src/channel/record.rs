//! Records: what box and server say to each other, as it goes over the wire.
//!
//! Handshake and keys are those of TLS 1.3 in the form that QUIC has for them (RFC 9001), since there the
//! library protects where the bytes stand, and a record layer of TLS would copy them. A record is
//!
//! - 1 byte kind: in the upper half the [`Level`], by which key it is protected, in the lower half the
//!   [`Content`];
//! - 2 bytes length of what follows, big endian;
//! - the bytes, and behind them 16 bytes of tag, or none where it is in clear.
//!
//! Kind and length are authenticated as well. Each way numbers its records, those in clear and those that
//! were skipped too, and the number is the nonce: so none can be left out, repeated or moved, from under
//! one key to the next neither.

use std::io::IoSliceMut;

use arrayvec::ArrayVec;
use rustls::quic::{PacketKey, Secrets};

use super::Broken;

/// Before the bytes of a record.
pub(super) const HEADER: usize = 3;
/// Behind them, where it is protected.
const TAG: usize = 16;
/// What a protected record has besides.
pub(crate) const OVERHEAD: usize = HEADER + TAG;
/// Most bytes of a record: a reader needs all of it before he gets the first.
pub(super) const MOST: usize = 16 << 10;
/// Most of them that are somebody's.
pub(super) const MOST_PLAIN: usize = MOST - OVERHEAD;
/// Most records that [`places`] makes room for.
pub(super) const PLACES: usize = 16;

/// By which key a record is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Clear = 0,
    /// That of a ticket.
    Early = 1,
    Handshake = 2,
    /// That of both ends, once they know each other.
    Traffic = 3,
}

/// What a record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Messages of TLS.
    Handshake = 1,
    /// Bytes of a user, or messages about them.
    Data = 2,
    /// A user's bytes have ended; the connection goes on.
    FlowEnd = 3,
    /// The sender's next record has the next key (RFC 9001 section 6).
    KeyUpdate = 4,
    /// The sender will say no more.
    End = 5,
    /// Something is wrong: one byte, as in TLS (RFC 8446 section 6.2).
    Alert = 6,
}

/// The first byte of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) level: Level,
    pub(super) content: Content,
}

/// How whoever opens a connection begins. SOCKS5 begins by another byte, and TLS too.
pub(super) const HELLO: u8 = Kind {
    level: Level::Clear,
    content: Content::Handshake,
}
.byte();

impl Kind {
    const fn byte(self) -> u8 {
        (self.level as u8) << 4 | self.content as u8
    }

    fn read(byte: u8) -> Option<Self> {
        let level = match byte >> 4 {
            0 => Level::Clear,
            1 => Level::Early,
            2 => Level::Handshake,
            3 => Level::Traffic,
            _ => return None,
        };
        let content = match byte & 0xf {
            1 => Content::Handshake,
            2 => Content::Data,
            3 => Content::FlowEnd,
            4 => Content::KeyUpdate,
            5 => Content::End,
            6 => Content::Alert,
            _ => return None,
        };
        let fits = match level {
            Level::Clear | Level::Handshake => {
                matches!(content, Content::Handshake | Content::Alert)
            }
            Level::Early => matches!(content, Content::Data | Content::FlowEnd),
            Level::Traffic => true,
        };
        fits.then_some(Kind { level, content })
    }

    /// Whether it is a user's: of two one after the other, only one is anybody's at a time.
    pub(super) fn is_flow(self) -> bool {
        matches!(self.content, Content::Data | Content::FlowEnd)
    }

    /// Bytes behind those of the record.
    fn tag(self) -> usize {
        match self.level {
            Level::Clear => 0,
            _ => TAG,
        }
    }

    /// Bytes on the wire of a record with `len` bytes.
    pub(super) fn wire_len(self, len: usize) -> usize {
        HEADER + len + self.tag()
    }
}

/// What stands before the bytes of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    bytes: [u8; HEADER],
    pub(super) kind: Kind,
    /// Bytes that follow.
    pub(super) body: usize,
}

impl Header {
    /// # Errors
    /// There is no such record.
    pub(super) fn read(bytes: [u8; HEADER]) -> Result<Self, Broken> {
        let [kind, a, b] = bytes;
        let kind = Kind::read(kind).ok_or(Broken::Damaged)?;
        let body = usize::from(u16::from_be_bytes([a, b]));
        let sound = body >= kind.tag() && body <= MOST - HEADER;
        sound
            .then_some(Header { bytes, kind, body })
            .ok_or(Broken::Damaged)
    }
}

/// One way, and the keys of it.
pub(super) struct Way {
    /// Of the next record.
    number: u64,
    early: Option<Box<dyn PacketKey>>,
    handshake: Option<Box<dyn PacketKey>>,
    traffic: Option<Traffic>,
}

struct Traffic {
    key: Box<dyn PacketKey>,
    next: Secrets,
    /// Whether it is the peer's.
    remote: bool,
    /// Records under this key.
    records: u64,
    /// So many there may be.
    limit: u64,
}

impl Way {
    pub(super) const fn new() -> Self {
        Way {
            number: 0,
            early: None,
            handshake: None,
            traffic: None,
        }
    }

    pub(super) fn set_early(&mut self, key: Box<dyn PacketKey>) {
        self.early = Some(key);
    }

    pub(super) fn set_handshake(&mut self, key: Box<dyn PacketKey>) {
        self.handshake = Some(key);
    }

    /// The key of this way, and what the next ones are made from.
    pub(super) fn set_traffic(&mut self, key: Box<dyn PacketKey>, next: Secrets, remote: bool) {
        // A few are left for those that are made at a time.
        let limit = key.confidentiality_limit() - PLACES as u64;
        self.traffic = Some(Traffic {
            key,
            next,
            remote,
            records: 0,
            limit,
        });
    }

    pub(super) fn has_early(&self) -> bool {
        self.early.is_some()
    }

    /// The handshake has ended.
    pub(super) fn forget_handshake(&mut self) {
        self.early = None;
        self.handshake = None;
    }

    /// Whether the key has to be replaced before more is said.
    pub(super) fn is_worn(&self) -> bool {
        let worn = |traffic: &Traffic| traffic.records >= traffic.limit;
        self.traffic.as_ref().is_some_and(worn)
    }

    /// The next key is used from now on.
    pub(super) fn renew(&mut self) {
        if let Some(traffic) = &mut self.traffic {
            let keys = traffic.next.next_packet_keys();
            traffic.key = match traffic.remote {
                true => keys.remote,
                false => keys.local,
            };
            traffic.records = 0;
        }
    }

    fn key(&mut self, level: Level) -> Option<&dyn PacketKey> {
        match level {
            Level::Clear => None,
            Level::Early => self.early.as_deref(),
            Level::Handshake => self.handshake.as_deref(),
            Level::Traffic => self.traffic.as_mut().map(|traffic| {
                traffic.records += 1;
                &*traffic.key
            }),
        }
    }

    /// Makes a record of what stands in `record`, with room for the header before it and for a tag behind
    /// it.
    ///
    /// # Errors
    /// There is no such key; the library fails.
    pub(super) fn seal(&mut self, kind: Kind, record: &mut [u8]) -> Result<(), Broken> {
        let number = self.next();
        let body = record.len() - HEADER;
        debug_assert!(body >= kind.tag() && record.len() <= MOST);
        let len = u16::try_from(body).map_err(|_| Broken::Failed)?;
        let [a, b] = len.to_be_bytes();
        let header = [kind.byte(), a, b];
        record[..HEADER].copy_from_slice(&header);
        if kind.level == Level::Clear {
            return Ok(());
        }
        let (bytes, place) = record[HEADER..].split_at_mut(body - TAG);
        let key = self.key(kind.level).ok_or(Broken::Failed)?;
        let tag = key.encrypt_in_place(number, &header, bytes)?;
        place.copy_from_slice(tag.as_ref());
        Ok(())
    }

    /// Makes of a record's `body` the bytes that its sender put in, which stand where they stood, and
    /// returns how many.
    ///
    /// # Errors
    /// There is no such key; it is not as its sender made it.
    pub(super) fn open(&mut self, header: &Header, body: &mut [u8]) -> Result<usize, Broken> {
        let number = self.next();
        if header.kind.level == Level::Clear {
            return Ok(body.len());
        }
        let key = self.key(header.kind.level).ok_or(Broken::Damaged)?;
        let opened = key.decrypt_in_place(number, &header.bytes, body);
        opened.map(|bytes| bytes.len()).map_err(|_| Broken::Damaged)
    }

    /// A record is not read.
    pub(super) fn skip(&mut self) {
        self.next();
    }

    fn next(&mut self) -> u64 {
        self.number += 1;
        self.number - 1
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
    let end = place.len() - TAG;
    &mut place[HEADER..end]
}
