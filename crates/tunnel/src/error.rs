//! The errors of calls to a tunnel.

/// The reason for which a datagram is dropped. A dropped datagram has changed nothing but counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatagramError {
    /// The datagram is too short, of another version, or of another session.
    Malformed,
    /// No key of this session opens the datagram.
    Forged,
    /// A datagram with this number was received before, or the number is too old to tell.
    Replayed,
    /// The session has as many paths as it may have.
    TooManyPaths,
    /// The datagram comes from an address that is not the server's. Only a box refuses it: a server learns addresses.
    UnknownSource,
    /// The peer, which has the keys, broke the format. What precedes the fault was carried out.
    BadFrame,
}

impl core::fmt::Display for DatagramError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            DatagramError::Malformed => "not a datagram of this session",
            DatagramError::Forged => "no key opens the datagram",
            DatagramError::Replayed => "the datagram was received before",
            DatagramError::TooManyPaths => "too many paths",
            DatagramError::UnknownSource => "not from the server",
            DatagramError::BadFrame => "malformed frame",
        })
    }
}

impl std::error::Error for DatagramError {}

/// The reason for which an inner packet is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// The packet is no IP packet, or its length contradicts its header.
    Malformed,
    /// The packet is larger than [`crate::Config::inner_mtu`], or than two datagrams of any path.
    TooLarge,
    /// The queue is full, or its delay stands for too long (RFC 8289). The packet is dropped.
    QueueFull,
    /// No key is installed.
    NoKey,
}

impl core::fmt::Display for SendError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            SendError::Malformed => "not an IP packet",
            SendError::TooLarge => "packet exceeds the MTU of the tunnel",
            SendError::QueueFull => "the tunnel's queue is full",
            SendError::NoKey => "no key is installed",
        })
    }
}

impl std::error::Error for SendError {}
