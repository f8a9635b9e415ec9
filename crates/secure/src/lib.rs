//! The secure channel between box and server: handshake, records, keys and authentication.
//!
//! A [`Channel`](channel::Channel) wraps the engine's [`Stack`](braid_engine::Stack) for everything that box and
//! server exchange. It is a separate crate so that it can be audited alone: it knows neither SOCKS, nor the
//! configuration, nor the meaning of the bytes.
//!
//! # What it protects, and against whom
//!
//! - **Somebody on a link**, or on all links, who reads, changes, delays or forges packets. They learn sizes and
//!   times, the server's address and that Braid is in use. They can neither read nor insert payload, and every
//!   change to the payload breaks the connection. Handshake and keys are those of TLS 1.3 (RFC 8446) with raw
//!   public keys (RFC 7250), through the interface that rustls has for QUIC. The record layer is Braid's own.
//! - **Somebody elsewhere** who knows a connection's keys of Multipath TCP. The first packets contain these keys
//!   in plaintext. Each further subflow has to prove a secret from the encrypted part of the handshake
//!   ([`JoinAuth::Secret`](braid_engine::JoinAuth)).
//! - **Somebody without a key** who talks to the server. A server accepts only the [public keys](keys::PublicKey)
//!   in its configuration, and a box accepts only one server's.
//! - **Somebody who replays what they recorded**. A ticket is valid for one connection. A
//!   [password](auth::password) is valid for one connection at one server to one destination, for a few minutes.
//!
//! # What it does not protect
//!
//! - TCP and Multipath TCP themselves: somebody on a link can reset the subflow over that link. Somebody who can
//!   also hold packets back can stall the connection. Users see a reset or a stall, never forged bytes.
//! - Sizes and times, except where padding hides them.
//! - Recorded early data: somebody who later reads the memory of a box or server with the ticket can decrypt it.
//!   Early data has no forward secrecy (RFC 8446 section 2.3).
//! - Plaintext connections, which a configuration may allow: [`auth`] proves their user and their destination, but
//!   protects none of the bytes that follow.
//! - The network behind the server, and machines on which an attacker is root.
//!
//! `docs/security.md` lists all threats and the tests for each, and `docs/protocol.md` describes every byte.
//!
//! **Architecture Invariant:** the crate has no policy and no clock; the caller passes the time. Private keys are
//! erased on drop, and no error, log line or `Debug` output shows one.

pub mod auth;
pub mod channel;
mod families;
pub mod keys;

pub use families::Families;
