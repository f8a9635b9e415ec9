//! The parts of box and server that need Linux: TUN devices with segmentation offload, the event loop, netlink,
//! nftables and kernel sockets. They run the crates `engine` and `proxy`.
//!
//! One thread runs the event loop. Work that may take long has threads of its own, which pass complete messages
//! to the loop: name look-ups, serving clients of the control socket, saving records, and reading a
//! configuration again. These threads start only after `run::confine` has given up the privileges that box and
//! server do not need.
//!
//! **Architecture Invariant:** this is the only crate with `unsafe` code, and each use says why it is sound. The
//! crate has mechanisms only: decisions about traffic are made in `engine` and `proxy`.

pub mod check;
pub mod control;
pub mod driver;
pub mod lines;
pub mod net;
pub mod nft;
mod random;
mod rate_limit;
pub mod run;
pub mod selftest;
pub mod session;
pub mod sockets;
pub mod store;
pub mod sys;
pub mod tun;
pub mod tunnel;

pub use random::random;
