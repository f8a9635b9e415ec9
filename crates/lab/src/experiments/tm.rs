//! T-MPTCP: unmodified hosts behind a box, through servers to content (Han et al., IEEE Network, 2021).

mod choice;
mod establishment;
mod handshakes;
mod servers;
mod simulated;
mod speed;

pub use choice::TM_1;
pub use establishment::TM_3;
pub use speed::{TM_5A, TM_5B};
