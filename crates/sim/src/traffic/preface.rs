//! The handshake that precedes a program's content, such as that of SOCKS5.

use braid_engine::{ConnId, Stack};
use braid_wire::Instant;

/// A handshake before the content of a stream: a request, and an answer of known length. The content follows the
/// request without waiting for the answer.
#[derive(Debug, Clone, Default)]
pub struct Preface {
    /// The part of the request that is not written.
    request: Vec<u8>,
    answer: u64,
    /// The number of bytes of the answer that were read.
    pub(super) answer_read: u64,
}

impl Preface {
    /// Makes a preface with this request. The answer has `answer` bytes.
    pub fn new(request: Vec<u8>, answer: u64) -> Self {
        Preface {
            request,
            answer,
            ..Preface::default()
        }
    }

    /// Returns `slice`, the next bytes of the connection, without the bytes that belong to the answer.
    pub(super) fn strip_answer<'a>(&mut self, slice: &'a [u8]) -> &'a [u8] {
        let len = (self.answer - self.answer_read).min(slice.len() as u64);
        self.answer_read += len;
        &slice[len as usize..]
    }

    /// Writes the rest of the request. Returns whether the whole request is written.
    pub(super) fn write(&mut self, now: Instant, conn: ConnId, stack: &mut Stack) -> bool {
        while !self.request.is_empty() {
            match stack.write(now, conn, &self.request) {
                Ok(n) if n > 0 => drop(self.request.drain(..n)),
                _ => return false,
            }
        }
        true
    }
}
