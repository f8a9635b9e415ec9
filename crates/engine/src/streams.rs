//! Several streams over one connection, each with its own urgency.
//!
//! The engine does not split the bytes that one call writes. It sends the most urgent bytes first and keeps the
//! order within each stream. This module adds a header, from which the reader knows the stream of the bytes. A
//! stream has one direction, and its writer assigns its number. Both ends of a connection with streams must use
//! this format.
//!
//! A frame is
//!
//! | bytes | content, big endian |
//! | --- | --- |
//! | 4 | number of the stream |
//! | 1 | flags: 1 is the end of the stream |
//! | 3 | number of bytes after the header, at most 16,384; 0 only at the end of the stream |
//! | 8 | offset of these bytes in the stream |
//!
//! The engine drops bytes whose deadline passes before they are sent. The offset of the next frame shows the
//! reader the gap.

use core::fmt;
use std::collections::{BTreeMap, VecDeque};

use braid_wire::Instant;

use crate::{ApiError, Class, ConnId, Stack, Urgency};

/// Number of bytes of a frame's header.
pub const HEADER_LEN: usize = 16;
/// Maximum number of a stream's bytes in one frame. More urgent bytes wait until the current frame is sent. A larger
/// limit would lengthen this wait, and a smaller one would raise the share of headers (0.1 %). The value is a guess.
pub const MAX_FRAME_LEN: usize = 16 << 10;
/// Maximum number of open streams in each direction. A guess that limits memory.
pub const MAX_STREAMS: usize = 1_024;
/// Number of unread bytes of all streams together at which the module stops reading from the connection; the
/// current frame may exceed the limit. The module also stops at a frame that would open more than [`MAX_STREAMS`]
/// streams. So a stream that is never read eventually blocks all others. The value is a guess.
pub const MAX_UNREAD_BYTES: usize = 1 << 20;

/// Number of bytes that an entry of a queue counts for, in addition to its content. An entry is a gap, or a run of
/// bytes between gaps. The number limits the memory that a peer can claim by many tiny entries. It is a guess at
/// the size of an entry.
const ENTRY_COST_BYTES: usize = 64;
/// The flag of a stream's last frame.
const END_FLAG: u8 = 1;

/// The error of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamError {
    /// The caller's mistake: no stream has this number.
    NotOpen,
    /// The caller's mistake: [`MAX_STREAMS`] are open, or all 2^32 numbers are used.
    TooManyStreams,
    /// The peer's mistake: a frame is malformed, or its offset contradicts earlier frames.
    BadFrame(BadFrame),
    /// The connection ended before the stream did.
    Cut,
    /// The connection failed.
    Connection(ApiError),
}

/// The error of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadFrame {
    /// The announced length exceeds [`MAX_FRAME_LEN`].
    Length(usize),
    /// The frame has no bytes and does not end the stream.
    Empty,
    /// An unknown flag.
    Flags(u8),
    /// The offset lies inside bytes that were already received, the stream had ended before, or the frame would
    /// exceed 2^64 bytes of the stream.
    Place(u64),
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamError::NotOpen => f.write_str("no stream has this number"),
            StreamError::TooManyStreams => {
                write!(f, "a connection has at most {MAX_STREAMS} streams")
            }
            StreamError::Cut => f.write_str("the connection ended before the stream did"),
            StreamError::Connection(e) => write!(f, "the connection failed: {e}"),
            StreamError::BadFrame(bad) => match bad {
                BadFrame::Length(n) => {
                    write!(
                        f,
                        "a frame of {n} bytes, but at most {MAX_FRAME_LEN} are allowed"
                    )
                }
                BadFrame::Empty => f.write_str("an empty frame that does not end its stream"),
                BadFrame::Flags(flags) => write!(f, "a frame with unknown flags {flags:#x}"),
                BadFrame::Place(offset) => write!(
                    f,
                    "a frame at offset {offset}, which contradicts earlier frames of the stream"
                ),
            },
        }
    }
}

