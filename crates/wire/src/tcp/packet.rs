//! A view of a TCP segment that reads fields on demand.

use super::{Flags, HEADER_LEN};
use crate::bytes::{be16, be32};
use crate::{Error, Result, Seq32};

/// A TCP segment in a buffer that ends with the segment. [`Packet::new`] checks only that the header does not
/// exceed the buffer. The accessors return fields without further checks.
#[derive(Debug, Clone, Copy)]
pub struct Packet<T>(T);

impl<T: AsRef<[u8]>> Packet<T> {
    /// Creates a view of the segment in `buffer`.
    pub fn new(buffer: T) -> Result<Packet<T>> {
        let bytes = buffer.as_ref();
        if bytes.len() < HEADER_LEN {
            return Err(Error::Truncated);
        }
        let header_len = usize::from(bytes[12] >> 4) * 4;
        if header_len < HEADER_LEN {
            return Err(Error::BadLength);
        }
        if header_len > bytes.len() {
            return Err(Error::Truncated);
        }
        Ok(Packet(buffer))
    }

    fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    /// Returns the source port.
    pub fn src_port(&self) -> u16 {
        be16(self.bytes(), 0)
    }

    /// Returns the destination port.
    pub fn dst_port(&self) -> u16 {
        be16(self.bytes(), 2)
    }

    /// Returns the sequence number.
    pub fn seq(&self) -> Seq32 {
        Seq32(be32(self.bytes(), 4))
    }

    /// Returns the acknowledgement number.
    pub fn ack(&self) -> Seq32 {
        Seq32(be32(self.bytes(), 8))
    }

    /// Returns the length of the header, options included: 20 to 60 bytes.
    pub fn header_len(&self) -> usize {
        usize::from(self.bytes()[12] >> 4) * 4
    }

    /// Returns the control bits.
    pub fn flags(&self) -> Flags {
        Flags(self.bytes()[13])
    }

    /// Returns the window field, not scaled.
    pub fn window(&self) -> u16 {
        be16(self.bytes(), 14)
    }

    /// Returns the checksum field.
    pub fn checksum(&self) -> u16 {
        be16(self.bytes(), 16)
    }

    /// Returns the option bytes: see [`super::raw_options`].
    pub fn options(&self) -> &[u8] {
        &self.bytes()[HEADER_LEN..self.header_len()]
    }

    /// Returns the payload.
    pub fn payload(&self) -> &[u8] {
        &self.bytes()[self.header_len()..]
    }
}

/// The setters do not change the checksum field: see [`super::fill_checksum`].
impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the source port.
    pub fn set_src_port(&mut self, port: u16) {
        self.0.as_mut()[..2].copy_from_slice(&port.to_be_bytes());
    }

    /// Sets the destination port.
    pub fn set_dst_port(&mut self, port: u16) {
        self.0.as_mut()[2..4].copy_from_slice(&port.to_be_bytes());
    }

    /// Sets the sequence number.
    pub fn set_seq(&mut self, seq: Seq32) {
        self.0.as_mut()[4..8].copy_from_slice(&seq.0.to_be_bytes());
    }

    /// Sets the acknowledgement number.
    pub fn set_ack(&mut self, ack: Seq32) {
        self.0.as_mut()[8..12].copy_from_slice(&ack.0.to_be_bytes());
    }

    /// Sets the control bits.
    pub fn set_flags(&mut self, flags: Flags) {
        self.0.as_mut()[13] = flags.0;
    }

    /// Sets the window field.
    pub fn set_window(&mut self, window: u16) {
        self.0.as_mut()[14..16].copy_from_slice(&window.to_be_bytes());
    }

    /// Returns the payload, for changes in place.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let start = self.header_len();
        &mut self.0.as_mut()[start..]
    }

    /// Returns header and payload, for [`super::fill_checksum`].
    pub fn split_mut(&mut self) -> (&mut [u8], &mut [u8]) {
        let at = self.header_len();
        self.0.as_mut().split_at_mut(at)
    }
}
