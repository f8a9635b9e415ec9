//! Two hosts joined by a link for each path.

mod checksum;
mod faults;
mod hostile;
mod log;
mod middlebox;
mod oracles;
mod support;
mod traffic;
mod transfers;
mod tshark;
