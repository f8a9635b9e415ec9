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
/// A peer that replaces its key has made so many records under it: to replace one costs more than to read
/// one.
const LEAST_RECORDS: u64 = 1024;
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

    /// Whether there were as many records under this key as there have to be before it is replaced.
    pub(super) fn may_renew(&self) -> bool {
        let used = |traffic: &Traffic| traffic.records > LEAST_RECORDS;
        self.traffic.as_ref().is_some_and(used)
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

#[cfg(test)]
mod tests {
    use braid_wire::Instant;
    use rustls::quic::{Connection, KeyChange, Keys};

    use super::*;
    use crate::channel::{Client, Server};
    use crate::keys::PrivateKey;

    const DATA: Kind = Kind {
        level: Level::Traffic,
        content: Content::Data,
    };

    /// Keys of a box's way to its server: as the box has them, and as the server does.
    fn ways() -> (Way, Way) {
        let [key, server_key] = [1, 2].map(|n| PrivateKey::from_seed([n; 32]));
        let client = Client::new(&key, server_key.public());
        let server = Server::new(&server_key, [key.public()]);
        let mut ends: [Connection; 2] = [
            client.connect(Instant::ZERO).unwrap().into(),
            server.accept().unwrap().0.into(),
        ];
        let mut ways: [Option<(Keys, Secrets)>; 2] = [None, None];
        while ends.iter().any(|end| end.is_handshaking()) {
            for (from, to) in [(0, 1), (1, 0)] {
                loop {
                    let mut said = Vec::new();
                    let change = ends[from].write_hs(&mut said);
                    ends[to].read_hs(&said).unwrap();
                    match change {
                        Some(KeyChange::OneRtt { keys, next }) => ways[from] = Some((keys, next)),
                        Some(KeyChange::Handshake { .. }) => {}
                        None => break,
                    }
                }
            }
        }
        let [Some((ours, next)), Some((theirs, their_next))] = ways else {
            panic!("no keys");
        };
        let (mut out, mut into) = (Way::new(), Way::new());
        out.set_traffic(ours.local.packet, next, false);
        into.set_traffic(theirs.remote.packet, their_next, true);
        (out, into)
    }

    fn seal(way: &mut Way, kind: Kind, bytes: &[u8]) -> Vec<u8> {
        let mut record = [&[0; HEADER], bytes].concat();
        record.resize(kind.wire_len(bytes.len()), 0);
        way.seal(kind, &mut record).unwrap();
        record
    }

    fn open(way: &mut Way, record: &[u8]) -> Result<Vec<u8>, Broken> {
        let (head, body) = record.split_first_chunk().unwrap();
        let header = Header::read(*head)?;
        assert_eq!(header.body, body.len());
        let mut body = body.to_vec();
        let len = way.open(&header, &mut body)?;
        body.truncate(len);
        Ok(body)
    }

    #[test]
    fn what_is_sealed_is_opened_in_its_order_only() {
        let (mut out, mut into) = ways();
        let records = [&b"one"[..], b"", b"three"].map(|bytes| seal(&mut out, DATA, bytes));
        assert_eq!(open(&mut into, &records[0]).unwrap(), b"one");
        assert_eq!(open(&mut into, &records[1]).unwrap(), b"");
        // Again, and in the place of another.
        assert_eq!(open(&mut into, &records[1]), Err(Broken::Damaged));
        assert_eq!(open(&mut into, &records[2]), Err(Broken::Damaged));
        // One that was not read has its number all the same.
        let next = [&b"four"[..], b"five"].map(|bytes| seal(&mut out, DATA, bytes));
        assert_eq!(open(&mut into, &next[1]).unwrap(), b"five");
    }

    #[test]
    fn a_bit_that_was_changed_is_found_wherever_it_stands() {
        for at in 0..OVERHEAD + 3 {
            let (mut out, mut into) = ways();
            let mut record = seal(&mut out, DATA, b"abc");
            // The length is not that of what follows then, which the test would find itself.
            if at == 1 || at == 2 {
                continue;
            }
            record[at] ^= 1;
            let found = open(&mut into, &record);
            assert_eq!(found, Err(Broken::Damaged), "byte {at}");
        }
        // The length is authenticated too.
        let (mut out, mut into) = ways();
        let mut record = seal(&mut out, DATA, b"abc");
        record[2] += 1;
        record.push(0);
        assert_eq!(open(&mut into, &record), Err(Broken::Damaged));
    }

    #[test]
    fn keys_wear_out_and_are_replaced() {
        let (mut out, mut into) = ways();
        let limit = out.traffic.as_ref().unwrap().limit;
        assert_eq!(limit, (1 << 23) - PLACES as u64, "as RFC 9001 has it");
        out.traffic.as_mut().unwrap().records = limit - 1;
        assert!(!out.is_worn());
        let old = seal(&mut out, DATA, b"old");
        assert!(out.is_worn());
        out.renew();
        assert!(!out.is_worn());
        let new = seal(&mut out, DATA, b"new");
        assert_eq!(open(&mut into, &old).unwrap(), b"old");
        into.renew();
        assert_eq!(open(&mut into, &new).unwrap(), b"new");
        // The old one is good for nothing any more.
        let (mut out, mut into) = ways();
        let under_old = seal(&mut out, DATA, b"old");
        into.renew();
        assert_eq!(open(&mut into, &under_old), Err(Broken::Damaged));
    }

    #[test]
    fn heads_of_no_record_are_told() {
        let head = |kind: u8, len: u16| {
            let [a, b] = len.to_be_bytes();
            Header::read([kind, a, b]).map(|header| (header.kind.byte(), header.body))
        };
        let most = (MOST - HEADER) as u16;
        assert_eq!(head(0x32, most), Ok((0x32, MOST - HEADER)));
        assert_eq!(head(0x32, most + 1), Err(Broken::Damaged));
        // A tag, at least; in clear there is none.
        assert_eq!(head(0x32, 16), Ok((0x32, 16)));
        assert_eq!(head(0x32, 15), Err(Broken::Damaged));
        assert_eq!(head(HELLO, 0), Ok((HELLO, 0)));
        let known: Vec<u8> = (0..=255).filter(|kind| head(*kind, 100).is_ok()).collect();
        let clear_and_early = [0x01, 0x06, 0x12, 0x13];
        let others = [0x21, 0x26, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36];
        assert_eq!(known, [&clear_and_early[..], &others].concat());
    }

    #[test]
    fn places_stand_one_behind_the_other() {
        let lens = |bufs: &[usize]| -> Vec<usize> {
            let mut memory: Vec<Vec<u8>> = bufs.iter().map(|len| vec![0; *len]).collect();
            let mut bufs: Vec<_> = memory.iter_mut().map(|m| IoSliceMut::new(m)).collect();
            places(&mut bufs).iter().map(|place| place.len()).collect()
        };
        assert_eq!(lens(&[32 << 10, 32 << 10]), [16 << 10; 4]);
        // No record is larger, and none is so small as a remainder would be.
        assert_eq!(lens(&[(16 << 10) + 1]), [8 << 10, (8 << 10) + 1]);
        assert_eq!(lens(&[100, 32 << 10, 50]), [100, 16 << 10, 16 << 10, 50]);
        // Nothing fits into the last.
        assert_eq!(lens(&[20_000, OVERHEAD]), [10_000, 10_000]);
        assert_eq!(lens(&[OVERHEAD]), []);
        assert_eq!(lens(&[32 << 10; 20]).len(), PLACES);
    }
}
