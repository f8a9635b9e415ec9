//! The engine's memory, as it is read and written.

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

    /// Bytes that were not read.
    pub(super) fn left(&self) -> usize {
        let all: usize = self.bufs.iter().map(|buf| buf.len()).sum();
        all - self.at
    }

    /// Up to `max` bytes that stand in one piece, which are done with; none where there are none left.
    pub(super) fn piece(&mut self, max: usize) -> &'a [u8] {
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

    /// Nothing of it is of interest.
    pub(super) fn skip(&mut self) {
        (self.bufs, self.at) = (&[], 0);
    }

    /// Fills `to` for as far as there is something, and returns how far.
    pub(super) fn read(&mut self, to: &mut [u8]) -> usize {
        let mut done = 0;
        while done < to.len() {
            let piece = self.piece(to.len() - done);
            if piece.is_empty() {
                break;
            }
            to[done..done + piece.len()].copy_from_slice(piece);
            done += piece.len();
        }
        done
    }
}

/// Copies as much of `bytes` into `bufs` as there is room for, and returns how much.
pub(super) fn copy(mut bytes: &[u8], bufs: &mut [IoSliceMut<'_>]) -> usize {
    let all = bytes.len();
    for buf in bufs {
        let (now, rest) = bytes.split_at(bytes.len().min(buf.len()));
        buf[..now.len()].copy_from_slice(now);
        bytes = rest;
    }
    all - bytes.len()
}
