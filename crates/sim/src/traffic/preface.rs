//! The bytes that a program sends before its content.

use braid_engine::{ConnId, Stack};
use braid_wire::Instant;

/// A message before the content of a stream that is answered, like the handshake with a proxy. It is sent
/// together with the content.
#[derive(Debug, Clone, Default)]
pub struct Preface {
    request: Vec<u8>,
    written: usize,
    answer: u64,
    answer_read: u64,
}

impl Preface {
    /// Makes a preface of this request, whose answer has so many bytes.
    pub fn new(request: Vec<u8>, answer: u64) -> Self {
        Preface {
            request,
            answer,
            ..Preface::default()
        }
    }

    /// Returns how many bytes of the answer were read.
    pub(super) fn answer_read(&self) -> u64 {
        self.answer_read
    }

    /// Removes the answer's bytes from the front of `slice`.
    pub(super) fn strip_answer<'a>(&mut self, slice: &'a [u8]) -> &'a [u8] {
        let len = (self.answer - self.answer_read).min(slice.len() as u64);
        self.answer_read += len;
        &slice[len as usize..]
    }

    /// Writes the rest of the request; returns whether all of it is written.
    pub(super) fn write(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) -> bool {
        while self.written < self.request.len() {
            match stack.write(now, conn, &self.request[self.written..]) {
                Ok(n) if n > 0 => self.written += n,
                _ => return false,
            }
        }
        true
    }
}
