//! A session that multiplexes several streams over one connection: video frames with types and deadlines, and
//! bulk data.

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
    /// The time at which the encoder produces the frame, from the opening of the connection.
    pub at: Duration,
    /// The frame's stream.
    pub stream: u16,
    /// The frame's priority; 0 is the most urgent.
    pub priority: u8,
    /// The frame's type.
    pub kind: Kind,
    /// The frame's length, bytes.
    pub len: u32,
    /// The time from `at` after which the frame is too late to be shown.
    pub deadline: Duration,
}

/// A stream of bulk data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bulk {
    /// The number of the stream. It must differ from the streams of the frames.
    pub stream: u16,
    /// The stream's priority.
    pub priority: u8,
    /// Bytes of each message; 0 counts as 1.
    pub message: u32,
    /// The rate at which messages are made, bit/s. With `None`, the next message is made as soon as the previous
    /// one is written, so that the send buffer is always full.
    pub rate: Option<u64>,
    /// The time for which messages are made, from the opening of the connection.
    pub span: Duration,
}

/// A model of a video encoder. It makes groups of pictures I BB P BB P ..., in which all frames of a type have the
/// same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Video {
    /// Frames per second; 0 counts as 1.
    pub fps: u32,
    /// Frames per group. The first frame is an I frame, each third frame after it is a P frame, and the others are
    /// B frames.
    pub group: u32,
    /// Sizes of I, P and B frames relative to each other.
    pub weights: [u32; 3],
    /// Mean rate, bit/s.
    pub rate: u64,
    /// The time from a frame's production after which the frame is too late to be shown.
    pub deadline: Duration,
    /// Stream and priority of I frames. The other frames of the group depend on the I frame.
    pub important: (u16, u8),
    /// Stream and priority of P and B frames.
    pub other: (u16, u8),
}

impl Default for Video {
    /// Returns a video of 25 frames per second and 4 Mbit/s, in groups of 12 with sizes I:P:B of 6:3:1, and with a
    /// deadline of 250 ms. I frames are on stream 0 with priority 0, the others on stream 1 with priority 1.
    fn default() -> Self {
        Video {
            fps: 25,
            group: 12,
            weights: [6, 3, 1],
            rate: 4_000_000,
            deadline: Duration::from_millis(250),
            important: (0, 0),
            other: (1, 1),
        }
    }
}

impl Video {
    /// Returns the frames of `span`, the first at 0.
    pub fn frames(&self, span: Duration) -> Vec<Frame> {
        let interval = Duration::from_secs(1) / self.fps.max(1);
        let group = self.group.max(1);
        let group_weight: u64 = (0..group).map(|n| u64::from(self.weight(n).1)).sum();
        let frame = |n: u32| {
            let (kind, weight) = self.weight(n % group);
            // A group has rate * group / fps bits. A frame's part of these bits is its weight's share; 8 bits are
            // a byte.
            let numerator = u128::from(self.rate) * u128::from(group) * u128::from(weight);
            let denominator = u128::from(self.fps.max(1)) * u128::from(group_weight.max(1)) * 8;
            let (stream, priority) = self.carrier(kind);
            Frame {
                at: interval * n,
                stream,
                priority,
                kind,
                len: u32::try_from(numerator / denominator).unwrap_or(u32::MAX),
                deadline: self.deadline,
            }
        };
        (0..u32::MAX)
            .map(frame)
            .take_while(|f| f.at < span)
            .collect()
    }

    /// Returns stream and priority of frames of this type.
    pub fn carrier(&self, kind: Kind) -> (u16, u8) {
        match kind {
            Kind::I => self.important,
            _ => self.other,
        }
    }

    /// Returns type and weight of frame `n` of a group.
    fn weight(&self, n: u32) -> (Kind, u32) {
        match n {
            0 => (Kind::I, self.weights[0]),
            n if n % 3 == 0 => (Kind::P, self.weights[1]),
            _ => (Kind::B, self.weights[2]),
        }
    }
}

impl Bulk {
    /// Returns the bytes of a message: at least one, because without bytes no time would pass between messages.
    fn len(&self) -> u64 {
        self.message.max(1).into()
    }

    /// Returns the time of message `n` from the opening of the connection; `None` without a rate.
    fn made_at(&self, n: u64) -> Option<Duration> {
        let bits = u128::from(n) * u128::from(self.len()) * 8;
        let ns = (bits * 1_000_000_000).checked_div(u128::from(self.rate?))?;
        Some(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
    }
}

/// The progress of a session.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// The number of frames made.
    frames: usize,
    /// The number of messages made, for each bulk stream.
    bulk: Vec<u64>,
}

impl Session {
    /// Makes the messages that are due `elapsed` after `opened_at`.
    pub(super) fn make_due(
        &self,
        progress: &mut Progress,
        opened_at: Instant,
        elapsed: Duration,
        out: &mut Outbox,
    ) {
        progress.bulk.resize(self.bulk.len(), 0);
        while let Some(frame) = self.frames.get(progress.frames).filter(|f| f.at <= elapsed) {
            progress.frames += 1;
            let made_at = opened_at + frame.at;
            out.push(Message {
                stream: frame.stream,
                priority: frame.priority,
                kind: frame.kind,
                len: frame.len.into(),
                made_at,
                deadline: Some(made_at + frame.deadline),
            });
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
            }
        }
    }

    /// Returns the time of the next message, from the opening of the connection. Returns `None` if only bulk
    /// streams without a rate make more messages.
    pub(super) fn next(&self, progress: &Progress) -> Option<Duration> {
        let frame = self.frames.get(progress.frames).map(|f| f.at);
        let bulk = self.bulk.iter().enumerate().filter_map(|(n, bulk)| {
            let made = progress.bulk.get(n).copied().unwrap_or(0);
            // Without a rate, the send buffer decides when the next message is made, not the time.
            let at = bulk.made_at(made).unwrap_or(bulk.span);
            (at < bulk.span).then_some(at)
        });
        frame.into_iter().chain(bulk).min()
    }

    /// Returns whether the session makes no more messages.
    pub(super) fn is_over(&self, progress: &Progress, elapsed: Duration) -> bool {
        let continues = |b: &Bulk| b.rate.is_none() && elapsed < b.span;
        self.next(progress).is_none() && !self.bulk.iter().any(continues)
    }
}

impl Bulk {
    /// Returns the time of message number `made` if it is due `elapsed` after the opening.
    fn next_due(&self, made: u64, elapsed: Duration, out: &Outbox) -> Option<Duration> {
        let at = match self.rate {
            Some(_) => self.made_at(made)?,
            // The previous message is not written yet.
            None if out.holds(self.stream) => return None,
            None => elapsed,
        };
        (at <= elapsed && at < self.span).then_some(at)
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
