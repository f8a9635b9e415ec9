//! The messages of box and server to each other, as bytes and back.
//!
//! Here are formats and the state of one handshake. A decision on what a message says, a session, or a connection
//! is never here; the records that protect the messages are `braid-secure`'s.

pub(crate) mod hints;
pub(crate) mod probe;
pub(crate) mod quality;
pub mod socks;
