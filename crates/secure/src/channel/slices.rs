//! Cursors over the engine's buffers, for reading and writing.

use std::io::{IoSlice, IoSliceMut};

/// Slices to read from.
#[derive(Clone, Copy)]
pub(super) struct Input<'a, 'b> {
    bufs: &'a [IoSlice<'b>],
    at: usize,
}

impl<'a, 'b> Input<'a, 'b> {
    pub(super) fn new(bufs: &'a [IoSlice<'b>]) -> Self {
        Input { bufs, at: 0 }
    }

    /// Returns the number of unread bytes.
    pub(super) fn remaining(&self) -> usize {
        let all: usize = self.bufs.iter().map(|buf| buf.len()).sum();
        all - self.at
    }

    /// Takes up to `max` contiguous bytes; empty at the end of the input.
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

    /// Fills `to` from the input and returns the number of bytes copied, fewer than `to.len()` at the input's end.
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
    let all = bytes.len();
    for buf in bufs {
        let (now, rest) = bytes.split_at(bytes.len().min(buf.len()));
        buf[..now.len()].copy_from_slice(now);
        bytes = rest;
    }
    all - bytes.len()
}
