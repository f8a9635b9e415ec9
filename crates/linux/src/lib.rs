//! Everything of Braid that touches Linux: TUN with GSO/GRO, event loop, netlink, nftables, the
//! link emulator, network-namespace testbeds, and the drivers that run `engine` and `proxy` on it.

pub mod emulator;
pub mod mptcp_info;
pub mod netns;
pub mod testbed;
