//! Encoding and decoding of the messages between box and server.
//!
//! The module has formats, and the state of a single handshake. It does not decide on the content of a message,
//! and does not depend on sessions or connections. `braid-secure` protects the messages.

mod fields;
pub(crate) mod hints;
pub(crate) mod prefix;
pub(crate) mod probe;
pub(crate) mod quality;
pub mod socks;
pub(crate) mod tunnel;
