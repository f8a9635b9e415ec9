//! Middleboxes, packet by packet.

mod narrow;
mod nat;
mod rewrite;
mod segment;
mod shape;
