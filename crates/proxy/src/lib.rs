//! Aggregation box and aggregation server as sans-I/O cores.
//!
//! A core sits between the engine's [`Stack`](braid_engine::Stack) and
//! [`DownstreamSockets`](app::DownstreamSockets): kernel sockets on Linux, the engine's plain TCP in the
//! simulator.

mod admin;
pub mod app;
pub mod config;
mod gateway;
mod protocol;
mod relay;
mod select;
mod server;
mod tunnel;
mod uplink;

pub use admin::drain::Drain;
pub use admin::{control, records, report, status, tunnel_status, verdict};
pub use config::{BoxConfig, ConfigError, ServerConfig, policy};
pub use gateway::BoxCore;
pub use protocol::hints::FlowHints;
pub use protocol::socks;
pub use relay::sniff;
pub use select::{plan, selection};
pub use server::{Routes, ServerCore};
pub use uplink::{LinkAddresses, Notice, trial};
