//! A session: several streams over one connection. They carry video frames, which have types and deadlines, and bulk
//! data.

use core::time::Duration;
use std::sync::Arc;

use braid_wire::Instant;

use super::message::{Kind, Message, Outbox};

/// The frames and bulk streams of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The frames of all streams, in order of time.
    pub frames: Arc<[Frame]>,
    /// Bulk streams.
    pub bulk: Vec<Bulk>,
}

/// A video frame of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The time at which the encoder produces the frame, counted from the opening of the connection.
    pub at: Duration,
    /// The frame's stream.
    pub stream: u16,
    /// The frame's priority; 0 is the most urgent.
    pub priority: u8,
    /// The frame's type.
    pub kind: Kind,
    /// The frame's size, bytes.
    pub len: u32,
    /// The time from `at` after which the frame is too late to be shown.
    pub deadline: Duration,
}

impl Frame {
    /// Returns the frame as a message of a session whose connection was opened at `opened_at`.
    pub fn message(&self, opened_at: Instant) -> Message {
        let made_at = opened_at + self.at;
        Message {
            stream: self.stream,
            priority: self.priority,
            kind: self.kind,
            len: self.len.into(),
            made_at,
            deadline: Some(made_at + self.deadline),
        }
    }
}

/// A stream of bulk data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bulk {
    /// The number of the stream. It must differ from the streams of the frames.
    pub stream: u16,
    /// The stream's priority; 0 is the most urgent.
    pub priority: u8,
    /// Bytes of each message; 0 counts as 1.
    pub message: u32,
    /// The rate at which messages are made, bit/s. With `None`, the next message is made as soon as the previous
    /// one is written, so that the send buffer is always full.
    pub rate: Option<u64>,
    /// The duration for which messages are made, counted from the opening of the connection.
    pub span: Duration,
}

// The paper on partial order (PO) does not describe the video of its experiments (here po-4 and others). So these
// numbers are guesses: common values of broadcast video.

/// Frames per second of a video.
const FPS: u32 = 25;
/// Frames per group of a video.
const GROUP: u32 = 12;
/// The mean rate of a video, bit/s.
const RATE: u32 = 4_000_000;

/// A model of a video encoder that makes 25 frames per second, 4 Mbit/s in all. Frames come in groups of 12, in the
/// order I BB P BB P ... of their types. This is the order of display, a simplification: an encoder makes a P frame
/// before the B frames that refer to it. All frames of a type have the same size, and the sizes I:P:B are 6:3:1, also
/// a guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Video {
    /// Stream and priority of I frames. The other frames of the group depend on the I frame.
    pub important: (u16, u8),
    /// Stream and priority of P and B frames.
    pub other: (u16, u8),
}

impl Default for Video {
    /// Returns a video with I frames on stream 0 with priority 0, and the others on stream 1 with priority 1.
    fn default() -> Self {
        Video {
            important: (0, 0),
            other: (1, 1),
        }
    }
}

impl Video {
    /// The time from a frame's production after which the frame is too late to be shown. A guess.
    pub const DEADLINE: Duration = Duration::from_millis(250);

    /// Returns the frames that the encoder produces within `span`, the first at 0.
    pub fn frames(&self, span: Duration) -> Vec<Frame> {
        let group_weight: u32 = (0..GROUP).map(|n| weight(n).1).sum();
        let frame = |n: u32| {
            let (kind, weight) = weight(n % GROUP);
            let (stream, priority) = self.carrier(kind);
            Frame {
                at: Duration::from_secs(1) / FPS * n,
                stream,
                priority,
                kind,
                // A group has RATE / 8 * GROUP / FPS bytes. A frame's share of them is its weight.
                len: RATE / 8 * GROUP / FPS * weight / group_weight,
                deadline: Video::DEADLINE,
            }
        };
        let frames = (0..u32::MAX).map(frame);
        frames.take_while(|f| f.at < span).collect()
    }

    /// Returns the stream and the priority of frames of the type `kind`.
    pub fn carrier(&self, kind: Kind) -> (u16, u8) {
        match kind {
            Kind::I => self.important,
            _ => self.other,
        }
    }
}

