//! Messages over a connection. Their headers tell a reader the stream, the priority and the time of each message.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::io::Read;

use core::time::Duration;

use braid_engine::{ApiError, Class, ConnId, Stack, Urgency};
use braid_wire::Instant;

use super::pattern::{fill, pattern_from};
use crate::oracle::Oracle;

/// The bytes of a header; each part of a message has one.
pub const HEADER: u64 = 32;
/// Bytes 4 to 7 of every header ("Braid sim message"). If a header lacks them, the reader has lost the boundaries
/// of messages.
const MAGIC: [u8; 4] = *b"BRSM";
/// The maximum number of messages that wait to be written; the sender drops further ones. A guess that bounds
/// memory if the network is too slow for a session.
const MAX_PENDING: usize = 1 << 16;
/// The maximum number of messages that a reader remembers. A guess that bounds memory.
const MAX_RECORDS: usize = 1 << 20;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An I frame of a video: decodable by itself.
    I,
    /// A P frame of a video: depends on an earlier frame.
    P,
    /// A B frame of a video: depends on an earlier and a later frame.
    B,
    /// Part of a bulk transfer.
    Bulk,
    /// A request for an answer of this many bytes.
    Ask(u64),
    /// An answer.
    Answer,
}

/// A message: a body in one or more parts, each with a header of [`HEADER`] bytes before it. One write to the
/// engine carries one part. Parts of other streams may stand between the parts of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The stream of the session to which the message belongs. The bodies of a stream's messages form one
    /// sequence of bytes, which the reader checks.
    pub stream: u16,
    /// The message's priority: 0 is the most urgent. 7 is the least urgent, and higher numbers count as 7.
    pub priority: u8,
    /// The kind of the message.
    pub kind: Kind,
    /// Bytes of the body, less than 1 TiB.
    pub len: u64,
    /// The time at which the application made the message. An answer has the time of its request, so that the
    /// delay of the answer is the time of the whole exchange.
    pub made_at: Instant,
    /// The time after which the message is useless. Requests have no deadline: their headers hold the size of the
    /// answer in its place.
    pub deadline: Option<Instant>,
}

/// A message that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The message.
    pub message: Message,
    /// The time at which the first byte was read.
    pub first_byte_at: Instant,
    /// The time at which the last byte was read.
    pub complete_at: Instant,
    /// The number of parts in which the message came.
    pub parts: u32,
}

impl Received {
    /// Returns the time from [`Message::made_at`] to the read of the last byte.
    pub fn delay(&self) -> Duration {
        self.complete_at.saturating_since(self.message.made_at)
    }

    /// Returns the time by which the message missed its deadline, or zero if it was in time or has none.
    pub fn deadline_miss(&self) -> Duration {
        let deadline = self.message.deadline.unwrap_or(Instant::FAR_FUTURE);
        self.complete_at.saturating_since(deadline)
    }
}

/// Returns the delay variations: for each two consecutive messages, the absolute difference between their delays
/// (RFC 3393 section 4.5).
pub fn jitter<'a>(
    messages: impl IntoIterator<Item = &'a Received>,
) -> impl Iterator<Item = Duration> {
    let mut before = None;
    messages.into_iter().filter_map(move |m| {
        let delay = m.delay();
        before.replace(delay).map(|b: Duration| b.abs_diff(delay))
    })
}

/// The factor by which a header packs two lengths into 64 bits: the upper 40 bits are the length of the message,
/// the lower 24 bits the length of the part.
const LENGTH_FACTOR: u64 = 1 << 24;

impl Message {
    /// Returns the header of a part with `part` bytes of the body.
    fn header(&self, part: u64) -> Vec<u8> {
        let deadline = self.deadline.map_or(0, Instant::as_nanos);
        let (kind, extra) = match self.kind {
            Kind::I => (0, deadline),
            Kind::P => (1, deadline),
            Kind::B => (2, deadline),
            Kind::Bulk => (3, deadline),
            Kind::Ask(bytes) => (4, bytes),
            Kind::Answer => (5, deadline),
        };
        let lengths = self.len * LENGTH_FACTOR + part;
        let words = [lengths, self.made_at.as_nanos(), extra].map(u64::to_be_bytes);
        let stream = self.stream.to_be_bytes();
        [&[kind, self.priority][..], &stream, &MAGIC, &words.concat()].concat()
    }

