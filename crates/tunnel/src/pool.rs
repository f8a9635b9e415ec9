//! Buffers of inner packets, used again so that a steady flow allocates nothing.

/// Most buffers that wait to be used again. A guess: with packets of 1,500 bytes they hold 1.5 MB.
const MAX_FREE: usize = 1024;

/// Free buffers.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Vec<Vec<u8>>,
}

impl Pool {
    /// Returns a buffer with these bytes.
    pub fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.free.pop().unwrap_or_default();
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Takes back a buffer that is no longer used.
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.free.len() < MAX_FREE {
            buffer.clear();
            self.free.push(buffer);
        }
    }
}
