//! Early hints: a message from the box between its request and the user's first byte.

use super::message::{MessageBuffer, RequestMetadata};

/// Bytes of the length field before the hints.
const LENGTH_FIELD_BYTES: usize = 2;

/// Encodes hints that were not known when the request was sent; usually there are none.
///
/// | bytes | content |
/// | --- | --- |
/// | 2 | length of what follows, big endian, 0 to 1024 |
/// | 0 to 1024 | hints |
pub fn encode_early_hints(hints: &[u8]) -> Vec<u8> {
    let hints = &hints[..hints.len().min(RequestMetadata::MAX_HINTS)];
    let len = u16::try_from(hints.len()).unwrap_or(u16::MAX);
    [&len.to_be_bytes(), hints].concat()
}

/// Decodes the message of [`encode_early_hints`].
#[derive(Debug, Default)]
pub struct EarlyHints {
    message: MessageBuffer,
}

/// The progress of decoding after some input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EarlyHintsStep {
    /// All input was taken; more is needed.
    More,
    /// The hints; what follows in the stream is the user's.
    Hints(Vec<u8>),
    /// The message is malformed.
    Garbage,
}

impl EarlyHints {
    /// Processes bytes of the box. Returns the number of bytes consumed and the progress; bytes behind the message
    /// are not consumed.
    pub fn input(&mut self, input: &[u8]) -> (usize, EarlyHintsStep) {
        let hints = |m: &[u8]| {
            m.first_chunk()
                .map(|head| usize::from(u16::from_be_bytes(*head)))
        };
        let (taken, complete) = self.message.take(input, |m| match hints(m) {
            Some(len) if len <= RequestMetadata::MAX_HINTS => LENGTH_FIELD_BYTES + len,
            _ => LENGTH_FIELD_BYTES,
        });
        if !complete {
            return (taken, EarlyHintsStep::More);
        }
        let mut message = self.message.clear();
        let step = match hints(&message) {
            Some(len) if len <= RequestMetadata::MAX_HINTS => {
                EarlyHintsStep::Hints(message.split_off(LENGTH_FIELD_BYTES))
            }
            _ => EarlyHintsStep::Garbage,
        };
        (taken, step)
    }
}
