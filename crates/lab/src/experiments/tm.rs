//! T-MPTCP: unmodified hosts behind a box, through servers to content (Han et al., IEEE Network,
//! 2021).

mod establishment;
mod handshakes;

pub use establishment::TM_3;