    /// Returns a part with `part` bytes of the body. The body begins at `offset` of the stream's bodies.
    fn part(&self, part: u64, offset: u64) -> Vec<u8> {
        let mut bytes = self.header(part);
        bytes.resize((HEADER + part) as usize, 0);
        fill(&mut bytes[HEADER as usize..], base(self.stream) + offset);
        bytes
    }

    /// Parses the header of a part. Returns the message, and the number of bytes of its body in this part.
    fn parse(header: &[u8]) -> Option<(Message, u64)> {
        let (&[kind, priority, s0, s1, ref magic @ ..], words) = header.split_first_chunk::<8>()?;
        let word = |n: usize| {
            let bytes = words.get(8 * n..)?.first_chunk()?;
            Some(u64::from_be_bytes(*bytes))
        };
        let (lengths, made_at, extra) = (word(0)?, word(1)?, word(2)?);
        let kind = match kind {
            0 => Kind::I,
            1 => Kind::P,
            2 => Kind::B,
            3 => Kind::Bulk,
            4 => Kind::Ask(extra),
            5 => Kind::Answer,
            _ => return None,
        };
        let has_deadline = !matches!(kind, Kind::Ask(_)) && extra > 0;
        let message = Message {
            stream: u16::from_be_bytes([s0, s1]),
            priority,
            kind,
            len: lengths / LENGTH_FACTOR,
            made_at: Instant::from_nanos(made_at),
            deadline: has_deadline.then(|| Instant::from_nanos(extra)),
        };
        (*magic == MAGIC).then_some((message, lengths % LENGTH_FACTOR))
    }

    /// Returns the class with which the engine sends the message's bytes. The class has no deadline: the deadline
    /// only serves measurements, and the engine must not act on it.
    fn class(&self) -> Class {
        Class {
            stream: self.stream.into(),
            urgency: Urgency::new(self.priority).unwrap_or(Urgency::LEAST_URGENT),
            deadline: None,
        }
    }
}

/// Returns the offset in the pattern at which the bodies of a stream begin. Streams begin at different offsets, so
/// that a reader notices bytes of another stream.
fn base(stream: u16) -> u64 {
    // The pattern's period is the prime 8,191, so the multiples of a smaller factor are different offsets for
    // 8,191 streams.
    u64::from(stream) * 1_021
}

/// The messages to be written, by priority; at most 65,536.
#[derive(Debug, Clone, Default)]
pub struct Outbox {
    pending: VecDeque<Pending>,
    /// The number of bytes of bodies that were written, for each stream.
    offsets: BTreeMap<u16, u64>,
    /// The number of messages dropped because [`MAX_PENDING`] messages waited.
    pub(super) dropped: u64,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    message: Message,
    /// The number of bytes of the body that were written.
    written: u64,
}

