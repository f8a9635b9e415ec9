//! Addresses, routes, rules and settings of the kernel: what sends each subflow out of its link.

mod error;
mod identity;
pub mod netlink;
pub mod routes;
pub mod sysctl;

pub use error::{Result, SystemError};
pub use identity::{Identity, MAX_NAME_LEN};
