//! Early hints: a message that the box sends after its request and before the user's first byte.

use super::message::{MessageBuffer, RequestMetadata};

/// Number of bytes of the length field before the hints.
const LENGTH_FIELD_BYTES: usize = 2;

/// Encodes hints that were not known when the request was sent, such as the size in the user's HTTP request.
/// Usually there are none.
///
/// | bytes | content |
/// | --- | --- |
/// | 2 | number of bytes of the hints, big endian, 0 to 1024 |
/// | 0 to 1024 | hints |
pub fn encode_early_hints(hints: &[u8]) -> Vec<u8> {
    // The receiver refuses a message with more hints.
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
    /// All input was consumed, and more is needed.
    More,
    /// The hints. The following bytes of the stream are the user's.
    Hints(Vec<u8>),
    /// The message is malformed.
    Garbage,
}

impl EarlyHints {
    /// Processes bytes of the box. Returns the number of bytes consumed, and the progress. Bytes after the
    /// message are not consumed.
    pub fn input(&mut self, input: &[u8]) -> (usize, EarlyHintsStep) {
        let hints_len = |m: &[u8]| {
            m.first_chunk()
                .map(|field| usize::from(u16::from_be_bytes(*field)))
        };
        let (taken, complete) = self.message.take(input, |m| match hints_len(m) {
            Some(len) if len <= RequestMetadata::MAX_HINTS => LENGTH_FIELD_BYTES + len,
            // Too long: end the message here, so that it is refused below without a wait for more bytes.
            _ => LENGTH_FIELD_BYTES,
        });
        if !complete {
            return (taken, EarlyHintsStep::More);
        }
        let mut message = self.message.clear();
        let step = match hints_len(&message) {
            Some(len) if len <= RequestMetadata::MAX_HINTS => {
                EarlyHintsStep::Hints(message.split_off(LENGTH_FIELD_BYTES))
            }
            _ => EarlyHintsStep::Garbage,
        };
        (taken, step)
    }
}