impl Outbox {
    /// Adds `message` after all messages of its stream and all messages of the same or a more urgent priority.
    pub(super) fn push(&mut self, message: Message) {
        if self.pending.len() >= MAX_PENDING {
            self.dropped += 1;
            return;
        }
        let goes_before = |p: &Pending| {
            p.message.priority <= message.priority || p.message.stream == message.stream
        };
        let last = (self.pending.iter()).rposition(goes_before);
        let written = 0;
        self.pending
            .insert(last.map_or(0, |n| n + 1), Pending { message, written });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns whether a message of `stream` waits.
    pub(super) fn holds(&self, stream: u16) -> bool {
        self.pending.iter().any(|p| p.message.stream == stream)
    }

    /// Returns the stream of the first message, and the number of its bytes that are not written.
    pub fn front(&self) -> Option<(u16, u64)> {
        let first = self.pending.front()?;
        Some((first.message.stream, first.message.len - first.written))
    }

    /// Notes that `n` bytes more of the first message were written.
    pub fn note_written(&mut self, n: u64) {
        if let Some(first) = self.pending.front_mut() {
            first.written += n;
            if first.written == first.message.len {
                self.pending.pop_front();
            }
        }
    }

    /// Writes as much as the send buffer takes, and returns the number of bytes. Each write to the engine carries
    /// one part of one message with one class. The engine reorders only whole writes, so parts stay in one piece.
    pub(super) fn write(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) -> u64 {
        let mut total = 0;
        while let Some(Pending { message, written }) = self.pending.front().copied() {
            let offset = self.offsets.entry(message.stream).or_default();
            let left = message.len - written;
            let max = usize::try_from(HEADER + left).unwrap_or(usize::MAX);
            let result = stack.write_class(now, conn, message.class(), max, |slices| {
                let room: u64 = slices.iter().map(|s| s.len() as u64).sum();
                let part = left.min(room.saturating_sub(HEADER));
                // A part must have a byte of the body, if there are any left, or it would make no progress.
                if room < HEADER || part == 0 && left > 0 {
                    return Ok::<_, ApiError>(0);
                }
                let bytes = message.part(part, *offset);
                // Copying from memory does not fail.
                Ok((&bytes[..]).read_vectored(slices).unwrap_or(0))
            });
            let n = result.unwrap_or(0) as u64;
            total += n;
            if n == 0 {
                // The engine reports new room only after a write that it could not take. The write above may
                // instead have declined room that was too small, so an empty write follows.
                let _ = stack.write(now, conn, &[]);
                break;
            }
            *offset += n - HEADER;
            self.note_written(n - HEADER);
        }
        total
    }
}

/// A message of which some parts have begun to arrive.
#[derive(Debug, Clone, Copy)]
struct Partial {
    message: Message,
    first_byte_at: Instant,
    /// Bytes of the body in parts whose headers have not arrived.
    left: u64,
    parts: u32,
}

/// The messages that a connection receives.
#[derive(Debug, Clone, Default)]
pub(super) struct Inbox {
    /// The bytes of the next header that have arrived.
    header: Vec<u8>,
    /// The time at which the first byte of `header` arrived.
    header_at: Option<Instant>,
    /// The incomplete message of each stream.
    partial: BTreeMap<u16, Partial>,
    /// The stream of the current part, and the number of its bytes that have not arrived.
    part: Option<(u16, u64)>,
    /// The number of bytes of bodies that have arrived, for each stream.
    offsets: BTreeMap<u16, u64>,
    /// Complete messages in the order of completion, at most [`MAX_RECORDS`].
    pub records: Vec<Received>,
    /// The number of complete messages.
    pub count: u64,
}

impl Inbox {
    /// Takes received bytes, checks them, and remembers every message that they complete.
    pub fn take(
        &mut self,
        (now, conn): (Instant, Option<ConnId>),
        mut bytes: &[u8],
        oracle: &mut Oracle,
    ) {
        while !bytes.is_empty() {
            bytes = match self.part {
                None => self.take_header(now, bytes),
                Some((stream, left)) => {
                    let take = left.min(bytes.len() as u64);
                    let (body, rest) = bytes.split_at(take as usize);
                    let offset = self.offsets.entry(stream).or_default();
                    let expected = |at| pattern_from(base(stream) + at);
                    oracle.on_content((now, conn), *offset, body, expected);
                    *offset += take;
                    self.part = Some((stream, left - take));
                    rest
                }
            };
            if let Some((stream, 0)) = self.part {
                self.part = None;
                self.end_part(now, stream);
            }
        }
    }

