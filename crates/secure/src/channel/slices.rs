//! A read cursor over the engine's buffers, and a copy into them. The engine's memory is a ring, so a record may
//! lie in several buffers.

use std::io::{IoSlice, IoSliceMut};

/// A read cursor. A copy of the cursor reads ahead without moving the original.
#[derive(Clone, Copy)]
pub(super) struct Input<'a, 'b> {
    bufs: &'a [IoSlice<'b>],
    /// Bytes of the first buffer that were read.
    at: usize,
}

impl<'a, 'b> Input<'a, 'b> {
    pub(super) fn new(bufs: &'a [IoSlice<'b>]) -> Self {
        Input { bufs, at: 0 }
    }

    /// Returns the number of unread bytes.
    pub(super) fn remaining(&self) -> usize {
        let total: usize = self.bufs.iter().map(|buf| buf.len()).sum();
        total - self.at
    }

    /// Takes up to `max` bytes that lie in one buffer. Returns an empty slice at the end of the input.
    pub(super) fn chunk(&mut self, max: usize) -> &'a [u8] {
        while let Some((first, rest)) = self.bufs.split_first() {
            if self.at < first.len() {
                let from = self.at;
                self.at = first.len().min(from.saturating_add(max));
                return &first[from..self.at];
            }
            (self.bufs, self.at) = (rest, 0);
        }
        &[]
    }

    /// Discards the rest of the input.
    pub(super) fn skip(&mut self) {
        (self.bufs, self.at) = (&[], 0);
    }

    /// Copies bytes of the input into `to` until either ends, and returns the number of bytes copied.
    pub(super) fn read(&mut self, to: &mut [u8]) -> usize {
        let mut done = 0;
        while done < to.len() {
            let chunk = self.chunk(to.len() - done);
            if chunk.is_empty() {
                break;
            }
            to[done..done + chunk.len()].copy_from_slice(chunk);
            done += chunk.len();
        }
        done
    }
}

/// Copies `bytes` into `bufs` until either ends, and returns the number of bytes copied.
pub(super) fn copy(mut bytes: &[u8], bufs: &mut [IoSliceMut<'_>]) -> usize {
    let total = bytes.len();
    for buf in bufs {
        let (copied, rest) = bytes.split_at(bytes.len().min(buf.len()));
        buf[..copied.len()].copy_from_slice(copied);
        bytes = rest;
    }
    total - bytes.len()
}
