//! Packet formats, sequence numbers, time and seeded randomness of Multipath TCP.
#![doc = include_str!("../README.md")]
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

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

/// The result of parsing.
pub type Result<T> = core::result::Result<T, Error>;
