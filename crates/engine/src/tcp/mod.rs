//! TCP, one concern a file. Sequence numbers are 64-bit offsets from the initial one: offset 0 is
//! the SYN, offset 1 the first byte of payload; wrap-around exists only at the wire.

pub(crate) mod pacing;
pub(crate) mod prr;
pub(crate) mod rate;
pub(crate) mod receive;
pub(crate) mod rtt;
pub(crate) mod scoreboard;
pub(crate) mod send;

use core::net::SocketAddr;

/// What tells a subflow apart on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FourTuple {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}
