//! Connections of the engine as a peer (set-up follows).

mod core;

pub use core::Transfers;
