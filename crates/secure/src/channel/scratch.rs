//! Memory for users' bytes on their way between a socket and the engine.

use core::fmt;
use std::sync::{Mutex, PoisonError};

use super::BATCH;

/// Memory that all connections of a [`Client`](super::Client) or [`Server`](super::Server) use in turn,
/// so that none has to keep its own.
#[derive(Default)]
pub(super) struct Scratch(Mutex<Box<[u8]>>);

impl Scratch {
    /// Lends [`BATCH`] bytes. Their user [wipes](wipe) what it put there, so that no user's bytes stay.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.is_empty() {
            *memory = vec![0; BATCH].into();
        }
        work(&mut memory)
    }
}

/// Shows nothing of what users say.
impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scratch(..)")
    }
}

/// Overwrites bytes of users. The memory goes on to be used and another thread may see it, so the compiler
/// cannot leave the stores out as it could before memory is freed; they are as fast as stores can be.
pub(super) fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
}

/// What was gathered for a reader, in one piece, and room behind it. It is wiped at the end.
pub(super) struct Plain<'a> {
    memory: &'a mut [u8],
    len: usize,
    /// So much was lent as room.
    used: usize,
}

impl Drop for Plain<'_> {
    fn drop(&mut self) {
        wipe(&mut self.memory[..self.used]);
    }
}

impl<'a> Plain<'a> {
    pub(super) fn new(memory: &'a mut [u8]) -> Self {
        Plain {
            memory,
            len: 0,
            used: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    /// Returns whether `len` bytes more would fit.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.memory.len() - self.len >= len
    }

    /// Returns room for `len` bytes, where there is so much.
    pub(super) fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let end = self.len + len;
        let room = self.memory.get_mut(self.len..end)?;
        self.used = self.used.max(end);
        Some(room)
    }

    /// The first `n` bytes of the [`room`](Self::room) that was lent are for the reader.
    pub(super) fn commit(&mut self, n: usize) {
        self.len += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reader_was_shown_is_wiped_and_no_more() {
        let mut memory = [7; 100];
        let mut plain = Plain::new(&mut memory);
        assert!(plain.room(101).is_none());
        plain.room(20).unwrap().fill(1);
        plain.commit(10);
        // A record that was opened there and is none for a reader.
        plain.room(30).unwrap().fill(2);
        assert_eq!(plain.bytes(), [1; 10]);
        drop(plain);
        assert_eq!(memory[..40], [0; 40]);
        assert_eq!(memory[40..], [7; 60]);
    }
}
