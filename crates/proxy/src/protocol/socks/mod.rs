//! SOCKS5 (RFC 1928), both ends, CONNECT only; in clear with user/password (RFC 1929).
//!
//! The client sends greeting, password if there is one, and request in one flight, together with the
//! user's first bytes, and does not wait in between, or signs in beforehand; the server also takes them
//! one by one, in any fragmentation. A box's request follows a [`Note`], and a [`foreword`] follows the
//! request. Nothing here reads, writes or allocates more than one message (1091 bytes).
//! `docs/protocol.md` gives each field.

mod client;
mod foreword;
mod message;
mod server;

pub use client::{ClientError, ClientHandshake, ClientStep, GREETING, probe, request, sign_in};
pub use foreword::{Foreword, ForewordStep, foreword};
pub(crate) use message::is_host_name;
pub use message::{Destination, Note, Reply};
pub use server::{Request, ServerError, ServerHandshake, ServerStep};
