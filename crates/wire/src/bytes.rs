//! Reading and writing of big-endian fields in byte slices.

use crate::{Error, Result};

/// Reads fields from the front of a slice. The slice shrinks to the unread rest. A field that extends past the end
/// of the slice is [`Error::Truncated`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Error::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_be_bytes)
    }
}

/// Writes fields one after the other, beginning at the front of a slice. Panics if a field extends past the end of
/// the slice. Callers size the buffer by the length of the structure, so only a bug causes the panic.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    buf: &'a mut [u8],
    /// The number of bytes written so far.
    position: usize,
}

impl<'a> Writer<'a> {
    #[inline]
    pub(crate) fn new(buf: &'a mut [u8]) -> Self {
        Writer { buf, position: 0 }
    }

    /// Returns the number of bytes written so far.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    #[inline]
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.buf[self.position..self.position + bytes.len()].copy_from_slice(bytes);
        self.position += bytes.len();
    }

    /// Writes bytes whose number is known when this is compiled: one store, where [`put`](Self::put) calls `memcpy`.
    #[inline]
    pub(crate) fn put_array<const N: usize>(&mut self, bytes: [u8; N]) {
        let field = self.buf[self.position..].first_chunk_mut();
        *field.expect("the buffer has room for the field") = bytes;
        self.position += N;
    }

    #[inline]
    pub(crate) fn u8(&mut self, value: u8) {
        self.put_array([value]);
    }

    #[inline]
    pub(crate) fn u16(&mut self, value: u16) {
        self.put_array(value.to_be_bytes());
    }

    #[inline]
    pub(crate) fn u32(&mut self, value: u32) {
        self.put_array(value.to_be_bytes());
    }

    #[inline]
    pub(crate) fn u64(&mut self, value: u64) {
        self.put_array(value.to_be_bytes());
    }
}

/// Returns the 16-bit field at offset `at`. The caller has checked that the field is within `bytes`.
#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(field(bytes, at))
}

/// Returns the 32-bit field at offset `at`. The caller has checked that the field is within `bytes`.
#[inline]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(field(bytes, at))
}

#[inline]
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let field = bytes[at..].first_chunk();
    *field.expect("the field is within the bytes")
}