impl std::error::Error for StreamError {}

impl From<ApiError> for StreamError {
    fn from(error: ApiError) -> Self {
        StreamError::Connection(error)
    }
}

/// The outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// The number of bytes read.
    Bytes(usize),
    /// The number of bytes that are missing here, because the sender dropped them at their deadline.
    Missed(u64),
    /// The stream has ended, and its number is forgotten.
    End,
    /// Nothing can be read now.
    Nothing,
}

/// The streams of one connection, at one end.
///
/// # Use
///
/// After [`Event::Readable`](crate::Event::Readable), call [`receive`](Self::receive), and then
/// [`read`](Self::read) for each of [`incoming`](Self::incoming). Reads make room, so call `receive` again after
/// them. After [`Event::Writable`](crate::Event::Writable), repeat writes that did not take all bytes.
#[derive(Debug)]
pub struct Streams {
    conn: ConnId,
    outgoing: BTreeMap<u32, Outgoing>,
    /// The number of the next stream to open; `None` once all numbers are used.
    next: Option<u32>,
    incoming: BTreeMap<u32, Incoming>,
    decoder: Decoder,
    /// The header of a frame that would open a stream beyond [`MAX_STREAMS`]. It waits until another stream ends.
    waiting_header: Option<Header>,
    /// Number of bytes in `incoming`, plus [`ENTRY_COST_BYTES`] for each entry.
    unread: usize,
    /// True once the peer's last byte was read from the connection.
    conn_ended: bool,
}

#[derive(Debug)]
struct Outgoing {
    urgency: Urgency,
    /// Bytes written so far.
    written: u64,
}

#[derive(Debug, Default)]
struct Incoming {
    /// Unread gaps and bytes, in order.
    queue: VecDeque<Queued>,
    /// Bytes received or dropped so far.
    received: u64,
    ended: bool,
}

#[derive(Debug)]
enum Queued {
    /// The number of bytes that the sender dropped.
    Gap(u64),
    Bytes(VecDeque<u8>),
}

impl Streams {
    /// Creates the streams of `conn`, which must carry nothing else.
    pub fn new(conn: ConnId) -> Self {
        Streams {
            conn,
            outgoing: BTreeMap::new(),
            next: Some(0),
            incoming: BTreeMap::new(),
            decoder: Decoder::default(),
            waiting_header: None,
            unread: 0,
            conn_ended: false,
        }
    }

    /// Opens a stream for writing and returns its number, which was never used before.
    ///
    /// # Errors
    /// [`StreamError::TooManyStreams`].
    pub fn open(&mut self, urgency: Urgency) -> Result<u32, StreamError> {
        let number = self.next.filter(|_| self.outgoing.len() < MAX_STREAMS);
        let number = number.ok_or(StreamError::TooManyStreams)?;
        self.next = number.checked_add(1);
        let written = 0;
        self.outgoing.insert(number, Outgoing { urgency, written });
        Ok(number)
    }

    /// Changes the urgency of future writes. Queued bytes of the stream keep their urgency, and the engine sends
    /// them before later bytes of the stream.
    ///
    /// # Errors
    /// [`StreamError::NotOpen`].
    pub fn set_urgency(&mut self, stream: u32, urgency: Urgency) -> Result<(), StreamError> {
        let outgoing = self.outgoing.get_mut(&stream);
        outgoing.ok_or(StreamError::NotOpen)?.urgency = urgency;
        Ok(())
    }

