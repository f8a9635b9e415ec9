//! Box and server as their operator sees and handles them: status and verdict, requests, counters and log
//! lines, what is kept over a restart, and how a core ends.
//!
//! Here is plain data, and what is judged from it alone. The state of a running core is never here: the cores fill
//! this in when somebody asks.

pub mod control;
pub(crate) mod drain;
pub(crate) mod judge;
pub mod records;
pub mod report;
pub mod status;
pub mod verdict;
