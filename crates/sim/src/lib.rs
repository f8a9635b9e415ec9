//! A deterministic network simulator. It runs Braid's engine unchanged, in virtual time.
//!
//! Time is an integer number of nanoseconds. Events are ordered by time and sequence number. Each component draws
//! random numbers from a stream of its own, which is seeded by the world's seed and the component's id. Thus the
//! same seed and the same build give the same run, byte for byte, and an added link leaves the random numbers of
//! the other components unchanged.
//!
//! A [`World`] holds [nodes](Node) and the links between them. A [`Tap`] watches the packets of a link.
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
pub mod packet_watch;
pub mod pcapng;
pub mod router;
mod streams;
pub mod tap;
pub mod traffic;
pub mod transfer;
pub mod tunnel_node;
pub mod udp;
mod watched;
pub mod world;

pub use host::{Host, HostConfig};
pub use middlebox::MiddleboxNode;
pub use node::{Node, Packet, Turn};
pub use router::Router;
pub use tap::Tap;
pub use transfer::Transfer;
pub use world::{LinkId, NodeId, World};
