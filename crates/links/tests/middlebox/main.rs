//! Middleboxes, packet by packet.

mod mtu_limit;
mod nat;
mod rewrite;
mod segment;
mod shape;
