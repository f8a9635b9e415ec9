//! The secure channel between box and server: handshake, records, keys and authentication.
//!
//! A [`Channel`](channel::Channel) wraps the engine's [`Stack`](braid_engine::Stack) for everything that box and
//! server exchange. It is a separate crate so that it can be audited alone: it knows neither SOCKS, nor the
//! configuration, nor the meaning of the bytes.
//!
//! # What it protects, and against whom
//!
//! - **Somebody on a link**, or on all links, who reads, changes, delays or forges packets. They learn sizes and
//!   times, the server's address and that this is Braid. They read and insert no byte, and every change breaks the
//!   connection. Handshake and keys are those of TLS 1.3 (RFC 8446) with raw public keys (RFC 7250), as QUIC takes
//!   them from rustls; the record layer is Braid's own.
//! - **Somebody elsewhere** who knows the keys of Multipath TCP. Each subflow has to prove a secret from the
//!   encrypted part of the handshake ([`JoinAuth::Secret`](braid_engine::JoinAuth)).
//! - **Somebody without a key** who talks to the server. A server accepts only the [public keys](keys::PublicKey)
//!   in its configuration, and a box accepts only one server's.
//! - **Somebody who replays what they recorded**. A ticket is good for one connection, and a
//!   [password](auth::password) for one connection by one server to one destination at one time.
//!
//! # What it does not protect
//!
//! - TCP and Multipath TCP themselves: somebody on a link can reset its subflow, and somebody who can also hold
//!   packets back there can stall the connection. Users then see a reset, never forged bytes.
//! - Sizes and times, except where padding hides them.
//! - Recorded early data, once somebody reads the memory of an end that still has the ticket.
//! - Plaintext connections, which a configuration may ask for: [`auth`] proves who opens them and to which
//!   destination, but nothing of what follows.
//! - The network behind the server, and machines on which somebody else is root.
//!
//! `docs/security.md` has the whole table and the tests behind it, `docs/protocol.md` every byte.
//!
//! **Architecture Invariant:** no policy and no clock; the caller passes the time. Private keys are erased on
//! drop, and no error, log line or `Debug` output shows one.

pub mod auth;
pub mod channel;
mod families;
pub mod keys;

pub use families::Families;