/// Returns type and weight of frame `n` of a group. The first frame is an I frame, each third frame after it is a
/// P frame, and the others are B frames.
fn weight(n: u32) -> (Kind, u32) {
    match n {
        0 => (Kind::I, 6),
        n if n % 3 == 0 => (Kind::P, 3),
        _ => (Kind::B, 1),
    }
}

impl Bulk {
    /// Returns the number of bytes of a message. It is at least one: messages without bytes would all be due at the
    /// same time, and `make_due` would not end.
    fn len(&self) -> u64 {
        self.message.max(1).into()
    }

    /// Returns when message `n` is made (the first is 0), as the time since the connection was opened. Returns
    /// `None` without a rate, and at the rate 0, at which no message is made.
    fn made_at(&self, n: u64) -> Option<Duration> {
        let bits = u128::from(n) * u128::from(self.len()) * 8;
        let ns = (bits * 1_000_000_000).checked_div(u128::from(self.rate?))?;
        Some(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
    }

    /// Returns the time at which the next message is made if it is due `elapsed` after the opening of the connection.
    /// `made` messages were made before, and `out` holds those that are not written yet.
    fn next_due(&self, made: u64, elapsed: Duration, out: &Outbox) -> Option<Duration> {
        let at = match self.rate {
            Some(_) => self.made_at(made)?,
            // The next message waits until the previous one is written.
            None if out.holds(self.stream) => return None,
            None => elapsed,
        };
        (at <= elapsed && at < self.span).then_some(at)
    }
}

/// The progress of a session.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// The number of frames made.
    frames: usize,
    /// The number of messages made, for each bulk stream.
    bulk: Vec<u64>,
}

impl Session {
    /// Makes the messages that are due `elapsed` after `opened_at`, and puts them into `out`.
    pub fn make_due(
        &self,
        progress: &mut Progress,
        opened_at: Instant,
        elapsed: Duration,
        out: &mut Outbox,
    ) {
        progress.bulk.resize(self.bulk.len(), 0);
        while let Some(frame) = self.frames.get(progress.frames).filter(|f| f.at <= elapsed) {
            progress.frames += 1;
            out.push(frame.message(opened_at));
        }
        for (bulk, made) in self.bulk.iter().zip(&mut progress.bulk) {
            while let Some(at) = bulk.next_due(*made, elapsed, out) {
                *made += 1;
                out.push(Message {
                    stream: bulk.stream,
                    priority: bulk.priority,
                    kind: Kind::Bulk,
                    len: bulk.len(),
                    made_at: opened_at + at,
                    deadline: None,
                });
                // Without a rate, the next message waits until this one is written. `next_due` sees to that, unless a
                // full outbox has dropped this message: then the loop would not end.
                if bulk.rate.is_none() {
                    break;
                }
            }
        }
    }

    /// Returns the time of the next message whose time is known in advance, from the opening of the connection. Returns
    /// `None` if there is none. Bulk streams without a rate may nevertheless make more messages, whenever the send
    /// buffer has room.
    pub fn next(&self, progress: &Progress) -> Option<Duration> {
        let frame = self.frames.get(progress.frames).map(|f| f.at);
        let bulk = self.bulk.iter().enumerate().filter_map(|(n, bulk)| {
            let made = progress.bulk.get(n).copied().unwrap_or(0);
            bulk.made_at(made).filter(|at| *at < bulk.span)
        });
        frame.into_iter().chain(bulk).min()
    }

    /// Returns whether the session makes no more messages, `elapsed` after the opening of the connection.
    pub(super) fn is_over(&self, progress: &Progress, elapsed: Duration) -> bool {
        let continues = |b: &Bulk| b.rate.is_none() && elapsed < b.span;
        self.next(progress).is_none() && !self.bulk.iter().any(continues)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_without_bytes_count_as_one_byte() {
        let span = Duration::from_secs(1);
        let session = Session {
            frames: Arc::from([]),
            bulk: vec![Bulk {
                stream: 0,
                priority: 0,
                message: 0,
                rate: Some(8_000),
                span,
            }],
        };
        let (mut progress, mut out) = (Progress::default(), Outbox::default());
        session.make_due(&mut progress, Instant::ZERO, span, &mut out);
        // 8 kbit/s are 1,000 messages of one byte in a second.
        assert_eq!(progress.bulk, [1_000]);
        assert!(session.is_over(&progress, span));
    }
}