    /// Queues as many bytes of `data` as the send buffer has room for, and returns their number. The engine drops
    /// frames that it has not sent by `deadline`.
    ///
    /// # Errors
    /// [`StreamError::NotOpen`], [`StreamError::Connection`].
    pub fn write(
        &mut self,
        (now, stack): (Instant, &mut Stack),
        stream: u32,
        data: &[u8],
        deadline: Option<Instant>,
    ) -> Result<usize, StreamError> {
        let outgoing = self.outgoing.get_mut(&stream);
        let outgoing = outgoing.ok_or(StreamError::NotOpen)?;
        let class = Class {
            stream,
            urgency: outgoing.urgency,
            deadline,
        };
        let mut done = 0;
        while done < data.len() {
            let frame = &data[done..data.len().min(done + MAX_FRAME_LEN)];
            let offset = outgoing.written;
            let n = write_frame((now, stack), self.conn, class, |room| {
                let frame = &frame[..frame.len().min(room)];
                (!frame.is_empty()).then(|| (Header::new(stream, frame.len(), offset), frame))
            })?;
            if n == 0 {
                break;
            }
            done += n;
            outgoing.written += n as u64;
        }
        Ok(done)
    }

    /// Ends `stream`. Returns false if the send buffer has no room for the last frame now; call `finish` again
    /// later. The frame has no deadline, so that the peer learns of the end in any case.
    ///
    /// # Errors
    /// [`StreamError::NotOpen`], [`StreamError::Connection`].
    pub fn finish(
        &mut self,
        (now, stack): (Instant, &mut Stack),
        stream: u32,
    ) -> Result<bool, StreamError> {
        let outgoing = self.outgoing.get(&stream).ok_or(StreamError::NotOpen)?;
        let class = Class {
            stream,
            urgency: outgoing.urgency,
            deadline: None,
        };
        let mut header = Header::new(stream, 0, outgoing.written);
        header.end = true;
        let mut written = false;
        write_frame((now, stack), self.conn, class, |_| {
            written = true;
            Some((header, &[]))
        })?;
        if written {
            self.outgoing.remove(&stream);
        }
        Ok(written)
    }

    /// Reads frames from the connection until it has no more bytes or a limit is reached. Returns whether there was
    /// anything new: bytes, or the end of the connection.
    ///
    /// # Errors
    /// [`StreamError::BadFrame`]: the peer violates the format and must not be read any more.
    /// [`StreamError::Connection`].
    pub fn receive(&mut self, (now, stack): (Instant, &mut Stack)) -> Result<bool, StreamError> {
        let conn = self.conn;
        let mut has_news = false;
        loop {
            if let Some(header) = self.waiting_header.take() {
                self.begin(header)?;
            }
            let n = stack.read_with(now, conn, |bufs| {
                let mut taken = 0;
                for buf in bufs {
                    let n = self.input(buf)?;
                    taken += n;
                    if n < buf.len() {
                        break;
                    }
                }
                Ok::<_, StreamError>(taken)
            })?;
            has_news |= n > 0;
            if n == 0 {
                // The bytes behind a waiting header are still unread.
                let ended = stack.read_finished(conn) && self.waiting_header.is_none();
                has_news |= ended && !self.conn_ended;
                self.conn_ended |= ended;
                return Ok(has_news);
            }
        }
    }

