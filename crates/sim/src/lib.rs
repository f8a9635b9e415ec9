//! A deterministic world in virtual time, in which the engine that carries real packets runs
//! unchanged.
//!
//! Time is an integer number of nanoseconds. Events are ordered by (time, sequence number). Each
//! component draws from a stream of its own, derived from (seed, component id), so that adding a
//! link does not disturb the others: the same seed and the same build give the same run, byte for
//! byte.
//!
//! A [`World`] is a list of [nodes](Node) and a list of links; the lists are the topology. A [`Tap`]
//! watches the packets of a link.
#![forbid(unsafe_code)]

pub mod aggregation;
pub mod background;
pub mod capture;
pub mod gateway;
pub mod hijacker;
pub mod host;
pub mod log;
pub mod middlebox;
pub mod mobility;
pub mod node;
pub mod oracle;
pub mod pcapng;
pub mod profile;
pub mod router;
pub mod tap;
pub mod traffic;
pub mod transfer;
pub mod udp;
pub mod world;

pub use capture::Capture;
pub use host::{Host, HostConfig};
pub use middlebox::MiddleboxNode;
pub use node::{Node, Packet, Turn};
pub use router::{Prefix, Router};
pub use tap::Tap;
pub use transfer::Transfer;
pub use world::{LinkId, NodeId, World};
