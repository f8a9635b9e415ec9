//! The experiments of T-MPTCP: unmodified hosts reach content through a box and an aggregation server (Han
//! et al., IEEE Network, 2021).

mod choice;
mod establishment;
mod handshakes;
mod servers;
mod simulated;
mod speed;

pub use choice::TM_1;
pub use establishment::TM_3;
pub use speed::{TM_5A, TM_5B};
