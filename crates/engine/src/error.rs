//! Misuse of the interface. Actions of peers and the network are reported as [`crate::Event`]s.

/// A command that cannot be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApiError {
    /// There is no such connection (any more).
    UnknownConnection,
    /// There is no such path, or no path that fits the remote address.
    NoUsablePath,
    /// The address has a listener already.
    AddressInUse,
    /// The connection's sending side was closed before.
    SendClosed,
    /// A bound of [`crate::Config`] is reached.
    LimitReached,
    /// The stack was [closed](crate::Stack::close).
    Closing,
    /// A stack has no more than 256 paths.
    TooManyPaths,
}

impl core::fmt::Display for ApiError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            ApiError::UnknownConnection => "no such connection",
            ApiError::NoUsablePath => "no usable path to that address",
            ApiError::AddressInUse => "address already in use",
            ApiError::SendClosed => "the sending side is closed",
            ApiError::LimitReached => "a limit of this stack is reached",
            ApiError::Closing => "this stack is closing",
            ApiError::TooManyPaths => "a stack has at most 256 paths: use fewer links or addresses",
        })
    }
}

impl std::error::Error for ApiError {}
