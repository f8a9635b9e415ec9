//! The configuration files `box.toml` and `server.toml`.
//!
//! Every setting has a default, except those that describe the network itself (interfaces, servers, keys). Unknown
//! settings are refused. A mistake yields a [`ConfigError`] with file, line, the value read, and what to write
//! instead.
//!
//! The module has no state of a running core, and does not examine the machine: `braid_linux::check` does that.

mod box_config;
mod box_reload;
mod check;
mod common;
mod error;
mod expert;
mod measuring;
mod moved;
pub mod policy;
mod reload;
mod rule;
mod server_config;
mod sites;
mod tunnel;
mod types;

pub use crate::relay::RelayTimeouts;
pub use box_config::{
    AUTO, BoxConfig, BoxLimits, BoxTimeouts, Gateway, LinkConfig, MptcpHosts, Probing, Quic,
    ServerEntry, Warm,
};
pub use braid_units::ConfigError;
pub use check::{Finding, Verdict, key_file, weigh};
pub use common::{DEFAULT_CONGESTION, DEFAULT_PORT, TunConfig};
pub use measuring::{Measuring, Select};
pub use reload::Changes;
pub use rule::Rule;
pub use server_config::{ServerConfig, ServerLimits, ServerTimeouts, UserConfig};
pub use sites::sites_from_toml;
pub use tunnel::{Datagrams, TunnelPools};
pub use types::Protection;
