//! Measurements and decisions by them: the server for a new connection, and where to rent one.
//!
//! Numbers come in and a decision comes out. A connection, a link's state, or a timer is never here.

pub(crate) mod choice;
pub(crate) mod gauge;
pub mod plan;
pub mod selection;
