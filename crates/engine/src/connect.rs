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
    /// The server's address of the other family, for paths that have only that family.
    pub remote_alt: Option<SocketAddr>,
    /// The path of the initial subflow; `None` leaves it to the strategy. MPTCP moves on to another path if
    /// a SYN is not answered; regular TCP stays on a path that is named here.
    pub path: Option<PathId>,
    /// Set to send the first SYN on `path` whatever the strategy decides, because other paths were tried in
    /// vain.
    pub pin_path: bool,
    /// The source address of the initial subflow in place of the path's own, and its port if not 0. It need
    /// not be an address of the path, but packets sent to it must arrive here (as with `IP_TRANSPARENT`).
    pub local: Option<SocketAddr>,
    /// The protocol to open with.
    pub protocol: Protocol,
    /// The bytes that the flow is expected to have, counting both directions: a hint for the strategy of
    /// this end.
    pub flow_size: FlowSize,
    /// The urgency of the connection among others, and of writes that name none.
    pub urgency: Urgency,
    /// The strategy of the connection.
    pub strategy: Box<dyn Strategy>,
    #[doc(hidden)]
    pub _non_exhaustive: NonExhaustive,
}

impl ConnectOptions {
    /// Opens MPTCP to `remote`, on whichever path comes first.
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
