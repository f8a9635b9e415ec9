//! Everything of Braid that touches Linux: TUN with GSO/GRO, event loop, netlink, nftables, the
//! link emulator, network-namespace testbeds, and the drivers that run `engine` and `proxy` on it.

pub mod driver;
pub mod emulator;
pub mod kernel_tcp;
pub mod mptcp_info;
pub mod net;
pub mod netns;
pub mod nft;
pub mod realtime;
pub mod run;
pub mod selftest;
pub mod sockets;
pub mod testbed;
pub mod tun;
