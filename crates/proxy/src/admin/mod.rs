//! The operator's view of box and server: status and verdict, requests, counters and log lines, records that are
//! saved over a restart, and the graceful stop.
//!
//! The module has plain data, and computes verdicts from this data alone. It has no state of a running core: the
//! cores fill in the data on request.

pub mod control;
pub(crate) mod drain;
pub(crate) mod judge;
pub mod records;
pub mod report;
pub mod status;
pub mod tunnel_status;
pub mod verdict;
