//! Aggregation box and aggregation server as sans-IO cores.
//!
//! One side of a core is the engine's [`Stack`](braid_engine::Stack), the other
//! [`LocalStreams`](braid_engine::app::LocalStreams): kernel sockets on Linux, the engine's plain
//! TCP in the simulator.

mod box_core;
pub mod config;
pub mod control;
mod drain;
mod hints;
mod intake;
mod judge;
pub mod plan;
pub mod policy;
mod probe;
pub mod records;
mod relay;
pub mod report;
pub mod selection;
mod server_core;
pub mod sniff;
pub mod socks;
pub mod status;
pub mod streams;
mod table;
pub mod trial;
mod upstream;
pub mod verdict;

pub use box_core::BoxCore;
pub use config::{BoxConfig, ConfigError, ServerConfig};
pub use drain::Drain;
pub use hints::FlowHints;
pub use server_core::{Routes, ServerCore};
pub use upstream::{LinkAddresses, Notice};
