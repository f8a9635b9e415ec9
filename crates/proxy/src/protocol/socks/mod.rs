//! SOCKS5 (RFC 1928), both ends, CONNECT only; in plaintext with user and password (RFC 1929).
//!
//! The client sends greeting, password if any, request and the user's first bytes in one flight, without waiting
//! in between, or signs in beforehand. The server also accepts them one by one, in any fragmentation. A box's
//! request follows its metadata ([`RequestMetadata`]), and early hints ([`encode_early_hints`]) follow the
//! request. The code does no I/O and buffers at most one message (1091 bytes). `docs/protocol.md` describes each
//! field.

mod client;
mod early_hints;
mod message;
mod server;

pub use client::{ClientError, ClientHandshake, ClientStep, GREETING, probe, request, sign_in};
pub use early_hints::{EarlyHints, EarlyHintsStep, encode_early_hints};
pub(crate) use message::is_host_name;
pub use message::{Destination, Reply, RequestMetadata};
pub use server::{Request, ServerError, ServerHandshake, ServerStep};
