//! SOCKS5 (RFC 1928) with user/password (RFC 1929), both ends, CONNECT only.
//!
//! The client sends greeting, password and request in one flight, together with the user's first
//! bytes, and does not wait in between; the server also takes them one by one, in any
//! fragmentation. Nothing here reads, writes or allocates more than one message (513 bytes).

mod client;
mod message;
mod server;

pub use client::{ClientError, ClientHandshake, ClientStep, flight};
pub(crate) use message::is_host_name;
pub use message::{Destination, Reply};
pub use server::{ServerError, ServerHandshake, ServerStep};
