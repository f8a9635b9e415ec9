//! Two hosts joined by a link for each path.

mod addresses;
mod checksum;
mod ecn;
mod fast_open;
mod faults;
mod hostile;
mod log;
mod memory;
mod middlebox;
mod mtu;
mod oracles;
mod support;
mod traffic;
mod transfers;
mod tshark;
