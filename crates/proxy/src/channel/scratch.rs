//! Memory for users' bytes on their way between a socket and the engine.

use core::fmt;
use std::sync::{Mutex, PoisonError};

use super::BATCH;

/// Memory that all connections of a [`Client`](super::Client) or [`Server`](super::Server) use in turn,
/// so that none has to keep its own.
#[derive(Default)]
pub(super) struct Scratch(Mutex<Box<[u8]>>);

impl Scratch {
    /// Lends [`BATCH`] bytes, which hold what their last user left.
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

/// What was gathered for a reader, in one piece, and room behind it.
pub(super) struct Plain<'a> {
    memory: &'a mut [u8],
    len: usize,
}

impl<'a> Plain<'a> {
    pub(super) fn new(memory: &'a mut [u8]) -> Self {
        Plain { memory, len: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    /// The room that is left.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.memory[self.len..]
    }

    /// The first `n` bytes of the [`room`](Self::room) are for the reader.
    pub(super) fn commit(&mut self, n: usize) {
        self.len += n;
    }
}
