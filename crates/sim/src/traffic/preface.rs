//! The bytes that a program sends before its content.

use braid_engine::{ConnId, Stack};
use braid_wire::Instant;

/// A message before the content of a stream that is answered, like the handshake with a proxy. It is sent
/// together with the content.
#[derive(Debug, Clone, Default)]
pub struct Preface {
    words: Vec<u8>,
    said: usize,
    answer: u64,
    heard: u64,
}

impl Preface {
    /// Makes a preface of `words` whose answer has so many bytes.
    pub fn new(words: Vec<u8>, answer: u64) -> Self {
        Preface {
            words,
            answer,
            ..Preface::default()
        }
    }

    /// Returns how many bytes of the answer were read.
    pub(super) fn heard(&self) -> u64 {
        self.heard
    }

    /// Removes the answer's bytes from the front of `slice`.
    pub(super) fn hear<'a>(&mut self, slice: &'a [u8]) -> &'a [u8] {
        let len = (self.answer - self.heard).min(slice.len() as u64);
        self.heard += len;
        &slice[len as usize..]
    }

    /// Writes the rest of the words; returns whether all are written.
    pub(super) fn say(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) -> bool {
        while self.said < self.words.len() {
            match stack.write(now, conn, &self.words[self.said..]) {
                Ok(n) if n > 0 => self.said += n,
                _ => return false,
            }
        }
        true
    }
}
