//! Both ends of SOCKS5 (RFC 1928), with the command CONNECT only. On a plaintext connection the client signs in with
//! user and password (RFC 1929).
//!
//! A box sends the greeting, the password (only on a plaintext connection), the request and the user's first bytes
//! together, without waiting for answers. A box may also sign in before it has a user. The server accepts the
//! messages in any fragmentation, and from clients that wait for each answer. A box sends metadata
//! ([`RequestMetadata`]) before its request, and early hints ([`encode_early_hints`]) after the request. The code does
//! no I/O and buffers at most one message (1091 bytes: metadata with a head of 3, a code of 64 and hints of 1024
//! bytes). `docs/protocol.md` describes each field.

mod client;
mod early_hints;
mod message;
mod server;

pub(crate) use client::tunnel;
pub use client::{ClientError, ClientHandshake, ClientStep, GREETING, probe, request, sign_in};
pub use early_hints::{EarlyHints, EarlyHintsStep, encode_early_hints};
pub(super) use message::MessageBuffer;
pub(crate) use message::is_host_name;
pub use message::{Destination, Reply, RequestMetadata};
pub use server::{Request, ServerError, ServerHandshake, ServerStep};
