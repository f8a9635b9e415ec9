//! The errors of commands to a stack. Actions of peers and of the network are not errors: the stack reports them as
//! [`crate::Event`]s.

/// The reason for which a command cannot be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApiError {
    /// The connection does not exist, or no longer exists.
    UnknownConnection,
    /// The path does not exist, or no path has an address of the remote address's family.
    NoUsablePath,
    /// The address already has a listener, or the addresses and ports already have a connection.
    AddressInUse,
    /// The connection's sending side is already closed.
    SendClosed,
    /// A limit of [`crate::Config`] is reached.
    LimitReached,
    /// The stack was [closed](crate::Stack::close).
    Closing,
    /// The stack already has 256 paths, the maximum.
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
