//! The parts of box and server that need Linux: TUN with GSO/GRO, event loop, netlink, nftables, kernel
//! sockets, and the drivers that run `engine` and `proxy` on them.
//!
//! One thread runs the event loop. Work that may take long has threads of its own, which hand whole messages to
//! the loop: name look-ups, clients of the control socket, saving records, reading a configuration again. They
//! start only after `run::confine` has given up what box and server do not need.
//!
//! **Architecture Invariant:** the only crate with `unsafe`, each use with the reason why it is sound; and no
//! policy.

pub mod check;
pub mod control;
pub mod driver;
pub mod lines;
pub mod net;
pub mod nft;
mod random;
pub mod run;
pub mod selftest;
pub mod sockets;
pub mod store;
pub mod sys;
pub mod tun;

pub use random::random;
