//! The header of a datagram. It is sent in plaintext and authenticated.

use braid_engine::PathId;

use crate::DatagramError;

/// The version of the format, in the four highest bits of the first byte.
const VERSION: u8 = 1;
/// The bits of a packet number that are sent.
const NUMBER_BITS: u32 = 24;

/// The id of a session, which the server draws.
///
/// The lowest six bits of the first byte name the shard of the server that has the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 8]);

impl SessionId {
    /// Returns the shard that has the session, from 0 to 63.
    pub fn shard(self) -> u8 {
        self.0[0] & 0x3f
    }
}

/// The header of a datagram:
///
/// | bytes | field |
/// | --- | --- |
/// | 1 | version (4 bits), zero (2 bits), the lowest 2 bits of the epoch of the key |
/// | 8 | session |
/// | 1 | path |
/// | 3 | the lowest 24 bits of the packet number |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The lowest two bits of the epoch.
    pub phase: u8,
    /// The session.
    pub session: SessionId,
    /// The path, numbered by the box.
    pub path: PathId,
    /// The lowest 24 bits of the number of the datagram on its path.
    pub number: u32,
}

impl Header {
    /// Bytes of a header.
    pub const LEN: usize = 13;

    /// Reads the header at the start of a datagram. A server finds the session by it.
    ///
    /// # Errors
    ///
    /// [`DatagramError::Malformed`] if the datagram is too short, or of another version.
    pub fn parse(datagram: &[u8]) -> Result<Header, DatagramError> {
        let head = datagram
            .first_chunk::<{ Header::LEN }>()
            .ok_or(DatagramError::Malformed)?;
        let [first, session @ .., path, n0, n1, n2] = *head;
        if first >> 4 != VERSION || first & 0x0c != 0 {
            return Err(DatagramError::Malformed);
        }
        Ok(Header {
            phase: first & 0x03,
            session: SessionId(session),
            path: PathId(path),
            number: u32::from_be_bytes([0, n0, n1, n2]),
        })
    }

    /// Returns the bytes of the header.
    pub fn emit(&self) -> [u8; Header::LEN] {
        let mut bytes = [0; Header::LEN];
        bytes[0] = VERSION << 4 | self.phase & 0x03;
        bytes[1..9].copy_from_slice(&self.session.0);
        bytes[9] = self.path.0;
        bytes[10..].copy_from_slice(&self.number.to_be_bytes()[1..]);
        bytes
    }
}

/// Returns the number with the lowest 24 bits `truncated` that is nearest to `expected` (RFC 9000 appendix A.3).
pub(crate) fn expand(truncated: u32, expected: u64) -> u64 {
    let window = 1u64 << NUMBER_BITS;
    let candidate = expected & !(window - 1) | u64::from(truncated) & (window - 1);
    if candidate + window / 2 <= expected {
        candidate + window
    } else if candidate > expected + window / 2 && candidate >= window {
        candidate - window
    } else {
        candidate
    }
}

/// Returns the lowest 24 bits of a number, which are sent.
pub(crate) fn truncate(number: u64) -> u32 {
    (number & ((1 << NUMBER_BITS) - 1)) as u32
}
