//! Messages of box and server to each other.

pub(crate) mod hints;
pub(crate) mod probe;
pub mod socks;