    /// Returns the numbers of the peer's streams that are not yet read to their end.
    pub fn incoming(&self) -> impl Iterator<Item = u32> + '_ {
        self.incoming.keys().copied()
    }

    /// Returns whether the peer writes no more and all its streams were read to their ends.
    pub fn has_ended(&self) -> bool {
        self.conn_ended && self.incoming.is_empty()
    }

    /// Reads from `stream` into `buf`.
    ///
    /// # Errors
    /// [`StreamError::NotOpen`]: no frame of the stream has come yet, or it was read to its end.
    /// [`StreamError::Cut`].
    pub fn read(&mut self, stream: u32, buf: &mut [u8]) -> Result<Read, StreamError> {
        let incoming = self.incoming.get_mut(&stream);
        let incoming = incoming.ok_or(StreamError::NotOpen)?;
        match incoming.queue.front_mut() {
            Some(Queued::Gap(missed)) => {
                let missed = *missed;
                incoming.queue.pop_front();
                self.unread -= ENTRY_COST_BYTES;
                Ok(Read::Missed(missed))
            }
            Some(Queued::Bytes(bytes)) => {
                let n = std::io::Read::read(bytes, buf).unwrap_or(0);
                self.unread -= n;
                if bytes.is_empty() {
                    incoming.queue.pop_front();
                    self.unread -= ENTRY_COST_BYTES;
                }
                Ok(Read::Bytes(n))
            }
            // The header of the last frame marks the stream as ended, but its bytes may still be missing.
            None if incoming.ended
                && self
                    .decoder
                    .frame
                    .is_none_or(|(current, _)| current != stream) =>
            {
                self.incoming.remove(&stream);
                Ok(Read::End)
            }
            None if self.conn_ended => Err(StreamError::Cut),
            None => Ok(Read::Nothing),
        }
    }

    /// Decodes bytes of the peer. Returns the number of bytes consumed. Bytes are left over if a limit is reached.
    fn input(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        let mut taken = 0;
        while taken < bytes.len() {
            // A frame that has begun is read to its end, because a reader may wait for the rest of the frame. So
            // the limit is checked between frames only.
            let is_full = self.decoder.frame.is_none() && self.unread >= MAX_UNREAD_BYTES;
            if is_full || self.waiting_header.is_some() {
                break;
            }
            let (n, element) = self.decoder.input(&bytes[taken..])?;
            taken += n;
            match element {
                Some(Element::Begins(header)) => self.begin(header)?,
                Some(Element::Bytes(stream, bytes)) => self.append(stream, bytes),
                None => {}
            }
        }
        Ok(taken)
    }

    /// Processes the header of a frame. The frame's bytes follow.
    fn begin(&mut self, header: Header) -> Result<(), StreamError> {
        let is_full = self.incoming.len() >= MAX_STREAMS;
        if is_full && !self.incoming.contains_key(&header.stream) {
            self.waiting_header = Some(header);
            return Ok(());
        }
        let incoming = self.incoming.entry(header.stream).or_default();
        let gap = header.offset.checked_sub(incoming.received);
        let end = header.offset.checked_add(header.len as u64);
        let (Some(gap), Some(end), false) = (gap, end, incoming.ended) else {
            return Err(StreamError::BadFrame(BadFrame::Place(header.offset)));
        };
        if gap > 0 {
            incoming.queue.push_back(Queued::Gap(gap));
            self.unread += ENTRY_COST_BYTES;
        }
        incoming.received = end;
        incoming.ended = header.end;
        Ok(())
    }

    /// Appends received bytes to the queue of their stream.
    fn append(&mut self, stream: u32, bytes: &[u8]) {
        if let Some(incoming) = self.incoming.get_mut(&stream) {
            self.unread += bytes.len();
            match incoming.queue.back_mut() {
                Some(Queued::Bytes(queue)) => queue.extend(bytes),
                _ => {
                    let bytes = bytes.iter().copied().collect();
                    incoming.queue.push_back(Queued::Bytes(bytes));
                    self.unread += ENTRY_COST_BYTES;
                }
            }
        }
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    stream: u32,
    end: bool,
    len: usize,
    offset: u64,
}

impl Header {
    fn new(stream: u32, len: usize, offset: u64) -> Self {
        Header {
            stream,
            end: false,
            len,
            offset,
        }
    }

    fn encode(self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[..4].copy_from_slice(&self.stream.to_be_bytes());
        // The length takes the lower 24 bits of the word, into which `MAX_FRAME_LEN` fits. The flags take the
        // upper 8 bits.
        let word = u32::try_from(self.len).unwrap_or(0);
        out[4..8].copy_from_slice(&word.to_be_bytes());
        out[4] = if self.end { END_FLAG } else { 0 };
        out[8..].copy_from_slice(&self.offset.to_be_bytes());
        out
    }

    fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, BadFrame> {
        let [s0, s1, s2, s3, flags, l0, l1, l2, offset @ ..] = *bytes;
        let header = Header {
            stream: u32::from_be_bytes([s0, s1, s2, s3]),
            end: flags == END_FLAG,
            len: u32::from_be_bytes([0, l0, l1, l2]) as usize,
            offset: u64::from_be_bytes(offset),
        };
        match header {
            // Fail on a later version's flags, whose meaning is unknown.
            _ if flags & !END_FLAG != 0 => Err(BadFrame::Flags(flags)),
            Header { len, .. } if len > MAX_FRAME_LEN => Err(BadFrame::Length(len)),
            // No writer needs such frames, and a peer could send any number of them.
            Header { len: 0, end, .. } if !end => Err(BadFrame::Empty),
            header => Ok(header),
        }
    }
}

/// A part of a frame that the decoder has found.
enum Element<'a> {
    /// A frame begins.
    Begins(Header),
    /// Bytes of a stream.
    Bytes(u32, &'a [u8]),
}

/// Splits received bytes into frames.
#[derive(Debug, Default)]
struct Decoder {
    /// The bytes received of an incomplete header.
    header: Vec<u8>,
    /// The stream of the current frame, and the number of the frame's bytes that are still missing.
    frame: Option<(u32, usize)>,
}

impl Decoder {
    /// Consumes `bytes`, which must not be empty, up to the end of the next element. Returns the number of bytes
    /// consumed, and the element unless it is incomplete.
    fn input<'a>(&mut self, bytes: &'a [u8]) -> Result<(usize, Option<Element<'a>>), StreamError> {
        if let Some((stream, left)) = self.frame {
            let n = left.min(bytes.len());
            self.frame = (n < left).then_some((stream, left - n));
            return Ok((n, Some(Element::Bytes(stream, &bytes[..n]))));
        }
        let n = bytes.len().min(HEADER_LEN - self.header.len());
        self.header.extend_from_slice(&bytes[..n]);
        let Ok(header) = <&[u8; HEADER_LEN]>::try_from(self.header.as_slice()) else {
            return Ok((n, None));
        };
        let header = Header::decode(header).map_err(StreamError::BadFrame)?;
        self.header.clear();
        self.frame = (header.len > 0).then_some((header.stream, header.len));
        Ok((n, Some(Element::Begins(header))))
    }
}

/// Writes the frame that `make` creates. `make` gets the room for the stream's bytes, and returns `None` if this
/// room is too small. Returns the number of the stream's bytes in the frame.
fn write_frame<'a>(
    (now, stack): (Instant, &mut Stack),
    conn: ConnId,
    class: Class,
    make: impl FnOnce(usize) -> Option<(Header, &'a [u8])>,
) -> Result<usize, StreamError> {
    let max_len = HEADER_LEN + MAX_FRAME_LEN;
    let n = stack.write_class(now, conn, class, max_len, |slices| {
        let room: usize = slices.iter().map(|s| s.len()).sum();
        let frame = room.checked_sub(HEADER_LEN).and_then(make);
        let Some((header, bytes)) = frame else {
            return Ok::<_, StreamError>(0);
        };
        let header = header.encode();
        let mut rest = std::io::Read::chain(&header[..], bytes);
        for slice in slices {
            let mut slice: &mut [u8] = slice;
            while !slice.is_empty() {
                match std::io::Read::read(&mut rest, slice) {
                    Ok(n) if n > 0 => slice = &mut slice[n..],
                    _ => break,
                }
            }
        }
        Ok(HEADER_LEN + bytes.len())
    })?;
    if n == 0 {
        // The engine sends `Event::Writable` only after a write for which it had no room. Here the engine had a
        // little room, and `make` declined it. An empty write makes the engine send the event all the same.
        stack.write(now, conn, &[])?;
    }
    Ok(n.saturating_sub(HEADER_LEN))
}
