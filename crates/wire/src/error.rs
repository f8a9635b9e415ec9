//! The error of parsing.

/// The reason why a packet or an option cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The buffer ends before the structure does.
    Truncated,
    /// A length field contradicts the length of the buffer, or the format.
    BadLength,
    /// The IP version is neither 4 nor 6, or differs from the expected one.
    BadVersion,
    /// The checksum does not match.
    BadChecksum,
    /// An option is malformed.
    BadOption,
    /// The packet is well-formed, but of a kind that this crate does not support (fragments, unknown protocol).
    Unsupported,
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Error::Truncated => "packet is shorter than its header says",
            Error::BadLength => "length field contradicts the packet",
            Error::BadVersion => "IP version is neither 4 nor 6",
            Error::BadChecksum => "checksum does not match",
            Error::BadOption => "malformed option",
            Error::Unsupported => "kind of packet not supported",
        })
    }
}

impl core::error::Error for Error {}
