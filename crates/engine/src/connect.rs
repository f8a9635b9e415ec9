//! How a connection is opened.

use core::net::SocketAddr;

use crate::strategy::{FlowSize, Strategy};
use crate::{PathId, Protocol, Urgency};

/// What a new connection needs to know.
#[derive(Debug)]
pub struct ConnectOptions {
    /// The server.
    pub remote: SocketAddr,
    /// The server's address of the other family, for paths that have only that one.
    pub remote_alt: Option<SocketAddr>,
    /// Path of the initial subflow; `None` leaves it to the strategy. MPTCP moves on to another
    /// path if a SYN is not answered; regular TCP stays on a path that is named here.
    pub path: Option<PathId>,
    /// The first SYN leaves there whatever the strategy would say: on other paths it was tried in
    /// vain.
    pub insist: bool,
    /// Source address of the initial subflow instead of the path's own, and its port where that is
    /// not 0. It need not be an address of the path, but what is sent to it must come here (as with
    /// `IP_TRANSPARENT`).
    pub local: Option<SocketAddr>,
    /// Protocol.
    pub protocol: Protocol,
    /// Bytes the flow is to have, whichever way it goes. A hint for the strategy of this end.
    pub flow_size: FlowSize,
    /// How urgent the connection is, beside others and within itself where a write does not say.
    pub urgency: Urgency,
    /// How to transmit.
    pub strategy: Box<dyn Strategy>,
}

impl ConnectOptions {
    /// MPTCP to `remote`, on whichever path comes first.
    pub fn new(remote: SocketAddr, strategy: Box<dyn Strategy>) -> Self {
        ConnectOptions {
            remote,
            remote_alt: None,
            path: None,
            insist: false,
            local: None,
            protocol: Protocol::Mptcp,
            flow_size: FlowSize::Unknown,
            urgency: Urgency::default(),
            strategy,
        }
    }
}
