//! Two stacks joined by model links, in virtual time.

mod basic;
mod data_level;
mod fallback;
mod faults;
mod hostile;
mod net;
mod oracle;
mod strategy;
mod swarm;
