//! Messages over a connection, by which a reader tells streams and delays apart.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};

use core::time::Duration;

use braid_engine::{ApiError, Class, ConnId, Stack, Urgency};
use braid_wire::Instant;

use super::pattern::{fill, pattern_from};
use crate::oracle::Oracle;

/// The bytes of a header; each part of a message has one.
pub const HEADER: u64 = 32;
/// The start of every header; if it is missing, framing is lost.
const MAGIC: [u8; 4] = *b"BRSM";
/// Most messages that wait to be written; beyond that the sender drops new ones.
const MAX_PENDING: usize = 1 << 16;
/// Most messages that a reader remembers.
const MAX_RECORDS: usize = 1 << 20;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An I frame of a video: decodable by itself.
    I,
    /// A P frame.
    P,
    /// A B frame.
    B,
    /// Part of a bulk transfer.
    Bulk,
    /// A request for an answer of this many bytes.
    Ask(u64),
    /// An answer.
    Answer,
}

/// A message: a body in one or more parts, each after a header of [`HEADER`] bytes. One call into the
/// engine takes one part; parts of other streams may come between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The message's stream of the session. Bodies of one stream are checked as one sequence.
    pub stream: u16,
    /// The message's priority: 0 goes before all others; 7 and more go last.
    pub priority: u8,
    /// The kind of the message.
    pub kind: Kind,
    /// Bytes of the body, less than 1 TiB.
    pub len: u64,
    /// The time at which the application made the message; an answer has its request's time.
    pub made_at: Instant,
    /// The time after which the message is useless; requests have none.
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
    /// Returns the time from the making of the message to its last byte.
    pub fn delay(&self) -> Duration {
        self.complete_at.saturating_since(self.message.made_at)
    }

    /// Returns by how much the message missed its deadline; zero if it was in time.
    pub fn deadline_miss(&self) -> Duration {
        let deadline = self.message.deadline.unwrap_or(Instant::FAR_FUTURE);
        self.complete_at.saturating_since(deadline)
    }
}

/// Returns the delay variation: the differences between each message's delay and the one before (RFC 3393
/// section 4.5, with the message before as the reference).
pub fn jitter<'a>(
    messages: impl IntoIterator<Item = &'a Received>,
) -> impl Iterator<Item = Duration> {
    let mut before = None;
    messages.into_iter().filter_map(move |m| {
        let delay = m.delay();
        before.replace(delay).map(|b: Duration| b.abs_diff(delay))
    })
}

/// The bound of a part's length: the length takes 24 bits of a header, and the message's takes 40.
const PART: u64 = 1 << 24;

impl Message {
    /// Returns the header of a part with `part` bytes of the body.
    fn header(&self, part: u64) -> [u8; HEADER as usize] {
        let deadline = self.deadline.map_or(0, Instant::as_nanos);
        let (kind, extra) = match self.kind {
            Kind::I => (0, deadline),
            Kind::P => (1, deadline),
            Kind::B => (2, deadline),
            Kind::Bulk => (3, deadline),
            Kind::Ask(bytes) => (4, bytes),
            Kind::Answer => (5, deadline),
        };
        let mut header = [0; HEADER as usize];
        header[0] = kind;
        header[1] = self.priority;
        header[2..4].copy_from_slice(&self.stream.to_be_bytes());
        header[4..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&(self.len * PART + part).to_be_bytes());
        header[16..24].copy_from_slice(&self.made_at.as_nanos().to_be_bytes());
        header[24..32].copy_from_slice(&extra.to_be_bytes());
        header
    }

    /// Reads the message, and how many bytes of its body follow in this part.
    fn parse(header: &[u8; HEADER as usize]) -> Option<(Message, u64)> {
        let [kind, priority, s0, s1, rest @ ..] = header;
        let word = |n: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[8 * n..8 * n + 8]);
            u64::from_be_bytes(bytes)
        };
        let extra = word(3);
        let kind = match kind {
            0 => Kind::I,
            1 => Kind::P,
            2 => Kind::B,
            3 => Kind::Bulk,
            4 => Kind::Ask(extra),
            5 => Kind::Answer,
            _ => return None,
        };
        let timed = !matches!(kind, Kind::Ask(_)) && extra > 0;
        let message = Message {
            stream: u16::from_be_bytes([*s0, *s1]),
            priority: *priority,
            kind,
            len: word(1) / PART,
            made_at: Instant::from_nanos(word(2)),
            deadline: timed.then(|| Instant::from_nanos(extra)),
        };
        rest.starts_with(&MAGIC)
            .then_some((message, word(1) % PART))
    }

    /// Returns the class by which the engine sends the message's bytes.
    fn class(&self) -> Class {
        Class {
            stream: self.stream.into(),
            urgency: Urgency::new(self.priority).unwrap_or(Urgency::LEAST_URGENT),
            deadline: None,
        }
    }
}

