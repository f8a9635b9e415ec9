//! A datagram while it is put together.

use crate::frame::Frame;
use crate::header::Header;
use crate::seal::TAG_LEN;

/// The frames of a datagram at the end of a buffer.
#[derive(Debug)]
pub(crate) struct Datagram<'a> {
    buf: &'a mut Vec<u8>,
    start: usize,
    /// The most bytes of frames.
    capacity: usize,
    /// The peer has to report the datagram.
    pub eliciting: bool,
    /// The datagram asks if its size passes.
    pub is_probe: bool,
}

impl<'a> Datagram<'a> {
    /// Starts a datagram with room for a header.
    pub fn new(buf: &'a mut Vec<u8>, capacity: usize) -> Self {
        let start = buf.len();
        buf.resize(start + Header::LEN, 0);
        Datagram {
            buf,
            start,
            capacity,
            eliciting: false,
            is_probe: false,
        }
    }

    fn len(&self) -> usize {
        self.buf.len() - self.start - Header::LEN
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of frames that still fit.
    pub fn room(&self) -> usize {
        self.capacity.saturating_sub(self.len())
    }

    /// Appends a frame, which fits.
    pub fn push(&mut self, frame: &Frame) {
        self.eliciting |= !matches!(
            frame,
            Frame::Report(_) | Frame::Rerequest { .. } | Frame::Response(_) | Frame::Use { .. }
        );
        frame.emit(self.buf);
        debug_assert!(self.len() <= self.capacity);
    }

    /// Pads the frames to `len` bytes. No frame may follow.
    pub fn pad(&mut self, len: usize) {
        let end = self.start + Header::LEN + len;
        if self.buf.len() < end {
            // The type of padding is zero.
            self.buf.resize(end, 0);
        }
    }

    /// Appends room for the tag, and returns the whole datagram.
    pub fn finish(self) -> &'a mut [u8] {
        self.buf.resize(self.buf.len() + TAG_LEN, 0);
        &mut self.buf[self.start..]
    }

    /// Removes the datagram from the buffer.
    pub fn cancel(self) {
        self.buf.truncate(self.start);
    }
}