    /// Takes bytes of a header and returns the rest.
    fn take_header<'a>(&mut self, now: Instant, bytes: &'a [u8]) -> &'a [u8] {
        let first_byte_at = *self.header_at.get_or_insert(now);
        let take = bytes.len().min(HEADER as usize - self.header.len());
        let (head, rest) = bytes.split_at(take);
        self.header.extend_from_slice(head);
        if self.header.len() == HEADER as usize {
            let (message, part) = Message::parse(&self.header)
                .unwrap_or_else(|| panic!("not the header of a message: {:02x?}", self.header));
            self.header.clear();
            self.header_at = None;
            let partial = self.partial.entry(message.stream).or_insert(Partial {
                message,
                first_byte_at,
                left: message.len,
                parts: 0,
            });
            let fits = partial.message == message && part <= partial.left;
            assert!(fits, "{part} bytes of {message:?} within {partial:?}");
            partial.left -= part;
            partial.parts += 1;
            self.part = Some((message.stream, part));
        }
        rest
    }

    /// Handles the end of a part of `stream`. The last part completes its message.
    fn end_part(&mut self, now: Instant, stream: u16) {
        let Entry::Occupied(partial) = self.partial.entry(stream) else {
            return;
        };
        if partial.get().left > 0 {
            return;
        }
        let done = partial.remove();
        self.count += 1;
        if self.records.len() < MAX_RECORDS {
            self.records.push(Received {
                message: done.message,
                first_byte_at: done.first_byte_at,
                complete_at: now,
                parts: done.parts,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(stream: u16, kind: Kind, len: u64) -> Message {
        Message {
            stream,
            priority: 3,
            kind,
            len,
            made_at: Instant::from_millis(1500),
            deadline: None,
        }
    }

    #[test]
    fn a_parsed_header_gives_the_message() {
        let deadline = Some(Instant::from_millis(1750));
        for (kind, deadline) in [
            (Kind::I, deadline),
            (Kind::P, deadline),
            (Kind::B, None),
            (Kind::Bulk, None),
            (Kind::Ask(1 << 40), None),
            (Kind::Answer, None),
        ] {
            let message = Message {
                deadline,
                ..message(7, kind, 12_345_678_901)
            };
            assert_eq!(Message::parse(&message.header(7)), Some((message, 7)));
        }
        let mut header = message(7, Kind::I, 1).header(1);
        header[4] ^= 1;
        assert_eq!(Message::parse(&header), None);
    }

    /// Chunk `n` arrives at `n` ms, so each byte has a known time. Apart from these times, the length of the
    /// chunks must not matter.
    #[test]
    fn messages_are_complete_for_any_length_of_chunks() {
        let first = message(1, Kind::I, 100);
        let empty = message(2, Kind::Ask(5), 0);
        let last = message(1, Kind::P, 50);
        let all = [first.part(100, 0), empty.part(0, 0), last.part(50, 100)].concat();
        for piece in [1, 7, 32, 33, all.len()] {
            let (mut inbox, mut oracle) = (Inbox::default(), oracle());
            for (n, piece) in all.chunks(piece).enumerate() {
                inbox.take((Instant::from_millis(n as u64), None), piece, &mut oracle);
            }
            assert_eq!(oracle.take(), []);
            let seen: Vec<Message> = inbox.records.iter().map(|r| r.message).collect();
            assert_eq!(seen, [first, empty, last], "pieces of {piece}");
            let at = |byte: usize| Instant::from_millis((byte / piece) as u64);
            // The first message ends with byte 31 + 100; the header of the second has 32 bytes.
            assert_eq!(inbox.records[0].complete_at, at(131));
            assert_eq!(inbox.records[2].first_byte_at, at(164));
            assert_eq!(inbox.records[2].complete_at, at(all.len() - 1));
        }
    }

    /// Parts of other messages may come between the parts of a message.
    #[test]
    fn parts_of_several_streams_may_alternate() {
        let long = message(1, Kind::Bulk, 100);
        let short = message(2, Kind::I, 10);
        let all = [long.part(60, 0), short.part(10, 0), long.part(40, 60)].concat();
        let (mut inbox, mut oracle) = (Inbox::default(), oracle());
        inbox.take((Instant::ZERO, None), &all, &mut oracle);
        assert_eq!(oracle.take(), []);
        let seen = inbox.records.iter().map(|r| (r.message, r.parts));
        assert_eq!(seen.collect::<Vec<_>>(), [(short, 1), (long, 2)]);
    }

    fn oracle() -> Oracle {
        Oracle::new(braid_engine::Config::default())
    }

    #[test]
    fn a_wrong_byte_or_the_body_of_another_stream_is_found() {
        let one = message(1, Kind::B, 10).part(10, 0);
        let two = message(2, Kind::B, 10).part(10, 0);
        let mut wrong = one.clone();
        wrong[HEADER as usize + 3] ^= 1;
        let mixed = [&one[..HEADER as usize], &two[HEADER as usize..]].concat();
        for (bytes, expected) in [
            (wrong, "byte 3 of the stream is not what was sent"),
            (mixed, "is not what was sent"),
        ] {
            let mut oracle = oracle();
            Inbox::default().take((Instant::ZERO, None), &bytes, &mut oracle);
            let seen = oracle.take().remove(0).seen;
            assert!(seen.ends_with(expected), "{seen}");
        }
    }

    #[test]
    fn delays_lateness_and_their_variation() {
        let received = |made, done, deadline| Received {
            message: Message {
                made_at: Instant::from_millis(made),
                deadline: Some(Instant::from_millis(deadline)),
                ..message(1, Kind::I, 10)
            },
            first_byte_at: Instant::from_millis(made),
            complete_at: Instant::from_millis(done),
            parts: 1,
        };
        let all = [
            received(0, 30, 250),
            received(40, 100, 290),
            received(80, 400, 330),
        ];
        let ms = Duration::from_millis;
        assert_eq!(all.map(|m| m.delay()), [ms(30), ms(60), ms(320)]);
        assert_eq!(all.map(|m| m.deadline_miss()), [ms(0), ms(0), ms(70)]);
        assert_eq!(jitter(&all).collect::<Vec<_>>(), [ms(30), ms(260)]);
    }
}
