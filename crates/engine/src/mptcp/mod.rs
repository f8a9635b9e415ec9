//! Multipath TCP v1 (RFC 8684): connections made of subflows.
//!
//! A connection has two halves. `transport` runs the protocol with the peer: both directions of the stream, and
//! the subflows. `connection` has the policy: the strategy, the path manager, and the current flow. All
//! connections of a stack share one state (`shared`), which each call into a connection borrows (`ctx`).
//!
//! Bytes that the peer has acknowledged at the data level leave the send buffer, except those that a subflow may
//! still have to retransmit: a subflow cannot skip sequence numbers, and its mapping binds them to the original
//! bytes. So the send buffer retains the bytes in flight on a dead path, while all other paths go on. If more
//! than a send buffer is retained, or if memory is used up while other connections wait, a subflow that retains
//! bytes is reset and opened again.

mod busy;
mod checksum;
mod close;
mod connection;
mod ctx;
mod data_fin;
mod dss;
mod ending;
mod fallback;
mod fallback_notice;
mod fast_close;
mod flow;
mod handshake;
mod icmp;
mod input;
mod joins;
pub(crate) mod keys;
mod liveness;
mod mode;
pub(crate) mod opening;
mod output;
mod paths;
mod profile;
mod proof;
mod report;
mod scheduler;
mod scoreboard;
mod share;
mod shared;
mod sides;
mod signal;
mod signalling;
pub(crate) mod subflow;
mod subflows;
mod syn_data;
mod timers;
mod transport;
mod window;

pub(crate) use connection::Connection;
pub(crate) use ctx::Ctx;
pub(crate) use handshake::{capable, flags, is_plain_data, join, usable, window_shift};
pub(crate) use mode::Mode;
pub(crate) use output::{Body, Outgoing};
pub(crate) use scoreboard::MAX_SUBFLOWS;
pub(crate) use shared::Shared;
