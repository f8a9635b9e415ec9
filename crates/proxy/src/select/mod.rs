//! Measurements and the decisions based on them: the server for a new connection, and where to rent one.
//!
//! The module maps numbers to decisions. It knows no connection, no link state and no timer.

pub(crate) mod choice;
pub(crate) mod gauge;
pub mod plan;
pub mod selection;
