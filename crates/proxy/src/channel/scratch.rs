//! Memory for users' bytes on their way between a socket and TLS.

use core::fmt;
use std::io::Read;
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

/// What was gathered for a reader; without memory, nothing can be.
#[derive(Default)]
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

    /// Takes as much from `reader` as there is room for and returns how much. Where it has nothing more,
    /// that is no error.
    pub(super) fn fill(&mut self, reader: &mut impl Read) -> usize {
        let read = reader.read(&mut self.memory[self.len..]).unwrap_or(0);
        self.len += read;
        read
    }
}
