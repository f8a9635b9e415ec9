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

mod address;
mod arrivals;
mod classify;
mod codel;
mod config;
mod control;
mod datagram;
mod error;
mod estimate;
pub mod frame;
mod frontier;
mod header;
mod incoming;
mod marks;
mod others;
mod outgoing;
mod pacer;
mod path;
mod pmtu;
mod policy;
mod pool;
mod rate;
mod reassembly;
mod reorder;
mod replay;
mod seal;
mod send_flow;
mod sharing;
mod stats;
mod steer;
mod transmit;
mod trial;
mod tunnel;
mod usage;
mod window;

pub use braid_engine::{PathId, PathLoad, Urgency};
pub use config::{Config, MAX_FLOWS, MAX_PATHS, Mode, PathConfig, PathState, Role, Suite};
pub use error::{DatagramError, SendError};
pub use header::{Header, SessionId};
pub use policy::FlowPolicy;
pub use seal::Secrets;
pub use sharing::{Measured, PathUse};
pub use stats::{FlowPathStats, FlowStats, FlowTreatment, PathStats, Stats};
pub use tunnel::{Transmit, Tunnel};
