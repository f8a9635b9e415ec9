//! The messages between box and server: encoding and decoding.
//!
//! This module has formats and the state of a single handshake. It makes no decision on a message's content, and
//! knows neither sessions nor connections; `braid-secure` protects the messages.

pub(crate) mod hints;
pub(crate) mod probe;
pub(crate) mod quality;
pub mod socks;
