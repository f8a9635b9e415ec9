//! The secure channel between box and server: its handshake, records and keys, and the authentication.
//!
//! A [`Channel`](channel::Channel) stands between the engine's [`Stack`](braid_engine::Stack) and everything that box
//! and server write to each other. The crate is apart so that it can be audited alone: it knows neither
//! SOCKS, nor the configuration, nor what the bytes mean that it carries.
//!
//! # What it protects, and against whom
//!
//! - **Somebody on a link**, or on all links, who reads, changes, holds back or makes packets: they learn
//!   sizes and times, the server's address and that this is Braid. They read and insert no byte, and every
//!   change breaks the connection. Handshake and keys are those of TLS 1.3 (RFC 8446) with raw public keys
//!   (RFC 7250), as QUIC takes them from rustls; the records are Braid's own.
//! - **Somebody elsewhere** who knows the keys of Multipath TCP: each subflow has to prove a secret that the
//!   server gives the box in the encrypted part of the handshake
//!   ([`JoinAuth::Secret`](braid_engine::JoinAuth)).
//! - **Somebody without a key** who speaks to the server: a server accepts the [public keys](keys::PublicKey)
//!   that it was given and no other, and a box accepts one server alone.
//! - **Somebody who repeats what they saw**: a ticket is good for one connection, and a
//!   [password](auth::password) for one connection by one server to one destination at one time.
//!
//! # What it does not protect
//!
//! - TCP and Multipath TCP themselves: somebody on a link can reset its subflow, and somebody who can also hold
//!   packets back there can make the connection stand still. Users then see a reset, never other bytes.
//! - Sizes and times, but for what padding hides.
//! - A recording of early data, once somebody reads the memory of an end while the ticket is there.
//! - Connections in plaintext, which a configuration may ask for: [`auth`] proves who opens them and where to,
//!   and nothing of what follows.
//! - What stands behind the server, and machines whose root is somebody else.
//!
//! `docs/security.md` has the whole table and the tests that hold it, `docs/protocol.md` each byte.
//!
//! **Architecture Invariant:** no policy, and no clock: time is handed in. Private keys are erased when they
//! are dropped, and no error, log line or `Debug` shows one.

pub mod auth;
pub mod channel;
mod families;
pub mod keys;

pub use families::Families;
