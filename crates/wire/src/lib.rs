//! Packet formats of Braid: IPv4, IPv6, TCP with its options, UDP, ICMP errors and every option of
//! Multipath TCP v1 (RFC 8684), plus the few types every crate shares: sequence numbers, time and
//! the seeded generator.
//!
//! Each format has two layers: a lazy view (`Packet<T>`) that checks bounds and nothing else, and a
//! validated `Repr` with `parse` and `emit` that round-trip.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate alloc;

mod bytes;
pub mod checksum;
pub mod error;
pub mod icmp;
pub mod ip;
pub mod mptcp;
pub mod rng;
pub mod seq;
pub mod tcp;
pub mod time;
pub mod udp;

pub use error::Error;
pub use rng::Rng;
pub use seq::{Dsn64, Seq32};
pub use time::Instant;

/// Result of a parse.
pub type Result<T> = core::result::Result<T, Error>;
