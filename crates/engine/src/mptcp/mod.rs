//! Multipath TCP v1 (RFC 8684): connections made of subflows.

mod close;
mod connection;
mod dss;
mod fallback;
mod handshake;
mod icmp;
mod input;
pub(crate) mod keys;
mod output;
pub(crate) mod subflow;
mod timers;
mod window;

pub(crate) use connection::{Connection, Ctx, Demux, Life, Mode, Path};
pub(crate) use handshake::{capable, join, usable};
pub(crate) use output::{Body, Outgoing};
