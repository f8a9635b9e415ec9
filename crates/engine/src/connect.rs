//! The options of a new connection.

use core::net::SocketAddr;

use crate::non_exhaustive::NonExhaustive;
use crate::strategy::{FlowSize, Strategy};
use crate::{PathId, Protocol, Urgency};

/// The options of a new connection.
///
/// ```
/// use braid_engine::strategy::FlowSize;
/// use braid_engine::{ConnectOptions, PathId};
///
/// let remote = ([10, 0, 9, 1], 443).into();
/// let options = ConnectOptions {
///     path: Some(PathId(1)),
///     flow_size: FlowSize::Declared(1 << 20),
///     ..ConnectOptions::new(remote, braid_strategy::default_strategy())
/// };
/// assert_eq!(options.local, None);
/// ```
#[derive(Debug)]
pub struct ConnectOptions {
    /// The server's address.
    pub remote: SocketAddr,
    /// The server's address of the other address family, for paths that have only that family.
    pub remote_alt: Option<SocketAddr>,
    /// The path of the initial subflow; `None` leaves it to the strategy. If the SYN is not answered, MPTCP
    /// tries another path, but regular TCP stays on the path named here.
    pub path: Option<PathId>,
    /// Set to send the first SYN on `path`, whatever the strategy decides, because the application has tried
    /// other paths in vain.
    pub pin_path: bool,
    /// The source address of the initial subflow, in place of the path's own address; a port other than 0 is the
    /// source port. The address need not belong to the path, but packets sent to it have to reach this stack (as
    /// with `IP_TRANSPARENT`).
    pub local: Option<SocketAddr>,
    /// The protocol to open with.
    pub protocol: Protocol,
    /// The expected size of the flow in bytes, both directions together: a hint for the strategy of this end.
    pub flow_size: FlowSize,
    /// The urgency of writes without a class. With the least urgency, the connection runs `Config::background`.
    pub urgency: Urgency,
    /// The strategy of the connection.
    pub strategy: Box<dyn Strategy>,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

impl ConnectOptions {
    /// Returns the options of a connection to `remote` by MPTCP, on the path that the strategy chooses.
    pub fn new(remote: SocketAddr, strategy: Box<dyn Strategy>) -> Self {
        ConnectOptions {
            remote,
            remote_alt: None,
            path: None,
            pin_path: false,
            local: None,
            protocol: Protocol::Mptcp,
            flow_size: FlowSize::Unknown,
            urgency: Urgency::default(),
            strategy,
            _non_exhaustive: NonExhaustive::MARK,
        }
    }
}
