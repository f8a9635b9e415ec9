//! Worlds in virtual time, one concern a file.

mod background;
mod determinism;
mod mptcp_rs;
mod ns2;
mod router;
mod udp;
