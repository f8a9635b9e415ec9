//! Measurements, and the decisions based on them: which server a new connection uses, and where to rent servers.
//!
//! The module maps numbers to decisions. It has no access to connections, links and timers.

pub(crate) mod choice;
pub(crate) mod gauge;
pub mod plan;
pub mod selection;
