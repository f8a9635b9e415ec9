//! The parts of box and server that need Linux: TUN with GSO/GRO, event loop, netlink, nftables, kernel
//! sockets, and the drivers that run `engine` and `proxy` on them.

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
