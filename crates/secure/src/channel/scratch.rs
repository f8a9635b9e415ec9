//! Shared memory for users' bytes between a socket and the engine.

use core::fmt;
use std::sync::{Mutex, PoisonError};

use super::MAX_BATCH;

/// Memory that all connections of a [`Client`](super::Client) or [`Server`](super::Server) use in turn, so that no
/// connection keeps memory of its own.
#[derive(Default)]
pub(super) struct Scratch(Mutex<Box<[u8]>>);

impl Scratch {
    /// Lends [`MAX_BATCH`] bytes to `work`. The caller [wipes](wipe) the bytes that it wrote, so that no user's
    /// bytes stay in memory.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        // A poisoned lock is harmless: a panic in `work` leaves no invalid state, only bytes that are not wiped.
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

/// Overwrites users' bytes. The compiler may not drop these stores, because the memory stays allocated and later
/// code can read it. The compiler may drop stores just before a deallocation, so memory that is freed afterwards
/// has to be `Zeroizing`.
pub(super) fn wipe(bytes: &mut [u8]) {
    bytes.fill(0);
}

/// Decrypted bytes for a reader at the front of borrowed memory, and free room after them. The memory is wiped on
/// drop.
pub(super) struct PlaintextBuf<'a> {
    memory: &'a mut [u8],
    /// The number of bytes for the reader, at the front of `memory`.
    len: usize,
    /// The number of bytes of `memory` that [`room`](Self::room) has lent so far. They have to be wiped.
    /// Decrypting needs more room (tag, padding) than the reader gets bytes.
    lent: usize,
}

impl Drop for PlaintextBuf<'_> {
    fn drop(&mut self) {
        wipe(&mut self.memory[..self.lent]);
    }
}

impl<'a> PlaintextBuf<'a> {
    pub(super) fn new(memory: &'a mut [u8]) -> Self {
        PlaintextBuf {
            memory,
            len: 0,
            lent: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    /// Returns whether there is room for `len` more bytes.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.memory.len() - self.len >= len
    }

    /// Returns the next `len` bytes of room, or `None` if fewer are left.
    pub(super) fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let end = self.len + len;
        let room = self.memory.get_mut(self.len..end)?;
        self.lent = self.lent.max(end);
        Some(room)
    }

    /// Adds the first `n` bytes of the last [`room`](Self::room) to the reader's bytes.
    pub(super) fn commit(&mut self, n: usize) {
        self.len += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lent_memory_is_wiped() {
        let mut memory = [7; 100];
        let mut plain = PlaintextBuf::new(&mut memory);
        assert!(plain.room(101).is_none());
        plain.room(20).unwrap().fill(1);
        plain.commit(10);
        // Room for a record with no bytes for a reader is lent, but not committed. It starts after the 10
        // committed bytes.
        plain.room(30).unwrap().fill(2);
        assert_eq!(plain.bytes(), [1; 10]);
        drop(plain);
        assert_eq!(memory[..40], [0; 40]);
        assert_eq!(memory[40..], [7; 60]);
    }
}
