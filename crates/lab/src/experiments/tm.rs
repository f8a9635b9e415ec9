//! The experiments of T-MPTCP: unmodified hosts reach content through a box and an aggregation server (Han
//! et al., IEEE Network, 2021).

pub mod choice;
pub mod establishment;
mod handshakes;
mod servers;
mod simulated;
pub mod speed;
