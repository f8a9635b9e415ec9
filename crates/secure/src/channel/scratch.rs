//! Memory for users' bytes on their way between a socket and the engine.

use core::fmt;
use std::sync::{Mutex, PoisonError};

use super::MAX_BATCH;

/// Memory that all connections of a [`Client`](super::Client) or [`Server`](super::Server) use in turn,
/// so that none has to keep its own.
#[derive(Default)]
pub(super) struct Scratch(Mutex<Box<[u8]>>);

impl Scratch {
    /// Lends [`MAX_BATCH`] bytes. The caller [wipes](wipe) what it put there, so that no user's bytes stay in
    /// memory.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut memory = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.is_empty() {
            *memory = vec![0; MAX_BATCH].into();
        }
        work(&mut memory)
    }
}

/// Hides users' bytes from logs.
impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scratch(..)")
    }
}

/// Overwrites users' bytes. The compiler keeps the stores because the memory stays in use and other threads can
/// see it; before a deallocation it could drop them.
pub(super) fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
}

/// Decrypted bytes for a reader, contiguous, and free room behind them. They are wiped on drop.
pub(super) struct PlaintextBuf<'a> {
    memory: &'a mut [u8],
    len: usize,
    /// The end of the room that was lent so far: the bytes to wipe.
    used: usize,
}

impl Drop for PlaintextBuf<'_> {
    fn drop(&mut self) {
        wipe(&mut self.memory[..self.used]);
    }
}

impl<'a> PlaintextBuf<'a> {
    pub(super) fn new(memory: &'a mut [u8]) -> Self {
        PlaintextBuf {
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

    /// Returns the next `len` bytes of room, or `None` where fewer are left.
    pub(super) fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let end = self.len + len;
        let room = self.memory.get_mut(self.len..end)?;
        self.used = self.used.max(end);
        Some(room)
    }

    /// Passes the first `n` bytes of the last [`room`](Self::room) to the reader.
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
        let mut plain = PlaintextBuf::new(&mut memory);
        assert!(plain.room(101).is_none());
        plain.room(20).unwrap().fill(1);
        plain.commit(10);
        // An opened record that holds nothing for a reader.
        plain.room(30).unwrap().fill(2);
        assert_eq!(plain.bytes(), [1; 10]);
        drop(plain);
        assert_eq!(memory[..40], [0; 40]);
        assert_eq!(memory[40..], [7; 60]);
    }
}
