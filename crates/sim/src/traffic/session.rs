//! Several streams of one session over one connection: video frames with types and deadlines, and bulk
//! data beside them.

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

/// A video frame that an encoder will produce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The time of the frame, from the opening of the connection on.
    pub at: Duration,
    /// The frame's stream.
    pub stream: u16,
    /// The frame's priority: 0 goes before all others.
    pub priority: u8,
    /// The frame's type.
    pub kind: Kind,
    /// The frame's length, bytes.
    pub len: u32,
    /// The time after `at` from which on the frame is useless.
    pub deadline: Duration,
}

/// A stream of bulk data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bulk {
    /// The stream's number, which no frame's stream has.
    pub stream: u16,
    /// The stream's priority.
    pub priority: u8,
    /// Bytes of a message; 0 counts as 1.
    pub message: u32,
    /// The rate at which messages are made, bit/s. `None` makes a message as soon as the one before is
    /// written, so that the connection's send buffer is always full.
    pub rate: Option<u64>,
    /// The time for which messages are made, from the opening of the connection on.
    pub span: Duration,
}

/// A model of a video encoder: groups of pictures I BB P BB P ... in which sizes differ by type only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Video {
    /// Frames a second; at least 1.
    pub fps: u32,
    /// Frames of a group; the first is an I frame, every third one after it a P frame.
    pub group: u32,
    /// Sizes of I, P and B frames relative to each other.
    pub weights: [u32; 3],
    /// Mean rate, bit/s.
    pub rate: u64,
    /// The time after its making from which on a frame is useless.
    pub deadline: Duration,
    /// Stream and priority of I frames.
    pub important: (u16, u8),
    /// Stream and priority of P and B frames.
    pub other: (u16, u8),
}

impl Default for Video {
    /// Returns 25 frames a second, groups of 12, I:P:B as 6:3:1, 4 Mbit/s, 250 ms; I frames on stream 0
    /// with priority 0, the others on stream 1 with priority 1.
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
        let weights: u64 = (0..group).map(|n| u64::from(self.weight(n).1)).sum();
        let frame = |n: u32| {
            let (kind, weight) = self.weight(n % group);
            let bits = u128::from(self.rate) * u128::from(group) * u128::from(weight);
            let per_second = u128::from(self.fps.max(1)) * u128::from(weights.max(1)) * 8;
            let (stream, priority) = self.carrier(kind);
            Frame {
                at: interval * n,
                stream,
                priority,
                kind,
                len: u32::try_from(bits / per_second).unwrap_or(u32::MAX),
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

    fn weight(&self, n: u32) -> (Kind, u32) {
        match n {
            0 => (Kind::I, self.weights[0]),
            n if n % 3 == 0 => (Kind::P, self.weights[1]),
            _ => (Kind::B, self.weights[2]),
        }
    }
}

impl Bulk {
    /// Returns the bytes of a message: at least one, or no time would pass between messages.
    fn len(&self) -> u64 {
        self.message.max(1).into()
    }

    /// Returns when message `n` is made, from the opening on; `None` if that depends on the connection.
    fn made_at(&self, n: u64) -> Option<Duration> {
        let bits = u128::from(n) * u128::from(self.len()) * 8;
        let ns = (bits * 1_000_000_000).checked_div(u128::from(self.rate?))?;
        Some(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)))
    }
}

/// The progress of a session.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    frames: usize,
    /// Messages made, by bulk stream.
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
            while let Some(at) = bulk.next(*made, elapsed, out) {
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

    /// Returns when the next message is due, from the opening on, if time decides that.
    pub(super) fn next(&self, progress: &Progress) -> Option<Duration> {
        let frame = self.frames.get(progress.frames).map(|f| f.at);
        let bulk = self.bulk.iter().enumerate().filter_map(|(n, bulk)| {
            let made = progress.bulk.get(n).copied().unwrap_or(0);
            let at = bulk.made_at(made).unwrap_or(bulk.span);
            (at < bulk.span).then_some(at)
        });
        frame.into_iter().chain(bulk).min()
    }

    /// Returns whether the session makes no more messages.
    pub(super) fn is_over(&self, progress: &Progress, elapsed: Duration) -> bool {
        let greedy = |b: &Bulk| b.rate.is_none() && elapsed < b.span;
        self.next(progress).is_none() && !self.bulk.iter().any(greedy)
    }
}

impl Bulk {
    /// Returns when message number `made` was made, if it has been made by now.
    fn next(&self, made: u64, elapsed: Duration, out: &Outbox) -> Option<Duration> {
        let at = match self.rate {
            Some(_) => self.made_at(made)?,
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
    fn messages_of_no_size_take_time_too() {
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
        assert_eq!(progress.bulk, [1_000]);
        assert!(session.is_over(&progress, span));
    }
}
