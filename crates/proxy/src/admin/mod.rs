//! The operator's view of box and server: status and verdict, requests, counters and log lines, records kept over
//! a restart, and the graceful stop.
//!
//! The module has plain data, and judgements based on it alone. It holds no state of a running core: the cores
//! fill the data in on request.

pub mod control;
pub(crate) mod drain;
pub(crate) mod judge;
pub mod records;
pub mod report;
pub mod status;
pub mod verdict;
