//! Addresses, routes, rules and settings of the kernel. Together they send each subflow out of its link.

pub mod cleanup;
mod error;
mod instance_names;
pub mod internet;
pub mod link;
pub mod links;
pub mod netlink;
pub mod routes;
pub mod shortcut;
pub mod sysctl;

pub use error::{Result, SystemError};
pub use instance_names::InstanceNames;
