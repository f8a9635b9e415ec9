//! Box and server as their operator sees and handles them.

pub mod control;
pub(crate) mod drain;
pub(crate) mod judge;
pub mod records;
pub mod report;
pub mod status;
pub mod verdict;
