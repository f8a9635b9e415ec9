//! Early hints: a message from the box between its request and the user's first byte.

use super::message::{Gather, Note};

/// Bytes of the length field before the hints.
const HEAD: usize = 2;

/// Encodes hints that were not known when the request was sent; usually there are none.
///
/// | bytes | content |
/// | --- | --- |
/// | 2 | length of what follows, big endian, 0 to 1024 |
/// | 0 to 1024 | hints |
pub fn foreword(hints: &[u8]) -> Vec<u8> {
    let hints = &hints[..hints.len().min(Note::MAX_HINTS)];
    let len = u16::try_from(hints.len()).unwrap_or(u16::MAX);
    [&len.to_be_bytes(), hints].concat()
}

/// Decodes the message of [`foreword`].
#[derive(Debug, Default)]
pub struct Foreword {
    message: Gather,
}

/// The progress of decoding after some input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForewordStep {
    /// All input was taken; more is needed.
    More,
    /// The hints; what follows in the stream is the user's.
    Hints(Vec<u8>),
    /// The message is malformed.
    Garbage,
}

impl Foreword {
    /// Processes bytes of the box. Returns the number of bytes consumed and the progress; bytes behind the message
    /// are not consumed.
    pub fn input(&mut self, input: &[u8]) -> (usize, ForewordStep) {
        let hints = |m: &[u8]| {
            m.first_chunk()
                .map(|head| usize::from(u16::from_be_bytes(*head)))
        };
        let (taken, complete) = self.message.take(input, |m| match hints(m) {
            Some(len) if len <= Note::MAX_HINTS => HEAD + len,
            _ => HEAD,
        });
        if !complete {
            return (taken, ForewordStep::More);
        }
        let mut message = self.message.clear();
        let step = match hints(&message) {
            Some(len) if len <= Note::MAX_HINTS => ForewordStep::Hints(message.split_off(HEAD)),
            _ => ForewordStep::Garbage,
        };
        (taken, step)
    }
}