/// Returns the offset in the pattern at which the bodies of a stream begin, so that no stream is taken
/// for another.
fn base(stream: u16) -> u64 {
    // The pattern's period is prime, so the first 8,191 streams begin at different offsets.
    u64::from(stream) * 1_021
}

/// Messages to be written, the most urgent ones first.
#[derive(Debug, Clone, Default)]
pub(super) struct Outbox {
    pending: VecDeque<Pending>,
    /// Bytes of bodies written, by stream.
    offsets: BTreeMap<u16, u64>,
    /// Messages dropped because too many waited.
    pub dropped: u64,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    message: Message,
    /// Bytes of the body that were written.
    written: u64,
}

impl Outbox {
    /// Adds `message` behind all messages of its stream and all of equal or higher precedence.
    pub fn push(&mut self, message: Message) {
        if self.pending.len() >= MAX_PENDING {
            self.dropped += 1;
            return;
        }
        let waits_for = |p: &Pending| {
            p.message.priority <= message.priority || p.message.stream == message.stream
        };
        let last = (self.pending.iter()).rposition(waits_for);
        let written = 0;
        self.pending
            .insert(last.map_or(0, |n| n + 1), Pending { message, written });
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns whether a message of `stream` waits.
    pub fn holds(&self, stream: u16) -> bool {
        self.pending.iter().any(|p| p.message.stream == stream)
    }

    /// Writes as much as the connection takes, and returns the number of bytes. Each call into the engine
    /// carries one part of one message, so its bytes have one class: parts stay whole, whatever overtakes
    /// them.
    pub fn write(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) -> u64 {
        let mut total = 0;
        while let Some(Pending { message, written }) = self.pending.front_mut() {
            let offset = self.offsets.entry(message.stream).or_default();
            let left = message.len - *written;
            let max = usize::try_from(HEADER + left).unwrap_or(usize::MAX);
            let result = stack.write_class(now, conn, message.class(), max, |slices| {
                let room: u64 = slices.iter().map(|s| s.len() as u64).sum();
                let part = left.min(room.saturating_sub(HEADER));
                if room < HEADER || part == 0 && left > 0 {
                    return Ok::<_, ApiError>(0);
                }
                let header = message.header(part);
                let mut at = 0;
                for slice in slices.iter_mut() {
                    put(slice, at, &header, base(message.stream) + *offset);
                    at += slice.len() as u64;
                }
                Ok((HEADER + part) as usize)
            });
            let n = result.unwrap_or(0) as u64;
            total += n;
            if n == 0 {
                // Only a write that takes nothing is followed by an event when there is room again.
                let _ = stack.write(now, conn, &[]);
                break;
            }
            *offset += n - HEADER;
            *written += n - HEADER;
            if *written == message.len {
                self.pending.pop_front();
            }
        }
        total
    }
}

/// Fills `out` with the bytes from `at` on of a part whose body begins at `offset` of the pattern.
fn put(out: &mut [u8], at: u64, header: &[u8], offset: u64) {
    let from = (at as usize).min(header.len());
    let take = out.len().min(header.len() - from);
    let (head, body) = out.split_at_mut(take);
    head.copy_from_slice(&header[from..from + take]);
    fill(body, offset + at.saturating_sub(HEADER));
}

/// A message that has arrived in part.
#[derive(Debug, Clone, Copy)]
struct Partial {
    message: Message,
    first_byte_at: Instant,
    /// Bytes of the body that are not in the parts begun so far.
    left: u64,
    parts: u32,
}

/// Messages that arrive.
#[derive(Debug, Clone, Default)]
pub(super) struct Inbox {
    header: [u8; HEADER as usize],
    /// Bytes of `header` that have arrived.
    have: usize,
    header_at: Option<Instant>,
    /// The incomplete messages by stream.
    partial: BTreeMap<u16, Partial>,
    /// The part being read: its stream, and the bytes to come.
    part: Option<(u16, u64)>,
    offsets: BTreeMap<u16, u64>,
    /// Complete messages in order of arrival.
    pub records: Vec<Received>,
    /// Messages completed, including those that are not remembered.
    pub count: u64,
}

impl Inbox {
    /// Takes bytes in, checks them, and remembers every message that they complete.
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
        let take = bytes.len().min(self.header.len() - self.have);
        let (head, rest) = bytes.split_at(take);
        self.header[self.have..self.have + take].copy_from_slice(head);
        self.have += take;
        if self.have == self.header.len() {
            self.have = 0;
            self.header_at = None;
            let (message, part) = Message::parse(&self.header)
                .unwrap_or_else(|| panic!("not the header of a message: {:02x?}", self.header));
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

    /// Notes the end of a part of `stream`, which may complete its message.
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

    fn bytes(message: &Message, offset: u64) -> Vec<u8> {
        let mut out = vec![0; (HEADER + message.len) as usize];
        put(
            &mut out,
            0,
            &message.header(message.len),
            base(message.stream) + offset,
        );
        out
    }

    #[test]
    fn headers_survive() {
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

    /// However the bytes are cut, the same messages come out, with the times of their bytes.
    #[test]
    fn messages_are_read_whole_from_any_pieces() {
        let first = message(1, Kind::I, 100);
        let empty = message(2, Kind::Ask(5), 0);
        let last = message(1, Kind::P, 50);
        let all = [bytes(&first, 0), bytes(&empty, 0), bytes(&last, 100)].concat();
        for piece in [1, 7, 32, 33, all.len()] {
            let (mut inbox, mut oracle) = (Inbox::default(), oracle());
            for (n, piece) in all.chunks(piece).enumerate() {
                inbox.take((Instant::from_millis(n as u64), None), piece, &mut oracle);
            }
            assert_eq!(oracle.take(), []);
            let seen: Vec<Message> = inbox.records.iter().map(|r| r.message).collect();
            assert_eq!(seen, [first, empty, last], "pieces of {piece}");
            let at = |byte: usize| Instant::from_millis((byte / piece) as u64);
            assert_eq!(inbox.records[0].complete_at, at(131));
            assert_eq!(inbox.records[2].first_byte_at, at(164));
            assert_eq!(inbox.records[2].complete_at, at(all.len() - 1));
        }
    }

    /// Parts of other messages may come between the parts of a message.
    #[test]
    fn parts_of_several_streams_are_put_together() {
        let long = message(1, Kind::Bulk, 100);
        let short = message(2, Kind::I, 10);
        let part = |from: u64, len: u64| {
            let mut out = vec![0; (HEADER + len) as usize];
            put(&mut out, 0, &long.header(len), base(1) + from);
            out
        };
        let all = [part(0, 60), bytes(&short, 0), part(60, 40)].concat();
        let (mut inbox, mut oracle) = (Inbox::default(), oracle());
        inbox.take((Instant::ZERO, None), &all, &mut oracle);
        assert_eq!(oracle.take(), []);
        let seen = inbox.records.iter().map(|r| (r.message, r.parts));
        assert_eq!(seen.collect::<Vec<_>>(), [(short, 1), (long, 2)]);
    }

    fn oracle() -> Oracle {
        Oracle::new(braid_engine::Config::default())
    }

    /// Returns the violation that `bytes` cause.
    fn wrong(bytes: &[u8]) -> String {
        let mut oracle = oracle();
        Inbox::default().take((Instant::ZERO, None), bytes, &mut oracle);
        oracle.take().remove(0).seen
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let mut all = bytes(&message(1, Kind::B, 10), 0);
        all[HEADER as usize + 3] ^= 1;
        assert_eq!(wrong(&all), "byte 3 of the stream is not what was sent");
    }

    #[test]
    fn the_body_of_another_stream_is_found() {
        let one = bytes(&message(1, Kind::B, 10), 0);
        let two = bytes(&message(2, Kind::B, 10), 0);
        let mixed = [&one[..HEADER as usize], &two[HEADER as usize..]].concat();
        assert!(wrong(&mixed).ends_with("is not what was sent"));
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
