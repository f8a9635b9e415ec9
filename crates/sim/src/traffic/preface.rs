//! What a program says before its content.

use braid_engine::{ConnId, Stack};
use braid_wire::Instant;

/// Words that go before the content of a stream, and are answered: the handshake with a proxy. They
/// are sent in one go with what follows.
#[derive(Debug, Clone, Default)]
pub struct Preface {
    words: Vec<u8>,
    said: usize,
    answer: u64,
    heard: u64,
}

impl Preface {
    /// These `words`, which are answered by so many bytes.
    pub fn new(words: Vec<u8>, answer: u64) -> Self {
        Preface {
            words,
            answer,
            ..Preface::default()
        }
    }

    /// Bytes of the answer that were read.
    pub(super) fn heard(&self) -> u64 {
        self.heard
    }

    /// Takes what is the answer's off the front of `slice`.
    pub(super) fn hear<'a>(&mut self, slice: &'a [u8]) -> &'a [u8] {
        let len = (self.answer - self.heard).min(slice.len() as u64);
        self.heard += len;
        &slice[len as usize..]
    }

    /// Says what was not said yet; returns whether that was all.
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
