//! The tunnel between box and server: IP packets in encrypted UDP datagrams over all paths.
//!
//! A [`Tunnel`] is one end of a session with one peer. The crate is sans-IO: the caller passes time, randomness,
//! packets and datagrams, and the same calls with the same seed give the same datagrams. Keys come from elsewhere
//! ([`Secrets`]).
//!
//! Four kinds of calls:
//!
//! - commands: [`Tunnel::install_keys`], [`Tunnel::add_path`], [`Tunnel::send`] …
//! - [`Tunnel::receive`] for each datagram;
//! - outputs, to be drained after every other call: [`Tunnel::poll_transmit`] and [`Tunnel::poll_delivery`];
//! - [`Tunnel::next_timeout`] and [`Tunnel::handle_timeout`].
#![forbid(unsafe_code)]

mod config;
mod error;
pub mod frame;
mod header;
mod replay;
mod seal;
mod tunnel;

pub use braid_engine::{PathId, Urgency};
pub use config::{Config, Mode, PathConfig, PathState, Role};
pub use error::{DatagramError, SendError};
pub use header::{Header, SessionId};
pub use seal::{Secrets, Suite};
pub use tunnel::{PathStats, Stats, Transmit, Tunnel};
