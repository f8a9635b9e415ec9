//! The engine's memory, as the library reads and writes it.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

/// Slices to read from.
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
}

impl Read for Input<'_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while let Some((first, rest)) = self.bufs.split_first() {
            if self.at < first.len() {
                let n = (first.len() - self.at).min(buf.len());
                buf[..n].copy_from_slice(&first[self.at..self.at + n]);
                self.at += n;
                return Ok(n);
            }
            self.at = 0;
            self.bufs = rest;
        }
        Ok(0)
    }
}

/// Slices to write to.
pub(super) struct Output<'a, 'b> {
    bufs: &'a mut [IoSliceMut<'b>],
    /// The slice in which there may be room, and how far it is filled.
    at: (usize, usize),
}

impl<'a, 'b> Output<'a, 'b> {
    pub(super) fn new(bufs: &'a mut [IoSliceMut<'b>]) -> Self {
        Output { bufs, at: (0, 0) }
    }
}

impl Write for Output<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (slice, filled) = &mut self.at;
        let mut done = 0;
        while let Some(buf) = self.bufs.get_mut(*slice) {
            let n = (buf.len() - *filled).min(bytes.len() - done);
            buf[*filled..*filled + n].copy_from_slice(&bytes[done..done + n]);
            *filled += n;
            done += n;
            if *filled < buf.len() {
                break;
            }
            (*slice, *filled) = (*slice + 1, 0);
        }
        Ok(done)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut done = 0;
        for piece in pieces {
            let n = self.write(piece)?;
            done += n;
            if n < piece.len() {
                break;
            }
        }
        Ok(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
